"""The file of a package's names: lines of modules, each with the releases that have it.

A head (releases, directory) and shards of neighbouring modules, each compressed alone, so that a question reads the
head and the few shards that it needs. Lines of the same releases stand together under a line ``@`` with the runs of
their numbers: ``@3-40,44``.
"""

from __future__ import annotations

import json
import lzma
import re
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from envsmith.base.files import read_bounded
from envsmith.errors import DataError

# module -> line -> bits of the releases that have it. The empty line is the module itself.
Table = dict[str, dict[str, int]]

_MAGIC = b"envsmith names 1\n"
_SHARD = 96 << 10
_LIMIT = 64 << 20
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 20}]
_MAX_TEXT = 32 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRelease:
    """One release that was read: its file on the index, by name and sha256."""

    version: str
    date: str
    filename: str
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What the file says of itself. ``reader`` is the generation of the reader that made the lines."""

    distribution: str
    reader: int
    roots: tuple[str, ...]
    releases: tuple[MeasuredRelease, ...]


def encode(head: Head, table: Table) -> bytes:
    """Return the whole file. The same input gives the same bytes."""
    directory: list[tuple[str, int, int]] = []
    shards: list[bytes] = []
    at = 0
    for first, text in _cut(table):
        data = lzma.compress(text.encode(), lzma.FORMAT_RAW, filters=_FILTERS)
        directory.append((first, at, len(data)))
        shards.append(data)
        at += len(data)
    described = {
        "distribution": head.distribution,
        "reader": head.reader,
        "roots": head.roots,
        "releases": [[m.version, m.date, m.filename, m.sha256] for m in head.releases],
        "directory": directory,
    }
    packed = zlib.compress(json.dumps(described, separators=(",", ":")).encode(), 9)
    return b"".join([_MAGIC, b"%d\n" % len(packed), packed, *shards])


def _cut(table: Table) -> list[tuple[str, str]]:
    """Return shards of neighbouring modules, each with its first module."""
    shards: list[tuple[str, list[str]]] = []
    size = _SHARD
    for module in sorted(table):
        text = _module_text(module, table[module])
        if size >= _SHARD:
            shards.append((module, []))
            size = 0
        shards[-1][1].append(text)
        size += len(text)
    return [(first, "".join(texts)) for first, texts in shards]


def _module_text(module: str, lines: Mapping[str, int]) -> str:
    groups: dict[int, list[str]] = defaultdict(list)
    for line, bits in lines.items():
        groups[bits].append(line)
    parts = [f"#{module}\n"]
    for bits, group in sorted(groups.items(), key=lambda pair: ("" not in pair[1], min(pair[1]))):
        parts.append(f"@{runs_of(bits)}\n")
        parts += [f"{line}\n" for line in sorted(group)]
    return "".join(parts)


def runs_of(bits: int) -> str:
    """Return ``3-40,44`` for the bits 3 to 40 and 44."""
    runs = []
    at = 0
    while bits:
        skipped = (bits & -bits).bit_length() - 1
        bits >>= skipped
        length = (~bits & (bits + 1)).bit_length() - 1
        first = at + skipped
        runs.append(str(first) if length == 1 else f"{first}-{first + length - 1}")
        bits >>= length
        at = first + length
    return ",".join(runs)


def bits_of(runs: str) -> int:
    """Return the bits that :func:`runs_of` wrote."""
    bits = 0
    for run in runs.split(","):
        first, _, last = run.partition("-")
        bits |= ((1 << (int(last or first) - int(first) + 1)) - 1) << int(first)
    return bits


class ModuleLines:
    """The lines of a module. A question reads those of one name, so the others are not taken apart."""

    def __init__(self, text: str) -> None:
        self._text = f"\n{text}\n"
        self._read: dict[str, tuple[tuple[str, int], ...]] = {}

    @cached_property
    def bits(self) -> int:
        """Return the releases that have the module."""
        at = self._text.find("\n\n")
        return self._bits_at(at) if at >= 0 else 0

    def of(self, name: str) -> tuple[tuple[str, int], ...]:
        """Return the bodies of a name, each with the releases that have it."""
        if name not in self._read:
            self._read[name] = tuple(self._find(f"\n{name} "))
        return self._read[name]

    def classes_with(self, member: str) -> tuple[str, ...]:
        """Return the classes whose body has a member of that name, in any release."""
        return tuple(dict.fromkeys(re.findall(rf"^(\w+)\.{re.escape(member)} ", self._text, re.MULTILINE)))

    def _find(self, start: str) -> Iterator[tuple[str, int]]:
        at = self._text.find(start)
        while at >= 0:
            first = at + len(start)
            end = self._text.index("\n", first)
            yield self._text[first:end], self._bits_at(at)
            at = self._text.find(start, end)

    def _bits_at(self, at: int) -> int:
        """Return the releases of the line that begins behind a place."""
        first = self._text.rindex("\n@", 0, at + 1) + 2
        return bits_of(self._text[first : self._text.index("\n", first)])


class NamesFile:
    """An open file. ``DataError`` when it is not one that :func:`encode` wrote."""

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        self.path = path
        try:
            self._content = read_bounded(path, _LIMIT) if content is None else content
            magic, size, tail = self._content.split(b"\n", 2)
            if magic + b"\n" != _MAGIC:
                raise self._broken(ValueError("it has another format"))
            described = json.loads(zlib.decompress(tail[: int(size)]))
            self.head = Head(
                distribution=str(described["distribution"]),
                reader=int(described["reader"]),
                roots=tuple(described["roots"]),
                releases=tuple(
                    MeasuredRelease(version=v, date=d, filename=f, sha256=s) for v, d, f, s in described["releases"]
                ),
            )
            self._directory = [(str(m), int(at), int(length)) for m, at, length in described["directory"]]
        except (ValueError, KeyError, TypeError, zlib.error) as error:
            raise self._broken(error) from None
        self._firsts = [first for first, _, _ in self._directory]
        self._start = len(self._content) - sum(length for _, _, length in self._directory)
        self._shards: dict[int, dict[str, str]] = {}
        self._modules: dict[str, ModuleLines | None] = {}

    def _broken(self, error: Exception) -> DataError:
        hint = "Reinstall envsmith, or write the file again with: envsmith matrix refresh --names"
        return DataError(f"Cannot read {self.path.name}: {error}.", hint=hint)

    def module(self, name: str) -> ModuleLines | None:
        """Return the lines of a module, or ``None`` where no release has it."""
        if name not in self._modules:
            at = bisect_right(self._firsts, name) - 1
            text = self._shard(at).get(name) if at >= 0 else None
            self._modules[name] = None if text is None else ModuleLines(text)
        return self._modules[name]

    def _shard(self, at: int) -> dict[str, str]:
        if at not in self._shards:
            _, offset, length = self._directory[at]
            start = self._start + offset
            try:
                machine = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS)
                text = machine.decompress(self._content[start : start + length], _MAX_TEXT).decode()
            except (lzma.LZMAError, EOFError, UnicodeDecodeError) as error:
                raise self._broken(error) from None
            modules = (part.partition("\n") for part in ("\n" + text.removesuffix("\n")).split("\n#")[1:])
            self._shards[at] = {name: body for name, _, body in modules}
        return self._shards[at]

    def modules_defining(self, name: str) -> tuple[str, ...]:
        """Return the modules in which a class or function of that name is written, those nearest to the root first."""
        written = re.compile(rf"^{re.escape(name)} [?+-]*(?:@?:|~?\()", re.MULTILINE)
        shards = (self._shard(at).items() for at in range(len(self._directory)))
        modules = [m for shard in shards for m, text in shard if f"\n{name} " in text and written.search(text)]
        return tuple(sorted(modules, key=lambda module: (module.count("."), module)))

    def table(self) -> Table:
        """Return everything: what a refresh adds a release to."""
        return {name: _lines(text) for at in range(len(self._directory)) for name, text in self._shard(at).items()}


def _lines(text: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    bits = 0
    for line in text.split("\n"):
        if line.startswith("@"):
            bits = bits_of(line[1:])
        else:
            lines[line] = bits
    return lines
