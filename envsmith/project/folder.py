"""What the project in a folder asks for, as an installer would: from its ``pyproject.toml``, or what stands for one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envsmith.base.files import read_bounded
from envsmith.base.json_types import JsonFields
from envsmith.errors import DataError, EnvsmithError
from envsmith.knowledge.graph.load import components
from envsmith.model.cell import distribution_of
from envsmith.project.declared import (
    MAX_BYTES,
    DeclaredLines,
    DeclaredRequirement,
    declaring_files,
    read_declared,
    read_into,
    read_toml,
    table_of,
)
from envsmith.project.demand import Demand, Demands, parse_line
from envsmith.project.pip_format import cuda_of_index, read_requirement_file
from envsmith.project.setup_script import read_setup

PYPROJECT, SETUP_CFG, SETUP_PY = "pyproject.toml", "setup.cfg", "setup.py"
REQUIREMENTS, ENVIRONMENTS = "requirements.txt", ("environment.yml", "environment.yaml")
# Names that people give to lists of requirements.
_LIST = re.compile(r"(?:.*[-_.])?(?:requirements?|constraints?)(?:[-_.].*)?\.(?:txt|in)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectPart:
    """Which part of a project: with which extras and dependency groups, and without which requirements."""

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()


def read_folder(root: Path, part: ProjectPart) -> Demands:
    """Return what the project in a folder asks for. ``DataError`` says that it declares nothing, or lacks the part."""
    return _Folder(root, part).read()


def is_project_file(path: Path) -> bool:
    """Return whether a file declares what a project requires, by its name."""
    return path.name in (PYPROJECT, SETUP_CFG, *ENVIRONMENTS) or _LIST.fullmatch(path.name) is not None


def read_project_file(path: Path) -> Iterator[tuple[ProjectPart, Demands]]:
    """Yield what one file asks for: without extras and groups, then with each of them alone.

    ``DataError`` where it cannot be read.
    """
    folder = _Folder(path.parent, ProjectPart())
    for part in folder.parts(path.name):
        yield part, replace(folder, part=part).file(path.name)


@dataclass(frozen=True, slots=True)
class _Folder:
    root: Path
    part: ProjectPart

    def read(self) -> Demands:
        for reader in (self._pyproject, self._setup_cfg, self._setup_py, self._requirements, self._environment):
            listed = reader()
            if listed is not None:
                return listed
        raise DataError(
            f"Cannot read the project in {self.root}: no file of it declares requirements.",
            hint=f"Give a folder with {PYPROJECT}, {SETUP_CFG}, {SETUP_PY}, {REQUIREMENTS} or {ENVIRONMENTS[0]}.",
        )

    def parts(self, name: str) -> list[ProjectPart]:
        """Return the parts of a file: what it always asks for, and each extra and group."""
        lines = self._lines(name) if name in (PYPROJECT, SETUP_CFG) else None
        entries = lines.entries if lines else []
        extras = sorted({canonicalize_name(entry.extra) for entry in entries if entry.extra})
        groups = sorted({entry.group for entry in entries if entry.group})
        return [
            ProjectPart(),
            *(ProjectPart(extras=(name,)) for name in extras),
            *(ProjectPart(groups=(name,)) for name in groups),
        ]

    def file(self, name: str) -> Demands:
        """Return what one file asks for."""
        readers = {PYPROJECT: self._pyproject, SETUP_CFG: self._setup_cfg}
        if name in readers:
            return readers[name]() or Demands()
        lines = self._lines(name) if name in ENVIRONMENTS else None
        return self._chosen(lines, name) if lines else self._listed(name)

    def _lines(self, name: str) -> DeclaredLines | None:
        path = self.root / name
        if not path.is_file():
            return None
        lines = DeclaredLines()
        read_into(lines, path, str(path))
        return lines

    def _pyproject(self) -> Demands | None:
        lines = self._lines(PYPROJECT)
        if lines is None:
            return None
        data = read_toml(self.root / PYPROJECT)
        project, tool = table_of(data, "project"), table_of(data, "tool")
        dynamic = project.get("dynamic")
        files = _dynamic_files(tool) if isinstance(dynamic, list) and "dependencies" in dynamic else ()
        declares = "dependencies" in project or "dependencies" in table_of(tool, "poetry") or files
        if not (declares or self.part.groups):
            return None
        self._refuse_unknown(lines)
        listed = self._chosen(lines, PYPROJECT)
        for file in files:
            listed = listed.joined(self._listed(file))
        of_uv = Demands(
            cuda=tuple(self._builds(tool)), notes=tuple(self._unused(tool)), overridden=tuple(_overridden(tool))
        )
        return listed.joined(of_uv)

    def _setup_cfg(self) -> Demands | None:
        lines = self._lines(SETUP_CFG)
        if lines is None or not any(entry.extra is None for entry in lines.entries):
            return None
        self._refuse_unknown(lines)
        return self._chosen(lines, SETUP_CFG)

    def _setup_py(self) -> Demands | None:
        path = self.root / SETUP_PY
        if not path.is_file():
            return None
        script = read_setup(read_bounded(path, MAX_BYTES).decode("utf-8", "replace"))
        files = [(line, next((n for n in names if (self.root / n).is_file()), "")) for line, names in script.files]
        unread = [*script.computed, *(line for line, file in files if not file)]
        problems = tuple(f"{path}:{line}: it is computed, and {SETUP_PY} is not run" for line in unread)
        notes: tuple[str, ...] = ()
        if problems and (self.root / REQUIREMENTS).is_file():
            notes = tuple(f"{problem}: {REQUIREMENTS} is taken in its place" for problem in problems)
            files, problems = [*files, (0, REQUIREMENTS)], ()
        lines = DeclaredLines(name=script.name)
        for line, text, extra in script.lines:
            lines.entries.append(DeclaredRequirement(text, str(path), line, extra))
        if script.python:
            lines.python.append((script.python[1], str(path), script.python[0]))
        if not (files or lines.entries or problems):
            return None
        self._refuse_unknown(lines)
        listed = self._chosen(lines, SETUP_PY).joined(Demands(problems=problems, notes=notes))
        for file in dict.fromkeys(file for _, file in files if file):
            listed = listed.joined(self._listed(file))
        return listed

    def _requirements(self) -> Demands | None:
        return self._listed(REQUIREMENTS) if (self.root / REQUIREMENTS).is_file() else None

    def _environment(self) -> Demands | None:
        for name in ENVIRONMENTS:
            lines = self._lines(name)
            if lines is not None:
                return self._chosen(lines, name)
        return None

    def _listed(self, name: str) -> Demands:
        def folder(root: Path, extras: Collection[str]) -> Demands:
            if root.resolve() == self.root.resolve():  # -e . of the project that is being read
                return Demands()
            return read_folder(root, ProjectPart(extras=tuple(extras), leave_out=self.part.leave_out))

        return read_requirement_file(self.root / name, folder, leave_out=self.part.leave_out)

    def _chosen(self, lines: DeclaredLines, file: str) -> Demands:
        """Return the requirements of a file that belong to the part, each of the project's own extras in its place."""
        leave_out = set(map(canonicalize_name, self.part.leave_out))
        own = canonicalize_name(lines.name) if lines.name else ""
        extras, groups = set(map(canonicalize_name, self.part.extras)), set(self.part.groups)
        demands: dict[tuple[str, str], Demand] = {}
        problems: list[str] = []
        entries, cuda, notes = _of_index(lines.entries)
        size = -1
        while size != len(extras):  # an extra of the project may name further ones
            size = len(extras)
            for entry in entries:
                extra = entry.extra and canonicalize_name(entry.extra)
                if extra not in {None, *extras} or entry.group not in {None, *groups}:
                    continue
                text, where = entry.text, entry.where
                name = distribution_of(text)
                if own and name == own:
                    extras |= set(map(canonicalize_name, _extras_of(text)))
                elif name not in leave_out and (text, where) not in demands:
                    try:
                        demands[text, where] = parse_line(text, where)
                    except ValueError as error:
                        problems.append(f"{where}: {error}")
        path = str(self.root / file)
        return Demands(
            demands=tuple(demands.values()),
            python=tuple((text, f"{file}:{line}") for text, file, line in lines.python),
            cuda=tuple(cuda),
            files=(path,),
            notes=tuple(notes),
            problems=tuple(dict.fromkeys(problems)),
        )

    def _refuse_unknown(self, lines: DeclaredLines) -> None:
        """Refuse an extra or a group that the project does not have."""
        extras = {canonicalize_name(entry.extra) for entry in lines.entries if entry.extra}
        groups = {entry.group for entry in lines.entries if entry.group}
        for kind, names, existing in (("extra", self.part.extras, extras), ("group", self.part.groups, groups)):
            for name in names:
                if (canonicalize_name(name) if kind == "extra" else name) not in existing:
                    raise DataError(
                        f"Cannot use --{kind} {name}: the project in {self.root} has no such {kind}.",
                        hint=f"Use one of: {', '.join(sorted(existing))}." if existing else f"Leave --{kind} out.",
                    )

    def _builds(self, tool: JsonFields) -> Iterator[tuple[str, str]]:
        """Yield the CUDA of the index that a uv project takes torch from, where it takes it from only one."""
        uv = table_of(tool, "uv")
        sources, indexes = table_of(uv, "sources").get("torch"), uv.get("index")
        named = [s for s in (sources if isinstance(sources, list) else [sources]) if isinstance(s, dict)]
        chosen = [s for s in named if not s.get("extra") or s["extra"] in self.part.extras]
        if len(chosen) != 1:
            return
        for index in indexes if isinstance(indexes, list) else ():
            cuda = cuda_of_index(str(index.get("url", ""))) if isinstance(index, dict) else None
            if cuda and index.get("name") == chosen[0].get("index"):
                yield cuda, f"{self.root / PYPROJECT}: tool.uv.sources.torch"

    def _unused(self, tool: JsonFields) -> Iterator[str]:
        uv = table_of(tool, "uv")
        for key in ("override-dependencies", "constraint-dependencies", "exclude-dependencies"):
            if uv.get(key):
                yield f"{self.root / PYPROJECT}: tool.uv.{key} is not used"


