"""How the evidence of a launch grows with its ranks: bytes on the disk, processor time and memory to judge it.

    python bench/evidence.py [--ranks 8 64 512 1024 4096] [--calls 2000] [--per-host 8] [--json FILE]

Each launch has full recorders, hosts of eight ranks with a file each, and one rank that leaves a collective out a little before the end.
Of each size one process writes the files and another one reads and judges them, as `doctor --from` does. The rank has to be the right one.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

from envsmith.doctor.read.remains import read_kept
from envsmith.launch.ranks.decide import decide
from envsmith.launch.ranks.differences import around_divergence
from envsmith.launch.ranks.evidence import Call, Frame, LaunchEvidence, RankEvidence, ThreadStack
from envsmith.launch.ranks.recorder import calls_of
from envsmith.launch.ranks.stored import EvidenceFile, judge_occasions

# A step of training: collectives of layers, each with a size of its own.
STEP = [[1 << (4 + number % 8)] for number in range(24)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512, 1024, 4096])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--per-host", type=int, default=8)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as place:
            apart(write, Path(place), ranks, options.calls, options.per_host)
            size = sum(path.stat().st_size for path in Path(place).iterdir())
            row = {
                "program": "envsmith",
                "ranks": ranks,
                "mb": round(size / 1e6, 2),
                **apart(judge, Path(place), ranks),
            }
        rows.append(row)
        print(
            "{ranks:5} ranks: {mb:8.2f} MB, judged in {seconds:6.2f} s of processor time, {peak_mb:5.0f} MB; {said}".format(
                **row
            ),
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["said"] == "right" for row in rows) else 1


def apart(work, *arguments):
    """Return what a function returns in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def write(place: Path, ranks: int, calls: int, per_host: int) -> None:
    guilty = ranks // 2 + 1
    for host in range(0, ranks, per_host):
        rows = [
            rank_of(rank, calls, is_guilty=rank == guilty, world=ranks)
            for rank in range(host, min(host + per_host, ranks))
        ]
        evidence = LaunchEvidence(ranks=around_divergence(rows), world=ranks, stalled=300.0)
        EvidenceFile(place / f"evidence-host{host:05}-1.jsonl").append(evidence, decide(evidence))


def rank_of(rank: int, count: int, *, is_guilty: bool, world: int) -> RankEvidence:
    """Return a rank that waits in its last call. The guilty one has left one out and is in what comes next."""
    frames = (
        Frame("all_reduce", "/e/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3000),
        Frame("train", "/j/train.py", 40),
    )
    frames += tuple(Frame(f"call_{number}", f"/j/model_{number}.py", number) for number in range(20))
    stacks = (ThreadStack("MainThread", frames, is_main=True),)
    variables = {f"NCCL_VARIABLE_{number}": "a value of the usual length" for number in range(12)}
    return RankEvidence(
        rank=rank,
        host=f"host{rank // 8}",
        pid=1000 + rank,
        calls=recorder(count, is_guilty=is_guilty),
        stacks=stacks,
        environment=variables,
        world=world,
    )


@functools.cache
def recorder(count: int, *, is_guilty: bool) -> tuple[Call, ...]:
    """Return the calls of a rank: those of all innocent ones are equal."""
    numbers = [number for number in range(count + 1) if not (is_guilty and number == count - 5)][:count]
    entries = [
        {
            "process_group": ["0", "default_pg"], "collective_seq_id": place + 1, "profiling_name": "gloo:all_reduce", "state": "scheduled",
            "input_sizes": [STEP[number % len(STEP)]], "input_dtypes": ["Float"], "time_created_ns": 1_700_000_000_000_000_000 + place * 10_000_000,
            "retired": place < count - 1,
        }
        for place, number in enumerate(numbers)
    ]  # fmt: skip
    return calls_of({"entries": entries}, 4000)


def judge(place: Path, ranks: int) -> dict:
    began = time.process_time()
    blame = judge_occasions(list(read_kept(str(place)).values()))
    seconds = time.process_time() - began
    said = "right" if blame and blame.ranks == (ranks // 2 + 1,) else f"wrong: {blame and blame.message[:200]}"
    return {
        "seconds": round(seconds, 3),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "said": said,
    }


if __name__ == "__main__":
    sys.exit(main())
