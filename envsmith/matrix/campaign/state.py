"""The folder of a campaign: everything that must survive a kill, and who is at work on what.

``plan.json`` is frozen at the start. ``records/`` holds one file a finished cell, complete or not there at all.
``claims/`` holds one file a cell, locked by the process that runs it: the kernel gives the lock back when that process
dies, however it dies. So nothing is lost, nothing is done twice, and any number of campaigns may work in one folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import read_bounded, write_whole
from envsmith.errors import StorageError, UsageError
from envsmith.matrix.campaign.job import CampaignJob, CampaignPlan

_MAX_PLAN = 64 << 20
_LOOKS, _LOOK_SECONDS = 5, 0.1


@dataclass(frozen=True, slots=True)
class CampaignState:
    """``root`` is the campaign's folder."""

    root: Path

    @property
    def records(self) -> Path:
        """Return the folder of finished cells."""
        return self.root / "records"

    @property
    def cache(self) -> Path:
        """Return the caches of uv and of the compiler, of this campaign alone."""
        return self.root / "cache"

    def plan(self) -> CampaignPlan | None:
        """Return the frozen plan, or ``None`` when the campaign has not begun, ``DataError`` when it is broken."""
        path = self.root / "plan.json"
        return CampaignPlan.parse(read_bounded(path, _MAX_PLAN), str(path)) if path.exists() else None

    def begin(self, plan: CampaignPlan) -> CampaignPlan:
        """Freeze ``plan``, unless there is one: the first to come decides, and everybody works on that.

        ``UsageError`` when the folder holds another campaign, ``StorageError`` when it cannot be written or is being
        begun by somebody else.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with self._held("plan") as mine:
            if not mine:
                raise StorageError(
                    f"Cannot use {self.root}: another process is just starting this campaign.", hint="Run it again."
                )
            earlier = self.plan()
            if earlier is None:
                write_whole(self.root / "plan.json", plan.text())
                return plan
        if earlier.name != plan.name:
            raise UsageError(
                f"Cannot use {self.root}: it holds the campaign {earlier.name!r}, not {plan.name!r}.",
                hint="Choose another --state folder.",
            )
        return earlier

    def done(self) -> dict[str, Path]:
        """Return the record of each finished cell. A name says whose record it is: ``<cell>.<engine>-<hash>.json``."""
        try:
            names = sorted(entry.name for entry in os.scandir(self.records))
        except FileNotFoundError:
            return {}
        pairs = ((name.rpartition(".json")[0].rpartition("."), name) for name in names if not name.startswith("."))
        return {cell: self.records / name for (cell, dot, _), name in pairs if dot}

    def is_done(self, job: CampaignJob) -> bool:
        """Return whether the job has a record."""
        return job.id in self.done()

    @contextmanager
    def claim(self, job: CampaignJob) -> Iterator[bool]:
        """Hold the job while the block runs, or ``False`` when somebody else holds it.

        Who only looks (:meth:`claimed`) holds it for an instant: that is waited out.
        """
        for looks in range(_LOOKS, -1, -1):
            with self._held(job.id) as mine:
                if mine or not looks:
                    yield mine
                    return
            time.sleep(_LOOK_SECONDS)

    def claimed(self, job: CampaignJob) -> bool:
        """Return whether some living process holds the job."""
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
        """Hold a work folder: the first that is free. What stands there from the last cell may be taken up."""
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
        """Remove the work folders that no process holds."""
        with suppress(FileNotFoundError):
            for folder in sorted((self.root / "slots").iterdir()):
                with self._held(f"slot-{folder.name}") as mine:
                    if mine:
                        shutil.rmtree(folder, ignore_errors=True)

    def log(self, job: CampaignJob) -> Path:
        """Return the file of everything that the job printed."""
        folder = self.root / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{job.id}.log"


def forget_unneeded(state: CampaignState, jobs: Sequence[CampaignJob]) -> None:
    """Remove the caches of torch releases that none of ``jobs`` has, unless another process runs such a cell.

    With no jobs, the environments go too.
    """
    removed = False
    needed = {job.cell.components["torch"] for job in jobs}
    with suppress(FileNotFoundError):
        for folder in sorted((state.cache / "torch").iterdir()):
            if folder.name not in needed and not _in_use(state, folder.name):
                shutil.rmtree(folder, ignore_errors=True)
                removed = True
    if removed or not jobs:  # an environment keeps its files on the disk, whatever becomes of the cache
        state.clear_slots()


def _in_use(state: CampaignState, torch: str) -> bool:
    plan = state.plan()
    return plan is not None and any(job.cell.components["torch"] == torch and state.claimed(job) for job in plan.jobs)
