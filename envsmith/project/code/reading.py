"""What a project's code takes from other packages: every use with its file and line."""

from __future__ import annotations

import ast
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath

from envsmith.base.progress import EventKind, Progress, ProgressEvent, silent
from envsmith.knowledge.names.module_uses import Member, Override, Stop, Use
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.own_classes import Ancestors
from envsmith.knowledge.names.uses import read_uses
from envsmith.project.code.loading import LAYOUTS, loaded_later
from envsmith.project.code.python_files import ProjectSources, read_project

# Stands in front of the modules of the project, so that a relative import never names another package.
_ROOT = "__project__"
# Seconds after which a reader who waits hears what is being read.
_PATIENCE = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class UsePlace:
    """A use and where it stands: ``train.py:12``."""

    use: Use
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class OverridePlace:
    """A method in the place of a package's own, and where it stands."""

    override: Override
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberPlace:
    """An attribute that packages have no more, and where it stands."""

    member: Member
    where: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ProjectUses:
    """All uses of a project, and its methods that stand in the place of a package's.

    ``members`` are attributes that packages have no more, and that the project has not itself.

    ``stops`` are its ``raise`` statements, each with its file. ``unseen`` counts lines that choose a name at run time, by package (``""``: not known). ``unreadable`` are files
    that were left out, each with the reason.
    """

    uses: tuple[UsePlace, ...]
    overrides: tuple[OverridePlace, ...] = ()
    members: tuple[MemberPlace, ...] = ()
    stops: tuple[tuple[str, Stop], ...] = ()
    unseen: Mapping[str, int] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()

    @property
    def modules(self) -> frozenset[str]:
        """Return the top names that are imported from elsewhere."""
        return frozenset(place.use.chain[0] for place in self.uses)


def read_project_uses(
    project: ProjectSources,
    is_package: Callable[[str], bool] = lambda _name: False,
    *,
    parse: Callable[[str, bytes], ast.Module] | None = None,
    ancestors: Callable[[str, ast.ClassDef], Ancestors | None] | None = None,
    progress: Progress = silent,
    clock: Callable[[], float] = time.monotonic,
) -> ProjectUses:
    """Read every source of a project.

    ``is_package`` says whether a name is that of a package: an installed one comes before a folder without an
    ``__init__.py`` of the same name. ``parse`` may read the tree of a source, ``ancestors`` what a class of it descends from. What stands in a file that is only loaded later stands under a condition.
    """
    names = _Names(project.files, is_package)
    # Its own folder, as whoever stands beside the checkout imports it.
    itself = {name for name in (project.root.name,) if name and not is_package(name)}
    uses: dict[str, list[UsePlace]] = {}
    overrides: list[OverridePlace] = []
    members: list[MemberPlace] = []
    defined: set[str] = set()
    stops: list[tuple[str, Stop]] = []
    imports: dict[str, list[Use]] = {}
    unseen: Counter[str] = Counter()
    unreadable = list(project.unreadable)
    began = clock() if progress is not silent else None
    for number, source in enumerate(project.sources):
        if began is not None and clock() - began > _PATIENCE:
            text = f"{number:,} of {len(project.sources):,} files of Python are read"
            progress(ProgressEvent(kind=EventKind.NOTE, step="", text=text))
            began = None
        path = PurePosixPath(source.path)
        module = ".".join([_ROOT, *path.with_suffix("").parts])
        try:
            tree_of = partial(parse, source.path) if parse else ast.parse
            own = {_ROOT, *itself, *names.beside(path)}
            of_class = partial(ancestors, source.path) if ancestors else None
            content = read_uses(source.text, module, package=False, own=own, parse=tree_of, ancestors=of_class)
        except SyntaxError as error:
            unreadable.append(f"{source.path}: not Python 3: {str(error.msg)[:80]}")
            continue
        uses[source.path] = [UsePlace(use=use, where=source.where(use.line)) for use in content.uses]
        overrides += [OverridePlace(override=each, where=source.where(each.line)) for each in content.overrides]
        members += [MemberPlace(member=each, where=source.where(each.line)) for each in content.members]
        defined |= content.defined
        stops += [(source.path, stop) for stop in content.stops]
        imports[source.path] = content.imports
        unseen.update(package for _, package in content.unseen)
    for file in loaded_later(imports, _ROOT):
        uses[file] = [UsePlace(use=_conditional(place.use), where=place.where) for place in uses[file]]
    every = tuple(place for places in uses.values() for place in places)
    return ProjectUses(
        uses=every,
        overrides=tuple(overrides),
        members=tuple(place for place in members if place.member.name not in defined),
        stops=tuple(stops),
        unseen=dict(unseen),
        unreadable=tuple(unreadable),
    )


def _conditional(use: Use) -> Use:
    return replace(use, guard=replace(use.guard, branch=True))


def read_code(path: Path, index: NameIndex, progress: Progress = silent) -> tuple[ProjectSources, ProjectUses]:
    """Return the sources at a path, and what they take. A name that ``index`` has is that of a package."""
    project = read_project(path)
    return project, read_project_uses(project, lambda name: index.distribution_of(name) is not None, progress=progress)


class _Names:
    """The modules of the project that each of its folders holds."""

    def __init__(self, files: Collection[str], is_package: Callable[[str], bool]) -> None:
        self._folders: dict[str, set[str]] = {}
        for file in files:
            path = PurePosixPath(file)
            if path.suffix == ".py" and path.stem != "__init__":
                self._folders.setdefault(str(path.parent), set()).add(path.stem)
            if path.suffix not in {".py", ".ipynb"}:
                continue
            for folder in path.parents:
                regular = f"{folder}/__init__.py" in files
                if folder.name and (regular or not is_package(folder.name)):
                    self._folders.setdefault(str(folder.parent), set()).add(folder.name)

    def beside(self, path: PurePosixPath) -> set[str]:
        """Return what a file can import of its project: what stands in its folder and in those above."""
        folders = [*map(str, path.parents), *LAYOUTS]
        return set().union(*(self._folders.get(folder, set()) for folder in folders))
