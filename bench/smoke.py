"""The quick tier beside `torchrun` of an empty script, in the same run, alternating: two shared cores make absolute times wander by a factor of two.

    ENVSMITH_TEST_TORCH_PYTHON=/path/to/venv/bin/python python bench/smoke.py [--rounds 5] [--json FILE]

The torchrun script imports torch, makes a gloo group and reduces one number: the least that says anything about collectives.
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
from pathlib import Path

from envsmith.smoke.plan import Plan
from envsmith.smoke.run import LocalTarget, probe, run

EMPTY = "import torch, torch.distributed as d\nd.init_process_group('gloo')\nt = torch.ones(1)\nd.all_reduce(t)\nd.destroy_process_group()\n"


def torchrun(python: str, ranks: int, script: Path) -> float:
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(script)]
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return time.perf_counter() - started


def quick(target: LocalTarget, plan: Plan) -> tuple[float, int]:
    started = time.perf_counter()
    result = run(plan, target)
    seconds = time.perf_counter() - started
    if not result.passed:
        sys.exit(f"the quick tier failed: {result.summary}")
    return seconds, result.counts()["pass"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    python = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON") or sys.exit("set ENVSMITH_TEST_TORCH_PYTHON")
    target = LocalTarget(python=Path(python))
    plan = Plan.build(probe(target), ranks=options.ranks, backend="gloo", steps=False)
    ours, theirs, cases = [], [], 0
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "empty.py"
        script.write_text(EMPTY)
        for number in range(options.rounds):
            mine, cases = quick(target, plan)
            ours.append(mine)
            theirs.append(torchrun(python, options.ranks, script))
            print(
                f"round {number}: quick tier {mine:.2f} s ({cases} cases verified), torchrun of an empty script {theirs[-1]:.2f} s",
                file=sys.stderr,
            )
    answer = {
        "ranks": options.ranks,
        "rounds": options.rounds,
        "cases": cases,
        "load": os.getloadavg()[0],
        "quick_seconds": {"median": statistics.median(ours), "best": min(ours), "worst": max(ours)},
        "torchrun_empty_seconds": {"median": statistics.median(theirs), "best": min(theirs), "worst": max(theirs)},
        "ratio_of_medians": statistics.median(ours) / statistics.median(theirs),
    }
    print(json.dumps(answer, indent=1))
    if options.json:
        options.json.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
