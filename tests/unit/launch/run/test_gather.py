"""From the files of a rank to its evidence."""

from __future__ import annotations

import json

import pytest

from envsmith.launch.ranks.evidence import Call, ExitStatus, ProcessState, RankError, RankEvidence, ThreadStack
from envsmith.launch.run.watch import (
    drivers_errors,
    rank_evidence,
    with_drivers_errors,
    with_launcher_ends,
    with_training_thread,
)

FATAL = 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File "/w/train.py", line 9 in step\n'


def evidence(tmp_path, *marks, stacks="", code=None, ended_at=10.0):
    stem = tmp_path / "1-77"
    (tmp_path / "1-77.marks").write_text("".join(json.dumps(mark) + "\n" for mark in marks) + '{"cut')
    (tmp_path / "1-77.stacks").write_text(stacks)
    return rank_evidence(stem, answer={}, code=code, ended_at=ended_at, process=None)


@pytest.mark.parametrize(
    ("marks", "stacks", "status"),
    [
        ([{"mark": "end", "at": 9.0, "failed": ""}], "", 0),
        ([{"mark": "error", "at": 9.0, "error": "ValueError: x", "stack": []}], "", 1),
        ([{"mark": "exit", "at": 9.0, "status": "3", "stack": []}], "", 3),
        ([{"mark": "exit", "at": 9.0, "status": "None", "stack": []}], "", 0),
        ([{"mark": "exit", "at": 9.0, "status": "'why'", "stack": []}], "", 1),
        ([], FATAL, -11),
        ([], "", None),
    ],
)
def test_without_the_kernel_s_word_the_rank_s_own_files_say_how_it_ended(tmp_path, marks, stacks, status):
    assert evidence(tmp_path, *marks, stacks=stacks).exit.code == status


def test_a_crash_has_the_place_of_the_thread_that_the_signal_met(tmp_path):
    assert evidence(tmp_path, stacks=FATAL, code=-11).main.frames[0].line == 9


def test_the_stack_of_a_crash_has_the_line_of_the_program_that_was_in_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("work.wait()\n")
    stacks = FATAL.replace("/w/train.py", str(script)).replace("line 9", "line 1")

    assert evidence(tmp_path, stacks=stacks, code=-6).main.frames[0].text == "work.wait()"


def test_a_rank_that_ended_well_has_no_error(tmp_path):
    mark = {"mark": "error", "at": 9.0, "error": "ValueError: in a thread", "stack": [], "thread": "T"}

    assert evidence(tmp_path, mark, code=0).error is None


def test_the_mark_of_the_end_is_earlier_than_the_kernel_s(tmp_path):
    assert evidence(tmp_path, {"mark": "end", "at": 9.0, "failed": ""}, code=0).exit == ExitStatus(
        code=0, at=9.0, is_clean=True
    )


def test_a_way_out_is_named_with_its_place(tmp_path):
    mark = {"mark": "exit", "at": 9.0, "status": "0", "stack": [["fault", "/w/train.py", 12]]}

    assert evidence(tmp_path, mark, code=0).way_out == "sys.exit(0) at train.py:12 (fault)"


def test_a_signal_after_a_failure_is_the_launcher_s():
    rows = with_launcher_ends(
        [
            RankEvidence(rank=0, exit=ExitStatus(code=-15, at=10.2)),
            RankEvidence(rank=1, exit=ExitStatus(code=1, at=10.1), error=RankError(error="x", at=10.0)),
            RankEvidence(rank=2, exit=ExitStatus(code=-9, at=10.1)),
            RankEvidence(rank=3, exit=ExitStatus(code=-9, at=40.0)),
        ]
    )

    assert [row.exit.by_launcher for row in rows] == [True, False, False, True]


@pytest.mark.parametrize(("at", "expected"), [(10.0, False), (10.2, True)])
def test_sigterm_is_the_launcher_s_only_after_the_end_of_another_rank(at, expected):
    error = RankError(error="Connection reset by peer", at=9.9)
    ranks = [
        RankEvidence(rank=0, exit=ExitStatus(code=1, at=10.1), error=error),
        RankEvidence(rank=1, exit=ExitStatus(code=-15, at=at)),
    ]

    assert with_launcher_ends(ranks)[1].exit.by_launcher == expected


