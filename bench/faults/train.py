"""A small training script for five frameworks, as users write it. The variable FAULT names what goes wrong in it.

FAULT=forward-raises FAULT_RANK=1 torchrun --nproc-per-node 2 bench/faults/train.py --framework ddp
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from injected import FAULT

FAULT.at("start")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from frameworks import FRAMEWORKS  # noqa: E402


class Samples(torch.utils.data.Dataset):
    """Samples made from their number, so that every rank could make the same."""

    def __init__(self, count: int, width: int) -> None:
        self.count, self.width = count, width

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int):
        FAULT.at("sample", number=number)
        made = torch.Generator().manual_seed(number)
        x = torch.randn(self.width, generator=made)
        return x, x.flip(0)


def main() -> None:
    """Train, report the mean loss, evaluate, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--framework", default="ddp")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--local_rank", type=int, help="DeepSpeed's launcher gives it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    FAULT.at("before init")
    trainer = FRAMEWORKS[options.framework](options)
    rank = int(os.environ.get("RANK", "0"))
    FAULT.at("ready", trainer=trainer)
    width = int(os.environ.get("DATA_WIDTH", "32"))
    count = 4 * options.steps if not FAULT.is_here("fewer batches") else 4 * (FAULT.step + 1)
    loader = torch.utils.data.DataLoader(Samples(count, width), batch_size=4, num_workers=options.workers)
    if options.framework == "lightning":
        trainer.fit(loader)
        return
    for step, (x, y) in enumerate(loader):
        FAULT.now = step
        time.sleep(0.05)
        FAULT.at("step", trainer=trainer)
        if FAULT.is_now("skips-step"):  # a sample that is no good on this rank
            continue
        loss = trainer.train(x, y)
        FAULT.at("after", trainer=trainer)
        if FAULT.is_now("breaks-early"):  # it was good enough on this rank
            break
        if step % 2 == 1:
            mean = report(loss, dist.get_world_size())
            if rank == 0:
                print(f"[rank{rank}] step {step} loss {mean:.4f}", flush=True)
    if rank == 0 and FAULT.name == "sums-on-first":
        FAULT.mark()
        dist.all_reduce(torch.ones(5))  # place: sums-on-first
    FAULT.at("evaluate", trainer=trainer)
    FAULT.at("save", trainer=trainer)
    dist.barrier()
    FAULT.at("end", trainer=trainer)
    dist.destroy_process_group()
    FAULT.at("after end")


def report(loss: torch.Tensor, size: int) -> float:
    """Return the mean of the loss over the ranks."""
    FAULT.at("report", loss=loss)
    if FAULT.is_now("leave-out"):
        return 0.0
    mean = FAULT.value("mean", loss.detach().clone())
    dist.all_reduce(mean)  # place: report
    return float(mean.sum()) / size


if __name__ == "__main__":
    main()
