"""A wheel held against versions."""

from __future__ import annotations

import pytest

from envsmith.knowledge.symbols.elf import Binary
from envsmith.knowledge.symbols.fit import needs_of
from envsmith.knowledge.symbols.judge_wheel import judge_wheel
from envsmith.knowledge.symbols.system_libraries import system_libraries
from envsmith.knowledge.symbols.table import SymbolTable
from envsmith.matrix.refresh.linking import build_exports, with_builds
from envsmith.model.cell import Platform
from envsmith.model.rule import Severity

FILE = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.fixture
def judge(tmp_path):
    exports = []
    for version, symbols in (("2.0.0+cu117", ["_ZN2at1aEv"]), ("2.1.0+cu121", ["_ZN2at1aEv", "_ZN2at1bEv"])):
        build = {
            "version": version,
            "platform": "linux-64",
            "file": "torch.whl",
            "sha256": "0" * 64,
            "date": "2026-11-22",
        }
        exports.append(build_exports(build, ["torch/lib/libc10.so"], [Binary("x86_64", exports=frozenset(symbols))]))
    (tmp_path / "torch.bin").write_bytes(with_builds(None, exports))

    def judge_(
        stated, *, file=FILE, needs=("_ZN2at1aEv", "_ZN2at1bEv"), platform=Platform.LINUX_64, host=None, **fields
    ):
        binary = Binary("x86_64", needs=frozenset(needs), **fields)
        wheel = needs_of(file, None, [("demo/_C.so", binary)])
        return judge_wheel(wheel, stated, platform, SymbolTable(tmp_path), host)

    return judge_


def test_a_torch_without_a_symbol_is_an_error_that_names_it_and_the_releases_that_have_it(judge):
    (finding,) = judge({"torch": "2.0.0"}).findings
    assert finding.severity is Severity.ERROR
    assert "_ZN2at1bEv (in demo/_C.so) is in no library of this build" in finding.message
    assert finding.components == {"torch": "2.0.0+cu117"}
    assert finding.needs == {"torch": ">=2.1.0"}
    assert finding.fix.startswith("Use torch >=2.1.0, or a wheel that was built for torch 2.0")


def test_a_torch_that_has_every_symbol_is_said_to(judge):
    answer = judge({"torch": "2.1.0+cu121"})
    assert not answer.is_bad
    assert "exports all 2 symbols" in answer.findings[0].message


def test_a_build_that_nobody_measured_is_unknown_and_the_nearest_is_told(judge):
    answer = judge({"torch": "2.1.0+cu118"})
    assert answer.findings == ()
    assert "2.1.0+cu118: that build was not measured (with 2.1.0+cu121 it links)" in answer.unknown[0]


def test_without_a_torch_the_releases_that_fit_are_listed(judge):
    assert "links with torch >=2.1.0 (2 builds were measured)" in judge({}).findings[0].message


def test_a_wheel_that_no_build_fits_is_an_error(judge):
    assert "links with none of the 2 builds" in judge({}, needs=["_ZN2at7nowhereEv"]).findings[0].message


@pytest.mark.parametrize(
    ("versions", "fields", "text"),
    [
        ({"python": "3.12.1"}, {}, "Python 3.12.1 cannot install it: it is for cp311-cp311"),
        ({"python": "3.11.4"}, {}, None),
        ({"glibc": "2.17"}, {"versions": {"GLIBC": "2.28"}}, "it needs glibc 2.28, and 2.17 is installed"),
        ({"glibc": "2.28"}, {"versions": {"GLIBC": "2.28"}}, None),
        ({"gpu": "sm_90"}, {"sass": frozenset({80, 86})}, "it has no code for sm_90: it was built for sm_80, sm_86"),
        ({"gpu": "sm_89"}, {"sass": frozenset({80, 86})}, None),
        ({"gpu": "sm_90"}, {"sass": frozenset({80}), "ptx": frozenset({80})}, None),
        ({"gpu": "sm_80"}, {"sass": frozenset({86})}, "it has no code for sm_80"),
        ({"gpu": "sm_90"}, {}, None),
        ({"driver": "none"}, {"libraries": ("libcuda.so.1",)}, "it is linked with the NVIDIA driver"),
        ({"driver": "550.54.14"}, {"libraries": ("libcuda.so.1",)}, None),
    ],
)
def test_python_glibc_and_gpu_are_held_against_the_files(judge, versions, fields, text):
    messages = [
        f.message for f in judge({"torch": "2.1.0", **versions}, **fields).findings if f.severity is Severity.ERROR
    ]
    assert [text in message for message in messages] == ([True] if text else [])


@pytest.mark.parametrize(
    ("file", "python", "bad"),
    [
        ("demo-1.0-cp39-abi3-manylinux_2_28_x86_64.whl", "3.12", False),
        ("demo-1.0-cp312-abi3-manylinux_2_28_x86_64.whl", "3.11", True),
        ("demo-1.0-py3-none-manylinux_2_28_x86_64.whl", "3.13", False),
        ("demo-1.0-cp313-cp313t-manylinux_2_28_x86_64.whl", "3.12", True),
    ],
)
def test_stable_and_pure_tags_are_understood(judge, file, python, bad):
    assert judge({"python": python, "torch": "2.1.0"}, file=file).is_bad is bad


def test_a_wheel_of_another_machine_is_an_error_and_nothing_else_is_judged(judge):
    (finding,) = judge({"torch": "2.0.0"}, platform=Platform.LINUX_AARCH64).findings
    assert "compiled for x86_64, not aarch64" in finding.message


def test_a_libstdcxx_that_ends_too_early_is_an_error_with_what_has_the_version(judge):
    needs = {"GLIBC": "2.28", "CXXABI": "1.3.13", "GLIBCXX": "3.4.30"}

    (finding,) = errors_of(judge({"torch": "2.1.0"}, host=system_libraries().host("Ubuntu 20.04"), versions=needs))

    assert finding.message == f"{FILE}: it needs GLIBCXX_3.4.30 of GCC 12.1, and Ubuntu 20.04 has 3.4.28."
    assert finding.fix.startswith("Install conda-forge's libstdcxx-ng>=12.1 and put its lib folder first")
    assert "(Ubuntu 22.04, Debian 12, RHEL 10, Amazon Linux 2023)" in finding.fix


def test_a_newer_libstdcxx_than_that_of_the_system_counts(judge):
    host = system_libraries().host("Ubuntu 20.04", glibcxx="3.4.30")

    assert not errors_of(judge({"torch": "2.1.0"}, host=host, versions={"GLIBCXX": "3.4.30"}))


def test_without_a_system_those_that_have_all_of_it_are_listed(judge):
    messages = [f.message for f in judge({}, versions={"GLIBC": "2.34", "GLIBCXX": "3.4.22"}).findings]

    systems = "Ubuntu 22.04, Debian 12, RHEL 9, Amazon Linux 2023"
    assert (
        f"{FILE}: it needs glibc 2.34, GLIBCXX_3.4.22. The oldest systems that have all of it: {systems}." in messages
    )


def test_a_tag_that_promises_less_than_the_files_need_is_noted(judge):
    messages = [f.message for f in judge({"glibc": "2.35"}, versions={"GLIBC": "2.34"}).findings]

    assert f"{FILE}: its tag promises less than it needs: glibc 2.34." in messages


def errors_of(answer):
    return [finding for finding in answer.findings if finding.severity is Severity.ERROR]
