"""What a worker does in the tests: the real claims, slots and records, with a climb that takes a moment and proves nothing.

``python fake_worker.py drive ROOT JOBS`` is a campaign's driver, ``one ROOT CELL`` its worker. A cell whose framework is 0.8.1 ends without
a record, as if it had been killed; 0.8.2 does so the first time. Under Slurm each worker notes its node.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from records_help import record

from envsmith.matrix.campaign.drive import drive, run_one
from envsmith.matrix.campaign.local import LocalExecutor
from envsmith.matrix.campaign.state import CampaignState


def command(state, job, python):
    return [python, __file__, "one", str(state.root), job.id]


def one(root, cell_id):
    state = CampaignState(Path(root))
    job = state.plan().job(cell_id)
    if node := os.environ.get("SLURMD_NODENAME"):
        (state.root / "nodes").mkdir(exist_ok=True)
        (state.root / "nodes" / job.id).write_text(node)
    version, once = job.cell.components["deepspeed"], state.root / "died-once"
    if version == "0.8.1" or (version == "0.8.2" and not once.exists()):
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def climb(slot):
        (slot / "at-work").write_text(job.id)
        time.sleep(random.uniform(0.0, 0.3))
        assert (slot / "at-work").read_text() == job.id, "two workers in one slot"
        return record(cell=job.cell, summary=f"{os.getpid()} {time.time_ns()}")

    run_one(state, job, climb)


def main(root, jobs):
    state = CampaignState(Path(root))
    plan = state.plan()
    executor = LocalExecutor(jobs=int(jobs), free_disk=0, free_memory=0, root=state.root, command=command)
    tally = drive(state, executor, jobs=plan.jobs, tell=lambda _tally, news: sys.stdout.write(f"{news}\n"), poll=0.02)
    return 1 if tally.lost else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[2:]) if sys.argv[1] == "drive" else one(*sys.argv[2:]))
