"""A launch that stands still: who is waited for, why, and whether it is a hang."""

from __future__ import annotations

from dataclasses import replace

import pytest
from launches import TORCH, TRAIN, calls, ended, late, stack, stalled, waiting

from envsmith.launch.ranks.causes import Cause
from envsmith.launch.ranks.decide import decide
from envsmith.launch.ranks.evidence import (
    CallArguments,
    Frame,
    ProcessGroup,
    ProcessState,
    RankError,
    RankEvidence,
    ThreadStack,
)

USUAL = ["all_reduce"] * 5
ROUND = ["all_reduce/8", "all_reduce/3", "all_reduce/5"]
LOADER = "/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py"


def verdict(*ranks):
    answer = decide(stalled(*ranks))
    return (answer.cause, answer.ranks, answer.is_hang) if answer else None


@pytest.mark.parametrize(
    ("one", "cause", "is_hang"),
    [
        (late(1, *USUAL, waits_in="wait_for_partner"), Cause.BLOCKED, True),
        (late(1, *USUAL, waits_in="hrtimer_nanosleep"), Cause.BLOCKED, False),
        (late(1, *USUAL, waits_in="ep_poll", has_limit=True), Cause.BLOCKED, False),
        (late(1, *USUAL, state="R", cpu=1.0), Cause.BUSY, False),
        (late(1, *USUAL, state="D"), Cause.BLOCKED, False),
        (late(1, *USUAL, waits_in="wait_for_partner", still=2), Cause.BUSY, False),
        (late(1, *USUAL, answers=False), Cause.GIL_HELD, True),
        (late(1, *USUAL, state="R", cpu=1.0, answers=False), Cause.GIL_HELD, False),
        (late(1, *USUAL, state="D", answers=False), Cause.BLOCKED, True),
        (late(1, *USUAL, state="T", answers=False), Cause.STOPPED, True),
    ],
    ids=[
        "fifo",
        "asleep",
        "with-a-limit",
        "busy",
        "disk",
        "not-long",
        "gil",
        "gil-as-it-computes",
        "disk-for-long",
        "stopped",
    ],
)
def test_the_late_rank_is_named_with_what_it_does(one, cause, is_hang):
    assert verdict(waiting(0, *USUAL, "all_reduce"), one) == (cause, (1,), is_hang)


def test_a_rank_that_waits_for_its_loader_is_not_in_a_collective():
    one = replace(late(1, *USUAL), stacks=stack(40, inside="_try_get_data", file=LOADER))

    assert verdict(waiting(0, *USUAL, "all_reduce"), one) == (Cause.LOADER, (1,), True)


def test_a_worker_of_the_loader_that_is_stopped_is_said():
    child = ProcessState(pid=77, state="T")
    process = ProcessState(pid=1, state="S", cpu=0.0, answers=True, children=(child,))
    one = replace(late(1, *USUAL), stacks=stack(40, inside="_try_get_data", file=LOADER), process=process)

    assert "worker 77 is stopped" in decide(stalled(waiting(0, *USUAL, "all_reduce"), one)).message


def test_a_dead_rank_that_others_wait_for_is_named():
    assert verdict(waiting(0, *USUAL, "all_reduce"), ended(1, 0, 9.0, "", *USUAL)) == (Cause.UNEVEN_DATA, (1,), True)
    assert verdict(waiting(0, *USUAL, "all_reduce"), ended(1, -9, 9.0)) == (Cause.KILLED, (1,), True)


def test_ranks_that_wait_in_two_groups_are_told_apart_by_their_habits():
    usual = waiting(0, *USUAL, "all_reduce")
    other = replace(waiting(1, *USUAL), calls=(*calls(*USUAL), *calls("broadcast", group="1", open_last=True)))

    assert verdict(usual, other) == (Cause.DIFFERENT_GROUPS, (1,), True)


@pytest.mark.parametrize(("members", "is_lasting"), [((0, 1), True), ((1,), False)])
def test_ranks_in_two_groups_wait_for_ever_unless_one_group_is_complete(members, is_lasting):
    other = replace(
        waiting(1, *USUAL),
        calls=(*calls(*USUAL), *calls("broadcast", group="1", open_last=True)),
        groups=(ProcessGroup(name="1", ranks=members),),
    )

    assert decide(stalled(waiting(0, *USUAL, "all_reduce"), other)).is_lasting == is_lasting


