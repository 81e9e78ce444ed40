"""What the project in a folder asks for, as an installer would: from its ``pyproject.toml``, or what stands for one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from envsmith.base.json_types import JsonFields, list_in, object_in, objects_in
from envsmith.errors import DataError
from envsmith.knowledge.graph.load import components
from envsmith.model.cell import distribution_of
from envsmith.model.project_name import normal_name
from envsmith.project.declared import (
    CONDA_SUFFIXES,
    DeclaredLines,
    DeclaredRequirement,
    read_into,
    read_toml,
)
from envsmith.project.demand import Demand, Demands, name_of_address, parse_line
from envsmith.project.guides import guide_lines, guides_of, shallow_files
from envsmith.project.pip_format import cuda_of_index, read_requirement_file

PYPROJECT, SETUP_CFG, SETUP_PY = "pyproject.toml", "setup.cfg", "setup.py"
REQUIREMENTS, ENVIRONMENTS = "requirements.txt", ("environment.yml", "environment.yaml")
_DECLARING = (PYPROJECT, SETUP_CFG, SETUP_PY, *ENVIRONMENTS)
# Packages that a note names.
_SHOWN = 6
# Names that people give to lists of requirements.
_LIST = re.compile(r"(?:.*[-_.])?(?:requirements?|constraints?)(?:[-_.].*)?\.(?:txt|in)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectPart:
    """Which part of a project: with which extras and dependency groups, and without which requirements.

    ``further_files`` are those that are read beside it.
    """

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    leave_out: tuple[str, ...] = ()
    further_files: tuple[Path, ...] = ()


def read_folder(root: Path, part: ProjectPart) -> Demands:
    """Return what the project in a folder asks for. ``DataError`` says that it declares nothing, or lacks the part."""
    return _Folder(root, part).read()


def is_project_file(path: Path) -> bool:
    """Return whether a file declares what a project requires, by its name or that of its folder."""
    if path.name in (PYPROJECT, SETUP_CFG, *ENVIRONMENTS) or _LIST.fullmatch(path.name):
        return True
    return path.suffix in {".txt", ".in"} and path.parent.name in {"requirements", "constraints"}


def read_declaring_file(path: Path, leave_out: Collection[str] = ()) -> Demands | None:
    """Return what one file declares. ``None`` where it is of pip's format, by its name."""
    if not _is_declaring(path.name):
        return None
    listed = _Folder(path.parent, ProjectPart(leave_out=tuple(leave_out))).file(path.name)
    if listed is None or replace(listed, files=()) == Demands():
        raise DataError(
            f"Cannot read the requirements of {path}: it declares none.",
            hint="Name the file that lists them, or give the folder of the project with --project.",
        )
    return listed


def _is_declaring(name: str) -> bool:
    return name in _DECLARING or name.endswith(CONDA_SUFFIXES)


def read_project_file(path: Path) -> Iterator[tuple[ProjectPart, Demands]]:
    """Yield what one file asks for: without extras and groups, then with each of them alone.

    ``DataError`` where it cannot be read.
    """
    folder = _Folder(path.parent, ProjectPart())
    for part in folder.parts(path.name):
        yield part, replace(folder, part=part).file(path.name) or Demands()


