"""The reasons of an answer are its reasons: the opposite of each sentence of `why` is forced (bench/reasons.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from envsmith.solve import default_solver

BENCH = Path(__file__).parents[2] / "bench" / "reasons.py"


def bench():
    spec = importlib.util.spec_from_file_location("bench_reasons", BENCH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_reason_of_sampled_answers_is_untrue_or_repeated_and_refusals_are_minimal():
    rows = list(bench().judged(default_solver(), answers=20, seed=3))
    untrue = [(request, sentence, fault) for request, _, told in rows for sentence, fault in told if fault not in {None, "-"}]
    repeated = [(request, told) for request, _, told in rows if len({s for s, _ in told}) < len(told)]
    assert (untrue, repeated) == ([], [])
    assert any(answer is None for _, answer, _ in rows)
