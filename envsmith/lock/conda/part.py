"""The Conda part of a cell's folder: kept while it answers the same request, made again otherwise, never half."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from envsmith.base.files import read_bounded
from envsmith.base.progress import Progress, silent
from envsmith.errors import DataError
from envsmith.lock.conda.channels import with_channels
from envsmith.lock.conda.foreign import MAX_BYTES
from envsmith.lock.conda.lock import differences, lock_conda, up_to_date
from envsmith.lock.conda.lock_files import files, load_lock
from envsmith.lock.conda.model import CondaLock, CondaRequest
from envsmith.lock.conda.solve import compare
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.model.lock import Artifact, Lock, Pin
from envsmith.model.rule import Severity
from envsmith.net.http import HttpClient

LOCK_FILE = "conda-lock.yml"


@dataclass(frozen=True, kw_only=True, slots=True)
class CondaPart:
    """The files of a Conda lock with their text, what to tell, and whether they were there already."""

    lock: CondaLock
    texts: dict[str, str]
    notes: tuple[str, ...] = ()
    reused: bool = False


def conda_part(lock: Lock, directory: Path, conda: CondaRequest, *, progress: Progress = silent) -> CondaPart:
    """Return the Conda lock in ``directory`` where it answers the same request, else a new one."""
    if (part := stored(lock, directory, conda)) is not None:
        return part
    new = lock_conda(
        lock.cell,
        lock.pins,
        with_channels(conda).until(lock.exclude_newer),
        progress=progress,
        files_of=None if conda.offline else _files_on_index,
    )
    return CondaPart(lock=new, texts=files(new), notes=new.notes)


def _files_on_index(pin: Pin) -> tuple[Artifact, ...]:
    """Return every hashed file of a pinned release on the user's own index. Yanked files are left out."""
    from packaging.version import Version

    release = Version(pin.version)
    usable = [
        f
        for f in PackageIndex(HttpClient(), find_index()).project(pin.name).files
        if f.sha256 and f.yanked is None and Version(f.version) == release
    ]
    return tuple(
        Artifact(filename=f.filename, sha256=f.sha256 or "", size=f.size, url=f.url)
        for f in sorted(usable, key=lambda f: f.filename)
    )


def stored(lock: Lock, directory: Path, conda: CondaRequest) -> CondaPart | None:
    """Return the existing Conda lock when it was made for this request and every file of it stands, else ``None``."""
    try:
        text = _text(directory / LOCK_FILE)
        if not _answers(text, lock, conda):
            return None
        existing = load_lock(text)
        texts = {name: _text(directory / name) for name in sorted(files(existing))}
        if _edited(existing, directory):
            return None
    except DataError:
        return None
    findings = [f.message for f in compare(lock.cell, lock.pins, existing) if f.severity is not Severity.NOTE]
    return CondaPart(lock=existing, texts=texts, notes=tuple(dict.fromkeys(findings)), reused=True)


def difference(lock: Lock, directory: Path, conda: CondaRequest, *, required: bool) -> tuple[str, ...]:
    """Say why the Conda lock in ``directory`` is not what ``lock`` and ``conda`` give, or nothing."""
    path = directory / LOCK_FILE
    if not path.exists():
        return (f"{path}: no Conda lock is there",) if required else ()
    try:
        text = _text(path)
        if _answers(text, lock, conda):
            edited = _edited(load_lock(text), directory)
            return tuple(f"{name}: it was edited since {LOCK_FILE} was written" for name in edited)
        wrong = differences(load_lock(text), lock.cell, lock.pins, conda.tolerate)[1]
    except DataError as error:
        return (error.message,)
    return tuple(f"{LOCK_FILE}: {message}" for message in wrong) or (
        f"{LOCK_FILE}: it was made from another request, or edited since",
    )


def _edited(lock: CondaLock, directory: Path) -> list[str]:
    """Return which files beside a Conda lock are not those that were written with it. An older lock does not know."""
    digests = dict(line.split("  ", 1)[::-1] for line in lock.facts.get("files", "").splitlines() if "  " in line)
    names = (name for name in files(lock).keys() & digests.keys() if os.path.lexists(directory / name))
    return sorted(name for name in names if _sha256(directory / name) != digests[name])


def _answers(text: str, lock: Lock, conda: CondaRequest) -> bool:
    conda = with_channels(conda)
    requests = (conda.until(lock.exclude_newer), replace(conda, exclude_newer=lock.exclude_newer))
    return any(up_to_date(text, lock.cell, lock.pins, request) for request in requests)


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_bounded(path, MAX_BYTES)).hexdigest()


def _text(path: Path) -> str:
    return read_bounded(path, MAX_BYTES).decode(errors="replace")
