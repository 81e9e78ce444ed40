"""What is measured in a torch wheel, on wheels made here."""

from __future__ import annotations

import pytest

from envsmith.base.schema import parse_value, to_json
from envsmith.errors import NetworkError
from envsmith.lock.index.index import IndexFile
from envsmith.lock.index.torch_wheel import (
    TorchFacts,
    cxx11_abi,
    glibc_floor,
    linux_wheels,
    newest_glibc,
    pythons_of,
    read_torch_wheel,
    search_flags,
)
from envsmith.model.cell import Platform

NEW_ABI = b"\0_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE\0"
OLD_ABI = b"\0_ZN3c105ErrorC1ENS_14SourceLocationESs\0"
METADATA = b"""Metadata-Version: 2.1
Name: torch
Version: 2.16.0
Requires-Python: >=3.11
Requires-Dist: nvidia-nccl-cu13==2.32.3; platform_system == "Linux"
Requires-Dist: triton~=3.10.0; platform_system == "Linux"
"""


def _file(filename, sha256="a" * 64, **more):
    return IndexFile(filename=filename, url=f"https://index.test/{filename}", version="2.16.0", sha256=sha256, **more)


def _wheel(make_wheel, **other):
    members = {
        "torch/version.py": b"from typing import Optional\n__version__ = '2.16.0+cu135'\ndebug = False\ncuda: Optional[str] = '13.5'\ngit_version = 'abc'\n",
        "torch/lib/libc10.so": NEW_ABI + b"\0GLIBC_2.17\0GLIBC_2.3.4\0",
        "torch/lib/libgomp.so.1": b"\0GLIBC_2.27\0",
        "torch/lib/libtorch_python.so": b"\x7fELF"
        + b"\1" * 300_000
        + b"\0sm_75 sm_90 sm_120 compute_120\0"
        + b"\2" * 900_000,
        "torch-2.16.0.dist-info/METADATA": METADATA,
    }
    return make_wheel({**members, **other})


def test_a_wheel_is_measured_without_being_run(fetcher, make_wheel):
    file = _file("torch-2.16.0-cp311-cp311-manylinux_2_28_x86_64.whl", uploaded="2026-12-02T00:00:00Z")
    later = _file("torch-2.16.0-cp312-cp312-manylinux_2_28_x86_64.whl", uploaded="2026-12-01T23:00:00Z")
    fetcher.files[file.url] = _wheel(make_wheel)
    facts = read_torch_wheel(fetcher, file, [file, later], Platform.LINUX_64)
    assert (facts.local_version, facts.cuda, facts.git_version, facts.date) == (
        "2.16.0+cu135",
        "13.5",
        "abc",
        "2026-12-01",
    )
    assert facts.arch_flags == ("sm_75", "sm_90", "sm_120", "compute_120")
    assert (facts.glibc, facts.cxx11_abi, facts.requires_python) == ("2.27", True, ">=3.11")
    assert facts.tags == ("cp311-cp311-manylinux_2_28_x86_64", "cp312-cp312-manylinux_2_28_x86_64")
    assert parse_value(TorchFacts, to_json(facts)) == facts


def test_a_cpu_wheel_has_no_architectures(fetcher, make_wheel):
    file = _file("torch-2.16.0-cp311-cp311-manylinux_2_28_aarch64.whl")
    fetcher.files[file.url] = _wheel(make_wheel, **{"torch/version.py": b"__version__ = '2.16.0+cpu'\ncuda = None\n"})
    facts = read_torch_wheel(fetcher, file, [file], Platform.LINUX_AARCH64)
    assert (facts.cuda, facts.arch_flags) == (None, ())


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("torch/version.py", b"def (", "names no version"),
        ("torch/version.py", b"(" * 5000, "names no version"),
        ("torch-2.16.0.dist-info/METADATA", b"Name: torch\n", "no project or no version"),
        ("torch-2.16.0.dist-info/METADATA", b"Name: torch\nVersion: 1.0\n", "says version 1.0"),
    ],
)
def test_a_wheel_that_contradicts_itself_is_refused(fetcher, make_wheel, member, content, message):
    file = _file("torch-2.16.0-cp311-cp311-manylinux_2_28_x86_64.whl")
    fetcher.files[file.url] = _wheel(make_wheel, **{member: content})
    with pytest.raises(NetworkError, match=message):
        read_torch_wheel(fetcher, file, [file], Platform.LINUX_64)


