"""Which of a release's files an interpreter installs, by their names alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envsmith.base.text import clean
from envsmith.errors import LockError
from envsmith.model.cell import Platform
from envsmith.model.lock import Artifact, Pin
from envsmith.model.wheel_name import read_wheel_name


def best_artifact(pin: Pin, tags: Sequence[str]) -> Artifact | None:
    """Return the wheel whose tag stands first, else the source distribution, else nothing.

    Variants of a wheel are passed over: which of them fits is for an installer to say that knows the hardware.
    """
    from packaging.utils import InvalidWheelFilename

    rank = {tag: place for place, tag in enumerate(tags)}
    wheels: list[tuple[int, str, Artifact]] = []
    for artifact in pin.artifacts:
        if artifact.filename.endswith(".whl"):
            try:
                name = read_wheel_name(artifact.filename)
            except InvalidWheelFilename as error:
                raise LockError(
                    f"Cannot choose a file of {pin.name} {pin.version}: {clean(artifact.filename)!r} is not "
                    "the name of a wheel."
                ) from error
            places = [rank[str(t)] for t in name.tags if str(t) in rank and not name.variant]
            wheels += [(min(places), artifact.filename, artifact)] if places else []
    if wheels:
        return min(wheels)[2]
    return next((a for a in pin.artifacts if a.filename.endswith((".tar.gz", ".zip"))), None)


def wheel_tags(platform: Platform, python: str, glibc: str) -> Iterator[str]:
    """Yield the wheel tags that CPython ``python`` on ``platform`` with ``glibc`` installs, best first."""
    from packaging.tags import compatible_tags, cpython_tags

    version = tuple(int(n) for n in python.split(".")[:2])
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    systems = []
    for minor in range(int(glibc.split(".")[1]), 4, -1):
        systems.append(f"manylinux_2_{minor}_{platform.machine}")
        if minor in legacy:
            systems.append(f"{legacy[minor]}_{platform.machine}")
    systems.append(f"linux_{platform.machine}")
    for tag in (
        *cpython_tags(version, platforms=systems),
        *compatible_tags(version, f"cp{version[0]}{version[1]}", systems),
    ):
        yield str(tag)