@dataclass(frozen=True, slots=True)
class _Folder:
    root: Path
    part: ProjectPart

    def read(self) -> Demands:
        python: tuple[tuple[str, str], ...] = ()
        for name in (PYPROJECT, SETUP_CFG, SETUP_PY, REQUIREMENTS, *ENVIRONMENTS):
            listed = self.file(name)
            if listed is not None:
                notes = (*listed.notes, *self._left_out(name, listed))
                return replace(listed, python=listed.python or python, notes=notes)
            python = python or self._python(name)
        if (listed := self._guides()) is not None:
            return listed
        raise DataError(
            f"Cannot read the project in {self.root}: no file of it declares requirements.",
            hint=f"Give a folder with {PYPROJECT}, {SETUP_CFG}, {SETUP_PY}, {REQUIREMENTS} or {ENVIRONMENTS[0]}.",
        )

    def _left_out(self, name: str, listed: Demands) -> Iterator[str]:
        """Yield what a list beside the file that declares has more, and what installs the torch that none declares."""
        own = {*(demand.name for demand in listed.demands), *map(normal_name, self.part.leave_out)}
        beside = Demands() if name == REQUIREMENTS else (self.file(REQUIREMENTS) or Demands())
        names = [demand.name for demand in beside.demands if demand.name not in own]
        if names and (path := self.root / REQUIREMENTS).resolve() not in {p.resolve() for p in self.part.further_files}:
            yield f"{path} is left out, because {name} declares what is required: {_first(names)} (take it with -r)"
        for guide in guides_of(shallow_files(self.root)) if "torch" not in {*own, *names} else ():
            lines = guide_lines(self.root / guide, guide)
            if any(distribution_of(entry.text) == "torch" for entry in lines.entries):
                further = [entry.text for entry in lines.entries if distribution_of(entry.text) not in own]
                yield f"{guide} is left out, because {name} declares what is required: {_first(further)}"
                return

    def parts(self, name: str) -> list[ProjectPart]:
        """Return the parts of a file: what it always asks for, and each extra and group."""
        lines = self._lines(name) if name in (PYPROJECT, SETUP_CFG) else None
        entries = lines.entries if lines else []
        extras = sorted({normal_name(entry.extra) for entry in entries if entry.extra})
        groups = sorted({entry.group for entry in entries if entry.group})
        return [
            ProjectPart(),
            *(ProjectPart(extras=(name,)) for name in extras),
            *(ProjectPart(groups=(name,)) for name in groups),
        ]

    def file(self, name: str) -> Demands | None:
        """Return what one file asks for. ``None`` where it is not there, or leaves that to another file."""
        if not (self.root / name).is_file():
            return None
        return self._declaring(name) if _is_declaring(name) else self._listed(name)

    def _python(self, name: str) -> tuple[tuple[str, str], ...]:
        """Return the Pythons that a file admits, which leaves the requirements to another."""
        lines = self._lines(name) if name in _DECLARING else None
        return tuple((text, f"{file}:{line}") for text, file, line in lines.python) if lines else ()

    def _lines(self, name: str) -> DeclaredLines | None:
        path = self.root / name
        if not path.is_file():
            return None
        lines = DeclaredLines()
        read_into(lines, path, str(path))
        return lines

    def _declaring(self, name: str) -> Demands | None:
        """Return what a file declares. ``None`` where it is not there, or leaves that to another file."""
        lines = self._lines(name)
        tool: JsonFields = {}
        if lines is None:
            return None
        if name == PYPROJECT:
            data = read_toml(self.root / PYPROJECT)
            project, tool = object_in(data, "project"), object_in(data, "tool")
            declares = "dependencies" in project or "dependencies" in object_in(tool, "poetry") or lines.declares
            if not (declares or self.part.groups):
                return None
        elif not (lines.declares or name.endswith(CONDA_SUFFIXES)):
            return None
        self._refuse_unknown(lines)
        unread = [extra for extra in self.part.extras if extra in lines.unread_extras]
        listed = self._chosen(lines, name).joined(
            Demands(
                cuda=tuple(self._builds(tool)),
                notes=(*lines.notes, *self._unused(tool)),
                problems=(*lines.skipped, *(f"{self.root / name}: extra {x} is computed" for x in unread)),
                overridden=tuple(_overridden(tool)),
            )
        )
        extras = {None, *map(normal_name, self.part.extras)}
        chosen = (one for one in lines.files if (one.extra and normal_name(one.extra)) in extras)
        for file in dict.fromkeys(filter(None, (one.existing(self.root) for one in chosen))):
            listed = listed.joined(self._listed(file))
        return listed

    def _guides(self) -> Demands | None:
        """Return what the first text that says what to install names, where no file declares anything."""
        for name in guides_of(shallow_files(self.root)):
            lines = guide_lines(self.root / name, str(self.root / name))
            if lines.entries:
                note = f"no file declares what {self.root} requires: what {name} says to install is taken"
                return self._chosen(lines, name).joined(Demands(notes=(note,)))
        return None

    def _listed(self, name: str) -> Demands:
        def folder(root: Path, extras: Collection[str]) -> Demands:
            if root.resolve() == self.root.resolve():  # -e . of the project that is being read
                return Demands()
            return read_folder(root, ProjectPart(extras=tuple(extras), leave_out=self.part.leave_out))

        return read_requirement_file(self.root / name, folder, leave_out=self.part.leave_out)

    def _chosen(self, lines: DeclaredLines, file: str) -> Demands:
        """Return the requirements of a file that belong to the part, each of the project's own extras in its place."""
        leave_out = set(map(normal_name, self.part.leave_out))
        own = normal_name(lines.name) if lines.name else ""
        extras, groups = set(map(normal_name, self.part.extras)), set(self.part.groups)
        demands: dict[tuple[str, str], Demand] = {}
        problems: list[str] = []
        entries, cuda, notes = _of_index(lines.entries)
        size = -1
        while size != len(extras):  # an extra of the project may name further ones
            size = len(extras)
            for entry in entries:
                extra = entry.extra and normal_name(entry.extra)
                if extra not in {None, *extras} or entry.group not in {None, *groups}:
                    continue
                text, where = entry.text, entry.where
                name = name_of_address(text) or distribution_of(text)
                if own and name == own:
                    extras |= set(map(normal_name, _extras_of(text)))
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
        named = {*(one.extra for one in lines.entries), *(one.extra for one in lines.files), *lines.unread_extras}
        extras = {normal_name(extra) for extra in named if extra}
        groups = {entry.group for entry in lines.entries if entry.group}
        for kind, names, existing in (("extra", self.part.extras, extras), ("group", self.part.groups, groups)):
            for name in names:
                if (normal_name(name) if kind == "extra" else name) not in existing:
                    raise DataError(
                        f"Cannot use --{kind} {name}: the project in {self.root} has no such {kind}.",
                        hint=f"Use one of: {', '.join(sorted(existing))}." if existing else f"Leave --{kind} out.",
                    )

    def _builds(self, tool: JsonFields) -> Iterator[tuple[str, str]]:
        """Yield the CUDA of the index that a uv project takes torch from, where it takes it from only one."""
        uv = object_in(tool, "uv")
        sources = object_in(uv, "sources").get("torch")
        named = [s for s in (sources if isinstance(sources, list) else [sources]) if isinstance(s, dict)]
        chosen = [s for s in named if not s.get("extra") or s["extra"] in self.part.extras]
        if len(chosen) != 1:
            return
        for index in objects_in(uv, "index"):
            cuda = cuda_of_index(str(index.get("url", "")))
            if cuda and index.get("name") == chosen[0].get("index"):
                yield cuda, f"{self.root / PYPROJECT}: tool.uv.sources.torch"

    def _unused(self, tool: JsonFields) -> Iterator[str]:
        uv = object_in(tool, "uv")
        for key in ("override-dependencies", "constraint-dependencies", "exclude-dependencies"):
            if uv.get(key):
                yield f"{self.root / PYPROJECT}: tool.uv.{key} is not used"


