"""Source distributions are built once, in a pinned builder, and what comes out is hashed: from then on the lock names the wheel too.

The builder is a stage on the cell's own base, torch and packages, with build requirements by hash. A second build that gives another wheel
fails at the hash.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from dataclasses import replace
from email.parser import HeaderParser
from pathlib import Path
from typing import Protocol, runtime_checkable

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envsmith import plain
from envsmith.engines.base import Engine
from envsmith.engines.content import wheel_content
from envsmith.errors import BuildError, ContentError
from envsmith.model.lock import BuiltWheel, Lock
from envsmith.progress import Event, EventKind, Progress, silent

_STEP = "wheels of source distributions"


@runtime_checkable
class WheelBuilder(Protocol):
    """An engine with a pinned builder."""

    def wheels(self, lock: Lock, *, progress: Progress = silent) -> tuple[BuiltWheel, ...]:
        """Build the lock's source distributions; one wheel for each, sorted by name."""
        ...


def with_wheels(lock: Lock, engine: Engine | WheelBuilder | None, *, progress: Progress = silent) -> Lock:
    """``lock`` with the wheels of its source distributions, built where they are not known yet and ``engine`` has a builder."""
    wanted = {pin.name for pin in lock.pins if pin.sdist and pin.layer != "torch"}
    known = {wheel.name for wheel in lock.wheels}
    if wanted == known or lock.base is None or not isinstance(engine, WheelBuilder):
        return lock
    wheels = engine.wheels(replace(lock, wheels=()), progress=progress)
    told = ", ".join(wheel.filename for wheel in wheels)
    progress(Event(kind=EventKind.NOTE, step=_STEP, text=f"{told}: their hashes stand in the lock from now on"))
    return replace(lock, wheels=wheels)


def read_wheels(lock: Lock, folder: Path) -> tuple[BuiltWheel, ...]:
    """Hash what a builder left in ``folder``; ``BuildError`` unless it is one wheel of the locked version for every source distribution."""
    wanted = {pin.name: pin.version for pin in lock.pins if pin.sdist and pin.layer != "torch"}
    given = {source.name for source in lock.compiled if source.archive}
    found: dict[str, BuiltWheel] = {}
    problems = []
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            problems.append(f"{path.name[:120]}: not a wheel's name")
            continue
        if name not in wanted or name in found:
            problems.append(f"{path.name}: nothing of the lock is built to it")
            continue
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        try:
            content = wheel_content(path)
        except ContentError as error:
            problems.append(error.message)
            continue
        found[name] = BuiltWheel(name=name, filename=plain.file_name(path.name), sha256=digest, content=content)
        if str(version).partition("+")[0] != wanted[name].partition("+")[0]:
            problems.append(f"{path.name}: the lock says {wanted[name]}")
        problems += _unmet(path, lock) if name in given else []
    problems += [f"{name} {wanted[name]}: no wheel came out" for name in sorted(set(wanted) - set(found))]
    if problems:
        raise BuildError(
            f"{_STEP} failed",
            details=problems,
            hint="the builder's uv kept no wheel, or other ones; report it with the lock",
        )
    return tuple(found[name] for name in sorted(found))


def _unmet(path: Path, lock: Lock) -> list[str]:
    """What a wheel requires and the lock does not have: the archive of a user may compute its requirements only while it is built."""
    try:
        with zipfile.ZipFile(path) as wheel:
            name = next(n for n in wheel.namelist() if n.count("/") == 1 and n.endswith(".dist-info/METADATA"))
            fields = HeaderParser().parsestr(wheel.read(name).decode("utf-8"))
        asked = [Requirement(str(text)) for text in fields.get_all("Requires-Dist") or ()]
    except (zipfile.BadZipFile, zlib.error, OSError, StopIteration, ValueError) as error:
        return [f"{path.name}: its metadata cannot be read: {str(error)[:100]}"]
    minor = ".".join(lock.python_version.split(".")[:2])
    environment = {"python_version": minor, "python_full_version": f"{minor}.0", "sys_platform": "linux", "extra": ""}
    environment |= {"platform_machine": lock.cell.platform.machine, "platform_system": "Linux", "os_name": "posix"}
    told = []
    for requirement in asked:
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        pin = lock.pin(canonicalize_name(requirement.name))
        if pin is None:
            told.append(
                f"{path.name}: requires {requirement}, which the lock does not have: ask for it by --with, or state it in the archive"
            )
        elif not requirement.specifier.contains(pin.version, prereleases=True):
            told.append(f"{path.name}: requires {requirement}, the lock has {pin.version}")
    return told
