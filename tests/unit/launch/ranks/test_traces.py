"""Stacks as faulthandler and py-spy write them."""

from __future__ import annotations

from envsmith.launch.ranks.evidence import user_place
from envsmith.launch.ranks.traces import faulthandler_dumps, py_spy_stacks

# Written by Python 3.11 for ctypes.string_at(0) in a rank, and by its timer. Paths are shortened.
FAULT = """Timeout (0:00:08)!
Thread 0x00007f1c (most recent call first):
  File "/w/train.py", line 20 in fault
  File "/w/train.py", line 29 in <module>
Fatal Python error: Segmentation fault

Thread 0x00007f1b (most recent call first):
  File "/w/hook.py", line 5 in answer

Current thread 0x00007f1c (most recent call first):
  File "/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/w/train.py", line 11 in fault
  File "/w/train.py", line 29 in <module>

Extension modules: numpy.core._multiarray_umath (total: 1)
"""
# Printed by py-spy 0.4.1 of a small script.
SPY = """Process 4711: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (active+gil): "MainThread"
    fault (train.py:18)
    <module> (train.py:29)
Thread 4720 (idle): "envsmith-run"
    readinto (socket.py:706)
    answer (sitecustomize.py:165)
"""


def test_each_dump_of_faulthandler_has_its_headline_and_its_threads():
    timer, fatal = faulthandler_dumps(FAULT)

    assert timer[0] == "Timeout (0:00:08)"
    assert user_place(timer[1][0].frames) == "train.py:20 (fault)"
    assert fatal[0] == "Fatal Python error: Segmentation fault"
    assert [stack.holds_gil for stack in fatal[1]] == [None, True]
    assert user_place(fatal[1][1].frames) == "train.py:11 (fault)"


def test_py_spy_says_who_holds_the_lock():
    main, answering = py_spy_stacks(SPY)

    assert (main.is_main, main.holds_gil, main.frames[0].line) == (True, True, 18)
    assert (answering.thread, answering.holds_gil) == ("envsmith-run", False)


def test_a_text_without_stacks_has_none():
    assert faulthandler_dumps("") == []
    assert py_spy_stacks("Error: Permission Denied") == ()
