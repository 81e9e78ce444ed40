"""Source distributions are built once, in a pinned builder: from then on the lock names the wheel and its hash too.

The builder is a stage on the cell's own base, torch and packages, with build requirements by hash. A second build that
gives another wheel fails at the hash.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from dataclasses import replace
from email.parser import HeaderParser
from pathlib import Path
from typing import Protocol

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envsmith import plain
from envsmith.engines.content import wheel_content
from envsmith.errors import BuildError, ContentError
from envsmith.model.lock import BuiltWheel, Lock
from envsmith.progress import Event, EventKind, Progress, silent

_STEP = "wheels of source distributions"


class WheelBuilder(Protocol):
    """The method of an engine that has a pinned builder."""

    def __call__(self, lock: Lock, *, progress: Progress = silent) -> tuple[BuiltWheel, ...]:
        """Build the lock's source distributions. Return one wheel for each, sorted by name."""
        ...


def with_wheels(lock: Lock, builder: WheelBuilder, *, progress: Progress = silent) -> Lock:
    """Return ``lock`` with the wheels of its source distributions, built by ``builder`` unless the lock has them."""
    sources = {pin.name for pin in lock.pins if pin.sdist and pin.layer != "torch"}
    if lock.base is None or sources == {wheel.name for wheel in lock.wheels}:
        return lock
    wheels = builder(replace(lock, wheels=()), progress=progress)
    names = ", ".join(wheel.filename for wheel in wheels)
    progress(Event(kind=EventKind.NOTE, step=_STEP, text=f"{names}: their hashes stand in the lock from now on"))
    return replace(lock, wheels=wheels)


def read_wheels(lock: Lock, folder: Path) -> tuple[BuiltWheel, ...]:
    """Hash what a builder wrote to ``folder``.

    Raises ``BuildError`` unless it is one wheel of the locked version for every sdist.
    """
    versions = {pin.name: pin.version for pin in lock.pins if pin.sdist and pin.layer != "torch"}
    archives = {source.name for source in lock.compiled if source.archive}
    wheels: dict[str, BuiltWheel] = {}
    problems = []
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            problems.append(f"{path.name[:120]}: not a wheel's name")
            continue
        if name not in versions or name in wheels:
            problems.append(f"{path.name}: nothing of the lock is built to it")
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        try:
            content = wheel_content(path)
        except ContentError as error:
            problems.append(error.message)
            continue
        wheels[name] = BuiltWheel(name=name, filename=plain.file_name(path.name), sha256=digest, content=content)
        if str(version).partition("+")[0] != versions[name].partition("+")[0]:
            problems.append(f"{path.name}: the lock says {versions[name]}")
        problems += _unmet(path, lock) if name in archives else []
    problems += [f"{name} {versions[name]}: no wheel came out" for name in sorted(set(versions) - set(wheels))]
    if problems:
        raise BuildError(
            f"{_STEP} failed",
            details=problems,
            hint="the builder's uv kept no wheel, or other ones; report it with the lock",
        )
    return tuple(wheels[name] for name in sorted(wheels))


def _unmet(path: Path, lock: Lock) -> list[str]:
    """Return what a wheel requires and the lock lacks: a user's archive may compute its requirements late."""
    try:
        with zipfile.ZipFile(path) as wheel:
            name = next(n for n in wheel.namelist() if n.count("/") == 1 and n.endswith(".dist-info/METADATA"))
            fields = HeaderParser().parsestr(wheel.read(name).decode("utf-8"))
        required = [Requirement(str(text)) for text in fields.get_all("Requires-Dist") or ()]
    except (zipfile.BadZipFile, zlib.error, OSError, StopIteration, ValueError) as error:
        return [f"{path.name}: its metadata cannot be read: {str(error)[:100]}"]
    minor = ".".join(lock.python_version.split(".")[:2])
    environment = {"python_version": minor, "python_full_version": f"{minor}.0", "sys_platform": "linux", "extra": ""}
    environment |= {"platform_machine": lock.cell.platform.machine, "platform_system": "Linux", "os_name": "posix"}
    unmet = []
    for requirement in required:
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        pin = lock.pin(canonicalize_name(requirement.name))
        if pin is None:
            unmet.append(
                f"{path.name}: requires {requirement}, which the lock does not have: "
                "ask for it by --with, or state it in the archive"
            )
        elif not requirement.specifier.contains(pin.version, prereleases=True):
            unmet.append(f"{path.name}: requires {requirement}, the lock has {pin.version}")
    return unmet
