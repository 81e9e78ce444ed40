"""Base images and packages of distributions: pinned by digest and exact version, with evidence."""

from __future__ import annotations

import dataclasses
import json

import pytest

from envsmith.builder.engines.bases import Bases, OsAnswer, UnknownImageError, asked_image, known_image, load_bases
from envsmith.builder.image.dockerfile import package_digest, render
from envsmith.errors import DataError, EngineError, UsageError
from envsmith.knowledge.graph.fields import load_table
from envsmith.knowledge.graph.runtime import load_runtime, needs_of
from envsmith.model.cell import Platform
from envsmith.model.lock import BaseImage, OsPackage, parse_lock
from envsmith.net.oci import registry

BASES = load_bases()
LOCAL = BaseImage(
    name="x", digest="sha256:" + "1" * 64, origin="local", python="/usr/bin/python3", distribution="bookworm"
)


class Provider:
    """An engine that makes images, in the seven lines that matter."""

    name = "fake"

    def __init__(self, base=LOCAL, has=True):
        self.base, self.has, self.asked = base, has, []

    def has_base(self, base):
        return self.has

    def base_for(self, python, wanted, *, progress):
        self.asked.append((python, wanted))
        return self.base

    def os_packages(self, base, install, *, progress):
        self.asked.append(install)
        return OsAnswer(packages=(OsPackage(name="g++", version="1"),), source="mirror 2026-11-21")


def unpinned(lock):
    return dataclasses.replace(lock, base=None, os_packages=())


def test_every_known_image_is_pinned_by_a_digest_with_evidence():
    assert {i.python for i in BASES.images} == {"3.10", "3.11", "3.12", "3.13"}
    assert all(i.evidence for i in BASES.images)
    assert len({i.digest for i in BASES.images}) == len(BASES.images)


def test_every_closure_contains_what_it_installs():
    assert all(set(p.install) <= set(p.closure) for p in BASES.packages)


def test_a_compiler_for_c_plus_plus_includes_one_for_c(locks):
    lock = dataclasses.replace(locks.deepspeed(), pins=(*locks.deepspeed().pins, locks.pin("triton", "3.7.1", "torch")))
    assert needs_of(lock, load_runtime()) == ("c++", "headers")


def test_a_cell_without_anything_that_compiles_needs_nothing(locks):
    assert needs_of(locks.megatron(), load_runtime()) == ()


def test_triton_brings_the_compiler_that_the_frameworks_bring(locks):
    """The layer of packages is then the same in all cells of one torch."""
    lock = locks.megatron()
    lock = dataclasses.replace(lock, pins=(*lock.pins, locks.pin("triton", "3.7.1", "torch")))
    assert needs_of(lock, load_runtime()) == needs_of(locks.deepspeed(), load_runtime()) == ("c++", "headers")


def test_without_an_engine_the_known_digest_and_packages_are_taken(locks):
    lock = known_image(unpinned(locks.deepspeed()))
    assert lock.base.digest == BASES.image("3.12").digest
    assert lock.base.origin == "registry"
    assert OsPackage(name="g++", version="4:12.2.0-3") in lock.os_packages


def test_an_unknown_python_is_said_to_be_unknown(locks):
    lock = locks.deepspeed(python="3.14")
    pinned = known_image(unpinned(lock))
    assert pinned.base is None
    assert "3.14" in pinned.image_note


@pytest.mark.parametrize("platform", Platform)
@pytest.mark.parametrize(("python", "base"), [("3.12", None), ("3.13", "packages"), ("3.11", "packages")])
def test_without_an_engine_a_lock_is_complete_for_each_platform(locks, python, base, platform):
    lock = unpinned(locks.deepspeed(python=python))
    pinned = known_image(dataclasses.replace(lock, cell=dataclasses.replace(lock.cell, platform=platform)), base)
    assert pinned.image_note == ""
    assert "g++" in {package.name for package in pinned.os_packages}
    headers = {name for name in (package.name for package in pinned.os_packages) if name.endswith("-dev")}
    assert (f"libpython{python}-dev" in headers) is (base == "packages")
    assert "FROM" in render(pinned)


def test_a_base_from_packages_is_its_list(locks):
    base = known_image(unpinned(locks.megatron()), "packages").base
    assert (base.origin, base.distribution, base.python) == ("packages", "bookworm", "/usr/bin/python3")
    assert base.digest == package_digest(base.packages)
    assert {"apt", "ca-certificates", "libc6", "python3-venv"} <= {package.name for package in base.packages}


def test_a_package_is_not_both_in_the_base_and_on_top_of_it(locks):
    lock = known_image(unpinned(locks.deepspeed(python="3.11")), "packages")
    assert not {package.name for package in lock.base.packages} & {package.name for package in lock.os_packages}


def test_another_platform_s_packages_are_not_guessed(locks):
    rows = tuple(row for row in BASES.packages if row.platform == "linux-64")
    with pytest.raises(UnknownImageError, match="linux-aarch64"):
        dataclasses.replace(BASES, packages=rows).from_packages("3.11", "linux-aarch64")


