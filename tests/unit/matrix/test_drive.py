"""What a campaign survives: kill -9 at any moment, two at once, a worker that dies, a limit that is reached."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from records_help import job, plan, record

from envsmith.base.files import write_whole
from envsmith.errors import DataError, UsageError
from envsmith.matrix.campaign.drive import drive, run_one
from envsmith.matrix.campaign.local import LocalExecutor
from envsmith.matrix.campaign.state import CampaignState
from envsmith.model.record import put_record, read_records

WORKER = Path(__file__).with_name("fake_worker.py")
REPOSITORY = Path(__file__).resolve().parents[3]


def jobs_of(count):
    return [job(framework=f"0.16.{n}") for n in range(count)]


def begun(root, jobs):
    state = CampaignState(root)
    state.begin(plan(*jobs))
    return state


def start(root, workers=3):
    return subprocess.Popen(
        [sys.executable, str(WORKER), "drive", str(root), str(workers)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def workers_of(root):
    """Workers of this very folder: nothing else on the machine has its path as an argument."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if str(WORKER).encode() in words and str(root).encode() in words:
                    yield int(entry.name)


def kill_all(process, root):
    process.kill()
    process.wait()
    for pid in list(workers_of(root)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def files_per_cell(state):
    counted = {}
    for one in read_records(state.records):
        counted[one.cell] = counted.get(one.cell, 0) + 1
    return counted


@pytest.mark.parametrize("kills", [pytest.param(10, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_goes_on_and_nothing_is_lost_or_doubled(tmp_path, kills):
    jobs = jobs_of(5 + 2 * kills)
    state = begun(tmp_path, jobs)
    chance = random.Random(os.environ.get("PYTEST_SEED", "campaign"))
    seen = {}
    for number in range(kills):
        process = start(tmp_path)
        while process.poll() is None and not any(workers_of(tmp_path)):
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 1.5))
        if number % 2:
            process.kill()  # the driver alone: its workers go on, and are nobody's
            process.wait()
        else:
            kill_all(process, tmp_path)
        process.stdout.close()
        now = {one.name for one in read_records(state.records)}
        assert seen.keys() <= {n.rpartition("-")[0] for n in now}, "a record was lost"
        seen = {n.rpartition("-")[0]: n for n in now}
    last = start(tmp_path)
    out, _ = last.communicate(timeout=300)
    assert last.returncode == 0, out.decode()
    assert files_per_cell(state) == {j.id: 1 for j in jobs}


def test_two_campaigns_in_one_folder_share_the_cells(tmp_path):
    jobs = jobs_of(3)
    state = begun(tmp_path, jobs)
    both = [start(tmp_path, workers=2) for _ in range(2)]
    for process in both:
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0, out.decode()
    assert files_per_cell(state) == {j.id: 1 for j in jobs}


def test_a_worker_that_dies_loses_its_cell_and_no_other(tmp_path):
    bad, *good = [job(framework="0.8.1"), *jobs_of(3)]
    state = begun(tmp_path, [bad, *good])
    process = start(tmp_path)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    told = out.decode()
    assert f"{bad.id}: its worker left no record" in told
    assert f"{bad.id}: lost twice" in told
    assert files_per_cell(state) == {j.id: 1 for j in good}


# -- without processes


class Immediate:
    """An executor that runs a job where it stands."""

    name = "immediate"

    def __init__(self, climb, room=1):
        self.climb, self.most, self.tidied, self.submitted = climb, room, [], []

    def room(self, running):
        return self.most - running

    def why_waiting(self):
        return ""

    def submit(self, state, jobs):
        handles = []
        for one in jobs:
            self.submitted.append(one.id)
            run_one(state, one, lambda _slot, one=one: self.climb(one))
            handles.append(Ended())
        return handles

    def tidy(self, state, left):
        self.tidied.append(len(left))


class Ended:
    def done(self):
        return True

    def why(self):
        return "nothing was said"

    def cancel(self):
        raise AssertionError("it has ended")


def good(one):
    return record(cell=one.cell)


def test_jobs_are_run_in_the_order_of_the_plan(tmp_path):
    jobs = jobs_of(4)
    executor = Immediate(good)
    tally = drive(begun(tmp_path, jobs), executor, jobs=jobs, tell=lambda *_: None, poll=0)
    assert executor.submitted == [j.id for j in jobs]
    assert (tally.done, tally.total, tally.lost) == (4, 4, {})
    assert executor.tidied[-1] == 0


def test_what_has_a_record_is_not_run_again(tmp_path):
    jobs = jobs_of(3)
    state = begun(tmp_path, jobs)
    put_record(state.records, good(jobs[1]))
    executor = Immediate(good)
    drive(state, executor, jobs=jobs, tell=lambda *_: None, poll=0)
    assert executor.submitted == [jobs[0].id, jobs[2].id]


def test_a_bad_cell_is_a_record_and_the_others_go_on(tmp_path):
    jobs = jobs_of(3)
    state = begun(tmp_path, jobs)
    news = []
    drive(
        state,
        Immediate(lambda one: record(cell=one.cell, passed=one is not jobs[0])),
        jobs=jobs,
        tell=lambda _t, n: news.append(n),
        poll=0,
    )
    assert [r.passed for r in read_records(state.records)] == [False, True, True]
    assert "failed at imported: ImportError: no" in news[0]


def test_an_estimate_comes_with_the_first_cell(tmp_path):
    jobs = jobs_of(3)
    seen = []
    drive(
        begun(tmp_path, jobs),
        Immediate(good),
        jobs=jobs,
        tell=lambda t, _n: seen.append(t.remaining_seconds),
        poll=0.01,
    )
    assert all(s is not None and s >= 0 for s in seen)


def test_a_job_that_somebody_holds_is_not_run(tmp_path):
    (one,) = jobs_of(1)
    state = begun(tmp_path, [one])
    with state.claim(one) as mine:
        assert mine
        assert state.claimed(one)
        assert run_one(CampaignState(tmp_path), one, lambda _slot: good(one)) is None
    assert not state.claimed(one)


def test_two_workers_never_have_one_slot(tmp_path):
    state = CampaignState(tmp_path)
    with state.slot() as first, state.slot() as second:
        assert first != second
    with state.slot() as again:
        assert again == first


def test_a_plan_is_frozen_by_the_first_to_come(tmp_path):
    first, other = plan(*jobs_of(2)), plan(*jobs_of(3))
    assert CampaignState(tmp_path).begin(first) == first
    assert CampaignState(tmp_path).begin(other) == first
    with pytest.raises(UsageError, match="another --state"):
        CampaignState(tmp_path).begin(plan(*jobs_of(1), name="another"))


def test_a_broken_plan_is_told_with_its_path(tmp_path):
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(DataError, match=r"plan\.json"):
        CampaignState(tmp_path).plan()


def test_a_file_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_whole(path, "old")

    def full(_handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Exception, match="Cannot write"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


# -- limits


def test_no_cell_is_started_without_room_on_the_disk(tmp_path):
    executor = LocalExecutor(jobs=4, free_disk=1 << 60, free_memory=0, root=tmp_path)
    assert executor.room(0) == 0
    assert "of disk are free" in executor.why_waiting()


def test_no_cell_is_started_without_memory(tmp_path):
    executor = LocalExecutor(jobs=4, free_disk=0, free_memory=1 << 60, root=tmp_path)
    assert executor.room(0) == 0
    assert "of memory are free" in executor.why_waiting()


def test_cells_are_handed_over_one_by_one_up_to_the_limit(tmp_path):
    executor = LocalExecutor(jobs=2, free_disk=0, free_memory=0, root=tmp_path)
    assert [executor.room(n) for n in range(3)] == [1, 1, 0]


def test_the_wheels_of_a_torch_leave_the_cache_with_its_last_cell(tmp_path):
    old, new = job(torch="2.6.0+cu124"), job(torch="2.7.1+cu126")
    state = begun(tmp_path, [old, new])
    for one in (old, new):
        (state.cache / "torch" / one.cell.components["torch"]).mkdir(parents=True)
    executor = LocalExecutor(root=tmp_path)
    executor.tidy(state, [old, new])
    executor.tidy(state, [new])
    assert [p.name for p in (state.cache / "torch").iterdir()] == ["2.7.1+cu126"]
    with state.claim(new):
        executor.tidy(state, [])
        assert [p.name for p in (state.cache / "torch").iterdir()] == ["2.7.1+cu126"], "another campaign is at it"
