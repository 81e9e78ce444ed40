"""Releases that nothing states and a traceback betrays: those whose files have its lines of code at their numbers."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from envsmith.base.text import counted
from envsmith.doctor.facts import Draft, Facts, Read
from envsmith.doctor.lacks import installed_version, listed_project
from envsmith.doctor.read.lines import is_distribution
from envsmith.doctor.read.tracebacks import LoggedFrame, frames_in, installed_path, package_of
from envsmith.model.code_line import CodeLine
from envsmith.model.version import minor_of

# Gives the releases of a project that have all of some lines, or none where that is not certain.
FindReleases = Callable[[str, Sequence[CodeLine]], Sequence[str]]
# How many packages are asked for, because a person waits, and how many lines of each.
_PACKAGES = 3
_LINES = 12
# `return x`, `pass` and `)` stand everywhere.
_SHORTEST = 8


def with_traced_releases(facts: Facts, texts: Sequence[tuple[str, str]], find: FindReleases) -> Facts:
    """Return the facts with the releases that printed the tracebacks of ``texts``, where no version is stated.

    Only packages under ``site-packages`` are asked for, the innermost first.
    """
    unstated = {
        project: lines for project, lines in lines_in(texts).items() if installed_version(project, facts) is None
    }
    for project, lines in [*unstated.items()][:_PACKAGES]:
        if releases := find(project, lines):
            facts = _with_releases(facts, project, lines, releases)
    return facts


def lines_in(texts: Sequence[tuple[str, str]]) -> Mapping[str, Sequence[CodeLine]]:
    """Return the lines of installed packages by the project that brings them, the innermost first."""
    by_project: dict[str, dict[CodeLine, None]] = defaultdict(dict)
    for _, text in texts:
        for frame in reversed(frames_in(text)):
            project, line = line_of(frame)
            if line:
                by_project[project][line] = None
    return {project: [*lines][:_LINES] for project, lines in by_project.items()}


def line_of(frame: LoggedFrame) -> tuple[str, CodeLine | None]:
    """Return the project that brings the code of a frame, and its line where that tells something."""
    path, package = installed_path(frame.file), package_of(frame.file)
    if not path or not package or not frame.line or len(frame.source) < _SHORTEST:
        return "", None
    project = listed_project(path.partition("/")[0]) or package
    return project, CodeLine(path, frame.line, frame.source)


def _with_releases(facts: Facts, project: str, lines: Sequence[CodeLine], releases: Sequence[str]) -> Facts:
    """Return the facts with the version of a project: the release, or the line of releases that all are of."""
    first, last = releases[0], releases[-1]
    span = first if first == last else f"{first} to {last}"
    note = f"{counted(len(lines), 'line')} of its code, compared with releases on the package index"
    is_one = minor_of(first) == minor_of(last)
    kinds = (f"of {project} {span}",)
    read = Read(source="traceback", kinds=kinds, lines=0, characters=0, facts=int(is_one), notes=(note,))
    draft = Draft(components=dict(facts.components), distributions=dict(facts.distributions))
    if is_one:
        version = first if first == last else minor_of(first)
        if component := is_distribution(project):
            draft.component(component, version, f"traceback of {project} {span}", 2, exact=first == last)
        else:
            draft.distribution(project, version)
    return dataclasses.replace(
        facts, components=draft.components, distributions=draft.distributions, read=(*facts.read, read)
    )
