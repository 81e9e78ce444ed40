"""Deadlines, and the watch over a job."""

from __future__ import annotations

import ast
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from envsmith.agent import watching
from envsmith.agent.nursery import Rank
from envsmith.agent.processes import KILL_SECONDS, Patience, processors, reaped
from envsmith.agent.protocol import Board, Exit, Phase, Startup
from envsmith.agent.rank import STACK_OF
from envsmith.agent.watching import Halt, JobWatch, case_deadline, stacks


def test_nccl_has_time_to_make_its_communicator_with_the_group() -> None:
    times = {"init": 30.0, "first": 60.0, "case": 3.0}
    plan = {"cases": [{"op": "barrier"}, {"op": "barrier"}], "timeouts": times}
    assert case_deadline(plan, Startup.GROUP, "nccl") == 90.0
    assert case_deadline(plan, Startup.GROUP, "gloo") == 30.0
    assert [case_deadline(plan, case, "nccl") for case in (0, 1)] == [60.0, 3.0]


class _Nursery:
    """Ranks that are where the test puts them; `turn` is what happens while the watch listens."""

    def __init__(self, ranks: int, turn: Callable[[_Nursery], None]) -> None:
        self.board, self.turn = Board(), turn
        self.board.clear()
        self.ranks = [Rank(rank, "/nowhere") for rank in range(ranks)]
        self.launcher: Rank | None = None
        self.alive = True

    @property
    def processes(self) -> list[Rank]:
        return [*self.ranks, *([self.launcher] if self.launcher else [])]

    def listen(self, _wait: float) -> bool:
        self.turn(self)
        return self.alive

    def put(self, rank: int, case: int, phase: Phase) -> None:
        self.board.mark(rank, case, phase)


def _watch(nursery: _Nursery, *, limit: float = 60.0, total: float = 60.0) -> Halt | None:
    patience = Patience(allowed=False)
    watch = JobWatch(nursery, patience, forward=lambda: None, deadline_of=lambda _case: limit, total=total)
    return watch.run()


def test_job_whose_ranks_all_end_well_needs_no_halt() -> None:
    def end(nursery: _Nursery) -> None:
        for rank in nursery.ranks:
            rank.code = Exit.OK

    assert _watch(_Nursery(2, end)) is None


def test_rank_that_ends_badly_halts_the_job_and_the_positions_are_those_before_the_others_fell() -> None:
    def fail(nursery: _Nursery) -> None:
        nursery.put(0, 7, Phase.ISSUED)
        nursery.ranks[1].code = -11

    halt = _watch(_Nursery(2, fail))
    assert halt is not None
    assert (halt.reason, halt.positions[0][:2]) == ("exit", (7, Phase.ISSUED))


def test_ranks_that_are_behind_are_the_laggards() -> None:
    def move(nursery: _Nursery) -> None:
        if not nursery.board.row(0)[2]:
            nursery.put(0, 3, Phase.ISSUED)
            nursery.put(1, 3, Phase.PREP)
            nursery.put(2, 3, Phase.PREP)

    halt = _watch(_Nursery(3, move), limit=0.01)
    assert halt is not None
    assert (halt.reason, halt.details) == ("deadline", {"limit": 0.01, "laggards": [1, 2]})


def test_nursery_that_is_gone_and_time_that_is_up_halt_the_job() -> None:
    def leave(nursery: _Nursery) -> None:
        nursery.alive = False

    gone = _watch(_Nursery(1, leave))
    assert gone is not None
    assert gone.reason == "nursery"
    late = _watch(_Nursery(1, lambda nursery: nursery.put(0, 0, Phase.PREP)), total=0.0)
    assert late is not None
    assert (late.reason, late.details) == ("total", {"limit": 0.0})


def _launched(turn: Callable[[_Nursery], None]) -> _Nursery:
    nursery = _Nursery(2, turn)
    nursery.launcher = Rank(-1, "/nowhere")
    return nursery


