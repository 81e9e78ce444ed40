"""Size of the covering subset beside allpairspy and the lower bound, on five real sets of axes, in one run.

    python bench/cover.py            needs: pip install allpairspy

The rows that can occur are those of the version graph; allpairspy gets them as its filter. `ratio` is jobs over the lower bound (no choice is
smaller than the number of pairs of the two axes that have most).
"""

from __future__ import annotations

import time
from itertools import combinations

from envsmith.model.version import Spec
from envsmith.project.ci.jobs import covering_subset, lower_bound
from envsmith.project.ci.library import Library
from envsmith.project.ci.possible import space_of
from envsmith.project.declared import Declaration

SETS = {
    "python, torch, deepspeed": {"python": ">=3.10", "torch": ">=2.4", "deepspeed": ">=0.14"},
    "python, torch, cuda, deepspeed": {"python": ">=3.10", "torch": ">=2.6", "cuda": "*", "deepspeed": ">=0.16"},
    "python, torch, megatron-core": {"python": ">=3.10", "torch": ">=2.2", "megatron-core": ">=0.8"},
    "python, torch, cuda, transformers": {"python": ">=3.10", "torch": ">=2.6", "cuda": "*", "transformers": ">=4.51"},
    "python, torch, deepspeed, transformers, accelerate": {
        "python": ">=3.10", "torch": ">=2.6", "deepspeed": ">=0.16", "transformers": ">=5.14", "accelerate": ">=1.12",
    },
}  # fmt: skip


def rows_of(ranges):
    """Every combination of the axes that the version graph allows."""
    library = Library(
        name="bench",
        ranges={n: Spec.parse(s) for n, s in ranges.items()},
        declaration=Declaration(name="bench"),
        axes=tuple(ranges),
    )
    return space_of(library).rows()


def peer(rows):
    """What allpairspy makes of the same axes with the same exclusions."""
    from allpairspy import AllPairs

    prefixes = {row[:n] for row in rows for n in range(1, len(row) + 1)}
    values = [list(dict.fromkeys(row[i] for row in rows)) for i in range(len(rows[0]))]
    return [tuple(row) for row in AllPairs(values, filter_func=lambda row: tuple(row) in prefixes)]


def pairs(rows):
    """Every pair of values that some row holds."""
    return {((a, r[a]), (b, r[b])) for r in rows for a, b in combinations(range(len(r)), 2)}


def main() -> None:
    """Print the table."""
    print(
        f"{'axes':<52}{'rows':>7}{'bound':>7}{'jobs':>6}{'ratio':>7}{'allpairspy':>12}{'it misses':>11}{'s':>7}{'its s':>7}"
    )
    for name, ranges in SETS.items():
        rows = rows_of(ranges)
        start = time.perf_counter()
        jobs = covering_subset(rows, limit=10_000).rows
        ours = time.perf_counter() - start
        assert pairs(jobs) == pairs(rows)
        start = time.perf_counter()
        theirs = peer(rows)
        its = time.perf_counter() - start
        bound = lower_bound(rows)
        missed = len(pairs(rows) - pairs(theirs))
        print(
            f"{name:<52}{len(rows):>7}{bound:>7}{len(jobs):>6}{len(jobs) / bound:>7.2f}{len(theirs):>12}{missed:>11}{ours:>7.2f}{its:>7.2f}"
        )


if __name__ == "__main__":
    main()
