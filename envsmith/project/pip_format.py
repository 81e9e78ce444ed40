"""Requirement files in pip's format: joined lines, comments, variables, options, includes, hashes.

Every requirement is read by ``packaging``. A line that a lock cannot follow is a problem with its file and line, and
all problems of all files are listed at once.
"""

from __future__ import annotations

import codecs
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.base.files import read_bounded
from envsmith.errors import DataError
from envsmith.model.cell import distribution_of
from envsmith.model.project_name import normal_name
from envsmith.project.demand import Demand, Demands, name_of_address, parse_line

MAX_BYTES = 4 << 20
_MOST_LINES, _DEEPEST = 50_000, 20
_COMMENT = re.compile(r"(^|\s)#.*$")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]{1,80})\}")
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")
# The last part of the address of an index of torch builds: cu121, or cpu.
_BUILDS = re.compile(r"/(?:cu(\d{2})(\d)|(cpu))/?$")
_FOLDER = re.compile(r"(\.{0,2}/[^\s\[;]*|\.{1,2})(?:\[([\w\s,.-]*)\])?")
_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Options of pip by what becomes of them here: their value is a file, an index, or nothing that changes a lock.
_INCLUDES = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
_INDEXES = frozenset({"-i", "--index-url", "--extra-index-url", "-f", "--find-links"})
_WITH_VALUE = frozenset({"--trusted-host", "--no-binary", "--only-binary", "--use-feature"})
_ALONE = frozenset({"--pre", "--no-index", "--prefer-binary", "--require-hashes"})

# From a folder and extras to what the project in it asks for.
Folder = Callable[[Path, Collection[str]], Demands]


def read_requirement_file(
    path: Path, folder: Folder, *, leave_out: Collection[str] = (), environ: Mapping[str, str] | None = None
) -> Demands:
    """Read a file and all that it includes. Lines that cannot be followed are its ``problems``.

    ``folder`` reads the project of an editable install. Requirements named in ``leave_out`` are not read further.
    """
    reader = _Reader(folder, frozenset(map(normal_name, leave_out)), os.environ if environ is None else environ)
    reader.file(path, str(path), is_bound=False, chain=())
    return reader.result()


def cuda_of_index(address: str) -> str | None:
    """Return the CUDA of an index of torch builds, ``12.1`` or ``cpu``. ``None`` for any other index."""
    builds = _BUILDS.search(address)
    return (builds[3] or f"{builds[1]}.{builds[2]}") if builds else None


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file in pip's format with their numbers: joined, without comments, not empty."""
    start = 0
    parts: list[str] = []
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        start = start or number
        is_comment = raw.lstrip().startswith("#")
        if raw.endswith("\\") and not is_comment:
            parts.append(raw[:-1])
            continue
        line = _COMMENT.sub("", "".join([*parts, f" {raw}" if is_comment and parts else raw])).strip()
        if line:
            yield start, line
        start, parts = 0, []


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """A line of a file. ``chain`` are the files that include it and the file itself, outermost first."""

    path: Path
    number: int
    is_bound: bool
    chain: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.path}:{self.number}"