def test_job_is_over_when_the_launcher_has_ended_too() -> None:
    def end(nursery: _Nursery) -> None:
        assert nursery.launcher is not None
        if nursery.ranks[0].code is not None:
            nursery.launcher.code = 0
        for rank in nursery.ranks:
            rank.code = Exit.OK

    nursery = _launched(end)
    assert _watch(nursery) is None
    assert nursery.launcher is not None
    assert nursery.launcher.code == 0


def test_launcher_that_ends_before_its_ranks_halts_the_job() -> None:
    def end(nursery: _Nursery) -> None:
        assert nursery.launcher is not None
        nursery.launcher.code = 1

    halt = _watch(_launched(end))
    assert halt is not None
    assert (halt.reason, halt.details) == ("launcher", {"detail": "the launcher ended (exit code 1)", "status": 1})


def test_launcher_that_does_not_end_after_its_ranks_is_late() -> None:
    def end(nursery: _Nursery) -> None:
        for rank in nursery.ranks:
            rank.code = Exit.OK

    halt = _watch(_launched(end), total=0.1)
    assert halt is not None
    assert (halt.reason, halt.details) == ("total", {"limit": 0.1})


class _Files:
    """A nursery of which only the files count."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.ranks = directory, [Rank(0, "/nowhere")]

    def path(self, ending: str) -> str:
        return str(self.directory / ending)


def test_stack_is_that_of_the_thread_that_runs_the_rank(tmp_path: Path) -> None:
    frame = '  File "/x/{}.py", line 7 in {}\n'
    (tmp_path / "0.stack").write_text(
        f"{STACK_OF}00007f02\n\n"
        f"Thread 0x00007f01 (most recent call first):\n{frame.format('pool', 'idle')}\n"
        f"Thread 0x00007f02 [train] (most recent call first):\n{frame.format('step', 'backward')}\n"
        f"Current thread 0x00007f03 (most recent call first):\n{frame.format('main', 'loop')}"
    )
    assert stacks(_Files(tmp_path)) == {"0": ["backward (step.py:7)"]}


def test_waiting_for_the_end_of_a_process_that_cannot_be_ended_has_an_end() -> None:
    pid = os.fork()
    if not pid:
        time.sleep(60)  # stands for a process in state D: no signal of ours has ended it yet
        os._exit(0)
    try:
        assert reaped(pid, 0.05) is None
    finally:
        os.kill(pid, signal.SIGKILL)
    status = reaped(pid, KILL_SECONDS)
    assert status is not None
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_module_of_the_watch_waits_for_no_child_without_a_deadline() -> None:
    """`waitpid` without WNOHANG would wait for ever for a rank that is stuck in the GPU's driver."""
    calls = [
        (path.name, ast.unparse(node))
        for path in Path(watching.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "os.waitpid"
    ]
    assert calls
    assert [call for call in calls if "WNOHANG" not in call[1]] == []


def _crowded(*, is_starved: bool, seconds: float) -> Halt | None:
    """Watch sixteen ranks a processor that stand in a case for some seconds, and then end well."""

    def stand(nursery: _Nursery) -> None:
        if not nursery.board.row(0)[2]:
            for rank in nursery.ranks:
                nursery.put(rank.rank, 3, Phase.SYNCED)
        elif nursery.board.row(0)[2] > seconds:
            for rank in nursery.ranks:
                rank.code = Exit.OK

    nursery = _Nursery(16 * processors(), stand)
    patience = Patience(is_starved=lambda *_: is_starved)
    return JobWatch(nursery, patience, forward=lambda: None, deadline_of=lambda _case: 0.02, total=60.0).run()


def test_ranks_that_share_a_processor_and_wait_for_their_turn_are_slow_and_not_stuck() -> None:
    assert _crowded(is_starved=True, seconds=0.1) is None


def test_ranks_that_share_a_processor_and_sleep_are_stuck() -> None:
    halt = _crowded(is_starved=False, seconds=30.0)
    assert halt is not None
    assert halt.reason == "deadline"
