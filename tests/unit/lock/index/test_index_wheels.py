"""Compiled wheels of the package index, held against a cell."""

from __future__ import annotations

import hashlib

import pytest
from tiny_index import wheel

from envsmith.lock.index.index import IndexFile, IndexProject
from envsmith.lock.index.index_wheels import index_offers, next_with_wheel
from envsmith.model.cell import Platform
from envsmith.model.wheel import WheelTarget

PAGE = "https://index.test/simple"
TARGET = WheelTarget(python="3.11", torch="2.9.1+cu128", cuda="12.8", platform=Platform.LINUX_64, cxx11_abi=True)


@pytest.fixture
def publish(fetcher):
    """Publish ``(version, tags, requirements)`` as the wheels of a project."""

    def put(*releases: tuple[str, str, list[str]]):
        links = []
        for version, tags, requires in releases:
            data = wheel("ext", version, requires)[1]
            name = f"ext-{version}-{tags}.whl"
            fetcher.files[f"{PAGE}/ext/{name}"] = data
            links.append(f'<a href="{name}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a>')
        fetcher.files[f"{PAGE}/ext/"] = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
        return [(o.wheel.version, o.against) for o in index_offers("ext", TARGET, fetcher, PAGE)]

    return put


def test_the_newest_final_releases_come_first_and_metadata_says_which_torch_they_want(publish):
    tags = "cp39-abi3-manylinux_2_28_x86_64"

    judged = publish(("1.1", tags, ["torch==2.10.0"]), ("1.0", tags, ["torch==2.9.1"]), ("1.2rc1", tags, []))

    assert judged == [("1.1", ("its METADATA asks for torch==2.10.0, not 2.9.1",)), ("1.0", ())]


def test_of_a_release_the_file_against_which_least_speaks_is_shown(publish):
    judged = publish(
        ("1.0", "cp311-cp311-manylinux_2_28_aarch64", []),
        ("1.0", "cp311-cp311-manylinux_2_28_x86_64", []),
        ("1.0", "cp312-cp312-manylinux_2_28_aarch64", []),
    )

    assert judged == [("1.0", ())]


def test_a_release_for_another_platform_says_so(publish):
    assert publish(("1.0", "cp311-cp311-win_amd64", [])) == [
        ("1.0", ("built for win_amd64, not for linux-64",)),
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["x-1.0-cp310-cp310-manylinux_2_17_x86_64.whl", "x-1.0.tar.gz", "x-1.1-cp311-cp311-linux_x86_64.whl"], "1.1"),
        (["x-1.0-cp310-cp310-manylinux_2_17_x86_64.whl", "x-1.1-cp39-abi3-manylinux_2_17_x86_64.whl"], "1.1"),
        (["x-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", "x-1.1-cp311-cp311-linux_x86_64.whl"], None),
        (["x-1.0.tar.gz", "x-1.1-py3-none-any.whl"], None),
        (["x-1.0-py3-none-any.whl", "x-1.0.tar.gz", "x-1.1-cp311-cp311-linux_x86_64.whl"], None),
        (["x-1.0-cp310-cp310-linux_x86_64.whl", "x-1.1-cp311-cp311-win_amd64.whl", "x-1.2.tar.gz"], None),
        (["x-1.0-cp310-cp310-linux_x86_64.whl", "x-1.1rc1-cp311-cp311-linux_x86_64.whl"], None),
    ],
)
def test_the_next_release_with_a_wheel_is_named_only_where_the_release_has_wheels_for_others(files, expected):
    listed = tuple(IndexFile(filename=f, url=f, version=f.split("-")[1].removesuffix(".tar.gz")) for f in files)

    assert next_with_wheel(IndexProject(name="x", files=listed), "1.0", "3.11", Platform.LINUX_64) == expected


def test_a_release_whose_requirements_cannot_be_read_says_so(publish):
    ((_, against),) = publish(("1.0", "cp39-abi3-manylinux_2_28_x86_64", ["torch (>=1"]))

    assert against == ("'torch (>=1' is not a requirement",)
