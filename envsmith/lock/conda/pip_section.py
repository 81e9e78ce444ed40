"""The part of a cell that no channel has: which file of each pin a platform installs, with its hash and address."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urldefrag

from envsmith.errors import LockError
from envsmith.lock.conda.model import CondaPackage, PipPackage
from envsmith.lock.conda.names import candidates, clean, fold, public_url, same_version
from envsmith.lock.conda.specs import is_python
from envsmith.lock.index.wheel_tags import best_artifact, wheel_tags
from envsmith.model.cell import Platform
from envsmith.model.lock import Artifact, Pin

_SHA256 = re.compile(r"[0-9a-f]{64}")
# The files of a pinned release on the index, whatever their platform.
FilesOf = Callable[[Pin], Sequence[Artifact]]


def pip_section(
    closure: Sequence[str],
    roots: Sequence[str],
    pins: Mapping[str, Pin],
    packages: Sequence[CondaPackage],
    *,
    platform: Platform,
    python: str,
    glibc: str,
    files_of: FilesOf | None = None,
) -> tuple[tuple[PipPackage, ...], tuple[str, ...]]:
    """Return the pip packages by name, and a note for each that Conda brings in another version.

    Roots are always pip's. Of the rest, what the Conda solution contains as a Python package stays Conda's.
    ``files_of`` is asked for the files of a pin that has none for this platform: a pip lock holds those of one platform
    only.
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
    tags = list(wheel_tags(platform, python, glibc))
    names = {fold(p.name) for p in chosen}
    chosen.sort(key=lambda p: fold(p.name))
    return tuple(_package(pin, tags, names, platform, files_of) for pin in chosen), tuple(notes)


def _package(
    pin: Pin, tags: Sequence[str], names: set[str], platform: Platform, files_of: FilesOf | None
) -> PipPackage:
    artifact = best_artifact(pin, tags)
    if artifact is None and files_of is not None:
        artifact = best_artifact(replace(pin, artifacts=tuple(files_of(pin))), tags)
    if artifact is None:
        raise LockError(
            f"Cannot add {pin.name} {pin.version} to the Conda lock: the pip lock has no file that {platform.value} "
            "can install.",
            details=[clean(a.filename) for a in pin.artifacts[:8]],
            hint=f"Lock the cell for {platform.value} too.",
        )
    if not artifact.url:
        raise LockError(
            f"Cannot add {pin.name} {pin.version} to the Conda lock: the pip lock has no address of "
            f"{clean(artifact.filename)}.",
            hint="Make the pip lock again while the package index can be reached.",
        )
    if not _SHA256.fullmatch(artifact.sha256):
        raise LockError(
            f"Cannot add {pin.name} {pin.version} to the Conda lock: {clean(artifact.filename)} has no sha256."
        )
    return PipPackage(
        name=fold(pin.name),
        version=pin.version,
        url=public_url(urldefrag(artifact.url).url),
        sha256=artifact.sha256,
        requires=tuple(sorted({fold(r) for r in pin.requires} & names)),
    )
