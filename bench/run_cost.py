"""What ``envsmith run`` costs a training: the same steps with and without it, in pairs, the order alternated.

    python bench/run_cost.py --python TORCH_PYTHON [--pairs 8] [--steps 200] [--ranks 2]

Of each run the script measures its own steps, and prints every loss as hex. The figures are medians over the pairs of
what was used with, divided by what was used without: time, which other programs on the machine disturb, and processor
time of all ranks, which they disturb less. Counted exactly is the processor time of the hook's own thread, by the
kernel, and that of the watcher, from its start to its end. The losses have to be equal to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAIN = """
import json, os, sys, threading, time, torch, torch.distributed as dist
def of_hook():
    threads = [each.native_id for each in threading.enumerate() if each.name == "envsmith-run"]
    return sum(int(open(f"/proc/self/task/{each}/schedstat").read().split()[0]) for each in threads)
dist.init_process_group("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))))
step = torch.optim.SGD(net.parameters(), lr=0.01)
losses = []
def train(count):
    for _ in range(count):
        x = torch.randn(64, 512)
        loss = (net(x) ** 2).mean()
        step.zero_grad(); loss.backward(); step.step()
        losses.append(float(loss).hex())
train(20)
dist.barrier()
began, used, hook = time.perf_counter(), time.process_time(), of_hook()
train(int(sys.argv[1]))
used, hook = time.process_time() - used, of_hook() - hook
dist.barrier()
seconds = time.perf_counter() - began
row = {"seconds": seconds, "processor": used, "hook": hook / 1e9, "losses": losses}
with open(f"{sys.argv[2]}.{dist.get_rank()}", "w") as file:
    json.dump(row, file)
dist.destroy_process_group()
"""


@dataclass(frozen=True, kw_only=True)
class Used:
    """What the steps of one launch used, in seconds: of time, of processors by all ranks, by the hook, by the watcher."""

    time: float
    processor: float
    hook: float
    watcher: float
    losses: list[list[str]]


def measure(python: str, folder: Path, steps: int, ranks: int, *, watched: bool) -> Used:
    script, answer = folder / "train.py", folder / "answer.json"
    script.write_text(TRAIN)
    launch = [
        python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        str(script),
        str(steps),
        str(answer),
    ]
    prefix = [sys.executable, "-m", "envsmith", "run", "--"] if watched else []
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if watched:
        env["PYTHONPATH"] = str(ROOT)
    process = subprocess.Popen([*prefix, *launch], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
    used = 0
    while process.poll() is None:
        with suppress(OSError, IndexError):
            used = int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0])
        time.sleep(0.1)
    output = process.communicate()[0]
    if process.returncode:
        sys.exit(output.decode(errors="replace"))
    rows = [json.loads(Path(f"{answer}.{rank}").read_text()) for rank in range(ranks)]
    return Used(
        time=rows[0]["seconds"],
        processor=sum(row["processor"] for row in rows),
        hook=sum(row["hook"] for row in rows) / ranks,
        watcher=used / 1e9 if watched else 0.0,
        losses=[row["losses"] for row in rows],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="an interpreter with torch")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    pairs: list[tuple[Used, Used]] = []
    for number in range(options.pairs):
        rows = {}
        for watched in (False, True) if number % 2 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                rows[watched] = measure(options.python, Path(folder), options.steps, options.ranks, watched=watched)
        pairs.append((rows[False], rows[True]))
        print(
            f"pair {number + 1}: {rows[False].time / options.steps * 1e3:.2f} ms a step without, {rows[True].time / options.steps * 1e3:.2f} "
            f"ms with; processor time {rows[False].processor:.2f} s without, {rows[True].processor:.2f} s with, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    report(pairs, options.steps)


def report(pairs: list[tuple[Used, Used]], steps: int) -> None:
    for name, ratios in (
        ("time", [watched.time / bare.time for bare, watched in pairs]),
        ("processor time of the ranks", [watched.processor / bare.processor for bare, watched in pairs]),
    ):
        low, high = sorted(ratios)[len(ratios) // 4], sorted(ratios)[-1 - len(ratios) // 4]
        print(f"{name}: median ratio {statistics.median(ratios):.4f} (quartiles {low:.4f} to {high:.4f})")
    hooks = [watched.hook / steps * 1e6 for _, watched in pairs]
    shares = [watched.hook / watched.time for _, watched in pairs]
    print(
        f"hook: {statistics.median(hooks):.1f} µs of a processor a step and rank (at most {max(hooks):.1f}), "
        f"{statistics.median(shares):.3%} of the time"
    )
    print(f"watcher: {statistics.median(watched.watcher for _, watched in pairs):.2f} s of a processor a launch")
    equal = sum(watched.losses == bare.losses for bare, watched in pairs)
    print(f"losses equal to the bit in {equal} of {len(pairs)} pairs")


if __name__ == "__main__":
    main()
