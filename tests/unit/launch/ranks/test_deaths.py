"""Which rank of a watched launch ended first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from launches import CLOSED, calls, ended, failed, stack

from envsmith.launch.ranks.causes import Blame, Cause
from envsmith.launch.ranks.decide import decide, decide_end
from envsmith.launch.ranks.errors import cause_of
from envsmith.launch.ranks.evidence import Disk, Frame, LaunchHost, RankError, ThreadStack


def verdict(evidence):
    answer = decide(evidence)
    return (answer.cause, answer.ranks) if answer else None


def test_the_end_without_a_word_comes_before_the_errors_that_follow_it():
    evidence = failed(ended(0, 1, 9.9, CLOSED), ended(1, -9, 10.0), ended(2, -15, 10.5))

    assert verdict(evidence) == (Cause.KILLED, (1,))


@pytest.mark.parametrize(
    ("code", "machine", "cause"),
    [
        (-9, LaunchHost(oom_kills=1), Cause.OUT_OF_MEMORY),
        (-9, LaunchHost(), Cause.KILLED),
        (-7, LaunchHost(disks=(Disk(path="/dev/shm", free=0, size=64 << 20),)), Cause.SHM_FULL),
        (-7, LaunchHost(disks=(Disk(path="/dev/shm", free=1 << 30, size=1 << 30),)), Cause.CRASHED),
        (-11, LaunchHost(oom_kills=1), Cause.CRASHED),
        (3, LaunchHost(), Cause.EXITED),
    ],
)
def test_the_kernel_says_what_stands_behind_a_signal(code, machine, cause):
    assert verdict(failed(ended(0, 1, 10.1, CLOSED), ended(1, code), machines=(machine,))) == (cause, (1,))


def test_a_rank_that_left_with_status_0_is_named_with_the_place_of_its_exit():
    left = ended(1, 0, 9.0, way_out="sys.exit(0) at train.py:12 (fault)")

    answer = decide(failed(ended(0, 1, 10.0, CLOSED), left))

    assert (answer.cause, answer.ranks, answer.place) == (Cause.LEFT, (1,), "train.py:12 (fault)")


def test_a_rank_whose_script_ended_early_ran_out_of_data():
    assert verdict(failed(ended(0, 1, 10.0, CLOSED), ended(1, 0, 9.0))) == (Cause.UNEVEN_DATA, (1,))


def test_what_every_rank_says_is_said_of_all_of_them():
    evidence = failed(ended(0, 1, 9.0, "ValueError: no 5"), ended(1, 1, 9.1, "ValueError: no 6"))

    assert verdict(evidence) == (Cause.RAISED, (0, 1))


def test_a_launch_that_somebody_ended_has_no_culprit():
    evidence = failed(ended(0, -15), ended(1, 1, 9.0, "KeyboardInterrupt"), is_interrupted=True)

    assert decide(evidence) is None


def test_the_signal_of_the_launcher_is_no_cause():
    assert verdict(failed(ended(0, -15, 10.5), ended(1, 1, 9.0, "ValueError: label 7"))) == (Cause.RAISED, (1,))


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("OSError: [Errno 28] No space left on device", Cause.DISK_FULL),
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left", Cause.SHM_FULL),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", Cause.LOADER),
        ("torch.distributed.DistNetworkError: The server socket has failed to listen: EADDRINUSE", Cause.PORT),
        ("MemoryError", Cause.OUT_OF_MEMORY),
        ("ImportError: libx.so: cannot allocate memory in static TLS block", Cause.RAISED),
        ("ValueError: label 7", Cause.RAISED),
    ],
)
def test_an_error_states_its_cause(error, cause):
    assert cause_of(error) is cause


def test_an_abort_inside_a_collective_is_the_fault_of_who_called_something_new():
    usual = ["all_reduce/8", "all_reduce/3"] * 4
    aborted = ended(0, -6, stacks=stack(26, inside="all_reduce"))
    survivor = ended(1, 1, 10.1, CLOSED, *usual, "all_reduce/8/float64")

    assert verdict(failed(aborted, survivor)) == (Cause.DIFFERENT_DTYPES, (1,))


@pytest.mark.parametrize("beyond", [[], ["all_reduce/8"]], ids=["in it", "past it"])
def test_an_abort_inside_a_collective_of_any_sizes_is_the_fault_of_who_gave_it_a_new_one(beyond):
    usual = ["all_to_all/6", "all_reduce/8"] * 3
    aborted = [ended(rank, -6, stacks=stack(26, inside="all_to_all_single")) for rank in (0, 2)]
    survivor = ended(1, 1, 10.1, CLOSED, *usual, "all_to_all/12", *beyond)

    assert verdict(failed(aborted[0], survivor, aborted[1])) == (Cause.DIFFERENT_SHAPES, (1,))


def test_survivors_of_an_abort_that_called_different_things_for_the_first_time_leave_it_open_who_was_wrong():
    aborted = ended(2, -6, stacks=stack(26, inside="all_gather"))
    survivors = (
        ended(0, 1, 10.1, CLOSED, "all_reduce", "all_reduce", "all_gather/52"),
        ended(1, 1, 10.1, CLOSED, "all_reduce", "all_reduce", "all_gather/104"),
    )

    answer = decide(failed(*survivors, aborted))

    assert answer.ranks == ()
    assert "rank 0: all_gather of [52] float32; rank 1: all_gather of [104] float32" in answer.message


def test_where_most_were_aborted_in_a_collective_and_no_recorder_is_left_the_others_are_blamed():
    aborted = [ended(rank, -6, stacks=stack(26, inside="all_to_all_single")) for rank in (0, 2)]

    assert verdict(failed(aborted[0], ended(1, 1, 10.1, CLOSED), aborted[1])) == (Cause.DIFFERENT_CALLS, (1,))


def test_a_collective_that_is_new_to_all_survivors_is_not_their_fault():
    aborted = ended(1, -6, stacks=stack(26, inside="all_gather"))
    survivors = [ended(rank, 1, 10.1, CLOSED, *["all_reduce/8"] * 6, "all_gather/52") for rank in (0, 2)]

    assert verdict(failed(survivors[0], aborted, survivors[1])) == (Cause.DIFFERENT_CALLS, (1,))


def test_an_abort_where_a_library_waits_for_what_it_began_is_one_inside_a_collective():
    waiting = Frame(function="_allgather", file="/site-packages/engine/zero.py", line=2, text="handle.wait()")
    main = ThreadStack(thread="MainThread", frames=(waiting, *stack(26)[0].frames), is_main=True)
    usual = ["all_reduce/8", "all_reduce/3"] * 4

    answer = decide(failed(ended(0, -6, stacks=(main,)), ended(1, 1, 10.1, CLOSED, *usual, "all_reduce/8")))

    assert answer.message.startswith("Rank 0 did not call all_reduce of [8] float32 as the others")


@pytest.mark.parametrize("earlier", [[], ["all_reduce/8"]], ids=["no recorder", "an earlier look"])
def test_an_abort_among_survivors_that_did_as_ever_is_its_own_fault(earlier):
    usual = ["all_reduce/8", "all_reduce/3"] * 4
    aborted = ended(1, -6, 10.0, "", *earlier, stacks=stack(27, inside="all_reduce"))
    survivor = ended(0, 1, 10.1, CLOSED, *usual, "all_reduce/8")

    assert verdict(failed(aborted, survivor)) == (Cause.DIFFERENT_CALLS, (1,))


def test_ranks_with_another_world_are_named():
    ranks = [ended(rank, 1, 9.0, CLOSED, world=world) for rank, world in enumerate([4, 4, 8, 4])]

    assert verdict(failed(*ranks)) == (Cause.WORLD_SIZE, (2,))


def test_calls_of_a_rank_are_counted_in_the_evidence():
    one = ended(0, 1, 10.0, CLOSED, "all_reduce", "all_reduce")
    left = ended(1, 0, 9.0, "", "all_reduce")

    assert decide(failed(one, left)).evidence[1:] == (
        "rank 0: 2 collectives in its recorder",
        "rank 1: 1 collectives in its recorder",
    )
    assert len(calls("all_reduce")) == 1


def test_a_rank_that_somebody_terminated_before_the_others_failed_is_named():
    assert verdict(failed(ended(0, 1, 10.1, CLOSED), ended(1, -15, 10.0))) == (Cause.KILLED, (1,))


def test_the_rank_that_was_terminated_first_is_named_where_the_launcher_ended_the_others():
    other = ended(0, -15, 10.4, CLOSED)
    other = replace(other, exit=replace(other.exit, by_launcher=True))

    assert verdict(failed(other, ended(1, -15, 10.0))) == (Cause.KILLED, (1,))


def test_where_somebody_terminated_every_rank_none_is_named():
    assert verdict(failed(ended(0, -15, 10.0), ended(1, -15, 10.1))) is None


def test_after_a_wait_that_ended_by_itself_the_end_of_the_launch_is_judged_anew():
    wait = Blame(cause=Cause.UNKNOWN, ranks=(), message="All ranks wait in one collective.", fix="Look at the network.")
    evidence = failed(ended(0, 1, 10.1, CLOSED), ended(1, -6, 10.0))

    assert decide_end(wait, evidence).ranks == (1,)
    assert decide_end(replace(wait, is_hang=True), evidence) == replace(wait, is_hang=True)


def test_a_rank_that_was_waited_for_stays_named_when_the_others_only_gave_up():
    wait = Blame(cause=Cause.BUSY, ranks=(1,), message="Rank 1 computes.", fix="Look at it.")
    gave_up = "RuntimeError: Timed out waiting 30000ms for send operation to complete"

    late = ended(1, -15, 10.5)
    late = replace(late, exit=replace(late.exit, by_launcher=True))

    assert decide_end(wait, failed(ended(0, 1, 10.1, gave_up), late)) == wait


def test_a_rank_that_comes_to_a_collective_after_the_others_gave_up_is_late():
    gave_up = "RuntimeError: Timed out waiting 3000ms for send operation to complete"
    early = [ended(rank, 1, 104.0, gave_up, "all_reduce", "all_reduce") for rank in (0, 2)]
    one = replace(ended(1, 1, 106.0, CLOSED), calls=calls("all_reduce", "all_reduce", late=5.0))

    assert verdict(failed(early[0], one, early[1])) == (Cause.LATE, (1,))


@pytest.mark.parametrize(("operations", "is_destroyed"), [(["all_reduce"], True), ([], False)])
def test_a_rank_without_a_group_had_one_if_it_called_collectives_before(operations, is_destroyed):
    error = "ValueError: Default process group has not been initialized, please make sure to call init_process_group."

    answer = decide(failed(ended(0, 1, 10.5, CLOSED), ended(1, 1, 10.0, error, *operations)))

    assert answer.rank == 1
    assert ("it destroyed its process group" in answer.message) == is_destroyed
    assert ("destroy_process_group" in answer.fix) == is_destroyed


@pytest.mark.parametrize(
    ("counts", "last", "cause", "rank"),
    [
        ((3, 2, 2), "barrier", Cause.DIFFERENT_CALLS, 0),
        ((3, 2), "barrier", Cause.DIFFERENT_CALLS, 0),
        ((3, 2), "all_reduce", Cause.UNEVEN_DATA, 1),
    ],
    ids=["most have ended", "a new call", "a call as ever"],
)
def test_who_calls_more_than_ranks_that_have_ended_is_named_unless_it_does_as_ever(counts, last, cause, rank):
    ended_well = [ended(number, 0, 9.0, "", *["all_reduce"] * 4) for number in range(1, len(counts))]

    answer = decide(failed(ended(0, 1, 10.0, CLOSED, *["all_reduce"] * 4, last), *ended_well))

    assert (answer.cause, answer.rank) == (cause, rank)


def test_a_file_that_was_cut_off_says_that_the_disk_was_full():
    error = "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"

    answer = decide(failed(ended(0, 1, 10.0, error), ended(1, 1, 10.5, CLOSED)))

    assert (answer.cause, answer.rank) == (Cause.DISK_FULL, 0)
    assert "a full disk" in answer.message


REACHED = "RuntimeError: Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."


@pytest.mark.parametrize(("code", "cause"), [(1, Cause.LATE), (-11, Cause.CRASHED)])
def test_a_rank_that_a_monitored_barrier_names_is_blamed_and_its_own_end_says_more(code, cause):
    first = ended(0, 1, 10.0, "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 5000 ms")
    odd = ended(1, code, 11.0 if code > 0 else 9.0, CLOSED if code > 0 else "")

    answer = decide(failed(first, odd, ended(2, 1, 9.9, REACHED)))

    assert (answer.cause, answer.ranks) == (cause, (1,))


def test_the_one_that_waited_elsewhere_is_named_first():
    timeout = "RuntimeError: Timed out waiting 60000ms for recv operation to complete"
    ranks = [ended(rank, 1, 10.0 + rank, timeout) for rank in range(3)]
    ranks = [
        replace(one, error=replace(one.error, place="train.py:81" if one.rank == 1 else "train.py:10")) for one in ranks
    ]

    answer = decide(failed(*ranks))

    assert answer.message.startswith("Rank 1 waited at another place than the others")


@pytest.mark.parametrize(("code", "cause"), [(-9, Cause.KILLED), (-6, Cause.DIFFERENT_CALLS)])
def test_a_rank_that_was_killed_did_not_die_of_other_calls_and_one_that_aborted_may_have(code, cause):
    others = [ended(rank, 1, 10.5, CLOSED, "all_reduce", "all_reduce") for rank in (0, 2)]

    answer = decide(failed(others[0], ended(1, code, 10.0, "", "barrier", "all_reduce"), others[1]))

    assert (answer.cause, answer.rank) == (cause, 1)


def test_of_sizes_that_do_not_fit_the_minority_is_named():
    error = "RuntimeError: [enforce fail at pair.cc:471] op.preamble.length <= op.nbytes. 32 vs 16"
    sizes = (2, 4, 2)
    ranks = [ended(rank, 1, 10.0, error, "all_reduce", f"alltoall_base/{size}") for rank, size in enumerate(sizes)]

    answer = decide(failed(*ranks))

    assert (answer.cause, answer.ranks) == (Cause.DIFFERENT_SHAPES, (1,))


def test_ranks_that_all_refuse_their_options_ended_alike_though_the_launcher_was_faster_with_one():
    first = ended(0, 2, 10.0, way_out="sys.exit(2) at train.py:21")
    second = ended(1, -15, 10.4, way_out="sys.exit(2) at train.py:21")

    answer = decide(failed(first, second))

    assert (answer.ranks, answer.message) == ((0, 1), "Ranks 0, 1 ended alike, by sys.exit(2) at train.py:21.")


def test_a_rank_that_ended_well_before_one_that_says_nothing_of_its_bad_end_has_left_it():
    answer = decide(failed(ended(0, 1, 10.6), ended(1, 0, 10.0)))

    assert (answer.cause, answer.ranks) == (Cause.UNEVEN_DATA, (1,))
    assert answer.message.endswith("with exit status 0, and the others ended badly after that.")


def test_an_error_that_the_driver_passes_on_from_a_process_that_was_never_a_rank_is_named():
    driver = RankError(error="ValueError: no shard for rank 1", place="train.py:22", at=9.0, by_process=77)

    answer = decide(failed(ended(0, 1, 10.0), driver=driver))

    assert (answer.cause, answer.ranks, answer.place) == (Cause.RAISED, (), "train.py:22")
    assert decide(failed(ended(0, 1, 10.0), driver=replace(driver, by_process=0))) is None
