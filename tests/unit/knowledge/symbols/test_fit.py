"""Whether a wheel links with a build: the rule of the dynamic linker, held against the dynamic linker itself."""

from __future__ import annotations

import ctypes

import pytest

from envsmith.knowledge.symbols.elf import Binary
from envsmith.knowledge.symbols.fit import FAILS, LINKS, UNKNOWN, fits, needs_of
from envsmith.knowledge.symbols.table import SymbolTable
from envsmith.matrix.refresh.linking import build_exports, with_builds

BASE = ("libc10.so", "libtorch_cpu.so")


def table_of(folder, **builds):
    exports = []
    for number, (version, (symbols, libraries)) in enumerate(builds.items()):
        build = {
            "version": f"2.{number}.0+{version}",
            "platform": "linux-64",
            "file": "f",
            "sha256": "0",
            "date": "2026-11-22",
        }
        exports.append(build_exports(build, libraries, [Binary("x86_64", exports=frozenset(symbols))]))
    (folder / "torch.bin").write_bytes(with_builds(None, exports))
    return SymbolTable(folder)


def wheel(*binaries):
    return needs_of("x-1.0.whl", None, [(f"x/{n}.so", b) for n, b in enumerate(binaries)])


def test_one_symbol_that_is_missing_is_an_import_that_fails(tmp_path):
    table = table_of(tmp_path, cpu=(["_ZN2at1aEv"], BASE), cu121=(["_ZN2at1aEv", "_ZN2at1bEv"], BASE))
    old, new = fits(wheel(Binary("x86_64", needs=frozenset(["_ZN2at1aEv", "_ZN2at1bEv"]))), table)
    assert (old.verdict, old.first, old.missing[0].member) == (FAILS, "_ZN2at1bEv", "x/0.so")
    assert (new.verdict, new.missing) == (LINKS, ())


def test_a_symbol_that_another_file_of_the_wheel_exports_is_not_missing(tmp_path):
    table = table_of(tmp_path, cpu=([], BASE))
    own = Binary("x86_64", exports=frozenset(["_ZN2at3ownEv"]))
    (fit,) = fits(wheel(Binary("x86_64", needs=frozenset(["_ZN2at3ownEv"])), own), table)
    assert fit.verdict == LINKS


@pytest.mark.parametrize(
    ("library", "verdict"),
    [
        ("libc10_cuda.so", FAILS),
        ("libcudart.so.11.0", FAILS),
        ("libcudart.so.12", LINKS),
        ("libavcodec.so.58", UNKNOWN),
        ("libcusparseLt.so.0", UNKNOWN),
        ("libstdc++.so.6", LINKS),
        ("libcuda.so.1", LINKS),
    ],
)
def test_libraries_are_torch_s_cuda_s_the_system_s_or_unclear(tmp_path, library, verdict):
    table = table_of(tmp_path, cu121=([], (*BASE, "libcudart.so.12")))
    (fit,) = fits(wheel(Binary("x86_64", libraries=(library,))), table)
    assert fit.verdict == verdict


def test_a_wheel_of_another_machine_is_not_judged_by_builds_of_this_one(tmp_path):
    assert fits(wheel(Binary("aarch64")), table_of(tmp_path, cpu=([], BASE))) == []


def test_the_prediction_is_what_the_dynamic_linker_does(tmp_path, compile_library):
    _, small = compile_library("libtorch_small", "int torch_first(void) { return 1; }")
    _, large = compile_library(
        "libtorch_large", "int torch_first(void) { return 1; } int torch_second(void) { return 2; }"
    )
    path, extension = compile_library(
        "extension", "extern int torch_second(void); int run(void) { return torch_second(); }"
    )
    table = table_of(tmp_path, cpu=(small.exports, BASE), cu121=(large.exports, BASE))

    predicted = [fit.verdict for fit in fits(wheel(extension), table)]

    ctypes.CDLL(str(tmp_path / "libtorch_small.so"), mode=ctypes.RTLD_GLOBAL)
    with pytest.raises(OSError, match="undefined symbol: torch_second"):
        ctypes.CDLL(str(path))
    ctypes.CDLL(str(tmp_path / "libtorch_large.so"), mode=ctypes.RTLD_GLOBAL)
    assert ctypes.CDLL(str(path)).run() == 2
    assert predicted == [FAILS, LINKS]
