"""Packages that nobody measured and that a message may be about: what the text imports, calls, states or speaks of."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from dataclasses import dataclass

from envsmith.doctor.facts import Facts
from envsmith.doctor.lacks import Lack, callables, imported_paths, listed_project, with_import
from envsmith.doctor.read.lines import fold
from envsmith.doctor.read.tracebacks import installed_path
from envsmith.doctor.vocabulary import words
from envsmith.knowledge.names.modules import distributions_by_module
from envsmith.knowledge.names.name_index import NameIndex

_INSTALLED = re.compile(r"[/\\\\](?:site|dist)-packages[/\\\\]+([A-Za-z_]\w{1,60})[/\\\\]")
_WORD = re.compile(r"(?<![\w./-])[A-Za-z]\w{1,40}(?:-\w{2,40}){0,3}")


@dataclass(frozen=True, slots=True)
class Suspect:
    """A project and the module of it that is imported, of which a ``lack`` may be.

    ``is_installed``: a path shows it. ``is_guess``: the text does not say that what is asked is of this one.
    """

    lack: Lack
    root: str
    project: str
    is_installed: bool
    is_guess: bool


def suspects(lack: Lack, facts: Facts, names: NameIndex) -> Iterator[Suspect]:
    """Yield the packages that a message may be about and that ``names`` do not have, the likeliest first."""
    lack = with_import(lack)
    measured = set(names.distributions())
    projects: set[str] = set()
    for root, is_guess in _roots(lack, facts):
        project = _project(root, lack, facts)
        if project and project not in measured and project not in projects and root not in names.roots:
            projects.add(project)
            yield Suspect(lack, root, project, _is_installed(root, lack), is_guess)


def _roots(lack: Lack, facts: Facts) -> Iterator[tuple[str, bool]]:
    """Yield modules: of the message itself, else of the imports, calls, paths, versions and words around it."""
    if lack.kind in {"name", "attribute", "module"}:
        if lack.root:
            yield lack.root, False
        return
    first = lack.owner.partition(".")[0]
    if isinstance(getattr(builtins, first, None), type) or not lack.name or lack.kind == "positional":
        return
    named = [name for name in dict.fromkeys([first, *callables(lack)]) if name != "__init__"]
    for name in named:
        yield from ((path.partition(".")[0], False) for path in imported_paths(name, lack))
        root, dot, _ = name.partition(".")
        if dot and root != first:
            yield root, False
    yield from ((path.partition(".")[0], False) for name in named if (path := words().classes.get(name)))
    if lack.kind == "member" and not first[:1].isupper():
        return
    paths = [path for frame in reversed(lack.frames) if (path := installed_path(frame.file))]
    yield from ((path.partition("/")[0].removesuffix(".py"), True) for path in paths)
    yield from ((root, True) for root in _INSTALLED.findall(lack.around))
    modules = {project: root for root, project in reversed(distributions_by_module().items())}
    spoken = {fold(word): word for word in _WORD.findall(lack.around)}
    for name, word in spoken.items():
        project = listed_project(word) or name
        if project in modules or project in facts.distributions:
            yield modules.get(project, project.replace("-", "_")), True


def _project(root: str, lack: Lack, facts: Facts) -> str | None:
    """Return the project that brings a module, where it is known, or the text shows that it was installed.

    A module of one's own may have the name of a project that has nothing to do with it. One inside of another module
    tells by itself whether the project has it.
    """
    listed = listed_project(root)
    project = listed or fold(root)
    is_nested = "." in lack.owner and not lack.file
    is_there = listed or is_nested or project in facts.distributions or _is_installed(root, lack)
    return project if is_there else None


def _is_installed(root: str, lack: Lack) -> bool:
    """Return whether a path in the text shows that the module is one that was installed, and none of one's own."""
    return f"-packages/{root}/" in lack.around.replace("\\", "/")