def test_nothing_is_measured_in_a_file_without_a_hash(fetcher, make_wheel):
    file = _file("torch-2.16.0-cp311-cp311-manylinux_2_28_x86_64.whl", sha256=None)
    with pytest.raises(NetworkError, match="no sha256"):
        read_torch_wheel(fetcher, file, [file], Platform.LINUX_64)


@pytest.mark.parametrize("cut", range(1, 40))
def test_flags_are_found_wherever_a_chunk_ends(cut):
    body = b"x" * 10 + b"\0sm_70 sm_75 sm_90a compute_90\0rest"
    chunks = [body[i : i + cut] for i in range(0, len(body), cut)]
    assert search_flags(chunks)[0] == ("sm_70", "sm_75", "sm_90a", "compute_90")


def test_flags_may_follow_another_string_without_a_zero_byte():
    assert search_flags([b"std::string ipc_hsm_70 sm_75 sm_80\0\0\0"])[0] == ("sm_70", "sm_75", "sm_80")


def test_a_single_name_in_a_message_is_not_a_list_of_flags():
    assert search_flags([b"\0needs sm_90\0", b"kernel_sm_80\0"])[0] == ()
    assert search_flags([b"\0sm_90\0"])[0] == ("sm_90",)


@pytest.mark.parametrize(
    ("library", "expected"), [(NEW_ABI, True), (OLD_ABI, False), (b"\0_ZN3c104Foo3barEv\0", None), (b"", None)]
)
def test_the_abi_shows_in_the_names_of_functions(library, expected):
    assert cxx11_abi(library) is expected


def test_the_newest_glibc_is_by_number_not_by_text():
    assert newest_glibc(b"\0GLIBC_2.9\0GLIBC_2.17\0GLIBC_2.2.5\0GLIBCXX_3.4.29\0") == "2.17"
    assert newest_glibc(b"none") is None


def test_wheels_are_sorted_by_platform_python_and_build():
    names = [
        "torch-2.16.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "torch-2.16.0-cp39-cp39-manylinux_2_28_x86_64.whl",
        "torch-2.16.0-cp313-cp313t-manylinux_2_28_x86_64.whl",
        "torch-2.16.0-3-cp39-cp39-manylinux_2_28_x86_64.whl",
        "torch-2.16.0-cp312-cp312-win_amd64.whl",
        "torch-2.16.0-cp312-none-macosx_11_0_arm64.whl",
        "torch-2.16.0-cp310-cp310-manylinux2014_aarch64.whl",
        "torch-2.16.0-py3-none-any.whl",
    ]
    found = linux_wheels(map(_file, names))
    assert [f.filename for f in found[Platform.LINUX_64]] == [names[3], names[1], names[0], names[2]]
    assert [f.filename for f in found[Platform.LINUX_AARCH64]] == [names[6]]


def test_pythons_leave_free_threaded_builds_out():
    assert pythons_of(["cp313-cp313t-x", "cp310-cp310-x", "cp39-cp39-x", "cp37-cp37m-x"]) == ["3.7", "3.9", "3.10"]


def test_a_stable_abi_wheel_serves_every_later_python():
    assert pythons_of(["cp311-cp311-x", "cp312-abi3-x", "cp315-cp315t-x"]) == ">=3.11"
    assert pythons_of(["cp39-cp39-x", "cp312-abi3-x"]) == ">=3.12"


@pytest.mark.parametrize(
    ("tag", "floor"),
    [
        ("cp310-cp310-manylinux1_x86_64", (2, 5)),
        ("cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64", (2, 17)),
        ("cp310-cp310-linux_x86_64", None),
    ],
)
def test_the_platform_tag_promises_a_glibc(tag, floor):
    assert glibc_floor([tag]) == floor


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"version": 1},
        {"version": "1", "platform": "linux-64", "filename": "x", "sha256": "y", "tags": "no"},
    ],
)
def test_stored_facts_of_another_shape_are_refused(data):
    with pytest.raises(ValueError):
        parse_value(TorchFacts, data)
