"""What a library publishes, beside what its checkout says.

A ``setup.py`` that reads files of requirements may change what stands in them. Bounds that only serve the library's own
CI are dropped on installing, and who installs the library never meets them. The METADATA of the newest release on the
package index tells which those are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.errors import EnvsmithError, NetworkError
from envsmith.lock.index.distribution import best_file, read_release
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.model.project_name import normal_name
from envsmith.net.http import HttpClient, NotFoundError
from envsmith.project.declared import FILES, Declaration, Declared, read_metadata

_CEILINGS = ("<", "<=")


def read_published(name: str, index: PackageIndex | None = None) -> Declaration:
    """Return what the newest final release of a distribution declares on the user's package index.

    ``NetworkError`` when there is none or the index cannot be reached.
    """
    index = index or PackageIndex(HttpClient(), find_index())
    releases = index.project(name).releases()
    final = [
        v for v, files in releases.items() if not Version(v).is_prerelease and any(f.yanked is None for f in files)
    ]
    file = best_file(releases[final[-1]]) if final else None
    if file is None:
        raise NetworkError(f"Cannot read what {name} publishes: the index has no release of it.")
    facts = read_release(index.fetcher, file)
    lines = [f"Name: {name}", f"Version: {file.version}", *(f"Requires-Dist: {text}" for text in facts.requires)]
    return read_metadata("\n".join(lines) + "\n", file.filename)


def as_published(declaration: Declaration, read: Callable[[str], Declaration] = read_published) -> Declaration:
    """Return a declaration without the upper bounds that the library drops when it is installed.

    The index is asked only for a library whose ``setup.py`` reads its requirements from files. Where it cannot be
    asked, they stay, and ``skipped`` says so.
    """
    files = declaration.read_by_setup
    if not files:
        return declaration
    try:
        published = read(declaration.name)
    except NotFoundError:  # never published: nobody installs it without these bounds
        return declaration
    except EnvsmithError as error:
        note = f"{', '.join(files)}: what is published cannot be compared ({error.reason})"
        return replace(declaration, skipped=(*declaration.skipped, note))
    open_ended = {_key(line) for line in published.requirements if not _ceilings(line)}
    dropped = [
        line
        for line in declaration.requirements
        if (line.file in files or line.file not in FILES) and _ceilings(line) and _key(line) in open_ended
    ]
    by_file: dict[str, list[str]] = {}
    for line in dropped:
        by_file.setdefault(line.file, []).append(f"{line.name}{_ceilings(line)}")
    notes = [
        f"{file}: bounds that {published.name} {published.version} is published without: {', '.join(bounds)}"
        for file, bounds in by_file.items()
    ]
    return replace(
        declaration,
        requirements=tuple(_without_ceilings(line) if line in dropped else line for line in declaration.requirements),
        skipped=(*declaration.skipped, *notes),
    )


def _key(line: Declared) -> tuple[str, str]:
    return normal_name(line.name), normal_name(line.extra or "")


def _ceilings(line: Declared) -> str:
    return ",".join(sorted(str(one) for one in SpecifierSet(line.spec) if one.operator in _CEILINGS))


def _without_ceilings(line: Declared) -> Declared:
    return replace(line, spec=",".join(str(one) for one in SpecifierSet(line.spec) if one.operator not in _CEILINGS))