def test_ranks_that_wait_in_one_collective_are_no_hang_of_one_of_them():
    answer = decide(stalled(waiting(0, *USUAL), waiting(1, *USUAL)))

    assert (answer.cause, answer.ranks, answer.is_hang) == (Cause.UNKNOWN, (), False)
    assert answer.message.startswith(
        "Every rank has come to all_reduce of [8] float32, and it does not end: ranks 0, 1"
    )


def test_an_asynchronous_call_is_no_wait():
    one = replace(late(1, *USUAL, waits_in="wait_for_partner"), calls=calls(*USUAL, "all_reduce", open_last=True))

    assert verdict(waiting(0, *USUAL, "all_reduce"), one) == (Cause.BLOCKED, (1,), True)


def test_a_rank_waits_that_asks_its_gpu_for_a_number_while_another_has_not_called_its_collective():
    on_gpu = replace(late(0, *USUAL, state="R", cpu=1.0, line=34), calls=calls(*USUAL, "all_reduce", open_last=True))
    asleep = late(1, *USUAL, waits_in="hrtimer_nanosleep")

    answer = decide(stalled(on_gpu, asleep))

    assert (answer.cause, answer.ranks) == (Cause.BLOCKED, (1,))
    assert "Rank 0 waits in all_reduce of [8] float32 at train.py:34 (step)." in answer.message


def test_ranks_that_have_all_called_the_open_collective_wait_for_none_of_them():
    both = [replace(late(rank, *USUAL, state="R", cpu=1.0), calls=calls(*USUAL, open_last=True)) for rank in (0, 1)]

    assert verdict(*both) is None


@pytest.mark.parametrize(("local", "ranks"), [("2", (1,)), ("1", ())])
def test_a_rank_of_another_host_is_not_missing(local, ranks):
    main = stack(9, inside="init_process_group")
    one = replace(late(0), stacks=main, environment={"LOCAL_WORLD_SIZE": local})

    answer = decide(replace(stalled(one), world=2))

    assert answer.ranks == ranks
    assert (answer.cause is Cause.ABSENT) == bool(ranks)


def test_a_rank_does_not_come_where_two_processes_have_the_number_of_another():
    main = stack(9, inside="init_process_group")
    one = replace(late(0), stacks=main, environment={"LOCAL_WORLD_SIZE": "2"})

    answer = decide(stalled(one, one))

    assert answer.ranks == (1,)
    assert "because 2 processes have RANK=0" in answer.message


def test_ranks_that_all_import_or_compute_are_not_said_to_wait():
    assert decide(stalled(late(0, state="R", cpu=1.0), late(1, state="R", cpu=1.0))) is None


def test_a_rank_that_makes_a_group_alone_is_named():
    usual = [waiting(rank, *USUAL, "all_reduce") for rank in (0, 2)]
    alone = replace(late(1, *USUAL, "all_reduce"), stacks=stack(186, inside="new_group"))

    assert verdict(*usual, alone) == (Cause.DIFFERENT_GROUPS, (1,), True)
    assert verdict(usual[0], alone) == (Cause.DIFFERENT_GROUPS, (1,), True)


def test_a_rank_that_waits_for_a_thread_that_died_says_of_what():
    error = RankError(error="ConnectionError: gone", thread="Thread-1", place="data.py:9 (prefetch)", at=9.0)
    one = replace(late(1, *USUAL, waits_in="futex_do_wait"), error=error)

    answer = decide(stalled(waiting(0, *USUAL, "all_reduce"), one))

    assert (answer.cause, answer.ranks, answer.is_hang) == (Cause.RAISED, (1,), True)
    assert "ConnectionError: gone at data.py:9 (prefetch)" in answer.message


def _in_loop(one, *, line, loops=()):
    frame = Frame(function="main", file=TRAIN, line=line, loops=loops)
    inside = Frame(function="all_reduce", file=TORCH)
    return replace(one, stacks=(ThreadStack(thread="MainThread", frames=(inside, frame), is_main=True),))


