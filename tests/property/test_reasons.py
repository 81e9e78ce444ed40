"""The reasons of an answer are its reasons: the opposite of each sentence of `why` is forced (bench/reasons.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.solver import default_solver

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("answers", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_no_reason_of_sampled_answers_is_untrue_or_repeated_and_refusals_are_minimal(load_file, answers):
    if not (ROOT / "bench" / "reasons.py").is_file():
        pytest.skip("bench/ is not part of this copy")
    rows = list(load_file("bench/reasons.py").judged(default_solver(), answers=answers, seed=3))
    untrue = [(request, s, fault) for request, _, why in rows for s, fault in why if fault not in {None, "-"}]
    repeated = [(request, why) for request, _, why in rows if len({s for s, _ in why}) < len(why)]
    assert (untrue, repeated) == ([], [])
    assert any(answer is None for _, answer, _ in rows)
