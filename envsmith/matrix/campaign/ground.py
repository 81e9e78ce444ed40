"""Where a job of a campaign runs: its caches, the lock that is made there, the environment that stands there."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import write_whole
from envsmith.base.progress import Progress
from envsmith.builder.engines.base import Built
from envsmith.builder.engines.venv import realise
from envsmith.lock.index.archives import parse_wish, read_archive
from envsmith.lock.index.uv import Uv
from envsmith.lock.pip_files import layer_text
from envsmith.lock.resolve import Beside, Resolver, lock_pip
from envsmith.matrix.campaign.composer import without
from envsmith.matrix.campaign.job import CampaignJob, CampaignPlan
from envsmith.model.cell import Cell
from envsmith.model.finding import Judgement
from envsmith.model.lock import Compile, Lock
from envsmith.model.record import Expected
from envsmith.net.http import HttpClient
from envsmith.smoke.run import LocalTarget
from envsmith.solver import check, constraints_for, default_solver


@dataclass(frozen=True, kw_only=True, slots=True)
class Ground:
    """Where a job runs: ``slot`` is a folder of its own, ``cache`` is shared. ``offline`` forbids the network."""

    slot: Path
    cache: Path
    offline: bool = False

    def uv(self, torch: str | None = None) -> Uv:
        """Return the campaign's uv with its cache, or the one of a torch release. Files are linked, not copied.

        A release's wheels take five to eight gigabytes unpacked: they are thrown away with the folder when no cell
        needs them.
        """
        folder = self.cache / "uv" if torch is None else self.cache / "torch" / torch
        environ = {**os.environ, **self.compilers(), "UV_LINK_MODE": "hardlink"}
        return Uv(environ=environ, cache=folder, offline=self.offline)

    def compilers(self, *first: str) -> dict[str, str]:
        """Return the variables with which a source compiles once per torch where there is ccache, ``first`` on PATH."""
        path, folder = [*first, os.environ.get("PATH", os.defpath)], ccache_folder()
        variables = {}
        if folder is not None:
            path.insert(len(first), str(folder))
            variables = {
                "CCACHE_DIR": str(self.cache / "ccache"),
                "CCACHE_BASEDIR": os.path.commonpath([self.slot, self.cache]),
                "CCACHE_NOHASHDIR": "1",
                "CCACHE_COMPILERCHECK": "content",
                "CCACHE_MAXSIZE": "1G",
            }
        return {**variables, "PATH": os.pathsep.join(path)}


def ccache_folder() -> Path | None:
    """Return the folder in which ``c++`` and ``g++`` are ccache, where there is one."""
    for folder in ("/usr/lib/ccache", "/usr/lib64/ccache"):
        if Path(folder, "c++").exists():
            return Path(folder)
    return None


def lock_job(job: CampaignJob, plan: CampaignPlan, ground: Ground, progress: Progress) -> Lock:
    """Lock the cell under every rule but those that it breaks on purpose."""
    solver = without(default_solver(), frozenset(job.rules) if job.expected is Expected.BAD else frozenset())

    def judge(cell: Cell, components: Mapping[str, str]) -> Judgement:
        return check(components, cell.platform, keep=tuple(cell.components), solver=solver)

    return lock_pip(
        job.cell,
        request=f"matrix run {plan.name}",
        exclude_newer=plan.exclude_newer,
        beside=Beside(constraints=constraints_for(job.cell, solver=solver)),
        compile=_archives_of(job, plan, ground),
        resolver=Resolver(uv=ground.uv(), judge=judge),
        progress=progress,
    )


def _archives_of(job: CampaignJob, plan: CampaignPlan, ground: Ground) -> Compile:
    """Return the archives of the campaign that are releases of this cell's components."""
    fetcher = HttpClient(offline=ground.offline)
    wishes = [parse_wish(text) for text in plan.sources]
    archives = (read_archive(wish, fetcher) for wish in wishes if wish.name in job.cell.components)
    return Compile(archives=tuple(a for a in archives if a.version == job.cell.components[a.name]))


def install(lock: Lock, ground: Ground, progress: Progress) -> Built:
    """Install the lock into the slot and return what was built. The first cell of a torch layer fetches it alone."""
    # Operators of another cell must not be taken for this one's.
    shutil.rmtree(ground.slot / "torch-extensions", ignore_errors=True)
    torch = lock.cell.components["torch"]
    with _first_alone(ground.cache / "torch" / torch, lock):
        return realise(lock, ground.slot, progress=progress, uv=ground.uv(), torch_uv=ground.uv(torch))


@contextmanager
def _first_alone(cache: Path, lock: Lock) -> Iterator[None]:
    """Let the first of the cells with one torch layer fetch it alone.

    Several installing at once into an empty cache would each fetch and keep a copy of the same gigabytes.
    """
    layer = hashlib.sha256(layer_text(p for p in lock.pins if p.layer == "torch").encode()).hexdigest()[:16]
    ready = cache / f"envsmith-ready-{layer}"
    if ready.exists():
        yield
        return
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "envsmith-first.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
        write_whole(ready, "")


def target_of(ground: Ground, built: Built) -> LocalTarget:
    """Return the cell's interpreter, writing byte-code: the environment is the campaign's own."""
    variables = {"TORCH_EXTENSIONS_DIR": str(ground.slot / "torch-extensions")}
    variables |= ground.compilers(str(Path(built.python).parent))
    return LocalTarget(python=Path(built.python), extra=variables, keeps_bytecode=True)