@pytest.mark.parametrize(
    ("others", "own", "cause", "rank"),
    [
        ([*ROUND * 3, "all_reduce/8"], [*ROUND * 3, "barrier"], Cause.UNEVEN_DATA, 1),
        ([*ROUND * 3, "all_reduce/7"], [*ROUND * 3, "barrier"], Cause.DIFFERENT_CALLS, None),
        ([*ROUND * 3, "all_reduce/8"], [*ROUND * 2, *ROUND[1:], "barrier"], Cause.FEWER_CALLS, 1),
    ],
    ids=["fewer rounds", "a loop of one rank", "parted before"],
)
def test_a_rank_behind_the_loop_that_the_others_are_in_has_fewer_rounds_if_it_made_their_calls(
    others, own, cause, rank
):
    inside = _in_loop(waiting(0, *others), line=12, loops=((10, 14),))
    behind = _in_loop(waiting(1, *own), line=20)

    answer = decide(stalled(inside, behind))

    assert (answer.cause, answer.rank, answer.is_hang) == (cause, rank, True)
    assert ("left the loop at train.py:10 (main)" in answer.message) == (cause is Cause.UNEVEN_DATA)


@pytest.mark.parametrize(("text", "rank"), [("request.wait()", 1), ("total = sum(rows)", None)])
def test_a_rank_at_a_line_that_waits_for_a_work_waits_for_the_others(text, rank):
    frame = Frame(function="communicate", file="/opt/venv/lib/python3.12/site-packages/megatron/core/p2p.py", text=text)
    in_schedule = replace(late(0, *USUAL), stacks=(ThreadStack(thread="MainThread", frames=(frame,), is_main=True),))

    answer = decide(stalled(in_schedule, late(1, *USUAL, waits_in="wait_for_partner")))

    assert (answer and answer.rank) == rank


def test_of_several_late_ranks_it_is_said_what_each_does():
    busy = [late(rank, *USUAL, state="R", cpu=1.0) for rank in (1, 2)]

    answer = decide(stalled(waiting(0, *USUAL), *busy))

    assert answer.ranks == (1, 2)
    assert answer.message.startswith("Each of ranks 1, 2 computes, or waits for a processor, and has not come")


def test_a_rank_that_raised_and_whose_process_goes_on_is_blamed_for_its_error():
    error = RankError(error="ValueError: label 7", place="train.py:9", at=5.0, thread="MainThread")
    silent = replace(late(1, "all_reduce", answers=False), error=error, is_leaving=True)

    answer = decide(stalled(waiting(0, "all_reduce"), silent))

    assert (answer.cause, answer.ranks, answer.place) == (Cause.RAISED, (1,), "train.py:9")


def test_a_rank_that_became_another_program_is_said_to_have_left():
    other = replace(late(1, "all_reduce", became=True, command="sleep 600"), stacks=())

    answer = decide(stalled(waiting(0, "all_reduce"), other))

    assert (answer.cause, answer.ranks) == (Cause.LEFT, (1,))
    assert "sleep 600" in answer.message


@pytest.mark.parametrize(
    ("child", "is_hang"),
    [
        ({"state": "R", "cpu": 0.9}, False),
        ({"waits_in": "futex_do_wait"}, True),
        ({"waits_in": "futex_do_wait", "has_limit": True}, False),
    ],
)
def test_what_holds_for_a_rank_holds_for_the_child_that_it_waits_for(child, is_hang):
    process = ProcessState(pid=9, **{"state": "S", "cpu": 0.0, **child})
    one = late(1, "all_reduce", waits_in="do_wait", children=(process,))

    assert decide(stalled(waiting(0, "all_reduce"), one)).is_hang is is_hang


@pytest.mark.parametrize(
    ("still", "kernel", "is_hang"),
    [(2, "futex_do_wait", False), (8, "hrtimer_nanosleep", False), (8, "futex_do_wait", True)],
)
def test_what_holds_for_a_rank_holds_for_the_thread_that_it_waits_for(still, kernel, is_hang):
    frames = (Frame(function="prepare", file="/home/user/train.py", line=40),)
    state = ProcessState(pid=9, state="S", cpu=0.0, waits_in=kernel)
    thread = ThreadStack(thread="writer", frames=frames, still=still, process=state)
    one = late(1, "all_reduce", waits_in="futex_do_wait")

    answer = decide(stalled(waiting(0, "all_reduce"), replace(one, stacks=(*one.stacks, thread))))

    assert answer.is_hang is is_hang
    assert "writer" in answer.message


@pytest.mark.parametrize("has_limit", [True, False], ids=["with a timer", "idle"])
def test_an_event_loop_in_another_thread_is_waited_for_while_it_has_a_timer(has_limit):
    loop = Frame(function="run_forever", file="/usr/lib/python3.12/asyncio/base_events.py", line=640)
    state = ProcessState(pid=9, state="S", cpu=0.0, waits_in="ep_poll", has_limit=has_limit)
    thread = ThreadStack(thread="loop", frames=(loop,), still=8, process=state)
    one = late(1, "all_reduce", waits_in="futex_do_wait")

    answer = decide(stalled(waiting(0, "all_reduce"), replace(one, stacks=(*one.stacks, thread))))

    assert answer.is_hang is not has_limit


