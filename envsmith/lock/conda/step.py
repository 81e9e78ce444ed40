"""The Conda part of a cell's folder: kept while it answers the same request, made again otherwise, never half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envsmith.engine.base import Progress, silent
from envsmith.errors import DataError, StorageError
from envsmith.lock.conda.api import lock_conda, up_to_date
from envsmith.lock.conda.comparison import compare
from envsmith.lock.conda.load import load_lock
from envsmith.lock.conda.model import CondaLock
from envsmith.lock.conda.pipfiles import More
from envsmith.lock.conda.render import files
from envsmith.model.lock import Artifact, Lock, Pin
from envsmith.model.platform import Platform
from envsmith.model.rule import Severity

__all__ = ["CondaAsk", "Part", "conda_part", "difference", "stored"]

LOCK_FILE = "conda-lock.yml"
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class CondaAsk:
    """What is asked of Conda beside the cell. ``platforms`` besides the cell's own; ``tolerate`` as for :func:`lock_conda`.

    ``dated`` is True when the user named the day: a day that is only our default does not hide what stands in a folder of this machine,
    whose index says when it was indexed, not when its packages were made.
    """

    channels: tuple[str, ...] = ("conda-forge",)
    platforms: tuple[Platform, ...] = ()
    tolerate: tuple[str, ...] = ()
    offline: bool = False
    dated: bool = False
    cache_dir: Path

    def platforms_of(self, lock: Lock) -> tuple[Platform, ...]:
        """The cell's own platform and those that were asked for, in one order."""
        return tuple(sorted({lock.cell.platform, *self.platforms}, key=lambda p: p.value))

    def day(self, default: str | None) -> str | None:
        """The day after which packages are not seen."""
        own = all(c.startswith(("file:", "/", "./", "../")) for c in self.channels)
        return None if own and not self.dated else default


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The files of a Conda lock with their text, what to tell, and whether they were there already."""

    lock: CondaLock
    texts: dict[str, str]
    notes: tuple[str, ...] = ()
    kept: bool = False


def conda_part(lock: Lock, directory: Path, ask: CondaAsk, *, progress: Progress = silent) -> Part:
    """The Conda lock of ``lock``: what is in ``directory`` where that answers the same request, else a new one (errors as there)."""
    kept = stored(lock, directory, ask)
    if kept is not None:
        return kept
    made = lock_conda(
        lock.cell,
        lock.pins,
        channels=ask.channels,
        platforms=ask.platforms_of(lock),
        cache_dir=ask.cache_dir,
        offline=ask.offline,
        progress=progress,
        exclude_newer=ask.day(lock.exclude_newer),
        tolerate=ask.tolerate,
        more=None if ask.offline else _files_on_index(),
    )
    return Part(lock=made, texts=files(made), notes=made.notes)


def _files_on_index() -> More:
    """Every hashed file of a pinned release on the user's own index, asked when it is first needed; yanked files are left out."""

    def more(pin: Pin) -> tuple[Artifact, ...]:
        from packaging.version import Version

        from envsmith.sources.http import HttpClient
        from envsmith.sources.index import PackageIndex, find_index

        files = PackageIndex(HttpClient(), find_index()).project(pin.name).files
        wanted = Version(pin.version)
        usable = [f for f in files if f.sha256 and f.yanked is None and Version(f.version) == wanted]
        return tuple(
            Artifact(filename=f.filename, sha256=f.sha256 or "", size=f.size, url=f.url)
            for f in sorted(usable, key=lambda f: f.filename)
        )

    return more


def stored(lock: Lock, directory: Path, ask: CondaAsk) -> Part | None:
    """The Conda lock that is there when it was made for this request and every file of it stands; ``None`` otherwise."""
    try:
        text = _text(directory / LOCK_FILE)
        if not _answers(text, lock, ask):
            return None
        there = load_lock(text)
        names = sorted(files(there))
        texts = {name: _text(directory / name) for name in names}
    except (DataError, StorageError):
        return None
    return Part(lock=there, texts=texts, notes=_tolerated(there, lock), kept=True)


def difference(lock: Lock, directory: Path, ask: CondaAsk, *, required: bool) -> tuple[str, ...]:
    """Why the Conda lock in ``directory`` is not what ``lock`` and ``ask`` give; empty when it is. No channel is asked.

    A folder without one is fine unless it is ``required``.
    """
    path = directory / LOCK_FILE
    if not path.exists():
        return (f"{path}: no Conda lock is there",) if required else ()
    try:
        text = _text(path)
        if _answers(text, lock, ask):
            return ()
        findings = compare(lock.cell, lock.pins, load_lock(text))
    except (DataError, StorageError) as error:
        return (error.message,)
    errors = [f for f in findings if f.severity is Severity.ERROR and not set(f.components) <= set(ask.tolerate)]
    wrong = tuple(f"{path.name}: {f.message}" for f in errors)
    return wrong or (f"{path.name}: it was made from another request, or edited since",)


def _answers(text: str, lock: Lock, ask: CondaAsk) -> bool:
    days = dict.fromkeys((ask.day(lock.exclude_newer), lock.exclude_newer))
    return any(
        up_to_date(
            text,
            lock.cell,
            lock.pins,
            channels=ask.channels,
            platforms=ask.platforms_of(lock),
            exclude_newer=day,
            tolerate=ask.tolerate,
        )
        for day in days
    )


def _tolerated(there: CondaLock, lock: Lock) -> tuple[str, ...]:
    findings: Sequence[str] = [
        f.message for f in compare(lock.cell, lock.pins, there) if f.severity is not Severity.NOTE
    ]
    return tuple(dict.fromkeys(findings))


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: larger than {_MAX_BYTES >> 20} MiB: no Conda lock of ours")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8") from None
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}") from None