def _of_index(
    entries: Iterable[DeclaredRequirement],
) -> tuple[list[DeclaredRequirement], list[tuple[str, str]], list[str]]:
    """Return what the package index has, the CUDA that a Conda package names, and a sentence for each that is unknown."""
    listed, cuda, notes = list[DeclaredRequirement](), list[tuple[str, str]](), list[str]()
    find = components().find
    for entry in entries:
        name, spec = re.fullmatch(r"\s*([\w.-]*)(.*)", entry.text, re.DOTALL).groups()  # type: ignore[union-attr]
        if entry.is_conda and name == "cuda-version":
            cuda.append((re.sub(r"[^\d.]|\.\*", "", spec), entry.where))
        elif entry.is_conda and find(name) is None:
            notes.append(f"{entry.where}: {name} is a Conda package that envsmith does not know: it is left out")
        else:
            listed.append(entry)
    return listed, cuda, notes


def _overridden(tool: JsonFields) -> Iterator[str]:
    """Yield the names of uv's overrides."""
    listed = table_of(tool, "uv").get("override-dependencies")
    for text in listed if isinstance(listed, list) else ():
        if isinstance(text, str) and (match := re.match(r"\s*([\w.-]+)", text)):
            yield canonicalize_name(match[1])


def _extras_of(text: str) -> Iterable[str]:
    match = re.search(r"\[([^\]]*)\]", text)
    return (e.strip() for e in match[1].split(",")) if match else ()


