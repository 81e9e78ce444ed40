"""The release of a project that goes with a version of another one, by the metadata on the package index."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from envsmith.errors import ContentError, NetworkError
from envsmith.lock.index.asked_names import between, spread
from envsmith.lock.index.distribution import best_file, read_release
from envsmith.lock.index.index import PackageIndex
from envsmith.model.project_name import normal_name

# How many releases are read at most and for how many seconds, because a person waits, and how many at a time.
_MOST, _LONGEST, _JOBS = 24, 25.0, 8


def nearest_release_with(
    packages: PackageIndex, project: str, release: str, need: str, fits: Callable[[str], bool]
) -> str | None:
    """Return the final release of ``project`` nearest to ``release`` whose requirement of ``need`` fits.

    ``None`` where none of those that are read does. ``NotFoundError`` where the index has no such project.
    """
    files = {
        version: file
        for version, each in packages.project(project).releases().items()
        if not Version(version).is_prerelease and not all(f.yanked for f in each) and (file := best_file(each))
    }
    versions = list(files)

    def fitting(at: int) -> bool | None:
        with suppress(NetworkError, ContentError):
            specs = _specs_of(read_release(packages.fetcher, files[versions[at]]).requires, need)
            return bool(specs) and all(map(fits, specs))
        return None

    state: dict[int, bool | None] = {}
    places = spread(len(versions))
    end = time.monotonic() + _LONGEST
    while (new := places - state.keys()) and time.monotonic() < end:
        with ThreadPoolExecutor(max_workers=_JOBS) as pool:
            state |= dict(zip(sorted(new), pool.map(fitting, sorted(new)), strict=True))
        state = {at: fit for at, fit in state.items() if fit is not None}
        refined = between(state, state)
        places = refined if len(state) + len(refined) <= _MOST else set()
    own = sum(Version(version) < Version(release) for version in versions)
    return min(((abs(at - own), versions[at]) for at, fit in state.items() if fit), default=(0, None))[1]


def _specs_of(requires: Sequence[str], need: str) -> list[str]:
    """Return the specs by which a release asks for a package, whatever the platform. Extras are left out."""
    specs = []
    for line in requires:
        with suppress(InvalidRequirement):
            requirement = Requirement(line)
            if normal_name(requirement.name) == normal_name(need) and "extra" not in str(requirement.marker):
                specs.append(str(requirement.specifier))
    return specs
