"""Compiled wheels that the package index itself has of a distribution, held against a cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envsmith.errors import ContentError
from envsmith.knowledge.wheels.offers import Offer
from envsmith.lock.index.distribution import read_release
from envsmith.lock.index.index import IndexFile, IndexProject, PackageIndex
from envsmith.lock.index.torch_wheel import glibc_floor
from envsmith.model.cell import Platform
from envsmith.model.project_name import normal_name
from envsmith.model.version import public
from envsmith.model.wheel import ReadyWheel, WheelTarget
from envsmith.net.http import Fetcher

PUBLISHER = "the package index"
# METADATA is read of so many releases at most, newest first.
_RELEASES = 8


def index_offers(name: str, target: WheelTarget, fetcher: Fetcher, index: str) -> tuple[Offer, ...]:
    """Return a wheel of each of the newest releases on the index, newest first, with what speaks against it.

    The index serves what runs with any torch under the same name as what does not: METADATA tells them apart. Raises
    ``NetworkError``.
    """
    releases = PackageIndex(fetcher, index).project(name).releases()
    newest = sorted(_final(releases), reverse=True)[:_RELEASES]
    offers = (_of_release(name, releases[str(text)], target, fetcher) for _, text in newest)
    return tuple(offer for offer in offers if offer)


def next_with_wheel(project: IndexProject, version: str, python: str, platform: Platform) -> str | None:
    """Return the oldest release after ``version`` that has a wheel for a Python and a platform.

    ``None`` where nothing is gained: ``version`` has such a wheel, it has compiled wheels for nothing else either, or
    no later release has one.
    """
    releases = {Version(text): files for text, files in project.releases().items()}
    own = releases.get(Version(version), ())
    compiled = any(file.is_wheel and not file.filename.endswith("-any.whl") for file in own)
    if not compiled or _fitting(project.name, own, python, platform):
        return None
    later = (v for v in sorted(releases) if v > Version(version) and not v.is_prerelease)
    return next((str(v) for v in later if _fitting(project.name, releases[v], python, platform)), None)


def glibc_of_wheels(project: IndexProject, version: str, python: str, platform: Platform) -> str | None:
    """Return the oldest glibc for which a release has a wheel for a Python and a platform, such as ``2.31``."""
    own = next((files for text, files in project.releases().items() if Version(text) == Version(version)), ())
    floor = glibc_floor(wheel.removesuffix(".whl") for wheel in _fitting(project.name, own, python, platform))
    return ".".join(map(str, floor)) if floor else None


def _fitting(name: str, files: Iterable[IndexFile], python: str, platform: Platform) -> list[str]:
    """Return the wheels for a Python and a platform, whatever glibc they ask for."""
    readable = (f for f in files if f.is_wheel and f.yanked is None and _readable(f.filename))
    wheels = (_wheel(name, file, ()) for file in readable)
    return [w.filename for w in wheels if not (w.against_python(python) or w.against_platform(platform))]


def _final(versions: Iterable[str]) -> Iterator[tuple[Version, str]]:
    for text in versions:
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        if not version.is_prerelease:
            yield version, text


def _of_release(name: str, files: tuple[IndexFile, ...], target: WheelTarget, fetcher: Fetcher) -> Offer | None:
    """Return the wheel of a release against which least speaks. ``None`` for a release without wheels."""
    judged = []
    for file in files:
        if file.is_wheel and file.sha256 and file.yanked is None and _readable(file.filename):
            wheel = _wheel(name, file, ())
            judged.append((wheel.reasons_against(target), file))
    if not judged:
        return None
    against, file = min(judged, key=lambda pair: (len(pair[0]), pair[1].filename))
    try:
        requires = read_release(fetcher, file).requires
    except ContentError as error:
        return Offer(wheel=_wheel(name, file, ()), against=(*against, error.reason))
    return Offer(wheel=_wheel(name, file, requires), against=(*against, *_torch(requires, target)))


def _readable(filename: str) -> bool:
    try:
        parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    return True


def _wheel(name: str, file: IndexFile, requires: tuple[str, ...]) -> ReadyWheel:
    return ReadyWheel(
        distribution=normal_name(name),
        version=file.version,
        address=file.url,
        sha256=file.sha256 or "",
        publisher=PUBLISHER,
        official=True,
        evidence=(),
        torch="any",
        cuda="any",
        requires=requires,
    )


def _torch(requires: Iterable[str], target: WheelTarget) -> Iterator[str]:
    """Yield what METADATA asks of torch that the cell's torch is not."""
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        release = public(target.torch)
        if normal_name(requirement.name) == "torch" and not requirement.specifier.contains(release, True):  # noqa: FBT003
            yield f"its METADATA asks for torch{requirement.specifier}, not {release}"
