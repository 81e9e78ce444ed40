"""Cells per hour of a campaign, and what one more cell costs with a warm cache, beside the plain loop that people write.

    python bench/campaign.py [--torch 2.13.0] [--python 3.12] [--versions 0.15.3,0.16.1] [--folder DIR]

The plain loop is, for every cell, ``uv venv; uv pip install torch==… megatron-core==…; python test.py``, where the test starts two processes, reduces one
tensor over gloo, imports the framework and trains a data-parallel layer for five steps. The campaign resolves and hashes a lock, judges it by
every rule, installs it, compares what is installed with it, verifies 91 collective cases on two ranks, trains tensor-parallel layers against a reference
and writes a record. Both in one run, cell by cell in turn, from the same cache, each cell once before anything is measured. Wall and CPU seconds.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from envsmith.lock.days import last_day
from envsmith.lock.index.interpreters import find_interpreter
from envsmith.lock.index.uv import find_uv, uv_environment
from envsmith.matrix.campaign.composer import Composer
from envsmith.matrix.campaign.job import CampaignJob, CampaignPlan
from envsmith.matrix.campaign.state import CampaignState
from envsmith.matrix.campaign.worker import worker_command
from envsmith.net.index_settings import as_toml, uv_settings
from envsmith.solver import default_solver

TEST = """
import sys, tempfile, torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, where, framework):
    dist.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=2)
    t = torch.full((1000,), float(rank + 1))
    dist.all_reduce(t)
    assert bool((t == 3).all())
    __import__(framework)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        loss = model(torch.ones(4, 16)).pow(2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, args=(tempfile.mktemp(), sys.argv[1]), nprocs=2)
"""


def measured(function) -> tuple[float, float]:
    """Wall and CPU seconds."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    function()
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begun
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def check(command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-1000:]}{done.stderr[-2000:]}")


def plain(folder: Path, job: CampaignJob, cache: Path) -> None:
    """What people write."""
    settings = folder / "uv.toml"
    settings.write_text(as_toml(uv_settings(os.environ)))
    env = {
        **uv_environment(),
        "UV_CONFIG_FILE": str(settings),
        "UV_CACHE_DIR": str(cache),
        "UV_LINK_MODE": "hardlink",
        "VIRTUAL_ENV": str(folder / "venv"),
    }
    uv, parts = find_uv(), job.cell.components
    found = find_interpreter(parts["python"])
    shutil.rmtree(folder / "venv", ignore_errors=True)
    check([uv, "venv", "--quiet", "--python", found.path if found else parts["python"], str(folder / "venv")], env)
    wanted = [
        f"torch=={parts['torch'].partition('+')[0]}",
        f"megatron-core=={parts['megatron-core']}",
        "numpy",
        "packaging",
    ]
    check([uv, "pip", "install", "--quiet", *wanted], env)
    (folder / "test.py").write_text(TEST)
    check([str(folder / "venv" / "bin" / "python"), str(folder / "test.py"), "megatron.core"], env)


def campaign(state: CampaignState, job: CampaignJob) -> None:
    """One cell of a campaign, in a process of its own as always."""
    for path in state.records.glob(f"{job.id}.*") if state.records.is_dir() else ():
        path.unlink()
    check(worker_command(state, job, sys.executable), dict(os.environ))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", default="2.13.0")
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--versions", default="0.14.0,0.15.3,0.16.1")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--cache", type=Path, help="the cache of a campaign that has this torch already")
    options = parser.parse_args()
    composer = Composer(default_solver())
    jobs = []
    for version in options.versions.split(","):
        job = composer.compose({"megatron-core": version, "torch": options.torch, "python": options.python})
        if isinstance(job, str):
            sys.exit(job)
        jobs.append(job)
    with tempfile.TemporaryDirectory(prefix="envsmith-bench-", dir=options.folder) as name:
        state, folder = CampaignState(Path(name) / "campaign"), Path(name) / "plain"
        folder.mkdir()
        if options.cache:
            state.root.mkdir()
            state.cache.symlink_to(options.cache.resolve())
        state.begin(CampaignPlan(name="bench", exclude_newer=last_day(), jobs=tuple(jobs)))
        cache = state.cache / "torch" / jobs[0].cell.components["torch"]
        for job in jobs:  # the caches are filled, and every package is compiled to byte code or not as it will be
            campaign(state, job)
            plain(folder, job, cache)
        ours, theirs = [], []
        for job in jobs:
            ours.append(measured(lambda job=job: campaign(state, job)))
            theirs.append(measured(lambda job=job: plain(folder, job, cache)))
    print(
        f"torch {options.torch}, Python {options.python}, megatron-core {options.versions}; median of {len(jobs)} cells, warm caches"
    )
    for told, rows in (("a cell of a campaign", ours), ("uv venv; uv pip install; python test.py", theirs)):
        wall, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{told:40} {wall:6.1f} s wall {cpu:6.1f} s CPU  {3600 / wall:5.0f} cells an hour, one at a time")
    ratio = statistics.median(a[1] / b[1] for a, b in zip(ours, theirs, strict=True))
    print(f"ratio of CPU seconds {ratio:.2f}")


if __name__ == "__main__":
    main()
