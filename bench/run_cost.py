"""What ``envsmith run`` costs a training: the same steps with and without it, in pairs, the order alternated.

    python bench/run_cost.py --python TORCH_PYTHON [--pairs 8] [--steps 200] [--ranks 2]

Of each run the script measures its own steps, and prints every loss as hex. The figure is the median over the pairs of the
time with, divided by the time without. The losses have to be equal to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRAIN = """
import json, os, sys, time, torch, torch.distributed as dist
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
began = time.perf_counter()
train(int(sys.argv[1]))
dist.barrier()
seconds = time.perf_counter() - began
if dist.get_rank() == 0:
    with open(sys.argv[2], "w") as file:
        json.dump({"seconds": seconds, "losses": losses}, file)
dist.destroy_process_group()
"""


def measure(python: str, folder: Path, steps: int, ranks: int, *, watched: bool) -> dict[str, object]:
    script, answer = folder / "train.py", folder / "answer.json"
    script.write_text(TRAIN)
    launch = [
        python,
        "-m",
        "torch.distributed.run",
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
    subprocess.run([*prefix, *launch], check=True, cwd=ROOT, capture_output=True, env=env)
    return json.loads(answer.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="an interpreter with torch")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    ratios, equal = [], 0
    for number in range(options.pairs):
        rows = {}
        for watched in (False, True) if number % 2 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                rows[watched] = measure(options.python, Path(folder), options.steps, options.ranks, watched=watched)
        ratios.append(rows[True]["seconds"] / rows[False]["seconds"])
        equal += rows[True]["losses"] == rows[False]["losses"]
        print(
            f"pair {number + 1}: {rows[False]['seconds'] / options.steps * 1e3:.2f} ms a step without, "
            f"{rows[True]['seconds'] / options.steps * 1e3:.2f} ms with, ratio {ratios[-1]:.4f}",
            flush=True,
        )
    low, high = sorted(ratios)[len(ratios) // 4], sorted(ratios)[-1 - len(ratios) // 4]
    print(
        f"median ratio {statistics.median(ratios):.4f} (quartiles {low:.4f} to {high:.4f}), load {os.getloadavg()[0]:.1f}"
    )
    print(f"losses equal to the bit in {equal} of {options.pairs} pairs")


if __name__ == "__main__":
    main()
