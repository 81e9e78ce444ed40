"""What the watch says of samples; the thread itself is tried live in tests/integration."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from envsmith.errors import SmokeError, UsageError
from envsmith.launch.ranks.causes import Blame, Cause
from envsmith.preflight import watch
from envsmith.preflight.group import JobPlace
from envsmith.preflight.watcher import Alert, Limits, Sample, Watch, _own_alerts, _standing, alerts_of

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


@pytest.mark.parametrize(
    ("computed", "ranks", "expected"),
    [
        (50, (1,), ["rank 1 has not done its part of step 51 for 20 s; the others have and wait. Rank 1 is blocked."]),
        (50, (2,), ["rank 1 has not done its part of step 51 for 20 s; the others have and wait"]),
        (51, (1,), ["Rank 1 is blocked."]),
        (51, (), []),
    ],
    ids=["both say it", "steps are certain", "steps do not say it", "nobody can be named"],
)
def test_what_ranks_say_of_where_they_stand_is_in_the_alert_of_a_stall(computed, ranks, expected) -> None:
    waiting = {r: Sample(rank=r, step=50, computed=computed if r == 1 else 51, age=20.0, heard=100.0) for r in range(4)}
    blame = Blame(cause=Cause.BLOCKED, ranks=ranks, message="Rank 1 is blocked.", fix="Look at it.")

    alerts = alerts_of([], waiting, 100.0, LIMITS, lambda: blame)

    assert [alert.message for alert in alerts] == expected


def test_a_rank_says_where_it_stands_as_the_judge_reads_it() -> None:
    watch, answers = Watch(), []
    release = threading.Event()

    def look() -> None:
        while len(answers) < 100 and watch._still < 2:  # until the main thread waits below
            answers.append(watch._stands())
        release.set()

    thread = threading.Thread(target=look)
    thread.start()
    release.wait()
    one = _standing(3, answers[-1])

    assert one is not None
    assert one.main is not None
    assert (one.rank, one.still) == (3, 2)
    assert "test_a_rank_says_where_it_stands_as_the_judge_reads_it" in [frame.function for frame in one.main.frames]
    assert _standing(3, b'{"stacks": 7}') is None


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


ALONE = JobPlace(rank=0, world=1, local=0)


class Unreachable:
    """A store whose server is gone."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def fail(*_: object) -> None:
            raise ConnectionError(f"{name}: connection reset by peer")

        return fail


def _trained(watching: Watch) -> int:
    """Train three steps, as a script does."""
    with watching as observer:
        for _ in range(3):
            observer.computed()
            observer.step()
    return 3


@pytest.mark.parametrize(
    "error",
    [
        UsageError("Cannot read the launcher's variables: invalid literal for int() with base 10: 'abc'."),
        SmokeError("Rank 1 cannot reach the store at 127.0.0.1:2."),
        ModuleNotFoundError("No module named 'torch'"),
        PermissionError(13, "Permission denied"),
        RuntimeError("Default process group has not been initialized"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_watch_that_cannot_begin_warns_once_and_training_goes_on(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: float) -> JobPlace:
        raise error

    steps = _trained(watch(find=fail))

    assert steps == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("preflight: watch: it has ended and the training goes on: ")
    assert str(error)[:40] in line


def test_a_watch_whose_thread_cannot_start_warns_and_training_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    before = threading.stack_size(1 << 46)  # no machine has that much address space
    try:
        steps = _trained(watch(find=lambda _: ALONE))
    finally:
        threading.stack_size(before)

    assert steps == 3
    assert "can't start new thread" in capsys.readouterr().err


def test_a_watch_that_fails_in_its_thread_warns_and_training_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    steps = _trained(watch(find=lambda _: object()))  # type: ignore[arg-type,return-value]

    assert steps == 3
    error = capsys.readouterr().err
    assert "watch: it has ended and the training goes on: AttributeError" in error
    assert "Traceback" not in error


def test_a_store_that_has_gone_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    place = JobPlace(rank=0, world=2, local=0, store=Unreachable())

    steps = _trained(watch(find=lambda _: place, interval=0.01))

    assert steps == 3
    assert "Traceback" not in capsys.readouterr().err


def test_a_watch_may_be_stopped_by_its_own_alert() -> None:
    watches: list[Watch] = []
    watching = Watch(find=lambda _: ALONE, interval=0.01, on_alert=lambda _: watches[0].stop())
    watches.append(watching)

    with watching:
        watching._raise([Alert(kind="nccl", rank=0, message="NCCL reports COMM_ERROR")])

    assert [alert.kind for alert in watching.alerts] == ["nccl"]
