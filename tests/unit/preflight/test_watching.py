"""What the watch says of samples; the thread itself is tried live in tests/integration."""

from __future__ import annotations

from envsmith.preflight.watcher import Limits, Sample, _own_alerts, alerts_of

LIMITS = Limits(stall=10.0, silent=30.0)


def _samples(clock: float = 100.0, **of_rank_2: float) -> dict[int, Sample]:
    base = {"step": 50, "computed": 50, "steps": 10, "mean": 0.1, "age": 0.1}
    return {
        r: Sample(rank=r, heard=clock, **(base | (of_rank_2 if r == 2 else {})))  # type: ignore[arg-type]
        for r in range(4)
    }


def test_slow_rank_is_named_after_two_samples() -> None:
    slow = _samples(mean=0.3)
    assert alerts_of([], slow, 100.0, LIMITS) == []
    assert alerts_of([_samples()], slow, 100.0, LIMITS) == []
    found = alerts_of([slow], slow, 100.0, LIMITS)
    assert [(a.kind, a.rank) for a in found] == [("skew", 2)]
    assert "300 ms a step, the others 100 ms (3.0 times)" in found[0].message


def test_all_slow_together_is_no_skew() -> None:
    slow = {r: Sample(rank=r, steps=3, mean=2.0, heard=100.0) for r in range(4)}
    assert alerts_of([slow], slow, 100.0, LIMITS) == []


def test_rank_that_stands_while_the_others_wait() -> None:
    waiting = {r: Sample(rank=r, step=50, computed=50 if r == 1 else 51, age=20.0, heard=100.0) for r in range(4)}
    found = alerts_of([], waiting, 100.0, LIMITS)
    assert [(a.kind, a.rank) for a in found] == [("stall", 1)]
    assert "step 51" in found[0].message
    moving = waiting | {3: Sample(rank=3, step=51, computed=51, age=0.5, heard=100.0)}
    assert alerts_of([], moving, 100.0, LIMITS) == []


def test_rank_that_is_not_heard_of() -> None:
    samples = _samples() | {3: Sample(rank=3, step=7, heard=40.0)}
    assert [(a.kind, a.rank) for a in alerts_of([], samples, 100.0, LIMITS)] == [("silent", 3)]


def test_memory_that_grows_is_told_per_step() -> None:
    first = Sample(rank=1, step=10, rss=4 << 30)
    assert _own_alerts(first, Sample(rank=1, step=60, rss=5 << 30), LIMITS) == []
    grown = _own_alerts(first, Sample(rank=1, step=110, rss=6 << 30), LIMITS)
    assert grown[0].message == "rank 1: host memory grew from 4.00 to 6.00 GiB (20.48 MiB a step)"
    assert _own_alerts(first, Sample(rank=1, error="COMM_ERROR"), LIMITS)[0].kind == "nccl"


def test_sample_survives_the_store_and_nonsense_does_not() -> None:
    sample = Sample(rank=3, step=4, mean=0.5, rss=7)
    import json

    assert Sample.parse(json.dumps(sample.to_json()), 1.0) == sample
    for text in ("", "[]", "3", '{"step": 1}', "{"):
        assert Sample.parse(text, 1.0) is None