def test_a_lock_with_a_base_from_packages_reads_back(locks):
    lock = known_image(unpinned(locks.megatron()), "packages")
    assert parse_lock(lock.text(), where="x").text() == lock.text()
    assert parse_lock(lock.text(), where="x").base.packages == lock.base.packages


@pytest.mark.parametrize("asked", [None, "packages"])
def test_an_engine_without_an_image_takes_the_base_from_packages(asked, locks):
    engine = Provider(base=None)
    lock = asked_image(unpinned(locks.deepspeed(python="3.11")), engine, asked)
    assert lock.base.origin == "packages"
    assert engine.asked == ([("3.11", None)] if asked is None else [])


def test_a_python_that_neither_an_image_nor_packages_have_is_an_error(locks):
    with pytest.raises(EngineError, match=r"Cannot find a base image with Python 3\.9") as caught:
        asked_image(unpinned(locks.deepspeed(python="3.9")), Provider(base=None))
    assert "--base" in caught.value.hint


def test_an_engine_is_asked_for_base_and_packages(locks):
    engine = Provider()
    lock = asked_image(unpinned(locks.deepspeed(python="3.11")), engine)
    assert lock.base == LOCAL
    assert engine.asked == [("3.11", None), ("g++", "libpython3.11-dev")]


def test_a_registry_s_python_brings_its_own_headers(locks):
    engine = Provider(base=dataclasses.replace(LOCAL, python="/usr/local/bin/python3"))
    asked_image(unpinned(locks.deepspeed()), engine)
    assert engine.asked[1] == ("g++",)


def test_a_lock_keeps_its_image_part_while_its_base_is_there(locks):
    engine = Provider(has=True)
    lock = locks.deepspeed()
    assert asked_image(lock, engine) is lock
    assert engine.asked == []


def test_a_base_that_is_gone_is_replaced(locks):
    engine = Provider(has=False)
    assert asked_image(locks.deepspeed(), engine).base == LOCAL


def test_another_base_that_is_asked_for_replaces_the_kept_one(locks):
    engine = Provider(has=True)
    assert asked_image(locks.deepspeed(), engine, "python:3.12-slim-trixie").base == LOCAL
    assert engine.asked[0] == ("3.12", "python:3.12-slim-trixie")


def test_an_official_base_is_resolved_by_its_registry_without_an_engine(locks, monkeypatch):
    monkeypatch.setattr(registry, "resolve_digest", lambda text: "sha256:" + "e" * 64)
    lock = known_image(unpinned(locks.deepspeed()), "python:3.12.14-slim-trixie")
    assert lock.base.digest == "sha256:" + "e" * 64
    assert lock.base.distribution == "trixie"


def test_a_base_by_digest_asks_nobody(locks, monkeypatch):
    monkeypatch.setattr(registry, "resolve_digest", None)
    lock = known_image(unpinned(locks.deepspeed()), "python:3.12-slim-bookworm@sha256:" + "e" * 64)
    assert lock.base.digest == "sha256:" + "e" * 64


@pytest.mark.parametrize(
    "base", ["ubuntu:22.04", "python:3.11-slim-bookworm", "python:3.12-alpine", "example.org/python:3.12-bookworm"]
)
def test_a_base_nobody_can_look_into_is_left_out_with_a_reason(base, locks):
    lock = known_image(unpinned(locks.deepspeed()), base)
    assert lock.base is None
    assert "engine" in lock.image_note


@pytest.mark.parametrize("base", ["x y", "python:3.12; id", "-v", "$(id)", "python@sha256:12"])
def test_a_malformed_base_is_a_usage_error(base, locks):
    with pytest.raises(UsageError):
        known_image(unpinned(locks.deepspeed()), base)


def test_a_need_that_is_unknown_on_every_distribution_is_an_error(locks):
    with pytest.raises(EngineError):
        asked_image(unpinned(locks.deepspeed()), Provider(), bases=dataclasses.replace(BASES, packages=()))


def test_every_problem_of_the_file_is_listed_at_once(tmp_path):
    good = {
        "image": "python:3.12",
        "digest": "sha256:" + "a" * 64,
        "python": "3.12",
        "full": "3.12.14",
        "interpreter": "/usr/bin/python3",
        "distribution": "x1",
        "evidence": "e",
    }
    data = {
        "evidence": {"e": {"kind": "measured", "date": "2026-11-21", "source": "s"}},
        "images": [
            {**good, "digest": "latest"},
            {**good, "evidence": "none"},
            {k: v for k, v in good.items() if k != "python"},
            "text",
        ],
        "distributions": [],
    }
    (tmp_path / "bases.yaml").write_text(json.dumps(data))
    with pytest.raises(DataError) as caught:
        load_table(Bases, "bases.yaml", tmp_path)
    told = "\n".join(caught.value.details)
    for where in (
        "images[0]",
        "images[1]",
        "images[2]: `python` is missing",
        "images[3]: `text`: a mapping",
        "bases.yaml: `packages` is missing",
    ):
        assert where in told


@pytest.mark.parametrize("text", ["- a", "a: [", "\x00", "null"])
def test_a_file_that_is_no_mapping_is_a_data_error(text, tmp_path):
    (tmp_path / "bases.yaml").write_text(text)
    with pytest.raises(DataError):
        load_table(Bases, "bases.yaml", tmp_path)