@pytest.mark.parametrize(("state", "is_hang"), [("R", False), ("S", True)])
def test_a_pool_that_computes_is_waited_for_and_no_hang(state, is_hang):
    child = ProcessState(pid=9, state=state, waits_in="pipe_read" if state == "S" else "", cpu=0.0)
    one = late(1, "all_reduce", waits_in="futex_wait_queue", children=(child,))

    assert decide(stalled(waiting(0, "all_reduce", "all_reduce"), one)).is_hang is is_hang


@pytest.mark.parametrize(
    ("worker", "is_hang"),
    [
        (ProcessState(pid=9, state="R", cpu=1.0), False),
        (ProcessState(pid=9, state="S", cpu=0.0, waits_in="hrtimer_nanosleep"), False),
        (ProcessState(pid=9, state="D", cpu=0.0), False),
        (ProcessState(pid=9, state="S", cpu=0.0, waits_in="poll_schedule_timeout", has_limit=True), True),
    ],
)
def test_a_loader_of_which_a_worker_is_at_a_task_is_no_hang(worker, is_hang):
    frame = Frame(function="_try_get_data", file=LOADER, line=9)
    one = late(1, "all_reduce", children=(worker,))
    one = replace(one, stacks=(replace(one.stacks[0], frames=(frame, *one.stacks[0].frames)),))

    answer = decide(stalled(waiting(0, "all_reduce", "all_reduce"), one))

    assert (answer.cause, answer.is_hang) == (Cause.LOADER, is_hang)


def test_a_rank_whose_control_group_is_frozen_is_stopped():
    frozen = late(1, "all_reduce", state="D", waits_in="__refrigerator", answers=False)

    answer = decide(stalled(waiting(0, "all_reduce", "all_reduce"), frozen))

    assert (answer.cause, answer.ranks) == (Cause.STOPPED, (1,))
    assert "frozen" in answer.message


def test_ranks_that_load_modules_of_torch_distributed_do_not_wait():
    loading = (Frame("<module>", TORCH, 5), Frame("_call_with_frames_removed", "<frozen importlib._bootstrap>", 241))
    ranks = [
        replace(late(rank, state="R", cpu=1.0), stacks=(ThreadStack("MainThread", loading, is_main=True),))
        for rank in range(2)
    ]

    assert decide(stalled(*ranks)) is None


BATON = "/opt/venv/lib/python3.12/site-packages/torch/utils/file_baton.py"


@pytest.mark.parametrize(("compiler", "is_said"), [("R", False), ("S", True)])
def test_ranks_that_all_sleep_at_a_lock_file_are_told_so_unless_one_of_them_compiles(compiler, is_said):
    child = ProcessState(pid=9, state=compiler, cpu=0.0)
    waits = {"waits_in": "hrtimer_nanosleep"}
    ranks = (late(0, **waits, children=(child,)), late(1, **waits))

    answer = decide(stalled(*(replace(one, stacks=stack(19, inside="wait", file=BATON)) for one in ranks)))

    assert (answer is not None) is is_said
    assert not is_said or (answer.ranks, answer.is_hang, "lock file" in answer.message) == ((), False, True)


def test_a_rank_that_waits_for_its_thread_says_in_what_collective_that_one_waits():
    frames = (Frame(function="barrier", file=TORCH, line=1), Frame(function="save", file=TRAIN, line=40))
    state = ProcessState(pid=9, state="S", cpu=0.0, waits_in="futex_do_wait")
    thread = ThreadStack(thread="saver", frames=frames, still=8, process=state, call=CallArguments(operation="barrier"))
    one = late(0, "all_reduce", waits_in="futex_do_wait")

    answer = decide(stalled(replace(one, stacks=(*one.stacks, thread)), waiting(1, "all_reduce", "all_reduce")))

    assert (answer.rank, answer.is_hang) == (0, True)
    assert "thread saver, which waits in barrier for ranks that do not come" in answer.message


