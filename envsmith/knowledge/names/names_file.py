"""The file of a package's names: lines of modules, each with the releases that have it.

A file consists of parts. Each has a head (releases, directory) and shards of neighbouring modules, each compressed
alone, so that a question reads the heads and the few shards that it needs. Lines of the same releases stand together
under a line ``@`` with the runs of their numbers: ``@3-40,44``.

The first part holds what was read at once. A part that follows holds the releases of a later refresh, and the lines
that have other releases than this alone would give them: a new release has what the release before it has. What stands
in a file is never written again, so that git keeps of a refresh only its part.
"""

from __future__ import annotations

import json
import lzma
import operator
import re
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

from envsmith.base.files import read_bounded
from envsmith.errors import DataError

# module -> line -> bits of the releases that have it. The empty line is the module itself.
Table = dict[str, dict[str, int]]

SUFFIX = ".names"
_MAGIC = b"envsmith names 1\n"
_SHARD = 384 << 10
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
    """What the file says of itself. ``reader`` is the generation of the reader that made the lines.

    Of a sample, only some of the releases were read. ``unread`` are the bits of those that nobody opened.
    """

    distribution: str
    reader: int
    roots: tuple[str, ...]
    releases: tuple[MeasuredRelease, ...]
    is_sample: bool = False
    unread: int = 0


def encode(head: Head, table: Table) -> bytes:
    """Return a file of one part. The same input gives the same bytes."""
    return _part(head, [(place, release) for place, release in enumerate(head.releases)], table)


def add_part(file: NamesFile, head: Head, table: Table) -> bytes:
    """Return the file with one part more, after which it says ``head`` and ``table``.

    ``head`` has every release of the file.
    """
    before = {release.version: release for release in file.head.releases}
    placed = [(at, release) for at, release in enumerate(head.releases) if before.get(release.version) != release]
    new_places = [at for at, release in placed if release.version not in before]
    old = file.table(new_places)
    changed: Table = {}
    for module in {**old, **table}:
        was, now = old.get(module, {}), table.get(module, {})
        if lines := {line: now.get(line, 0) for line in {**was, **now} if was.get(line, 0) != now.get(line, 0)}:
            changed[module] = lines
    return file.content + _part(head, placed, changed)


