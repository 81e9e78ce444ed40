"""Whose error it is: that is decided by the frame that raised it, and not by words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from launches import CLOSED, TORCH, TRAIN, ended, failed

from envsmith.launch.ranks.causes import Cause
from envsmith.launch.ranks.decide import decide
from envsmith.launch.ranks.errors import follows, read_error
from envsmith.launch.ranks.evidence import Frame, RankError

MINE = Frame(function="load", file=TRAIN, line=7)
URLLIB = Frame(function="do_open", file="/usr/lib/python3.12/urllib/request.py", line=1344)
C10D = Frame(function="all_reduce", file=TORCH, line=2800)
WORKER = """KeyError: Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/user/train.py", line 31, in __getitem__
    raise KeyError("sample-5")
KeyError: 'sample-5'
"""


@pytest.mark.parametrize(
    ("error", "frames", "is_consequence"),
    [
        ("urllib.error.URLError: <urlopen error [Errno 111] Connection refused>", [URLLIB, MINE], False),
        ("BrokenPipeError: [Errno 32] Broken pipe", [MINE], False),
        ("torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /default_pg/0//batch-7", [MINE], False),
        ("torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /default_pg/0/1", [C10D, MINE], True),
        ("torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 2/3 joined.", [MINE], True),
        (CLOSED, [C10D, MINE], True),
        (CLOSED, [MINE], True),
        (CLOSED, [], True),
        (
            CLOSED,
            [Frame(function="wrapped", file="/opt/venv/lib/python3.12/site-packages/engine/zero.py", line=33), MINE],
            True,
        ),
    ],
)
def test_what_the_program_raised_is_its_own_whatever_its_words(error, frames, is_consequence):
    assert follows(read_error(error, frames)) is is_consequence


def test_compiled_code_of_a_package_is_no_place_of_the_program():
    compiled = Frame(function="ray._raylet.check_status", file="python/ray/includes/common.pxi", line=109)

    assert read_error("ValueError: Failed to look up actor", [compiled, MINE]).place == "train.py:7 (load)"


def test_an_error_that_was_raised_from_the_loss_of_a_rank_follows_from_it():
    error = RankError(error="TrainingError: the step failed", root=read_error(CLOSED, [C10D, MINE]))

    assert follows(error)


def test_the_error_of_a_worker_is_the_one_in_its_own_traceback():
    error = read_error(WORKER, [Frame(function="main", file=TRAIN, line=50)])

    assert (error.error, error.place, error.worker) == ("KeyError: 'sample-5'", "train.py:31 (__getitem__)", True)


def test_where_nothing_is_decisive_the_earliest_error_is_shown_and_nobody_is_blamed():
    answer = decide(failed(ended(0, 1, 10.0, CLOSED), ended(1, 1, 9.0, CLOSED)))

    assert (answer.cause, answer.ranks) == (Cause.UNKNOWN, ())
    assert "rank 1" in answer.message


POOL = """multiprocessing.pool.RemoteTraceback:
\"\"\"
Traceback (most recent call last):
  File "/usr/lib/python3.12/multiprocessing/pool.py", line 125, in worker
    result = (True, func(*args, **kwds))
  File "/home/user/train.py", line 12, in decode
    raise ValueError("image 5 is truncated")
ValueError: image 5 is truncated
\"\"\"
"""
SAVED = """torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([1])
Traceback (most recent call last): (RANK 1)
  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/checkpoint/utils.py", line 199, in reduce_scatter
    local_data = map_fun()
TypeError: cannot pickle '_thread.lock' object
"""


def test_the_error_of_a_pool_is_the_one_in_its_worker():
    error = read_error(POOL, [])

    assert (error.error, error.place, error.worker) == (
        "ValueError: image 5 is truncated",
        "train.py:12 (decode)",
        True,
    )


def test_an_error_that_begins_with_its_place_is_the_line_of_its_type():
    text = '  File "/home/user/config.py", line 2\n    steps = = 3\n            ^\nSyntaxError: invalid syntax'

    assert read_error(text, [MINE]).error == "SyntaxError: invalid syntax"


def test_what_ranks_tell_each_other_is_blamed_on_the_rank_that_it_names():
    error = read_error(SAVED, [MINE])
    ranks = [replace(ended(rank, 1, 10.0 + rank), error=error) for rank in range(3)]

    answer = decide(failed(*ranks))

    assert (answer.ranks, error.error) == ((1,), "TypeError: cannot pickle '_thread.lock' object")


RAY = """ray.exceptions.RayTaskError(ValueError): ray::Trainer.train() (pid=4711, ip=10.0.0.1, actor_id=5f, repr=<Trainer>)
  File "/home/user/train.py", line 31, in train
    raise ValueError("label 7 is out of range")
ValueError: label 7 is out of range"""


def test_an_error_that_a_driver_passes_on_has_the_process_that_raised_it():
    error = read_error(RAY, [])

    assert (error.error, error.place, error.by_process) == (
        "ValueError: label 7 is out of range",
        "train.py:31 (train)",
        4711,
    )


def test_an_error_is_the_same_in_colour():
    coloured = RAY.replace("ray::Trainer.train()", "\x1b[36mray::Trainer.train()\x1b[39m")

    assert read_error(coloured, []) == read_error(RAY, [])


def test_an_error_that_ends_with_a_colon_says_what_comes_next():
    text = 'RuntimeError: Error(s) in loading state_dict for Linear:\n\tMissing key(s) in state_dict: "bias". '

    assert read_error(text, [MINE]).error.endswith('for Linear: Missing key(s) in state_dict: "bias".')
