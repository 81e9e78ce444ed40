"""What the preflight's watch costs a training loop: the same loop with and without it, in one process group, in turns.

    ENVSMITH_TEST_TORCH_PYTHON=/path/to/venv/bin/python python bench/preflight.py [--rounds 8] [--steps 150] [--json FILE]

Two numbers: the ratio of the median step times (with / without, each round in both orders), and the direct cost, which a busy machine
cannot blur: processor time of the watching thread plus the measured price of `step()` and `computed()`, as a part of the time watched.
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
from collections.abc import Callable
from pathlib import Path


def rank_main(options: argparse.Namespace) -> None:
    """One rank, started by torchrun."""
    import torch
    import torch.distributed as dist

    from envsmith import preflight

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    report = preflight.run(quiet=True)
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.randn(64, 512)

    def step(watch: preflight.Watch | None) -> float:
        started = time.perf_counter()
        loss = model(data).square().mean()
        if watch is not None:
            watch.computed()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if watch is not None:
            watch.step()
        return time.perf_counter() - started

    answer = _rounds(options, step, preflight)
    if dist.get_rank() == 0:
        answer |= {"ranks": dist.get_world_size(), "preflight_seconds": report.seconds}
        options.json.write_text(json.dumps(answer, indent=1) + "\n")
    dist.destroy_process_group()


def _rounds(options: argparse.Namespace, step: Callable[[object], float], preflight: object) -> dict[str, object]:
    """Steps with and without the watch in turn: medians of a round, and what the watch itself cost."""

    def median(watch: object) -> float:
        return statistics.median(step(watch) for _ in range(options.steps))

    median(None)  # warm
    with_, without, cost, watched = [], [], 0.0, 0.0
    for number in range(options.rounds):
        for watching in (True, False) if number % 2 else (False, True):
            if watching:
                begun = time.perf_counter()
                with preflight.watch(interval=options.interval) as watch:  # type: ignore[attr-defined]
                    with_.append(median(watch))
                watched += time.perf_counter() - begun
                cost += watch.cost
            else:
                without.append(median(None))
    price = _price(preflight)
    ratios = [a / b for a, b in zip(with_, without, strict=True)]
    return {
        "rounds": options.rounds,
        "steps_per_round": options.steps,
        "interval_seconds": options.interval,
        "load": os.getloadavg()[0],
        "step_ms": {"with": statistics.median(with_) * 1e3, "without": statistics.median(without) * 1e3},
        "ratio_of_medians": statistics.median(with_) / statistics.median(without),
        "ratio_per_round": {"median": statistics.median(ratios), "best": min(ratios), "worst": max(ratios)},
        "thread_cpu_seconds": cost,
        "watched_seconds": watched,
        "marks_microseconds_per_step": price * 1e6,
        "direct_overhead": (cost + price * options.rounds * options.steps) / watched,
    }


def _price(preflight: object) -> float:
    """Seconds for one `computed()` and one `step()`."""
    watch = preflight.watch()  # type: ignore[attr-defined]
    started = time.perf_counter()
    for _ in range(100_000):
        watch.computed()
        watch.step()
    return (time.perf_counter() - started) / 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--interval", type=float, default=1.0, help="five times more often than the default")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options)
        return
    python = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON") or sys.exit("set ENVSMITH_TEST_TORCH_PYTHON")
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory) / "answer.json"
        launch = [
            python,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(options.ranks),
            __file__,
        ]
        flags = ["--rounds", str(options.rounds), "--steps", str(options.steps), "--interval", str(options.interval)]
        subprocess.run([*launch, *flags, "--json", str(answer)], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        text = answer.read_text()
    print(text, end="")
    if options.json:
        options.json.write_text(text)


if __name__ == "__main__":
    main()
