"""What a late rank does, and whether it may come: "hang" is said only where all who could end its wait are seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from launches import TORCH, TRAIN, calls, ended, late, stack, stalled, waiting

from envsmith.launch.ranks.causes import Cause
from envsmith.launch.ranks.decide import decide
from envsmith.launch.ranks.evidence import (
    CallArguments,
    Frame,
    OtherEnd,
    ProcessGroup,
    ProcessState,
    RankError,
    ThreadStack,
)

USUAL = ["all_reduce"] * 5
LOADER = "/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py"
LIBRARY = "/opt/venv/lib/python3.12/site-packages/datasets/iterable.py"
HERE, ELSEWHERE = OtherEnd.HERE, OtherEnd.ELSEWHERE
IDLE = ProcessState(pid=70, state="S", cpu=0.0, waits_in="anon_pipe_read")
SLEEPS = ProcessState(pid=71, state="S", cpu=0.0, waits_in="hrtimer_nanosleep")


def judged(one, *others):
    answer = decide(stalled(waiting(0, *USUAL, "all_reduce"), one, *others))
    return answer.cause, answer.rank, answer.is_hang


@pytest.mark.parametrize(
    ("wait", "is_hang"),
    [
        ({"waits_in": "anon_pipe_read", "other_end": HERE, "holders": (SLEEPS,)}, False),
        ({"waits_in": "anon_pipe_read", "other_end": HERE, "holders": (IDLE,)}, True),
        ({"waits_in": "anon_pipe_read", "other_end": HERE, "holders": (replace(IDLE, children=(SLEEPS,)),)}, False),
        ({"waits_in": "wait_woken", "other_end": ELSEWHERE}, False),
        ({"waits_in": "wait_woken", "other_end": HERE, "holders": (IDLE,)}, True),
        ({"waits_in": "inet_csk_accept", "other_end": ELSEWHERE}, False),
        ({"waits_in": "do_epoll_wait", "other_end": HERE}, True),
        ({"waits_in": "locks_lock_inode_wait", "other_end": HERE, "holders": (SLEEPS,)}, False),
        ({"waits_in": "locks_lock_inode_wait", "other_end": ELSEWHERE}, False),
        ({"waits_in": "__do_sys_pause"}, False),
        ({"waits_in": "request_wait_answer"}, False),
        ({"waits_in": ""}, False),
    ],
    ids=[
        "a pipe of who sleeps for a time",
        "a pipe of who stands still",
        "a pipe of who waits for a child",
        "another machine",
        "a server that stands still",
        "a port",
        "an event loop without a timer",
        "the lock of who sleeps for a time",
        "the lock of another machine",
        "a signal",
        "a file system of a program",
        "a kernel that shows nothing",
    ],
)
def test_a_wait_is_a_hang_only_where_all_who_could_end_it_stand_still(wait, is_hang):
    assert judged(late(1, *USUAL, **wait)) == (Cause.BLOCKED, 1, is_hang)


def test_a_late_rank_whose_lock_another_one_waits_for_is_the_first():
    holder = ProcessState(pid=102, state="S", cpu=0.0, waits_in="hrtimer_nanosleep")
    waits_for_lock = late(1, *USUAL, waits_in="fcntl_setlk", other_end=HERE, holders=(holder,))
    sleeps = replace(late(2, *USUAL, line=40, waits_in="hrtimer_nanosleep"), pid=102)

    assert judged(replace(waits_for_lock, pid=101), sleeps) == (Cause.BLOCKED, 2, False)


def test_who_holds_the_other_end_is_said():
    holder = replace(IDLE, command="rclone serve")
    one = late(1, *USUAL, waits_in="anon_pipe_read", other_end=HERE, holders=(holder,))

    message = decide(stalled(waiting(0, *USUAL, "all_reduce"), one)).message

    assert "where process 70 (rclone serve) has the other end" in message


@pytest.mark.parametrize(("text", "is_hang"), [("lock.acquire()", True), ("table = read_table(path)", False)])
def test_compiled_code_that_waits_may_wait_for_threads_of_its_own(text, is_hang):
    frame = Frame(function="step", file=TRAIN, line=15, text=text)
    one = late(1, *USUAL, waits_in="futex_do_wait", other_end=HERE)

    one = replace(one, stacks=(ThreadStack("MainThread", (frame,), is_main=True),))

    assert judged(one) == (Cause.BLOCKED, 1, is_hang)


@pytest.mark.parametrize(
    ("process", "is_hang"),
    [
        ({"waits_in": "hrtimer_nanosleep"}, False),
        ({"waits_in": "wait_woken", "other_end": ELSEWHERE}, False),
        ({"state": "D", "wakes": True}, False),
        ({"state": "D"}, True),
        ({"waits_in": "futex_do_wait", "other_end": HERE}, True),
    ],
    ids=["sleeps", "hears from elsewhere", "loads page after page", "one disk for long", "a lock"],
)
def test_who_keeps_the_gil_may_give_it_back_where_it_goes_on(process, is_hang):
    assert judged(late(1, *USUAL, answers=False, **process))[1:] == (1, is_hang)


def test_a_rank_that_answers_is_not_stopped_but_looked_at():
    traced = late(1, *USUAL, state="t", answers=True)

    assert judged(traced)[0] is not Cause.STOPPED


def test_a_thread_that_died_is_no_hang_of_a_rank_that_sleeps_for_a_time():
    error = RankError(error="ConnectionError: no metrics", thread="metrics", place="log.py:9", at=9.0)
    one = replace(late(1, *USUAL, waits_in="hrtimer_nanosleep"), error=error)

    answer = decide(stalled(waiting(0, *USUAL, "all_reduce"), one))

    assert (answer.cause, answer.is_hang) == (Cause.BLOCKED, False)
    assert "has lost its thread metrics to ConnectionError: no metrics at log.py:9, and sleeps" in answer.message


def test_an_error_that_the_program_handled_is_no_lost_thread():
    error = RankError(error="KeyError: 'lr'", thread="MainThread", at=9.0, handled=True)
    one = replace(late(1, *USUAL, waits_in="hrtimer_nanosleep"), error=error)

    assert judged(one) == (Cause.BLOCKED, 1, False)


@pytest.mark.parametrize(
    ("process", "is_hang"),
    [
        ({"state": "R", "cpu": 1.0}, False),
        ({"waits_in": "anon_pipe_read", "other_end": HERE, "holders": (IDLE,)}, True),
    ],
)
def test_what_a_loader_without_workers_does_is_judged_as_any_work(process, is_hang):
    frames = (Frame("decode", LIBRARY, 9), Frame("__next__", LOADER, 7), Frame("step", TRAIN, 15))
    one = replace(late(1, *USUAL, **process), stacks=(ThreadStack("MainThread", frames, is_main=True),))

    assert judged(one) == (Cause.LOADER, 1, is_hang)


@pytest.mark.parametrize(
    ("end", "holders", "is_hang"),
    [
        (HERE, (ProcessState(pid=1, state="S", waits_in="poll_schedule_timeout"),), True),
        (HERE, (SLEEPS,), False),
        (ELSEWHERE, (), False),
    ],
    ids=["its rank", "a server", "another machine"],
)
def test_a_worker_of_a_loader_is_at_a_task_where_it_waits_for_others_than_its_rank(end, holders, is_hang):
    worker = ProcessState(
        pid=9, state="S", cpu=0.0, waits_in="poll_schedule_timeout", has_limit=True, other_end=end, holders=holders
    )
    one = late(1, *USUAL, children=(worker,))
    frame = Frame(function="_try_get_data", file=LOADER, line=9)
    one = replace(one, stacks=(replace(one.stacks[0], frames=(frame, *one.stacks[0].frames)),))

    assert judged(one) == (Cause.LOADER, 1, is_hang)


@pytest.mark.parametrize(("holder", "is_hang"), [(SLEEPS, False), (IDLE, True)])
def test_a_thread_of_a_library_counts_where_it_waits_for_somebody_who_may_go_on(holder, is_hang):
    frame = Frame("_handle_results", "/usr/lib/python3.12/multiprocessing/pool.py", 579)
    state = ProcessState(pid=9, state="S", cpu=0.0, waits_in="anon_pipe_read", other_end=HERE, holders=(holder,))
    handler = ThreadStack("Thread-3", (frame,), still=8, process=state)
    one = late(1, *USUAL, waits_in="futex_do_wait", other_end=HERE)

    assert judged(replace(one, stacks=(*one.stacks, handler)))[1:] == (1, is_hang)


@pytest.mark.parametrize(("package", "is_hang"), [("grpc", False), ("wandb", True)])
def test_what_a_rank_waits_for_in_a_package_a_thread_of_that_package_may_bring(package, is_hang):
    packages = "/opt/venv/lib/python3.12/site-packages"
    frames = (Frame("wait", "/usr/lib/python3.12/threading.py", 355), Frame("wait", f"{packages}/grpc/_server.py", 9))
    state = ProcessState(pid=9, state="S", cpu=0.0, waits_in="futex_do_wait", other_end=HERE)
    thread = ThreadStack("Thread-3", (Frame("_serve", f"{packages}/{package}/x.py", 5),), still=8, process=state)
    one = late(1, *USUAL, waits_in="futex_do_wait", other_end=HERE)
    main = replace(one.stacks[0], frames=(*frames, *one.stacks[0].frames))

    assert judged(replace(one, stacks=(main, thread)))[1:] == (1, is_hang)


def test_nobody_waits_for_the_only_rank_of_a_launch():
    alone = late(0, "all_reduce", waits_in="futex_do_wait", other_end=HERE)

    answer = decide(stalled(alone))

    assert (answer.ranks, answer.is_hang) == ((), False)


def test_a_script_that_is_over_waits_for_the_child_of_its_thread():
    shutdown = (Frame(function="_shutdown", file="/usr/lib/python3.12/threading.py", line=1590),)
    state = ProcessState(pid=9, state="S", cpu=0.0, waits_in="do_wait", other_end=HERE, holders=(SLEEPS,))
    uploads = ThreadStack("upload", stack(9)[0].frames, still=9, process=state)
    one = replace(late(1, *USUAL), stacks=(ThreadStack("MainThread", shutdown, is_main=True), uploads))

    answer = decide(stalled(ended(0, 0), one))

    assert (answer.rank, answer.is_hang) == (1, False)


PAIR = (ProcessGroup(name="1", ranks=(0, 1)),)


def _in_pair(rank):
    one = waiting(rank, *USUAL)
    return replace(one, calls=(*one.calls[:-1], *calls("all_reduce", group="1", open_last=True)), groups=PAIR)


def test_nobody_waits_for_a_rank_that_has_ended_and_is_not_of_their_group():
    busy = late(1, *USUAL, state="R", cpu=1.0)

    answer = decide(stalled(_in_pair(0), busy, ended(2, 0)))

    assert (answer.rank, answer.is_hang) == (1, False)


def test_the_late_rank_is_one_of_the_group_in_which_others_wait():
    blocked = late(2, *USUAL, line=40, waits_in="wait_for_partner")
    busy = late(1, *USUAL, state="R", cpu=1.0)

    answer = decide(stalled(_in_pair(0), busy, blocked))

    assert (answer.rank, answer.is_hang) == (1, False)


def test_a_collective_to_which_its_whole_group_has_come_is_slow_and_the_others_wait_for_it():
    answer = decide(stalled(_in_pair(0), _in_pair(1), waiting(2, *USUAL, line=30)))

    assert not answer.is_hang


@pytest.mark.parametrize(("state", "is_hang"), [("R", False), ("S", True)])
def test_a_thread_beside_the_training_that_is_at_work_may_bring_the_call_that_others_wait_for(state, is_hang):
    at_work = ProcessState(pid=9, state=state, waits_in="futex_do_wait")
    saver = ThreadStack("saver", (Frame("save", TRAIN, 50),), still=8, process=at_work)
    trains = waiting(0, *USUAL)
    in_barrier = replace(_in_pair(1), stacks=stack(40, inside="barrier"))

    answer = decide(stalled(replace(trains, stacks=(*trains.stacks, saver)), in_barrier))

    assert answer.is_hang is is_hang


@pytest.mark.parametrize(("waits_in", "is_hang"), [("hrtimer_nanosleep", False), ("futex_do_wait", True)])
def test_a_thread_waits_in_a_collective_for_the_thread_of_another_rank(waits_in, is_hang):
    pool = Frame("run", "/usr/lib/python3.12/concurrent/futures/thread.py", 59)
    at_work = ProcessState(pid=9, state="S", waits_in=waits_in, cpu=0.0)
    asleep = ProcessState(pid=8, state="S", waits_in="futex_do_wait", cpu=0.0)
    writes = ThreadStack("saver", (pool,), still=8, process=at_work, number="7")
    barrier = CallArguments(operation="barrier")
    meets = ThreadStack("saver", (Frame("barrier", TORCH, 1), pool), still=8, process=asleep, call=barrier)
    trains = waiting(0, *USUAL)
    trains = replace(trains, calls=(*(replace(call, thread="7") for call in calls("gather", group="1")), *trains.calls))
    waits_for_thread = late(1, *USUAL, waits_in="futex_do_wait", other_end=HERE)

    answer = decide(
        stalled(
            replace(trains, stacks=(*trains.stacks, writes)),
            replace(waits_for_thread, stacks=(*waits_for_thread.stacks, meets)),
        )
    )

    assert (answer.rank, answer.is_hang) == (1, is_hang)


def test_a_root_that_differs_is_a_hang_though_all_have_come():
    ranks = []
    for rank, root in ((0, 0), (1, 1), (2, 0)):
        one = waiting(rank, *USUAL)
        call = CallArguments(operation="broadcast", root=root)
        ranks.append(replace(one, stacks=(replace(one.stacks[0], call=call),)))

    answer = decide(stalled(*ranks))

    assert (answer.rank, answer.is_hang) == (1, True)
