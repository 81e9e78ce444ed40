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

    def fits(file: IndexFile) -> bool:
        if not file.is_wheel or file.yanked is not None or not _readable(file.filename):
            return False
        wheel = _wheel(project.name, file, ())
        return not (wheel.against_python(python) or wheel.against_platform(platform))

    releases = {Version(text): files for text, files in project.releases().items()}
    own = releases.get(Version(version), ())
    compiled = any(file.is_wheel and not file.filename.endswith("-any.whl") for file in own)
    if not compiled or any(map(fits, own)):
        return None
    later = (v for v in sorted(releases) if v > Version(version) and not v.is_prerelease)
    return next((str(v) for v in later if any(map(fits, releases[v]))), None)


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
