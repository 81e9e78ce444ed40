"""How ranks agree, and a collective that ends in a verdict whatever its backend does. No torch: stand-ins take its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from envsmith.preflight.group import CollectiveTrial, JobPlace, agree, unhandled_errors


class Store:
    """A store of torch in one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        until = time.monotonic() + timeout.total_seconds()
        while not all(key in self.values for key in keys):
            if time.monotonic() > until:
                raise RuntimeError("wait timeout")
            time.sleep(0.001)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self.values.setdefault(key, desired.encode()) if not expected else self.values[key]


def _places(world: int) -> list[JobPlace]:
    store = Store()
    return [JobPlace(rank=rank, world=world, local=rank, store=store) for rank in range(world)]


class Backend:
    """A group on which a collective never ends. Its shutdown waits for the collective, its abort ends it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.ended = threading.Event()

    def shutdown(self) -> None:
        self.calls.append("shutdown")
        self.ended.wait()

    def abort(self) -> None:
        self.calls.append("abort")
        self.ended.set()


@pytest.fixture
def hanging() -> Iterator[Backend]:
    backend = Backend()
    yield backend
    backend.ended.set()


def _hang(backend: Any) -> CollectiveTrial:
    def collective(trial: CollectiveTrial) -> dict[str, Any]:
        trial.group, trial.stage = backend, "all_reduce"
        backend.ended.wait()
        return {"ok": True}

    return CollectiveTrial(collective)


def test_ranks_that_all_come_see_each_other() -> None:
    first, second = _places(2)
    first.store.set("facts/1", '{"rank": 1}')

    answer = agree(first, "facts", {"rank": 0}, 1.0)

    assert answer == ({0: {"rank": 0}, 1: {"rank": 1}}, [])
    assert agree(second, "facts", {"rank": 1}, 1.0) == answer


def test_a_rank_that_comes_too_late_hears_that_the_others_went_on_without_it() -> None:
    first, late, third = _places(3)
    first.store.set("facts/2", '{"rank": 2}')

    early = agree(first, "facts", {"rank": 0}, 0.05)
    last = agree(late, "facts", {"rank": 1}, 0.05)

    assert early == ({0: {"rank": 0}, 2: {"rank": 2}}, [1])
    assert last == early
    assert agree(third, "facts", {"rank": 2}, 0.05) == early


def test_a_rank_that_lost_its_patience_goes_on_when_another_saw_everybody() -> None:
    first, second = _places(2)
    first.store.compare_set("facts/missing", "", "[]")
    first.store.set("facts/1", '{"rank": 1}')

    assert agree(first, "facts", {"rank": 0}, 0.0)[1] == []
    assert agree(second, "facts", {"rank": 1}, 0.0)[1] == []


def test_a_collective_that_never_ends_is_named_at_its_deadline(hanging: Backend) -> None:
    trial = _hang(hanging)

    answer = trial.run(0.05)

    assert answer == {"ok": False, "stage": "all_reduce", "detail": "no end after 0 s", "hang": True}
    assert hanging.calls == []  # nothing is torn down before the verdict is written


def test_a_group_that_hangs_is_aborted_and_never_shut_down(hanging: Backend) -> None:
    trial = _hang(hanging)
    trial.run(0.05)

    trial.close()

    assert hanging.calls == ["abort"]


def test_an_abort_that_hangs_as_well_holds_nobody_up() -> None:
    release = threading.Event()

    class Stuck(Backend):
        def abort(self) -> None:
            self.calls.append("abort")
            release.wait()

    backend = Stuck()
    trial = _hang(backend)
    trial.run(0.05)

    trial.close(patience=0.05)

    assert backend.calls == ["abort"]
    assert not release.is_set()
    release.set()
    backend.ended.set()


@pytest.mark.parametrize("name", ["abort", "_shutdown", "_abort"])
def test_the_abort_of_each_torch_is_found(name: str) -> None:
    calls: list[str] = []
    backend = type("Backend", (), {name: lambda self: calls.append(name)})()
    trial = CollectiveTrial(lambda trial: {"ok": True})
    trial.group = backend

    trial.close()

    assert calls == [name]
    assert trial.group is None


def test_what_a_backend_raises_is_the_finding() -> None:
    def collective(trial: CollectiveTrial) -> dict[str, Any]:
        trial.stage = "all_reduce"
        raise RuntimeError("NCCL error: invalid usage")

    assert CollectiveTrial(collective).run(5.0) == {
        "ok": False,
        "stage": "all_reduce",
        "detail": "RuntimeError: NCCL error: invalid usage",
    }


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ((2, 0, 1), "NCCL_ASYNC_ERROR_HANDLING"),
        ((2, 1, 2), "NCCL_ASYNC_ERROR_HANDLING"),
        ((2, 2), "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ((2, 15), "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    ],
)
@pytest.mark.parametrize("before", [{}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_ASYNC_ERROR_HANDLING": "2"}])
def test_the_watchdog_of_our_group_ends_no_process_and_the_scripts_setting_stays(
    release: tuple[int, ...], name: str, before: dict[str, str]
) -> None:
    environ = dict(before)

    with unhandled_errors(release, environ):
        inside = environ.get(name)

    assert inside == "0"
    assert environ == before
