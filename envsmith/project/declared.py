"""What a project declares: requirement lines of its files, each with file and line. Hostile text in, values out.

Read are ``pyproject.toml`` (PEP 621, and Poetry's tables), ``setup.cfg``, ``requirements*.txt``, ``environment.yml``
and the ``METADATA`` of a wheel. ``setup.py`` is a program and is not run: it is read where the others before it declare
nothing, as far as what it declares stands in it.
"""

from __future__ import annotations

import configparser
import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.dependency_groups import DependencyGroupResolver
from packaging.errors import ExceptionGroup
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.base.files import read_bounded
from envsmith.base.files import read_toml as parse_toml
from envsmith.base.json_types import JsonFields, object_in
from envsmith.errors import DataError
from envsmith.lock.conda.foreign import CondaEnvironment
from envsmith.lock.index.markers import holds
from envsmith.model.cell import Platform
from envsmith.project.demand import name_of_address
from envsmith.project.pip_format import logical_lines
from envsmith.project.setup_script import read_setup

# The Pythons for which markers are judged: those of the frameworks' releases that people still install.
PYTHONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
# Where a library declares, in the order in which `envsmith ci` looks.
FILES = (
    "pyproject.toml",
    "setup.cfg",
    "setup.py",
    "requirements.txt",
    "environment.yml",
    "environment.yaml",
    "METADATA",
    "PKG-INFO",
)
# How the names of Conda's files of an environment end.
CONDA_SUFFIXES = (".yml", ".yaml")
# A file in which a library declares something.
MAX_BYTES = 4 << 20
_MAX_LINES = 5000
# Extras that serve those who work on a library, not those who use it.
_DEVELOPERS = re.compile(
    r"(dev|tests?|testing|docs?|lint(ing)?|quality|typing|ci|build|style|coverage|tox|benchmarks?)([-_].*)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Declared:
    """One requirement.

    ``pythons`` are the minors for which its marker holds on Linux; ``extra`` is the extra it belongs to, if any.
    """

    name: str
    spec: str
    text: str
    file: str
    line: int
    extra: str | None = None
    pythons: tuple[str, ...] = PYTHONS


@dataclass(frozen=True, kw_only=True, slots=True)
class Declaration:
    """All that one library declares.

    ``skipped`` are lines that could not be read, with the reason: they constrain nothing. ``read_by_setup`` are files of
    requirements that a ``setup.py`` reads: it may change what stands in them.
    """

    name: str
    version: str | None = None
    python: str | None = None
    python_at: tuple[str, int] | None = None
    requirements: tuple[Declared, ...] = ()
    skipped: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    read_by_setup: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeclaredRequirement:
    """One requirement as it stands in a file, of an extra or a dependency group where it belongs to one.

    ``is_conda`` says that its name is that of a Conda package.
    """

    text: str
    file: str
    line: int
    extra: str | None = None
    group: str | None = None
    is_conda: bool = False

    @property
    def where(self) -> str:
        """Return file and line."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class DeclaredFile:
    """A file of requirements that another one reads: the paths that may be meant, and the extra that it is for."""

    names: tuple[str, ...]
    where: str
    extra: str | None = None

    def existing(self, root: Path) -> str | None:
        """Return the first of the paths that is a file below ``root``."""
        return next((name for name in self.names if (root / name).is_file()), None)


@dataclass(slots=True)
class DeclaredLines:
    """What files declare, as it stands in them.

    ``python`` are ranges with file and line. ``files`` are read beside. ``skipped`` is what is required and unread, as
    ``unread_extras`` are of the extras, and ``notes`` say what else is.
    """

    name: str = ""
    version: str | None = None
    entries: list[DeclaredRequirement] = field(default_factory=list)
    python: list[tuple[str, str, int]] = field(default_factory=list)
    files: list[DeclaredFile] = field(default_factory=list)
    unread_extras: set[str] = field(default_factory=set)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def declares(self) -> bool:
        """Return whether something is required always."""
        always = [*(one.extra is None for one in self.entries), *(one.extra is None for one in self.files)]
        return bool(self.skipped) or any(always)


def declaring_files(root: Path) -> list[str]:
    """Return the files below ``root`` that may declare something: :data:`FILES`, and files of requirements."""
    requirements = [
        path for path in sorted(root.glob("requirements/*.txt"))[:50] if not _DEVELOPERS.fullmatch(path.stem)
    ]
    return [*(name for name in FILES if (root / name).is_file()), *(f"requirements/{p.name}" for p in requirements)]


def read_declared(root: Path) -> Declaration:
    """Read what the :func:`declaring_files` of ``root`` declare.

    ``DataError`` when there is none, or one is no such file.
    """
    lines, files = DeclaredLines(), declaring_files(root)
    read_by_setup: list[str] = []
    for name in files:
        if name == "setup.py" and lines.declares:  # an installer reads the other one
            continue
        if name == "requirements.txt" and any(one.extra is None for one in lines.files):
            continue
        number = len(lines.files)
        if name in FILES:
            read_into(lines, root / name, name)
        if name == "setup.py":
            paths = (one.existing(root) for one in lines.files[number:] if one.extra is None)
            read_by_setup = [file for file in dict.fromkeys(paths) if file]
    beside = {file: one.extra for one in reversed(lines.files) if (file := one.existing(root))}
    has_base = None in beside.values()
    if has_base:
        files = [name for name in files if name != "requirements.txt" and not _serves_developers(name)]
    for name in dict.fromkeys((*beside, *(name for name in files if name not in FILES))):
        # A file that is not read for every installation is taken for an extra of its name.
        extra = beside[name] if name in beside else Path(name).stem if has_base else None
        _requirements(_text(root / name), name, lines, extra)
    if not files:
        raise DataError(
            f"Cannot read what {root} declares: it has no file for that.",
            hint=f"Give one of {', '.join(FILES)}. A setup.py is not run: build a wheel and give its METADATA.",
        )
    declaration = _declaration(lines, list(dict.fromkeys([*files, *beside])), root.resolve().name)
    return replace(declaration, read_by_setup=tuple(read_by_setup))


def _serves_developers(name: str) -> bool:
    """Return whether a file of requirements is for those who work on a library: ``_docs.txt``, ``audio_test.txt``."""
    stem = Path(name).stem
    return name not in FILES and (stem.startswith("_") or any(map(_DEVELOPERS.fullmatch, re.split(r"[-_]", stem))))


def read_metadata(text: str, file: str) -> Declaration:
    """Read the declaration in a wheel's ``METADATA`` or an sdist's ``PKG-INFO``."""
    lines = DeclaredLines()
    _metadata(text, file, lines)
    return _declaration(lines, [file], file)


def _declaration(lines: DeclaredLines, files: Sequence[str], fallback: str) -> Declaration:
    """Return the first range of Pythons, and the requirements of who uses a library. What is malformed is noted."""
    python, python_at, skipped = None, None, [*lines.skipped, *lines.notes]
    for text, file, line in lines.python:
        try:
            python, python_at = str(SpecifierSet(text)), (file, line)
            break
        except ValueError:  # InvalidSpecifier, or more digits than Python reads
            skipped.append(f"{file}:{line}: requires-python {text[:60]!r} is not a version range")
    requirements = [one for entry in lines.entries if entry.group is None for one in _declared(entry, skipped)]
    return Declaration(
        name=lines.name or fallback,
        version=lines.version,
        python=python,
        python_at=python_at,
        requirements=tuple(requirements),
        skipped=tuple(skipped),
        files=tuple(files),
    )


def _declared(entry: DeclaredRequirement, skipped: list[str]) -> Iterator[Declared]:
    """Yield the requirement, unless it serves who works on the library, or cannot be judged."""
    if name := name_of_address(entry.text):
        skipped.append(f"{entry.where}: {name} comes from a URL: its version is not judged")
        return
    try:
        requirement = Requirement(entry.text)
        spec, extra = str(requirement.specifier), entry.extra or _extra_of(requirement.marker)
        pythons = tuple(p for p in PYTHONS if holds(requirement.marker, p, Platform.LINUX_64, extra or ""))
    except ValueError as error:  # InvalidRequirement, or a number with more digits than Python reads
        skipped.append(f"{entry.where}: not a requirement: {entry.text[:80]!r}: {str(error).splitlines()[0]}")
        return
    if not pythons or (extra and _DEVELOPERS.fullmatch(extra)):
        return
    if requirement.url:
        skipped.append(f"{entry.where}: {requirement.name} comes from a URL: its version is not judged")
        return
    text, name = entry.text.strip()[:200], requirement.name
    yield Declared(name=name, spec=spec, text=text, file=entry.file, line=entry.line, extra=extra, pythons=pythons)


def _text(path: Path) -> str:
    return read_bounded(path, MAX_BYTES).decode("utf-8", "replace")


def _extra_of(marker: Marker | None) -> str | None:
    match = re.search(r"""extra\s*==\s*["']([^"']+)["']""", str(marker)) if marker else None
    return match[1] if match else None


def _metadata(text: str, file: str, lines: DeclaredLines) -> None:
    for number, line in enumerate(text.splitlines()[:_MAX_LINES], 1):
        if not line.strip():
            break
        field, _, value = line.partition(":")
        value = value.strip()
        match field.lower():
            case "name":
                lines.name = value[:100]
            case "version":
                lines.version = value[:60]
            case "requires-python":
                lines.python.append((value, file, number))
            case "requires-dist":
                lines.entries.append(DeclaredRequirement(value, file, number))


def _requirements(text: str, file: str, lines: DeclaredLines, extra: str | None = None) -> None:
    for number, line in itertools.islice(logical_lines(text), _MAX_LINES):
        requirement = re.sub(r"\s--hash[= ]\S+", "", line).strip()
        if not requirement.startswith("-"):
            lines.entries.append(DeclaredRequirement(requirement, file, number, extra))


def _setup_cfg(text: str, file: str, lines: DeclaredLines) -> None:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise DataError(f"Cannot read {file}: {str(error).splitlines()[0]}.") from error
    find = _Finder(text)
    lines.name = lines.name or parser.get("metadata", "name", fallback="")
    python = parser.get("options", "python_requires", fallback="").strip()
    if python:
        lines.python.append((python, file, find(python)))
    _listed(parser.get("options", "install_requires", fallback=""), file, lines, find)
    if parser.has_section("options.extras_require"):
        for extra, value in parser.items("options.extras_require"):
            _listed(value, file, lines, find, extra)


def _setup_py(text: str, file: str, lines: DeclaredLines) -> None:
    script = read_setup(text)
    lines.name = lines.name or script.name
    lines.entries += (DeclaredRequirement(one, file, line, extra) for line, one, extra in script.lines)
    where = functools.partial("{}:{}".format, file)
    lines.files += (DeclaredFile(names, where(line), extra) for line, names, extra in script.files)
    lines.skipped += (f"{where(line)}: it is computed, and setup.py is not run" for line, x in script.computed if not x)
    lines.notes += (f"{where(line)}: it is added in some cases only, and is not read" for line in script.conditional)
    lines.unread_extras |= {extra for _, extra in script.computed if extra}
    if script.python:
        lines.python.append((script.python[1], file, script.python[0]))


def _listed(value: str, file: str, lines: DeclaredLines, find: _Finder, extra: str | None = None) -> None:
    for line in map(str.strip, value.splitlines()):
        if line.startswith("file:"):
            names = line.removeprefix("file:").split(",")
            lines.files += (DeclaredFile((name.strip(),), f"{file}:{find(line)}", extra) for name in names)
        elif line and not line.startswith("#"):
            lines.entries.append(DeclaredRequirement(line, file, find(line), extra))


class _Finder:
    """Where a text stands in a file: the first line not yet given that holds it."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.last: dict[str, int] = {}  # needle -> line of its last find

    def __call__(self, needle: str) -> int:
        start = self.last.get(needle, 0)
        order = [*range(start, len(self.lines)), *range(start)]
        line: int = next((number + 1 for number in order if needle in self.lines[number]), 1)
        self.last[needle] = line
        return line


def _pyproject(text: str, file: str, lines: DeclaredLines) -> None:
    data = _toml(text, file)
    find = _Finder(text)
    project = object_in(data, "project")
    lines.name = lines.name or str(project.get("name") or "")
    lines.version = str(project["version"]) if isinstance(project.get("version"), str) else lines.version
    if project.get("requires-python"):
        lines.python.append((str(project["requires-python"]), file, find("requires-python")))
    for extra, listed in [(None, project.get("dependencies")), *object_in(project, "optional-dependencies").items()]:
        for requirement in _texts(listed):
            lines.entries.append(DeclaredRequirement(requirement, file, find(requirement), extra))
    for group, listed in _groups(object_in(data, "dependency-groups")):
        for requirement in listed:
            lines.entries.append(
                DeclaredRequirement(requirement, file, find(re.split(r"[^\w.-]", requirement)[0]), group=group)
            )
    dynamic = [*_texts(project.get("dynamic"))]
    for key, of_extra, name in _setuptools_files(object_in(data, "tool")):
        if key in dynamic:
            lines.files.append(DeclaredFile((name,), f"{file}:{find(name)}", of_extra))
    _poetry(object_in(object_in(data, "tool"), "poetry"), file, lines, find)


def _setuptools_files(tool: JsonFields) -> Iterator[tuple[str, str | None, str]]:
    """Yield the files that setuptools reads: the key of the project that they are for, the extra, and the path."""
    dynamic = object_in(object_in(tool, "setuptools"), "dynamic")
    tables: list[tuple[str, str | None, JsonFields]] = [("dependencies", None, object_in(dynamic, "dependencies"))]
    extras = object_in(dynamic, "optional-dependencies")
    tables += [("optional-dependencies", extra, object_in(extras, extra)) for extra in extras]
    for key, extra, table in tables:
        files = table.get("file")
        for name in [files] if isinstance(files, str) else _texts(files):
            yield key, extra, name


def _groups(tables: JsonFields) -> Iterator[tuple[str, list[str]]]:
    """Yield the dependency groups with what they include. A table that is not one of groups has none."""
    try:
        resolver = DependencyGroupResolver(
            {name: listed for name, listed in tables.items() if isinstance(listed, list)}
        )
        yield from [(name, [str(r) for r in resolver.resolve(name)]) for name in resolver.dependency_groups]
    except (ValueError, TypeError, LookupError, AttributeError, ExceptionGroup) as error:
        raise DataError(f"Cannot read the dependency groups: {str(error)[:200]}.") from None


def _poetry(poetry: JsonFields, file: str, lines: DeclaredLines, find: _Finder) -> None:
    """Read Poetry's tables: dependencies, the extras that name optional ones, groups."""
    extras = {
        name: extra for extra, listed in object_in(poetry, "extras").items() for name in map(str.lower, _texts(listed))
    }
    tables: list[tuple[str | None, JsonFields]] = [(None, object_in(poetry, "dependencies"))]
    tables += [(g, object_in(object_in({"g": t}, "g"), "dependencies")) for g, t in object_in(poetry, "group").items()]
    for group, table in tables:
        for name, value in table.items():
            for one in value if isinstance(value, list) else [value]:
                _poetry_line(name, one, extras.get(name.lower()), group, (file, lines, find))


# No number of a release has more digits, and Python reads no more than 4,300 of a hostile one.
_NUMBERS = r"\d{1,20}(?:\.\d{1,20})*"


def _poetry_line(
    name: str, value: object, extra: str | None, group: str | None, into: tuple[str, DeclaredLines, _Finder]
) -> None:
    """Read Poetry's own notation: ``torch = "^2.1"`` is ``>=2.1,<3``, ``~2.1`` is ``>=2.1,<2.2``.

    Of ranges between which there is a gap (``1.2 || ^2.0``) the last is taken, with a note: a requirement has one.
    """
    file, lines, find = into
    table = value if isinstance(value, dict) else {"version": value}
    raw = table.get("version")
    if origin := table.get("git") or table.get("url") or table.get("path"):
        text = f"{name} @ {'git+' if 'git' in table else ''}{origin}"
        lines.entries.append(DeclaredRequirement(text, file, find(name), extra, group))
        return
    if not isinstance(raw, str):
        return
    ranges = _poetry_ranges(raw)
    spec = ranges[-1]
    if ranges[1:]:
        lines.notes.append(f"{file}:{find(name)}: of {raw!r} for {name} only {spec} is read")
    if name == "python":
        lines.python.append((spec, file, find(name)))
        return
    listed = f"[{','.join(_texts(table.get('extras')))}]" if table.get("extras") else ""
    markers = [m for m in (table.get("markers"), _python_marker(table.get("python"))) if m]
    marker = f" ; {' and '.join(f'({m})' for m in markers)}" if markers else ""
    lines.entries.append(DeclaredRequirement(f"{name}{listed}{spec}{marker}", file, find(name), extra, group))


def _python_marker(python: object) -> str:
    """Return the marker of Poetry's ``python = ">=3.10,<3.12"``."""
    clauses = _poetry_ranges(python)[-1].split(",") if isinstance(python, str) else []
    split = (re.fullmatch(r"([<>=!~]+)\s*([\d.*]+)", clause) for clause in clauses)
    return " and ".join(f"python_version {m[1]} '{m[2]}'" for m in split if m)


def _poetry_ranges(text: str) -> list[str]:
    """Return the ranges that ``||`` joins, lowest first. Those that touch are one."""
    ranges: list[str] = []
    several = [",".join(_caret(part.strip()) for part in one.split(",")) for one in re.split(r"\|\|?", text)]
    for spec in sorted(several, key=lambda one: [int(n) for n in re.findall(r"\d{1,20}", one)]):
        below, above = (
            re.search(rf"{sign}({_NUMBERS})", one) for sign, one in (("<", ranges[-1] if ranges else ""), (">=", spec))
        )
        if below and above and Version(above[1]) <= Version(below[1]):
            clauses = [c for c in ranges.pop().split(",") if c[0] != "<"] + [c for c in spec.split(",") if c[0] != ">"]
            ranges.append(",".join(clauses))
        else:
            ranges.append(spec)
    return ranges


def _caret(part: str) -> str:
    if part == "*":
        return ""
    match = re.fullmatch(rf"([\^~])\s*({_NUMBERS})", part)
    if not match:
        return f"=={part}" if part[:1].isdigit() else part
    numbers = [int(n) for n in match[2].split(".")]
    if match[1] == "~":
        place = min(1, len(numbers) - 1)
    else:
        place = next((i for i, n in enumerate(numbers) if n), len(numbers) - 1)
    above = [*numbers[:place], numbers[place] + 1]
    return f">={match[2]},<{'.'.join(map(str, above))}"


def _environment(text: str, file: str, lines: DeclaredLines) -> None:
    environment, find = CondaEnvironment.read(text, file), _Finder(text)
    lines.name = lines.name or str(environment.name or "")
    for entry in environment.entries:
        if isinstance(entry, str):
            add_conda(entry, file, find(entry), lines)
            continue
        for line in entry:
            _pip_line(line, file, find(line), lines)


def _pip_line(text: str, file: str, line: int, lines: DeclaredLines) -> None:
    """Read a line that pip gets. What names an index or a folder changes nothing that is required."""
    option = re.fullmatch(r"(-r|-e|--requirement|--editable)[ =]?\s*(\S.*)", text)
    if option and option[1] in {"-r", "--requirement"}:
        lines.files.append(DeclaredFile((option[2],), f"{file}:{line}"))
    elif not text.startswith("-") or (option and name_of_address(option[2])):
        lines.entries.append(DeclaredRequirement(option[2] if option else text, file, line))


def add_conda(entry: str, file: str, line: int, lines: DeclaredLines) -> None:
    """Add a Conda spec without its build: ``pytorch=2.5``, ``numpy>=1.26``, ``conda-forge::torch 2.5.*``."""
    match = re.fullmatch(r"(?:[\w./-]+::)?([A-Za-z0-9._-]+?)\s*((?:[<>=!~]|\s\d).*)?", entry.strip())
    if not match:
        lines.notes.append(f"{file}:{line}: not understood: {entry[:80]!r}")
        return
    name = {"pytorch": "torch", "pytorch-gpu": "torch", "pytorch-cuda": "cuda-version"}.get(match[1].lower(), match[1])
    spec = _conda_spec((match[2] or "").strip())
    if name == "python":
        if spec:
            lines.python.append((spec, file, line))
    else:
        lines.entries.append(DeclaredRequirement(f"{name}{spec}", file, line, is_conda=True))


def _conda_spec(text: str) -> str:
    version = text.split(maxsplit=1)[0] if text[:1].isdigit() else re.split(r"\s+(?=[\w*]+$)", text)[0]
    if version.startswith("=") and not version.startswith("=="):
        version = version[1:].split("=", 1)[0]
        return f"=={version}" if version.endswith("*") else f"=={version}.*"
    if version[:1].isdigit():
        return f"=={version}"
    return version.replace(" ", "")


def read_into(lines: DeclaredLines, path: Path, name: str) -> None:
    """Add what one file of :data:`FILES` declares. ``DataError`` when it is not such a file.

    Where a file is named that is not there, or something is computed, the requirements beside a ``setup.py`` stand for
    it, with a note.
    """
    files = len(lines.files)
    reader = _environment if path.suffix in CONDA_SUFFIXES else _READERS[path.name]
    reader(_text(path), name, lines)
    missing = [one for one in lines.files[files:] if one.existing(path.parent) is None]
    lines.files = [one for one in lines.files if one not in missing]
    unread = [f"{one.where}: {one.names[-1]} is not there" for one in missing if one.extra is None]
    lines.skipped += unread
    if path.name == "setup.py" and lines.skipped and (path.parent / "requirements.txt").is_file():
        lines.notes += (f"{line}: requirements.txt is taken in its place" for line in lines.skipped)
        lines.skipped.clear()
        lines.files.append(DeclaredFile(("requirements.txt",), name))


def read_toml(path: Path) -> JsonFields:
    """Return the tables of a TOML file. ``DataError`` when it is not one."""
    return _toml(_text(path), path.name)


def _toml(text: str, file: str) -> JsonFields:
    try:
        return parse_toml(text.replace("\r\n", "\n"))
    except ValueError as error:
        raise DataError(f"Cannot read {file}: it is not valid TOML ({error}).") from error


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, str))


_READERS = {
    "pyproject.toml": _pyproject,
    "setup.cfg": _setup_cfg,
    "setup.py": _setup_py,
    "requirements.txt": _requirements,
    "METADATA": _metadata,
    "PKG-INFO": _metadata,
}
