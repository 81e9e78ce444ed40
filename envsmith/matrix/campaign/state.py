"""The folder of a campaign: everything that must survive a kill, and who is at work on what.

``plan.json`` is frozen at the start; ``records/`` holds one file a finished cell, complete or not there at all; ``claims/`` one file a
cell, locked by the process that runs it: the kernel gives the lock back when that process dies, however it dies. So nothing is lost,
nothing is done twice, and any number of campaigns may work in one folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from envsmith.errors import DataError, StorageError, UsageError
from envsmith.matrix.campaign.job import Job, Plan

__all__ = ["State", "write_whole"]

_MAX_PLAN = 64 << 20
_LOOKS, _LOOK_SECONDS = 5, 0.1


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there complete or not at all, also after a power cut. ``StorageError``."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o644)
            Path(name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
        _sync(path.parent)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written: {error.strerror or error}",
            hint="free some space or mend the permissions, then run the same command again: it resumes",
        ) from None


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class State:
    """``root`` is the campaign's folder."""

    root: Path

    @property
    def records(self) -> Path:
        """Finished cells."""
        return self.root / "records"

    @property
    def cache(self) -> Path:
        """Caches of uv and of the compiler, of this campaign alone."""
        return self.root / "cache"

    def plan(self) -> Plan | None:
        """The frozen plan; ``None`` when the campaign has not begun, ``DataError`` when it is broken."""
        path = self.root / "plan.json"
        try:
            if path.stat().st_size > _MAX_PLAN:
                raise DataError(f"{path}: larger than {_MAX_PLAN >> 20} MiB")
            return Plan.parse(path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from None

    def begin(self, plan: Plan) -> Plan:
        """Freeze ``plan``, unless there is one: the first to come decides, and everybody works on that.

        ``UsageError`` when the folder holds another campaign, ``StorageError`` when it cannot be written or is being begun by somebody else.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with self._held("plan") as mine:
            if not mine:
                raise StorageError(f"{self.root}: another process is just starting this campaign", hint="run it again")
            there = self.plan()
            if there is None:
                write_whole(self.root / "plan.json", plan.text())
                return plan
        if there.name != plan.name:
            raise UsageError(
                f"{self.root} holds campaign {there.name!r}, not {plan.name!r}", hint="choose another --state folder"
            )
        return there

    def done(self) -> dict[str, Path]:
        """Cell id to its record. A name says whose record it is: ``<cell>.<engine>-<hash>.json``."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.records))
        except FileNotFoundError:
            return {}
        found = {}
        for name in names:
            cell, dot, _ = name.rpartition(".json")[0].rpartition(".")
            if dot and not name.startswith("."):
                found[cell] = self.records / name
        return found

    def is_done(self, job: Job) -> bool:
        """Whether the job's record is there."""
        return job.id in self.done()

    @contextmanager
    def claim(self, job: Job) -> Iterator[bool]:
        """Hold the job while the block runs; ``False`` when somebody else holds it.

        Who only looks (:meth:`claimed`) holds it for an instant: that is waited out.
        """
        for left in range(_LOOKS, -1, -1):
            with self._held(job.id) as mine:
                if mine or not left:
                    yield mine
                    return
            time.sleep(_LOOK_SECONDS)

    def claimed(self, job: Job) -> bool:
        """Whether some living process holds the job."""
        with self._held(job.id) as mine:
            return not mine

    @contextmanager
    def _held(self, name: str) -> Iterator[bool]:
        folder = self.root / "claims"
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(handle)

    @contextmanager
    def slot(self) -> Iterator[Path]:
        """A work folder of one's own: the first that nobody holds. What stands there from the last cell may be taken up."""
        number = 0
        while True:
            with self._held(f"slot-{number}") as mine:
                if mine:
                    folder = self.root / "slots" / str(number)
                    folder.mkdir(parents=True, exist_ok=True)
                    yield folder
                    return
            number += 1

    def clear_slots(self) -> None:
        """Remove the work folders that nobody holds."""
        with suppress(FileNotFoundError):
            for folder in sorted((self.root / "slots").iterdir()):
                with self._held(f"slot-{folder.name}") as mine:
                    if mine:
                        shutil.rmtree(folder, ignore_errors=True)

    def log(self, job: Job) -> Path:
        """Where everything that the job printed stands."""
        folder = self.root / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{job.id}.log"
