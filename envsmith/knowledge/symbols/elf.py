"""One compiled file: the symbols that it exports and needs, its libraries, and the GPU code that it carries.

Only what the dynamic linker reads is read, and the headers of the CUDA binaries. pyelftools finds the tables. They are
unpacked here, because libtorch_cpu.so has 75,000 symbols and pyelftools makes several objects of each.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from envsmith.errors import ContentError

if TYPE_CHECKING:
    from elftools.elf.elffile import ELFFile

MAGIC = b"\x7fELF"
# The tables of libtorch_cpu.so 1.13 have 60 MiB. Nothing that was measured comes near the double of that.
_MAX_TABLE = 256 << 20
_SYMBOL = struct.Struct("<IBBHQQ")
_NEED = struct.Struct("<HHIII")
_NEED_VERSION = struct.Struct("<IHHII")
_FATBIN = struct.Struct("<IHHQ")
_FATBIN_MAGIC = 0xBA55ED50
# Kind, header size, size, compute capability: the fields of an entry that are read. The others are skipped.
_FATBIN_ENTRY = struct.Struct("<H2xIQ12xI")
_PTX, _CUBIN = 1, 2
_LOCAL, _WEAK = 0, 2
_VISIBLE = frozenset({0, 3})  # default and protected
_MACHINES = {"x64": "x86_64", "AArch64": "aarch64"}
_LIBC_VERSION = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC)_(\d{1,4}(?:\.\d{1,4}){0,3})")


@dataclass(frozen=True, slots=True)
class Binary:
    """What the dynamic linker sees of one compiled file.

    ``needs`` are the undefined symbols without a version: those of torch, Python and CUDA, not those of the C and C++
    libraries. ``optional`` are the weak ones among them. ``libraries`` is DT_NEEDED. ``versions`` is the newest version
    asked of each of ``GLIBC``, ``GLIBCXX``, ``CXXABI`` and ``GCC``. ``sass`` and ``ptx`` are compute capabilities such
    as ``90``.
    """

    machine: str
    soname: str | None = None
    libraries: tuple[str, ...] = ()
    exports: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    versions: Mapping[str, str] = field(default_factory=dict)
    sass: frozenset[int] = frozenset()
    ptx: frozenset[int] = frozenset()


def read_binary(file: IO[bytes], name: str) -> Binary:
    """Read a seekable file. ``ContentError`` where it is not a 64-bit little-endian ELF file for Linux."""
    from elftools.common.exceptions import ELFError
    from elftools.construct import ConstructError

    try:
        return _Reader(file).read()
    except (ELFError, ConstructError, struct.error, ValueError, KeyError, IndexError, OverflowError, TypeError,
            AttributeError, RecursionError, UnicodeDecodeError) as error:  # fmt: skip
        raise ContentError(
            f"Cannot read {name}: it is not a compiled file of Linux ({type(error).__name__}: {error}).",
            hint="Download the file again.",
        ) from None


class _Reader:
    def __init__(self, file: IO[bytes]) -> None:
        from elftools.elf.dynamic import DynamicSegment
        from elftools.elf.elffile import ELFFile

        self._file = file
        self._elf: ELFFile = ELFFile(file)
        if self._elf.elfclass != 64 or not self._elf.little_endian:
            raise ValueError("it is not for a 64-bit little-endian machine")
        segments = (s for s in self._elf.iter_segments() if isinstance(s, DynamicSegment))
        self._dynamic: Any = next(segments, None)
        if self._dynamic is None:
            raise ValueError("it is not dynamically linked")
        self._tags: dict[str, list[Any]] = {}
        for tag in self._dynamic.iter_tags():
            self._tags.setdefault(str(tag.entry.d_tag), []).append(tag)
        self._strings = self._bytes("DT_STRTAB", int(self._tags["DT_STRSZ"][0].entry.d_val))

    def read(self) -> Binary:
        exports, needs, optional = self._symbols()
        sass, ptx = self._gpu_code()
        return Binary(
            machine=_MACHINES.get(self._elf.get_machine_arch(), "other"),
            soname=next((t.soname for t in self._tags.get("DT_SONAME", ())), None),
            libraries=tuple(t.needed for t in self._tags.get("DT_NEEDED", ())),
            exports=exports,
            needs=needs,
            optional=optional,
            versions=self._library_versions(),
            sass=sass,
            ptx=ptx,
        )

    def _bytes(self, tag: str, size: int) -> bytes:
        """Return the table that a tag of the dynamic section points to."""
        _, offset = self._dynamic.get_table_offset(tag)
        if offset is None or not 0 <= size <= _MAX_TABLE:
            raise ValueError(f"{tag} is missing or too long")
        self._file.seek(offset)
        table = self._file.read(size)
        if len(table) != size:
            raise ValueError(f"{tag} is cut")
        return table

    def _string(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode("ascii")

    def _symbols(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        count = self._dynamic.num_symbols()
        table = self._bytes("DT_SYMTAB", count * _SYMBOL.size)
        versions: tuple[int, ...] = ()
        if "DT_VERSYM" in self._tags:
            versions = struct.unpack(f"<{count}H", self._bytes("DT_VERSYM", 2 * count))
        exports: set[str] = set()
        needs: set[str] = set()
        optional: set[str] = set()
        for number, (name, info, visibility, section, _, _) in enumerate(_SYMBOL.iter_unpack(table)):
            binding = info >> 4
            if not name or binding == _LOCAL or visibility & 3 not in _VISIBLE:
                continue
            if section:
                exports.add(self._string(name))
            elif not versions or versions[number] & 0x7FFF < 2:  # 0 and 1 are symbols without a version
                (optional if binding == _WEAK else needs).add(self._string(name))
        return frozenset(exports), frozenset(needs), frozenset(optional)

    def _library_versions(self) -> dict[str, str]:
        newest: dict[str, tuple[int, ...]] = {}
        for name in self._needed_versions():
            if match := _LIBC_VERSION.fullmatch(name):
                newest[match[1]] = max(newest.get(match[1], ()), tuple(map(int, match[2].split("."))))
        return {library: ".".join(map(str, version)) for library, version in sorted(newest.items())}

    def _needed_versions(self) -> Iterator[str]:
        if "DT_VERNEED" not in self._tags:
            return
        _, offset = self._dynamic.get_table_offset("DT_VERNEED")
        for _ in range(min(int(self._tags["DT_VERNEEDNUM"][0].entry.d_val), 4096)):
            _, count, _, first, step = self._unpack(_NEED, offset)
            place = offset + first
            for _ in range(count):
                _, _, _, name, next_place = self._unpack(_NEED_VERSION, place)
                yield self._string(name)
                place += next_place
            offset += step

    def _unpack(self, layout: struct.Struct, offset: int) -> tuple[Any, ...]:
        self._file.seek(offset)
        return layout.unpack(self._file.read(layout.size))

    def _gpu_code(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the compute capabilities of the cubins and of the PTX in the fat binaries."""
        capabilities: dict[int, set[int]] = {_CUBIN: set(), _PTX: set()}
        for section in self._elf.iter_sections():
            if section.name in {".nv_fatbin", "__nv_relfatbin"}:
                start = int(section["sh_offset"])
                for kind, capability in self._entries(start, start + int(section["sh_size"])):
                    capabilities.setdefault(kind, set()).add(capability)
        return frozenset(capabilities[_CUBIN]), frozenset(capabilities[_PTX])

    def _entries(self, offset: int, stop: int) -> Iterator[tuple[int, int]]:
        while offset + _FATBIN.size <= stop:
            magic, _, header, size = self._unpack(_FATBIN, offset)
            if magic != _FATBIN_MAGIC:  # padding between two fat binaries
                offset += 8
                continue
            place, end = offset + header, min(offset + header + size, stop)
            while place + _FATBIN_ENTRY.size <= end:
                kind, entry_header, entry_size, capability = self._unpack(_FATBIN_ENTRY, place)
                yield kind, capability
                place += max(entry_header + entry_size, 8)
            offset = end