def _part(head: Head, placed: Sequence[tuple[int, MeasuredRelease]], table: Table) -> bytes:
    directory: list[tuple[str, int, int]] = []
    shards: list[bytes] = []
    at = 0
    for first, text in _cut(table):
        data = lzma.compress(text.encode(), lzma.FORMAT_RAW, filters=_FILTERS)
        directory.append((first, at, len(data)))
        shards.append(data)
        at += len(data)
    places = [place for place, _ in placed]
    described = {
        "distribution": head.distribution,
        "reader": head.reader,
        "roots": head.roots,
        "releases": [[m.version, m.date, m.filename, m.sha256] for _, m in placed],
        **({} if places == list(range(len(head.releases))) else {"places": places}),
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


def _text_of(lines: Mapping[str, int]) -> str:
    """Return what stands under the head of a module."""
    return _module_text("", lines).partition("\n")[2].removesuffix("\n")


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
    for run in runs.split(",") if runs else ():
        first, _, last = run.partition("-")
        bits |= ((1 << (int(last or first) - int(first) + 1)) - 1) << int(first)
    return bits


class ModuleLines:
    """The lines of a module. A question reads those of one name, so the others are not taken apart."""

    def __init__(self, text: str) -> None:
        self._text = f"\n{text}\n"
        self._read: dict[str, tuple[tuple[str, int], ...]] = {}

    @classmethod
    def of_lines(cls, lines: Mapping[str, int]) -> ModuleLines:
        """Return lines, each with its releases, as a module has them in a file."""
        return cls(_text_of(lines))

    @cached_property
    def bits(self) -> int:
        """Return the releases that have the module."""
        at = self._text.find("\n\n")
        return self._bits_at(at) if at >= 0 else 0

    @cached_property
    def described(self) -> int:
        """Return the releases of which the file says more than that they have the module, compiled or with stars."""
        blocks = (block.partition("\n") for block in self._text.split("\n@")[1:])
        bits = (bits_of(head) for head, _, lines in blocks if re.search(r"^[^*\n]", lines, re.MULTILINE))
        return reduce(operator.or_, bits, 0)

    def of(self, name: str) -> tuple[tuple[str, int], ...]:
        """Return the bodies of a name, each with the releases that have it."""
        if name not in self._read:
            self._read[name] = tuple(self._find(f"\n{name} "))
        return self._read[name]

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names that a release binds in the module itself."""
        return frozenset(re.findall(r"^([A-Za-z_]\w*) ", self._text, re.MULTILINE))

    def has_members(self, name: str) -> bool:
        """Return whether a class has a member in any release."""
        return f"\n{name}." in self._text

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


def with_new(bits: int, places: Iterable[int]) -> int:
    """Return bits after releases came to ``places``, in order: each has what the release before it has."""
    for place in places:
        below = (1 << place) - 1
        bits = bits & below | (bits << 1 & 1 << place) | (bits & ~below) << 1
    return bits


class _Part:
    """One part of a file, its shards read when they are asked for."""

    def __init__(self, described: Mapping[str, Any], content: bytes, start: int) -> None:
        self.releases = [
            MeasuredRelease(version=v, date=d, filename=f, sha256=s) for v, d, f, s in described["releases"]
        ]
        self.places = [int(place) for place in described.get("places", range(len(self.releases)))]
        directory = [(str(module), int(at), int(length)) for module, at, length in described["directory"]]
        self.length = sum(length for _, _, length in directory)
        self._firsts = [first for first, _, _ in directory]
        self._ranges = [(start + at, start + at + length) for _, at, length in directory]
        self._content = content
        self._shards: dict[int, dict[str, str]] = {}
        # Places that were not there before.
        self.new_places: tuple[int, ...] = ()

    def apply(self, releases: list[MeasuredRelease]) -> None:
        """Put the releases of the part among those before it."""
        versions = {release.version for release in releases}
        self.new_places = tuple(
            at for at, r in zip(self.places, self.releases, strict=True) if r.version not in versions
        )
        for place, release in zip(self.places, self.releases, strict=True):
            releases[place : place + (release.version in versions)] = [release]

    def text(self, module: str) -> str | None:
        """Return what the part says of a module."""
        at = bisect_right(self._firsts, module) - 1
        return self._shard(at).get(module) if at >= 0 else None

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield all modules that the part speaks of."""
        for at in range(len(self._firsts)):
            yield from self._shard(at).items()

    def _shard(self, at: int) -> dict[str, str]:
        if at not in self._shards:
            start, end = self._ranges[at]
            machine = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS)
            text = machine.decompress(self._content[start:end], _MAX_TEXT).decode()
            modules = (part.partition("\n") for part in ("\n" + text.removesuffix("\n")).split("\n#")[1:])
            self._shards[at] = {name: body for name, _, body in modules}
        return self._shards[at]