@pytest.mark.parametrize(
    ("frame", "call", "ranks"),
    [
        (Frame(function="step", file=TRAIN, line=22, text="work.wait()"), None, ()),
        (Frame(function="recv", file=TORCH, line=1), CallArguments("recv", peer=2), (1, 2)),
    ],
    ids=["of an unknown peer", "of a known one"],
)
def test_a_send_or_recv_without_a_partner_is_no_fault_of_the_rank_that_waits_in_it(frame, call, ranks):
    user = Frame(function="step", file=TRAIN, line=22)
    main = ThreadStack(thread="MainThread", frames=(frame, user), is_main=True, call=call)
    lone = replace(late(1, *USUAL), stacks=(main,))

    answer = decide(stalled(waiting(0, *USUAL, "all_reduce"), lone, waiting(2, *USUAL, "all_reduce")))

    assert answer.ranks == ranks
    assert "A send or recv has no partner, in which rank 1 waits" in answer.message


def test_of_a_rank_that_waits_as_it_tidies_up_the_error_that_it_handles_is_named():
    error = RankError(error="OSError: shard 4 is gone", place="train.py:22")
    one = late(1, *USUAL, line=26, waits_in="wait_for_partner")
    one = replace(one, stacks=(replace(one.stacks[0], handles=error),))

    answer = decide(stalled(waiting(0, *USUAL, "all_reduce"), one))

    assert answer.message.endswith(" It waits while it handles OSError: shard 4 is gone at train.py:22.")
    assert answer.fix.startswith("Look at train.py:22")


def test_a_rank_whose_thread_outlives_its_script_is_said_to_wait_for_it():
    frames = (Frame(function="_shutdown", file="/usr/lib/python3.12/threading.py", line=1590),)
    thread = ThreadStack(thread="logger", frames=stack(9)[0].frames, still=9)
    one = replace(late(1, *USUAL), stacks=(ThreadStack(thread="MainThread", frames=frames, is_main=True), thread))

    answer = decide(stalled(ended(0, 0), one))

    assert (answer.cause, answer.ranks, answer.is_hang) == (Cause.LEFT, (1,), True)
    assert answer.message.endswith("its process waits for a thread: logger at train.py:9 (step).")


def on_a_gpu(rank: int, *operations: str, line: int = 30, text: str = "return loss.item()", is_p2p: bool = False):
    """Return a rank that keeps a processor busy at a line that needs a number from the GPU, with its last call open."""
    made = calls(*operations, open_last=True)
    frame = Frame(function="step", file=TRAIN, line=line, text=text)
    return RankEvidence(
        rank=rank,
        calls=(*made[:-1], replace(made[-1], is_p2p=is_p2p)),
        stacks=(ThreadStack(thread="MainThread", frames=(frame,), is_main=True),),
        process=ProcessState(pid=rank, state="R", cpu=1.0, answers=True),
        still=8,
    )


def test_rank_that_ended_is_waited_for_on_a_gpu_where_no_frame_shows_a_collective() -> None:
    computing = on_a_gpu(0, "all_reduce", "all_reduce", text="x = x @ x")
    answer = decide(stalled(computing, ended(1, 0, 10.0, "", "all_reduce")))
    assert answer
    assert (answer.ranks, answer.cause, answer.is_hang) == ((1,), Cause.UNEVEN_DATA, True)


def test_rank_that_ended_after_its_last_call_is_not_waited_for() -> None:
    assert not decide(stalled(on_a_gpu(0, "all_reduce", text="x = x @ x"), ended(1, 0, 10.0, "", "all_reduce")))


def test_ranks_that_wait_for_the_gpu_in_calls_that_do_not_meet_stand_still_for_ever() -> None:
    receiver = on_a_gpu(0, "all_reduce", "recv 0<-1", line=42, text="torch.cuda.synchronize()", is_p2p=True)
    answer = decide(stalled(receiver, on_a_gpu(1, "all_reduce", "all_reduce")))
    assert answer
    assert answer.is_hang
    assert "rank 0 in recv 0<-1" in answer.message
    assert "rank 1 in all_reduce" in answer.message


def test_gpus_with_several_calls_in_their_queues_may_go_on_while_all_have_come_to_the_first() -> None:
    ahead = on_a_gpu(0, "all_reduce", "all_reduce", "barrier")
    ahead = replace(ahead, calls=tuple(replace(call, ended=call.sequence == 1) for call in ahead.calls))
    answer = decide(stalled(ahead, on_a_gpu(1, "all_reduce", "all_reduce", line=31)))
    assert not answer or not answer.is_hang
