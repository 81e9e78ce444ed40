"""What the package index says of names that were not measured: the releases of the package that a message is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from envsmith.doctor.facts import Facts
from envsmith.doctor.lacks import Lack, best_answer, callables, installed_version, listed_project
from envsmith.doctor.read.lines import fold
from envsmith.errors import EnvsmithError
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.lock.index.asked_names import FIRST, MOST, AskedReleases, between, spread
from envsmith.lock.index.index import PackageIndex
from envsmith.net.http import NotFoundError

# How many packages are asked for, because a person waits.
_PACKAGES = 2
# What all releases of so many years have is missing because another copy is imported: nobody installs an older one.
_YEARS = 7


def ask_index(
    lacks: Sequence[Lack],
    facts: Facts,
    names: NameIndex,
    *,
    find: Callable[[], PackageIndex],
    say: Callable[[str], None],
) -> NameIndex:
    """Return the names with those of the packages that lack something, read where they are published.

    ``say`` hears what is read, and why something could not be.
    """
    packages: dict[str, tuple[str, Lack]] = {}
    for lack in lacks:
        for root in _roots(lack):
            project = _project(root, lack, facts)
            if project and project not in names.distributions():
                packages.setdefault(project, (root, lack))
    for project, (root, lack) in [*packages.items()][:_PACKAGES]:
        is_installed = _is_installed(root, lack)
        version = installed_version(project, facts)
        try:
            with AskedReleases(find(), project, years=None if is_installed else _YEARS, among=version) as releases:
                say(f"reading releases of {project} on the package index, because what is asked was not measured")
                names = _read(root, lack, facts, names, releases) or names
        except NotFoundError:
            continue
        except EnvsmithError as error:
            say(f"not read: {error.message}")
    return names


def _roots(lack: Lack) -> Iterator[str]:
    """Yield the modules of which a package may be asked for: of the message, else of the call above it."""
    if lack.root:
        yield lack.root
        return
    yield from (name.partition(".")[0] for name in callables(lack) if "." in name)


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


def _read(root: str, lack: Lack, facts: Facts, names: NameIndex, releases: AskedReleases) -> NameIndex | None:
    """Return the index with the releases between which the answer changes.

    ``None`` where they have neither what is asked nor the module that it is asked of.
    """
    versions = releases.versions
    places = spread(len(versions))
    with suppress(ValueError):
        places.add(versions.index(installed_version(releases.project, facts) or ""))
    while places:
        index = names.with_names(releases.names(places, root))
        answer = best_answer(lack, facts, index)
        if answer is None or answer[1].distribution != releases.project:
            return None
        present, absent = answer[1].present, answer[1].absent
        if present and absent:
            new = between(places, {at: (v in present, v in absent) for at, v in enumerate(versions)})
        else:  # a few releases may be the only ones that differ
            new = spread(len(versions), MOST) - places
        if not new or len(places | new) > MOST + FIRST:
            owner = index.ask(lack.owner) if lack.root else None
            return index if present or owner is None or owner.present else None
        places = places | new
    return None
