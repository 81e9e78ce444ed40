"""Lines of JSON, and the table of places in shared memory."""

from __future__ import annotations

import os
from pathlib import Path

from envsmith.agent.protocol import Board, JsonLines, Phase, Startup


def test_lines_come_whole_out_of_pieces() -> None:
    lines = JsonLines()
    assert list(lines.feed(b'{"a":1}\n{"b"')) == [{"a": 1}]
    assert list(lines.feed(b":2}\n\n")) == [{"b": 2}]


def test_board_of_a_file_is_shared_with_a_process_that_opens_it(tmp_path: Path) -> None:
    board = Board(str(tmp_path / "board"))
    board.clear()
    assert board.process(3) == (0, None)
    theirs = Board(board.path)
    theirs.enter(3, 4711)
    theirs.mark(3, 17, Phase.ENTERED)
    assert (board.process(3), board.row(3)[:2]) == ((4711, None), (17, Phase.ENTERED))
    theirs.leave(3, -9)
    assert board.process(3) == (4711, -9)
    theirs.leave(3, 0)
    assert board.process(3) == (4711, 0)


def test_board_keeps_every_ranks_place_apart_and_survives_a_fork() -> None:
    board = Board()
    board.clear()
    assert board.row(5)[0] == Startup.START
    pid = os.fork()
    if pid == 0:
        board.sign(3, "all_reduce[float32,sum,3]" + "x" * 1000)
        board.mark(3, 17, Phase.ENTERED)
        board.port = 4711
        os._exit(0)
    os.waitpid(pid, 0)
    case, step, age, signature = board.row(3)
    assert (case, step, board.port) == (17, Phase.ENTERED, 4711)
    assert 0 <= age < 60
    assert signature.startswith("all_reduce[float32,sum,3]xxx")
    assert board.row(2)[0] == board.row(4)[0] == Startup.START
