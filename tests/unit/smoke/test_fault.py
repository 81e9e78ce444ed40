"""Whose fault it is that a run did not pass. What the machine did says nothing against the cell."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from envsmith.agent.protocol import Exit
from envsmith.builder.proof import refuse_fault_of_host
from envsmith.errors import SmokeError
from envsmith.frameworks import FRAMEWORKS
from envsmith.model.record import Fault, Rung
from envsmith.smoke.cases import Case
from envsmith.smoke.failure import failure_of
from envsmith.smoke.plan import Plan
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.verdict import judge

FAULTS = Path(__file__).parents[2] / "smoke" / "faults"
PLAN = Plan.build({"torch": "2.13.0"}, ranks=2, backend="gloo")
HOST = {"event": "host", "cpus": 2}


def _raised(detail: str) -> SmokeResult:
    failed = {"event": "row", "run": "collectives", "row": "failed", "rank": 1, "stage": "group", "detail": detail}
    halt = {"event": "halt", "run": "collectives", "reason": "exit", "where": [], "exits": [{"rank": 1, "code": 1}]}
    return judge(PLAN, [{"event": "hello"}, HOST, failed, halt, {"event": "bye", "seconds": {}}])


def _halted(code: int = 0, *, reason: str = "exit", ranks: int = 2, state: str = "R") -> SmokeResult:
    where = [{"rank": r, "case": 3, "step": "issued", "age": 9.0, "state": state if r else "R"} for r in range(ranks)]
    exits = [{"rank": 1, "code": code}] if code else []
    halt: dict[str, Any] = {"event": "halt", "run": "collectives", "reason": reason, "where": where, "exits": exits}
    placement = {"event": "placement", "backend": "gloo", "ranks": ranks, "sentence": ""}
    events = [{"event": "hello"}, HOST, placement, {**halt, "limit": 3.0}, {"event": "bye", "seconds": {}}]
    return judge(PLAN.with_(ranks=ranks), events)


def test_framework_that_says_that_the_machine_started_it_too_slowly_says_nothing_against_its_cell() -> None:
    step = next(iter(FRAMEWORKS["ray"].quick_steps))
    words = "Exception: The current node timed out during startup. This could happen because some of the raylet failed"
    detail = "the launcher ended (exit code 1)"
    halt = {"event": "halt", "run": step.name, "reason": "launcher", "detail": detail, "where": [], "exits": []}
    halt["launcher"] = {"code": 1, "words": f"Traceback\n{words}\nSee the log of the session.\n"}
    result = judge(
        PLAN.with_(cases=(), steps=(step,)), [{"event": "hello"}, HOST, halt, {"event": "bye", "seconds": {}}]
    )
    assert result.steps[0].detail == f"{detail}; the launcher wrote: {words}"
    assert result.cause.fault is Fault.HOST
    assert result.cause.sentence == "the machine was too slow to start Ray Train"


def test_machine_without_a_compiler_says_nothing_against_the_cell() -> None:
    result = _raised("RuntimeError: Error building extension 'ops': /bin/sh: 1: c++: not found")
    assert (result.cause.fault, result.cause.lasting) == (Fault.HOST, True)
    assert result.cause.sentence == "this machine lacks what the run needs (C++ compiler (c++))"


@pytest.mark.parametrize(
    ("detail", "reason"),
    [
        ("OSError: [Errno 28] No space left on device: '/tmp/x'", "the disk is full"),
        ("OSError: [Errno 122] Disk quota exceeded", "the disk quota is used up"),
        ("OSError: [Errno 24] Too many open files", "open files"),
        ("RuntimeError: can't start new thread", "processes"),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory", "memory"),
        ("DistNetworkError: Cannot assign requested address", "network"),
        ("OSError: [Errno 30] Read-only file system: '/tmp/x'", "read-only"),
    ],
)
def test_what_the_operating_system_refused_is_the_hosts(detail: str, reason: str) -> None:
    result = _raised(detail)
    assert (result.cause.fault, result.to_json()["fault"]) == (Fault.HOST, "host")
    assert reason in result.host_fault
    with pytest.raises(SmokeError, match="Cannot prove the cell on this machine"):
        refuse_fault_of_host(result)


@pytest.mark.parametrize(
    "detail",
    [
        "ImportError: libfoo.so: cannot allocate memory in static TLS block",
        "RuntimeError: symbol lookup error: undefined symbol: ncclCommSplit",
        "ValueError: mutable default is not allowed",
    ],
)
def test_what_the_versions_did_is_the_cells(detail: str) -> None:
    result = _raised(detail)
    failure = failure_of(result, (Rung.INSTALLED,))
    assert result.cause.fault is Fault.CELL
    assert result.exit_code == Exit.ERROR
    assert failure is not None
    assert (failure.of_host, failure.fault) == (False, None)
    refuse_fault_of_host(result)


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (_halted(-11), Fault.CELL),
        (_halted(-6), Fault.CELL),
        (_halted(-9), Fault.UNKNOWN),
        (_halted(-15), Fault.UNKNOWN),
        (_halted(reason="deadline"), Fault.CELL),
        (_halted(reason="deadline", ranks=64), Fault.HOST),
        (_halted(reason="total", ranks=64), Fault.HOST),
        (_halted(reason="interrupted"), Fault.UNKNOWN),
        (judge(PLAN, [{"event": "hello"}], agent_exit=-9), Fault.UNKNOWN),
        (judge(PLAN, [{"event": "hello"}], agent_exit=1, words="OSError: [Errno 28] No space left"), Fault.HOST),
    ],
    ids=str,
)
def test_signal_silence_and_a_crowd_of_ranks_are_told_apart(result: SmokeResult, fault: Fault) -> None:
    assert not result.passed
    assert result.cause.fault is fault


def test_interpreter_that_was_killed_while_it_imported_is_not_the_cells_and_one_that_crashed_is() -> None:
    faults = []
    for name in ("SIGKILL", "SIGSEGV"):
        detail = f"`import torch` ended the interpreter (killed by {name})"
        halt = {"event": "halt", "run": "import", "reason": "import", "detail": detail, "code": 6}
        halt["status"] = -signal.Signals[name]
        faults.append(judge(PLAN, [{"event": "hello"}, halt, {"event": "bye", "seconds": {}}]).cause.fault)
    assert faults == [Fault.UNKNOWN, Fault.CELL]


def test_hang_of_more_ranks_than_processors_says_how_many() -> None:
    result = _halted(reason="total", ranks=64)
    assert result.exit_code == Exit.HOST
    assert result.summary.startswith("this machine is at fault, not the cell: 64 ranks share 2 processors")


def test_recorded_faults_of_the_machine_are_not_the_cells_and_those_of_the_versions_are() -> None:
    faults = {}
    for path in sorted(FAULTS.glob("*.json")):
        document = json.loads(path.read_text())
        plan = PLAN.with_(cases=tuple(Case(**case) for case in document["cases"]), ranks=4, expected={})
        faults[path.stem] = judge(plan, document["events"]).cause.fault
    of_machine = {name for name, fault in faults.items() if fault is not Fault.CELL}
    assert {"full_shared_memory", "out_of_memory", "port_taken"} <= of_machine
    assert faults["different_reduction"] is Fault.CELL


def _step(halt: dict[str, Any], *rows: dict[str, Any]) -> str:
    step = next(iter(FRAMEWORKS["ray"].quick_steps))
    where = [{"rank": r, "case": 4, "step": "entered", "signature": "train step 2", "pid": 10 + r} for r in range(2)]
    events = [{"event": "row", "run": step.name, **row} for row in rows]
    halt = {"event": "halt", "run": step.name, "where": where, "exits": [], **halt}
    plan = PLAN.with_(cases=(), steps=(step,))
    return judge(plan, [{"event": "hello"}, HOST, *events, halt, {"event": "bye", "seconds": {}}]).steps[0].detail


def test_of_ranks_that_ended_without_a_word_the_first_is_named_because_their_launcher_ends_the_others() -> None:
    exits = [{"rank": 0, "code": 6, "at": 83.165}, {"rank": 1, "code": 6, "at": 82.82}]
    detail = _step({"reason": "exit", "exits": exits})
    assert detail == "rank 1 (pid 11) was ended without a word, as after SIGKILL in train step 2"


def test_rank_that_issued_fewer_collectives_than_the_others_in_the_same_stage_is_the_one_that_hangs() -> None:
    flights = [{"row": "flight", "rank": 0, "count": 8}, {"row": "flight", "rank": 1, "count": 7}]
    stacks = {"0": ["backward (graph.py:9)"], "1": ["sleep (train.py:3)"]}
    detail = _step({"reason": "deadline", "limit": 60, "stacks": stacks}, *flights)
    assert detail == (
        "no end after 60 s: rank 1 still in 'train step 2' (rank 1 in sleep (train.py:3)); "
        "7 collectives issued, others have 8"
    )
