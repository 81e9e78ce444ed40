"""What the dynamic linker sees of a compiled file, held against gcc."""

from __future__ import annotations

import contextlib
import io
import platform
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.errors import ContentError
from envsmith.knowledge.symbols.elf import read_binary


def test_what_a_library_exports_needs_and_may_lack_are_told_apart(compile_library):
    _, binary = compile_library(
        "liba",
        """
        extern int from_torch(void);
        extern int perhaps(void) __attribute__((weak));
        static int inside(void) { return 1; }
        __attribute__((visibility("hidden"))) int hidden(void) { return 2; }
        int offered(void) { return from_torch() + inside() + (perhaps ? perhaps() : 0); }
        """,
    )
    assert binary.exports == {"offered"}
    assert "from_torch" in binary.needs
    assert "perhaps" in binary.optional
    assert "perhaps" not in binary.needs
    assert binary.soname == "liba.so"
    assert binary.machine == platform.machine()


def test_symbols_of_the_c_library_are_no_needs_and_their_newest_version_is_known(compile_library):
    _, binary = compile_library(
        "libb", '#include <stdio.h>\nvoid show(void) { printf("%d", 1); }', "-Wl,--no-as-needed", "-lm"
    )
    assert "printf" not in binary.needs
    assert binary.versions["GLIBC"].startswith("2.")
    assert "libm.so.6" in binary.libraries


def test_a_library_without_section_headers_is_read_all_the_same(compile_library):
    path, before = compile_library("libc", "extern int other(void); int mine(void) { return other(); }")
    data = bytearray(path.read_bytes())
    data[0x28:0x30] = bytes(8)  # e_shoff
    data[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
    after = read_binary(io.BytesIO(bytes(data)), "libc.so")
    assert (after.exports, after.needs) == (before.exports, before.needs)


def _entry(kind, capability, size):
    return struct.pack("<HHIQIIHHI", kind, 0, 64, size, 0, 0, 0, 0, capability).ljust(64, b"\0") + bytes(size)


def test_gpu_code_is_listed_by_compute_capability(compile_library, tmp_path):
    entries = _entry(2, 80, 24) + _entry(2, 90, 8) + _entry(1, 90, 16)
    fatbin = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries
    (tmp_path / "fat.bin").write_bytes(fatbin + bytes(8) + fatbin)
    _, binary = compile_library(
        "libd",
        f'__asm__(".section .nv_fatbin,\\"a\\"\\n.incbin \\"{tmp_path / "fat.bin"}\\"\\n.text"); int x(void) {{ return 0; }}',
    )
    assert binary.sass == {80, 90}
    assert binary.ptx == {90}


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF" + bytes(60), b"import os\n" * 40])
def test_what_is_not_a_compiled_file_is_refused(data):
    with pytest.raises(ContentError, match=r"Cannot read x\.so: it is not a compiled file of Linux"):
        read_binary(io.BytesIO(data), "x.so")


def test_a_damaged_library_is_read_or_refused_and_nothing_else(compile_library):
    path, _ = compile_library("libe", "extern int other(void); int mine(void) { return other(); }")
    whole = path.read_bytes()

    @settings(max_examples=150, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), min_size=1, max_size=12))
    def damage(changes):
        data = bytearray(whole)
        for place, value in changes:
            data[place] = value
        with contextlib.suppress(ContentError):
            read_binary(io.BytesIO(bytes(data)), "libe.so")

    damage()