@dataclass(slots=True)
class _Reader:
    """What was read so far, over all included files."""

    folder: Folder
    leave_out: frozenset[str]
    environ: Mapping[str, str]
    problems: list[str] = field(default_factory=list)
    demands: list[Demand] = field(default_factory=list)
    cuda: list[tuple[str, str]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    projects: Demands = field(default_factory=Demands)

    def result(self) -> Demands:
        read = Demands(
            demands=tuple(self.demands),
            cuda=tuple(self.cuda),
            files=tuple(self.files),
            notes=tuple(self.notes),
            problems=tuple(self.problems),
        )
        return read.joined(self.projects)

    def file(self, path: Path, where: str, *, is_bound: bool, chain: tuple[Path, ...]) -> None:
        """Read one file. ``chain`` are the files that include it, outermost first."""
        resolved = path.resolve()
        if resolved in chain or len(chain) > _DEEPEST:
            names = " -> ".join(p.name for p in (*chain, resolved)[-4:])
            self.problems.append(f"{where}: {path} is included in a circle ({names})")
            return
        try:
            text = _decoded(read_bounded(path, MAX_BYTES))
        except (DataError, UnicodeDecodeError) as error:
            reason = error.reason if isinstance(error, DataError) else "it is not text"
            self.problems.append(f"{where}: {path} cannot be read: {reason}")
            return
        self.files.append(str(path))
        for count, (number, line) in enumerate(logical_lines(text)):
            if count >= _MOST_LINES:
                self.problems.append(f"{path}:{number}: more than {_MOST_LINES} lines")
                return
            try:
                place = _Place(path=path, number=number, is_bound=is_bound, chain=(*chain, resolved))
                self._line(self._with_variables(line), place)
            except ValueError as error:
                # A stranger's file may include any file of this machine.
                is_outside = bool(chain) and not resolved.is_relative_to(chain[0].parent)
                reason = "this line is no requirement (it is not quoted: the file lies outside the project)"
                self.problems.append(f"{path}:{number}: {reason if is_outside else error}")

    def _with_variables(self, line: str) -> str:
        def value(match: re.Match[str]) -> str:
            if match[1] not in self.environ:
                raise ValueError(f"the environment variable {match[1]} is not set")
            return self.environ[match[1]]

        return _VARIABLE.sub(value, line)

    def _line(self, line: str, place: _Place) -> None:
        if line.startswith("-"):
            self._options(line, place)
        elif match := _FOLDER.fullmatch(line):
            self._project(place.path.parent / match[1], match[2] or "", place)
        else:
            self._requirement(line, place)

    def _options(self, line: str, place: _Place) -> None:
        words = iter(_split(line))
        for word in words:
            name, equals, value = word.partition("=")
            if not name.startswith("--") and len(name) > 2:  # -rFILE
                name, equals, value = word[:2], "=", word[2:]
            if name in _ALONE and not equals:
                self._say(f"{place}: {name} is not used")
                continue
            value = value if equals else next(words, "")
            if name in _INCLUDES:
                self._include(value, place, is_bound=place.is_bound or _INCLUDES[name])
            elif name in ("-e", "--editable"):
                self._editable(value, place)
            elif name in _INDEXES:
                self._index(name, value, place)
            elif name in _WITH_VALUE:
                self._say(f"{place}: {name} is not used")
            else:
                raise ValueError(f"{name[:40]} is not an option of pip's that is read here")

    def _include(self, value: str, place: _Place, *, is_bound: bool) -> None:
        if not value or "://" in value:
            raise ValueError(f"it includes {value[:80] or 'nothing'}, and only files of this machine are read")
        self.file(place.path.parent / value, str(place), is_bound=is_bound, chain=place.chain)

    def _editable(self, value: str, place: _Place) -> None:
        if name_of_address(value):
            self._requirement(value, place)
            return
        match = _FOLDER.fullmatch(value if value.startswith((".", "/")) else f"./{value}")
        if match is None:
            raise ValueError(f"{value[:80]!r} is not a folder")
        self._project(place.path.parent / match[1], match[2] or "", place)

    def _project(self, folder: Path, extras: str, place: _Place) -> None:
        """Read the project of a folder: its requirements are installed, its own code is the user's."""
        self._say(f"{place}: {folder} itself is not installed, its requirements are")
        try:
            listed = self.folder(folder, {e.strip() for e in extras.split(",") if e.strip()})
        except DataError as error:
            raise ValueError("; ".join([error.reason, *error.details[:3]])) from None
        self.projects = self.projects.joined(listed)

    def _index(self, name: str, value: str, place: _Place) -> None:
        if cuda := cuda_of_index(value):
            self.cuda.append((cuda, str(place)))
        else:
            self._say(f"{place}: {name} is not used: the settings of uv and pip say which index serves the packages")

    def _requirement(self, line: str, place: _Place) -> None:
        text, *options = re.split(r"\s+(?=--?[a-z])", line)
        if (name_of_address(text) or distribution_of(text)) in self.leave_out:
            return
        hashes = []
        for option in options:
            match = _HASH.search(option) if option.startswith("--hash") else None
            if option.startswith("--hash") and match is None:
                raise ValueError(f"{option[:60]} is not a sha256, and a lock compares only these")
            hashes += [match[1].lower()] if match else []
        self.demands.append(parse_line(text, str(place), is_bound=place.is_bound, hashes=tuple(hashes)))

    def _say(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        raise ValueError(f"{line[:80]!r} has a quote that does not end") from None


def _decoded(data: bytes) -> str:
    if data.startswith(_MARKS[1:]):
        return data.decode("utf-16")
    return data.decode("utf-8-sig")
