"""The part of a cell that no channel has: which file of each pin a platform installs, with its hash and address."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urldefrag

from envsmith.errors import LockError
from envsmith.lock.conda.model import CondaPackage, PipPackage
from envsmith.lock.conda.names import candidates, clean, fold, public_url, same_version
from envsmith.lock.conda.plan import is_python
from envsmith.model.lock import Artifact, Pin
from envsmith.model.platform import Platform

__all__ = ["More", "pip_section"]

# The files of a pinned release on the index, whatever their platform.
More = Callable[[Pin], Sequence[Artifact]]
_SHA256 = re.compile(r"[0-9a-f]{64}")


def pip_section(
    closure: Sequence[str],
    roots: Sequence[str],
    pins: Mapping[str, Pin],
    packages: Sequence[CondaPackage],
    *,
    platform: Platform,
    python: str,
    glibc: str,
    more: More | None = None,
) -> tuple[tuple[PipPackage, ...], tuple[str, ...]]:
    """The pip packages in the order of their names, and a note for each distribution that Conda brings in another version.

    Roots are always pip's; of the rest, what the Conda solution contains as a Python package stays Conda's. ``more`` is asked for the
    files of a pin that has none for this platform: a pip lock holds those of one platform only.
    """
    conda = {p.name: p for p in packages if is_python(p)}
    chosen: list[Pin] = []
    notes: list[str] = []
    for name in closure:
        pin = pins[name]
        brought = next((conda[c] for c in candidates(name) if c in conda), None)
        if name in roots or brought is None:
            chosen.append(pin)
        elif not same_version(name, pin.version, brought.version):
            notes.append(
                f"{name}: the pip lock has {pin.version}, Conda brings {clean(brought.version)} on {platform.value}"
            )
    tags = list(_tags(platform, python, glibc))
    names = {fold(p.name) for p in chosen}
    return tuple(_package(p, tags, names, platform, more) for p in sorted(chosen, key=lambda p: fold(p.name))), tuple(
        notes
    )


def _package(pin: Pin, tags: Sequence[str], names: set[str], platform: Platform, more: More | None) -> PipPackage:
    artifact = _best(pin, tags)
    if artifact is None and more is not None:
        artifact = _best(replace(pin, artifacts=tuple(more(pin))), tags)
    if artifact is None:
        raise LockError(
            f"{pin.name} {pin.version}: the pip lock has no file that {platform.value} can install",
            details=[clean(a.filename) for a in pin.artifacts[:8]],
            hint=f"lock the cell for {platform.value} too",
        )
    if not artifact.url:
        raise LockError(
            f"{pin.name} {pin.version}: the pip lock names {clean(artifact.filename)} without an address, which a Conda lock needs",
            hint="make the pip lock again with the package index reachable",
        )
    if not _SHA256.fullmatch(artifact.sha256):
        raise LockError(f"{pin.name} {pin.version}: {clean(artifact.filename)} has no sha256")
    return PipPackage(
        name=fold(pin.name),
        version=pin.version,
        url=public_url(urldefrag(artifact.url).url),
        sha256=artifact.sha256,
        requires=tuple(sorted({fold(r) for r in pin.requires} & names)),
    )


def _best(pin: Pin, tags: Sequence[str]) -> Artifact | None:
    """The wheel whose tag stands first, else the source distribution, else nothing."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    rank = {tag: place for place, tag in enumerate(tags)}
    wheels: list[tuple[int, str, Artifact]] = []
    for artifact in pin.artifacts:
        if artifact.filename.endswith(".whl"):
            try:
                found = parse_wheel_filename(artifact.filename)[3]
            except InvalidWheelFilename as error:
                raise LockError(f"{pin.name} {pin.version}: {clean(artifact.filename)!r} is no wheel name") from error
            places = [rank[str(t)] for t in found if str(t) in rank]
            wheels += [(min(places), artifact.filename, artifact)] if places else []
    if wheels:
        return min(wheels)[2]
    return next((a for a in pin.artifacts if a.filename.endswith((".tar.gz", ".zip"))), None)


def _tags(platform: Platform, python: str, glibc: str) -> Iterator[str]:
    """The wheel tags that CPython ``python`` on ``platform`` with ``glibc`` installs, best first."""
    from packaging.tags import compatible_tags, cpython_tags

    version = tuple(int(n) for n in python.split(".")[:2])
    newest = int(glibc.split(".")[1])
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    systems = []
    for minor in range(newest, 4, -1):
        systems.append(f"manylinux_2_{minor}_{platform.machine}")
        if minor in legacy:
            systems.append(f"{legacy[minor]}_{platform.machine}")
    systems.append(f"linux_{platform.machine}")
    for tag in cpython_tags(version, platforms=systems):
        yield str(tag)
    for tag in compatible_tags(version, f"cp{version[0]}{version[1]}", systems):
        yield str(tag)