def _of_index(
    entries: Iterable[DeclaredRequirement],
) -> tuple[list[DeclaredRequirement], list[tuple[str, str]], list[str]]:
    """Return what the package index has, the CUDA that a Conda package names, and a sentence about what is unknown."""
    listed, cuda, unknown = list[DeclaredRequirement](), list[tuple[str, str]](), dict[str, list[str]]()
    find = components().find
    for entry in entries:
        name, spec = re.fullmatch(r"\s*([\w.-]*)(.*)", entry.text, re.DOTALL).groups()  # type: ignore[union-attr]
        if entry.is_conda and name == "cuda-version":
            cuda.append((re.sub(r"[^\d.]|\.\*", "", spec), entry.where))
        elif entry.is_conda and find(name) is None:
            unknown.setdefault(entry.file, []).append(name)
        else:
            listed.append(entry)
    notes = [
        f"{file}: left out are {len(names)} Conda packages that envsmith does not know: {_first(names)}"
        for file, names in unknown.items()
    ]
    return listed, cuda, notes


def _first(names: Iterable[str]) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _overridden(tool: JsonFields) -> Iterator[str]:
    """Yield the names of uv's overrides."""
    for text in list_in(object_in(tool, "uv"), "override-dependencies"):
        if match := re.match(r"\s*([\w.-]+)", text):
            yield normal_name(match[1])


def _extras_of(text: str) -> Iterable[str]:
    match = re.search(r"\[([^\]]*)\]", text)
    return (e.strip() for e in match[1].split(",")) if match else ()