def test_the_loops_around_a_place_are_read_from_the_program(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("for epoch in range(2):\n    while True:\n        step()\nsave()\n")
    error = {"mark": "error", "at": 9.0, "error": "ValueError: x", "stack": [["<module>", str(script), 3]]}
    hook = {"thread": "MainThread", "is_main": True, "frames": [["<module>", str(script), line] for line in (3, 4)]}
    (tmp_path / "1-77.marks").write_text(json.dumps(error) + "\n")

    one = rank_evidence(tmp_path / "1-77", answer={"stacks": [hook]}, code=None, ended_at=0.0, process=None)

    assert [frame.loops for frame in one.main.frames] == [((1, 3), (2, 3)), ()]


def test_a_program_that_cannot_be_read_has_no_loops(tmp_path):
    (tmp_path / "train.py").write_text("for\0")
    hook = {
        "thread": "MainThread",
        "is_main": True,
        "frames": [["f", str(tmp_path / name), 1] for name in ("train.py", "no.py")],
    }

    one = rank_evidence(tmp_path / "1-77", answer={"stacks": [hook]}, code=None, ended_at=0.0, process=None)

    assert [frame.loops for frame in one.main.frames] == [(), ()]


def test_the_innermost_frame_has_its_line_of_the_program(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("def step():\n    work.wait()\nstep()\n")
    hook = {"thread": "MainThread", "is_main": True, "frames": [["step", str(script), 2], ["<module>", str(script), 3]]}

    one = rank_evidence(tmp_path / "1-77", answer={"stacks": [hook]}, code=None, ended_at=0.0, process=None)

    assert [frame.text for frame in one.main.frames] == ["work.wait()", ""]


def test_the_test_of_the_rank_around_a_place_is_read_from_the_program(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("if ready:\n    if rank == 0:\n        save()\n    else:\n        load()\nstep()\n")
    stacks = [
        {"thread": "MainThread", "is_main": True, "frames": [["<module>", str(script), line]]} for line in (3, 5, 6)
    ]

    one = rank_evidence(tmp_path / "1-77", answer={"stacks": stacks}, code=None, ended_at=0.0, process=None)

    assert [stack.frames[0].condition for stack in one.stacks] == ["rank == 0", "rank == 0", ""]


def test_a_signal_that_no_launcher_brings_about_is_the_first_however_late_it_was_seen():
    rows = with_launcher_ends(
        [
            RankEvidence(rank=0, exit=ExitStatus(code=-15, at=10.0)),
            RankEvidence(rank=1, exit=ExitStatus(code=-9, at=10.4)),
        ]
    )

    assert [row.exit.by_launcher for row in rows] == [True, False]


def test_a_signal_after_the_clean_end_has_the_time_of_the_signal(tmp_path):
    end = evidence(tmp_path, {"mark": "end", "at": 9.0, "failed": ""}, code=-15, ended_at=10.0).exit

    assert end == ExitStatus(code=-15, at=10.0, is_clean=True)


def test_a_rank_has_the_error_that_its_driver_passes_on(tmp_path):
    text = 'ray::T.train() (pid=77, ip=10.0.0.1)\n  File "/w/train.py", line 3, in train\nValueError: label 7'
    (tmp_path / "driver-5.marks").write_text(
        json.dumps({"mark": "error", "at": 9.0, "error": text, "stack": []}) + "\n"
    )

    ranks = with_drivers_errors([RankEvidence(rank=0, pid=76), RankEvidence(rank=1, pid=77)], drivers_errors(tmp_path))

    assert [one.error and one.error.error for one in ranks] == [None, "ValueError: label 7"]


def test_the_thread_that_makes_the_calls_stands_for_the_rank():
    state = ProcessState(pid=8, state="S", waits_in="pipe_read")
    stacks = (
        ThreadStack(thread="MainThread", frames=(), is_main=True, number="1", still=9),
        ThreadStack(thread="trainer", frames=(), number="2", still=3, process=state),
    )
    calls = (Call(group="0", sequence=1, operation="all_reduce", thread="2"),)
    one = RankEvidence(rank=0, calls=calls, stacks=stacks, process=ProcessState(pid=7, state="S"), still=9)

    moved = with_training_thread(one)

    assert (moved.main.thread, moved.still, moved.process.waits_in) == ("trainer", 3, "pipe_read")
