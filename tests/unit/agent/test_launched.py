"""Ranks that a launcher starts: what is known of their end, and who they are."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from envsmith.agent.launched import signal_in
from envsmith.agent.nursery import LaunchedRank
from envsmith.agent.processes import KILL_SECONDS, describe_exit, reaped
from envsmith.agent.protocol import Board, Exit


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("Fatal Python error: Segmentation fault\n\nCurrent thread", -signal.SIGSEGV),
        ("rank in thread 0x1\nFatal Python error: Aborted\n", -signal.SIGABRT),
        ("Fatal Python error: something else\n", Exit.CRASH),
        ("", Exit.CRASH),
    ],
)
def test_signal_is_what_faulthandler_wrote_and_otherwise_not_known(tmp_path: Path, words: str, code: int) -> None:
    (tmp_path / "0.stack").write_text(words)
    assert signal_in(str(tmp_path / "0.stack")) == code


def _end_of(board: Board, stack: Path) -> int | None:
    rank, until = LaunchedRank(0, ""), time.monotonic() + KILL_SECONDS
    while rank.alive and time.monotonic() < until:
        rank.look(board, str(stack))
        time.sleep(0.01)
    return rank.code


def _gone() -> int:
    """Return the pid of a process that has ended."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    reaped(pid, KILL_SECONDS)
    return pid


def test_launched_rank_that_is_gone_and_wrote_no_code_ended_without_a_word(tmp_path: Path) -> None:
    board = Board()
    board.clear()
    board.enter(0, _gone())
    code = _end_of(board, tmp_path / "0.stack")
    assert code == Exit.CRASH
    assert describe_exit(code) == "ended without a word, as after SIGKILL"


def test_launched_rank_has_the_code_that_it_or_its_parent_wrote(tmp_path: Path) -> None:
    board = Board()
    board.clear()
    board.enter(0, _gone())
    board.leave(0, -signal.SIGKILL)
    assert _end_of(board, tmp_path / "0.stack") == -signal.SIGKILL


def test_launched_rank_is_alive_before_it_has_a_pid_and_while_its_process_runs(tmp_path: Path) -> None:
    board, rank = Board(), LaunchedRank(0, "")
    board.clear()
    rank.look(board, "")
    assert rank.alive
    board.enter(0, os.getpid())
    rank.look(board, "")
    assert (rank.alive, rank.pid) == (True, os.getpid())