def _dynamic_files(tool: JsonFields) -> tuple[str, ...]:
    """Return the requirement files that setuptools reads the dependencies of a project from."""
    table: object = tool
    for key in ("setuptools", "dynamic", "dependencies", "file"):
        table = table.get(key) if isinstance(table, dict) else None
    listed = [table] if isinstance(table, str) else table if isinstance(table, list) else []
    return tuple(file for file in listed if isinstance(file, str))


# What a project says it requires, beyond what an installer reads: any of its files, and its texts for people.

# Texts in which a project says what to install: for people, and for an engine.
_GUIDES = re.compile(r"(readme|install)[\w.-]{0,40}\.(md|rst|txt)|(docker|container)file[\w.-]{0,40}", re.IGNORECASE)
_INSTALL = re.compile(r"\bpip3?\s+install\s+([^\n`;|&#)]{1,2000})")
_WITH_VALUE = frozenset(
    {"-r", "-c", "-e", "-i", "-f", "-t", "--index-url", "--extra-index-url", "--find-links", "--editable"}
)
_MOST = 500


def read_stated(root: Path, files: Collection[str]) -> Demands:
    """Read what stands in a project's own folder, one requirement of each distribution.

    A file of requirements comes before an extra, and that before a text among ``files``. What cannot be read states
    nothing, and is one of the ``problems``.
    """
    stated: dict[str, Demand] = {}
    python, unread = None, list[str]()
    declaration = None
    try:
        if declaring_files(root):
            declaration = read_declared(root)
    except EnvsmithError as error:
        unread.append(error.reason)
    if declaration is not None:
        python = declaration.python
        unread += declaration.skipped
        for declared in sorted(declaration.requirements, key=lambda d: d.extra is not None):
            # A Conda file lists every package of an environment, libraries of other languages among them.
            is_conda = declared.file.startswith("environment")
            spec = _exact(declared.spec) if is_conda else declared.spec
            where, is_optional = f"{declared.file}:{declared.line}", is_conda or declared.extra is not None
            demand = Demand(requirement=Requirement(f"{declared.name}{spec}"), where=where, is_optional=is_optional)
            stated.setdefault(demand.name, demand)
    guides = [(name, _install_lines) for name in sorted(files) if _is_guide(name)]
    for file, read in guides:
        for line, text in read(_text(root / file)):
            if (one := _stated(text, f"{file}:{line}", is_optional=_is_guide(file))) is not None:
                stated.setdefault(one.name, one)
    return Demands(
        demands=tuple(list(stated.values())[:_MOST]),
        python=((python, ""),) if python else (),
        problems=tuple(unread[:_MOST]),
    )


def _exact(spec: str) -> str:
    """Return Conda's ``=1.19.2``, which was read as ``==1.19.2.*``, as the release that it means."""
    return re.sub(r"^(==\d+\.\d+\.\d+)\.\*$", r"\1", spec)


def _is_guide(name: str) -> bool:
    return "/" not in name and _GUIDES.fullmatch(name) is not None


def _text(path: Path) -> str:
    try:
        return read_bounded(path, MAX_BYTES).decode("utf-8", "replace")
    except EnvsmithError:
        return ""


def _stated(text: str, where: str, *, is_optional: bool) -> Demand | None:
    try:
        requirement = Requirement(text)
    except (InvalidRequirement, ValueError):
        return None
    if requirement.url:
        return None
    return Demand(requirement=requirement, where=where, is_optional=is_optional)


def _install_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield what ``pip install`` is given in a text for people, without options, addresses and paths."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in _INSTALL.finditer(line[:4000]):
            words = iter(match[1].replace('"', " ").replace("'", " ").split())
            for word in words:
                if word in _WITH_VALUE:
                    next(words, None)
                elif re.match(r"[A-Za-z0-9]", word) and "/" not in word:
                    yield number, word