class NamesFile:
    """An open file. ``DataError`` when it is not one that :func:`encode` and :func:`add_part` wrote."""

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        self.path = path
        self.content = read_bounded(path, _LIMIT) if content is None else content
        with self._reading():
            self.head, self._parts = self._read()
        self._modules: dict[str, ModuleLines | None] = {}

    def _read(self) -> tuple[Head, list[_Part]]:
        parts: list[_Part] = []
        releases: list[MeasuredRelease] = []
        at = 0
        while not parts or at < len(self.content):
            if not self.content.startswith(_MAGIC, at):
                raise ValueError("it has another format")
            line = at + len(_MAGIC)
            start = self.content.index(b"\n", line) + 1
            end = start + int(self.content[line : start - 1])
            described = json.loads(zlib.decompress(self.content[start:end]))
            parts.append(part := _Part(described, self.content, end))
            part.apply(releases)
            at = end + part.length
        if at != len(self.content):
            raise ValueError("it is cut")
        distribution, reader, roots = str(described["distribution"]), int(described["reader"]), described["roots"]
        return Head(distribution=distribution, reader=reader, roots=tuple(roots), releases=tuple(releases)), parts

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError, zlib.error, lzma.LZMAError, EOFError) as error:
            hint = "Reinstall envsmith, or write the file again with: envsmith matrix refresh --names"
            raise DataError(f"Cannot read {self.path.name}: {error}.", hint=hint) from None

    def module(self, name: str) -> ModuleLines | None:
        """Return the lines of a module, or ``None`` where no release has it."""
        if name not in self._modules:
            with self._reading():
                text = self._text([part.text(name) for part in self._parts])
            self._modules[name] = None if text is None else ModuleLines(text)
        return self._modules[name]

    def _text(self, texts: Sequence[str | None]) -> str | None:
        """Return what the parts together say of a module."""
        if len(texts) == 1:
            return texts[0]
        lines = self._joined(texts)
        return _text_of(lines) if lines else None

    def _joined(self, texts: Sequence[str | None], later: Iterable[int] = ()) -> dict[str, int]:
        lines: dict[str, int] = {}
        places: list[tuple[int, ...]] = [*(part.new_places for part in self._parts[1:]), tuple(later)]
        for text, new_places in zip(texts, places, strict=True):
            lines |= _lines(text) if text is not None else {}
            widened = {bits: with_new(bits, new_places) for bits in set(lines.values())}
            lines = {line: widened[bits] for line, bits in lines.items()}
        return {line: bits for line, bits in lines.items() if bits}

    def may_bind(self, module: str, name: str) -> bool:
        """Return ``True``: to ask for the name costs no more."""
        del module, name
        return True

    def modules_defining(self, name: str) -> tuple[str, ...]:
        """Return the modules in which a class or function of that name is written, those nearest to the root first."""
        written = re.compile(rf"^{re.escape(name)} [?+-]*(?:@?:|~?\()", re.MULTILINE)
        with self._reading():
            texts = (item for part in self._parts for item in part.texts())
            modules = {module for module, text in texts if f"\n{name} " in text and written.search(text)}
        return tuple(sorted(modules, key=lambda module: (module.count("."), module)))

    def callables_taking(self, name: str, argument: str) -> tuple[str, ...]:
        """Return the dotted paths of the callables of that name that take an argument, in any release.

        A class is called by its own name and by ``__init__``. Without an argument it is every callable of that name.
        """
        return callables_in(self.texts(), name, argument)

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield every module with its lines as text."""
        with self._reading():
            parts = [dict(part.texts()) for part in self._parts]
        for module in dict.fromkeys(module for part in parts for module in part):
            if text := self._text([part.get(module) for part in parts]):
                yield module, text

    def table(self, new_places: Iterable[int] = ()) -> Table:
        """Return everything: what a refresh adds a release to. ``new_places`` are of releases that follow."""
        with self._reading():
            parts = [dict(part.texts()) for part in self._parts]
        modules = dict.fromkeys(module for part in parts for module in part)
        tables = ((m, self._joined([part.get(m) for part in parts], new_places)) for m in modules)
        return {module: lines for module, lines in tables if lines}


def callables_in(texts: Iterable[tuple[str, str]], name: str, argument: str) -> tuple[str, ...]:
    """Return the dotted paths of the callables of a name that take an argument, of modules with their lines as text."""
    is_constructor = name == "__init__"
    owner_form = r"(?:\w+\.)*" + (r"\w+" if is_constructor else re.escape(name))
    argument_form = rf"[^\n]*(?<!\w){re.escape(argument)}(?!\w)" if argument else ""
    forms = [rf"(?P<made>{owner_form})\.__(?:init|new)__ [?+-]{{0,4}}(?:[~&][^\n(]*)?\({argument_form}"]
    forms += [rf"(?P<held>{owner_form})\.{re.escape(argument)} !"] if argument else []
    forms += [] if is_constructor else [rf"(?P<plain>{owner_form}) [?+-]{{0,4}}(?:[~&][^\n(]*)?\({argument_form}"]
    form = re.compile(rf"^(?:{'|'.join(forms)})", re.MULTILINE)
    needle = argument if is_constructor else name
    paths = {
        f"{module}.{match[match.lastgroup or 0]}"
        for module, text in texts
        if needle in text and argument in text
        for match in form.finditer(text)
    }
    return tuple(sorted(paths, key=lambda path: (path.count("."), path)))


def _lines(text: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    bits = 0
    for line in text.split("\n"):
        if line.startswith("@"):
            bits = bits_of(line[1:])
        else:
            lines[line] = bits
    return lines
