"""All parts in one go: which there are, their deadlines, what is kept when one fails, and the record of them. No GPU, no torch."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith.agent.protocol import TIME_IS_OVER
from envsmith.builder.environment import record_of_parts
from envsmith.builder.proof import RecordSubject
from envsmith.errors import SmokeError
from envsmith.model.record import CaseOutcome, Fault, Rung, StepOutcome, Unmet, Verdict, put_record, read_record
from envsmith.smoke import run
from envsmith.smoke.bandwidth import Measurement
from envsmith.smoke.events import CudaAnswer
from envsmith.smoke.everything import (
    BUDGET,
    SHARES,
    Done,
    SmokeMachine,
    SmokePart,
    ask,
    fitted,
    parts_of,
    rehearse,
    run_parts,
    supposed,
)
from envsmith.smoke.fault import Attribution
from envsmith.smoke.plan import Tier
from envsmith.smoke.result import SmokeResult

VERSIONS = {"torch": "2.11.0", "python": "3.12.3"}
H200 = SmokeMachine(backend="nccl", gpus=1, nccl="2.28.9", torch="2.11.0+cu130")
NEW = SmokeMachine(backend="nccl", gpus=1, nccl="2.30.7", torch="2.15.0+cu132")
EIGHT = SmokeMachine(backend="nccl", gpus=8, nccl="2.30.7", torch="2.15.0+cu132")
CPU = SmokeMachine(backend="gloo", torch="2.13.0+cpu")
FOUND = RecordSubject(
    cell="ds0.19.8-torch2.11.0-cu130-py312", engine="found", environment="sha256:0",
    components={"deepspeed": "0.19.8", "torch": "2.11.0+cu130", "cuda": "13.0", "python": "3.12"},
)  # fmt: skip
ALONE = replace(FOUND, cell="torch2.11.0-cu130-py312", components={"torch": "2.11.0+cu130", "python": "3.12"})


FAULTS = ["fault-hang", "fault-kill", "fault-wrong", "fault-dtype"]
ORDER = ["one-rank", "hostid", "multi-rank", *FAULTS, "full", "framework", "engine-legacy", "bandwidth", "preflight"]


def _parts(machine: SmokeMachine) -> dict[str, SmokePart]:
    return {part.name: part for part in parts_of(VERSIONS, machine)}


def test_order_and_shares_are_those_of_the_first_ten_minutes_on_one_gpu() -> None:
    assert list(_parts(NEW)) == ORDER
    assert list(SHARES.values()) == [15, 25, 40, 40, 60, 150, 60, 90, 60, 30]
    assert BUDGET == 570
    assert list(_parts(replace(NEW, free=(1 << 37,)))) == [*ORDER[:7], "memory", *ORDER[7:]]


def test_one_gpu_with_an_older_nccl_says_which_ways_it_does_not_know() -> None:
    parts = _parts(H200)
    assert list(parts) == ORDER
    assert {name for name, part in parts.items() if part.why_not} == {"multi-rank", "engine-legacy"}
    assert "NCCL 2.28.9 does not know it" in parts["multi-rank"].why_not
    assert "torch 2.11.0+cu130 has one engine" in parts["engine-legacy"].why_not
    assert {parts[n].plan.sharing for n in ("hostid", "bandwidth", "full", "framework", *FAULTS)} == {"hostid"}
    assert parts["one-rank"].plan.ranks == 1
    assert parts["one-rank"].plan.sharing is None


def test_one_gpu_with_torch_2_15_is_asked_in_both_ways_and_on_both_engines() -> None:
    parts = _parts(NEW)
    assert not [part for part in parts.values() if part.why_not]
    assert [parts[n].plan.sharing for n in ("hostid", "multi-rank", "full")] == ["hostid", "multi-rank", "hostid"]
    assert (parts["full"].plan.engine, parts["engine-legacy"].plan.engine) == (None, "legacy")
    ops = {case.op for case in parts["full"].plan.cases}
    assert {"cuda_graph", "symmetric_memory", "compute_overlap", "split_group", "reinit"} <= ops


def test_many_gpus_get_a_rank_each_and_the_first_one_two() -> None:
    parts = _parts(EIGHT)
    assert [(p.plan.ranks, p.plan.sharing) for p in (parts["full"], parts["bandwidth"])] == [(8, None)] * 2
    assert [(parts[n].plan.ranks, parts[n].plan.sharing) for n in ("hostid", "multi-rank")] == [(2, "hostid"), (2, "multi-rank")]  # fmt: skip
    assert parts["framework"].plan.ranks == 2


def test_without_a_gpu_what_gloo_can_show_is_shown_in_the_same_order() -> None:
    parts = _parts(CPU)
    assert list(parts) == [name for name in ORDER if name not in {"hostid", "multi-rank", "engine-legacy"}]
    assert {part.plan.backend for part in parts.values() if part.plan} == {"gloo"}


@pytest.mark.parametrize("machine", [H200, NEW, EIGHT, CPU])
def test_every_plan_ends_by_itself_before_it_is_ended(machine: SmokeMachine) -> None:
    for part in parts_of(VERSIONS, machine):
        if part.plan:
            assert part.plan.timeouts.case < part.limit


def test_longer_budget_makes_every_share_longer_and_a_shorter_one_none_shorter() -> None:
    full = {budget: next(p for p in parts_of(VERSIONS, NEW, budget=budget) if p.name == "full").limit for budget in (300.0, 570.0, 1140.0)}  # fmt: skip
    assert full == {300.0: 150.0, 570.0: 150.0, 1140.0: 300.0}


def test_dry_run_says_the_order_and_what_the_budget_may_not_reach() -> None:
    supposition = supposed({"torch": "2.15.0", "nccl": "2.30.7"}, "auto")
    rows = fitted(parts_of(VERSIONS, supposition), 570.0)
    assert [row.name for row in rows] == ["facts", *ORDER[:7], "memory", *ORDER[7:]]
    assert not [row for row in rows if row.why_not]
    late = fitted(parts_of(VERSIONS, supposition), 330.0)
    assert [row.name for row in late if row.why_not] == ["framework", "engine-legacy", "bandwidth", "preflight"]
    assert supposed({"torch": "2.13.0+cpu"}, "auto").backend == "gloo"


# -- faults on purpose ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "exit_code", "blamed", "word"),
    [
        ("fault-hang", 5, (1,), "passed"),
        ("fault-hang", 0, (), "failed"),
        ("fault-hang", 5, (0,), "failed"),
        ("fault-kill", 6, (1,), "passed"),
        ("fault-wrong", 4, (1,), "passed"),
        ("fault-wrong", 4, (0, 1), "failed"),
        ("fault-wrong", 5, (1,), "failed"),
        ("fault-dtype", 5, (1,), "passed"),
    ],
)
def test_fault_that_is_blamed_on_its_rank_passes_and_any_other_answer_fails(part, exit_code, blamed, word) -> None:
    result = replace(_result(_parts(NEW)[part].plan, passed=False), exit_code=exit_code, blamed=blamed)
    done = Done(part=_parts(NEW)[part], result=result)
    assert done.word == word
    assert (": " in done.sentence) == (word == "failed")


def test_faults_strike_a_case_that_is_not_the_first_of_its_kind() -> None:
    plan = _parts(NEW)["fault-hang"].plan
    assert [case.op for case in plan.cases] == ["all_reduce"] * 3
    assert plan.fault["case"] == plan.cases[1].id
    assert plan.timeouts.case == 3.0, "the first one has a minute, the others seconds"


def test_memory_that_does_not_come_back_after_the_faults_is_said_with_its_gpu() -> None:
    machine = replace(NEW, gpus=2, free=(80 << 30, 80 << 30))
    (part,) = (part for part in parts_of(VERSIONS, machine) if part.name == "memory")
    good = replace(_result(part.plan), cuda=CudaAnswer(free=(80 << 30, (80 << 30) - (100 << 20))))
    bad = replace(good, cuda=CudaAnswer(free=(80 << 30, 70 << 30)))
    assert Done(part=part, result=good).word == "passed"
    assert Done(part=part, result=bad).word == "failed"
    assert Done(part=part, result=bad).sentence.startswith("memory did not come back (GPU 1: 10240 MiB)")


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def _result(plan, *, passed: bool = True, **more: object) -> SmokeResult:
    cases = tuple(CaseOutcome(case=c.id, verdict=Verdict.PASS if passed else Verdict.HANG) for c in plan.cases)
    return SmokeResult(
        passed=passed, exit_code=0 if passed else 5, summary="all is well" if passed else "rank 1 never entered", backend=plan.backend,
        ranks=plan.ranks, placement=f"{plan.ranks} ranks; this proves nothing", place=f"{plan.ranks} ranks (no NVLink)", cases=cases, tier=plan.tier.value,
        digest=plan.digest, loaded={"torch": "2.11.0+cu130", "python": "3.12.3", "cuda": "13.0"}, **more,
    )  # fmt: skip


def _run(machine: SmokeMachine, folder, script, budget: float = 600.0) -> list[Done]:
    """``script`` maps a part's plan and limit to (seconds, result)."""
    clock = Clock()

    def runner(plan, target, *, progress, limit):
        assert plan.limit == round(limit, 1), "the agent knows when its time is over"
        taken, result = script(plan, limit)
        clock.at += taken
        if isinstance(result, Exception):
            raise result
        return result

    def preflight(_target, limit):
        clock.at += 10.0
        return replace(_result(_parts(CPU)["one-rank"].plan), summary="rank 1 did not come to the preflight within 8 s")

    parts = [replace(part, work=preflight) if part.work else part for part in parts_of(VERSIONS, machine)]
    return list(run_parts(tuple(parts), None, budget=budget, folder=folder, runner=runner, now=clock))


def _as_expected(plan, **more):
    """The result of a part in which all goes as it should: a fault is blamed on its rank."""
    if plan.fault is None:
        return _result(plan, **more)
    exits = {"hang": 5, "kill": 6, "wrong": 4, "dtype": 5}
    return replace(_result(plan, passed=False), exit_code=exits[plan.fault["kind"]], blamed=(1,))


def test_a_part_that_fails_or_cannot_start_loses_nothing(tmp_path) -> None:
    def script(plan, limit):
        if plan.sharing == "multi-rank":
            return limit, _result(plan, passed=False)
        if plan.tier is Tier.BANDWIDTH:
            return 1.0, SmokeError("the interpreter has gone")
        return 10.0, _as_expected(plan)

    done = {d.part.name: d for d in _run(NEW, tmp_path, script)}
    assert done["multi-rank"].word == "failed"
    assert (done["bandwidth"].word, done["bandwidth"].sentence) == ("not run", "could not be started: the interpreter has gone")  # fmt: skip
    others = [name for name in ORDER if name not in {"multi-rank", "bandwidth"}]
    assert [done[name].word for name in others] == ["passed"] * len(others)
    files = sorted(path.name for path in tmp_path.glob("*.json"))
    assert files[:2] == ["01-one-rank.json", "02-hostid.json"]
    assert len(files) == len(ORDER)
    assert json.loads((tmp_path / "03-multi-rank.json").read_text())["result"]["summary"] == "rank 1 never entered"


def test_time_that_parts_leave_over_is_given_to_those_after_them(tmp_path) -> None:
    limits = {}

    def script(plan, limit):
        limits.setdefault("fault" if plan.fault else plan.tier.value, []).append(limit)
        taken = limit if plan.fault else 5.0
        return taken, _result(plan)

    _run(NEW, tmp_path, script, budget=570.0)

    assert limits["quick"] == [25.0, 40.0 + 20.0, 40.0 + 20.0 + 35.0]
    assert limits["fault"] == [60.0 + 20.0 + 2 * 35.0], "and it took all that was left"
    assert limits["full"][0] == 150.0
    assert limits["framework"] == [60.0 + 145.0]


def test_the_budget_is_kept_and_what_did_not_fit_is_told(tmp_path) -> None:
    limits = []

    def script(plan, limit):
        limits.append(limit)
        return limit, _result(plan, passed=False)

    done = _run(NEW, tmp_path, script, budget=300.0)
    assert sum(limits) <= 300.0
    assert limits == [25.0, 40.0, 40.0, 60.0, 135.0], "the last part gets what is left"
    assert [d.part.name for d in done if d.word == "not run"] == [*FAULTS[1:], *ORDER[8:]]
    assert "0 s of 60 s were left" in done[4].sentence
    assert "0 s of 300 s were left" in done[-1].sentence


def test_cases_and_steps_that_had_no_time_are_said_in_the_part_s_line_and_in_the_record(tmp_path) -> None:
    def script(plan, limit):
        result = _as_expected(plan)
        if plan.tier is Tier.FULL and plan.engine is None:
            late = replace(result.cases[-1], verdict=Verdict.SKIPPED, blame=TIME_IS_OVER, unmet=Unmet.TIME)
            result = replace(result, cases=(*result.cases[:-1], late))
        if plan.tier is Tier.FRAMEWORK:
            late = replace(ZERO, name="b", verdict=Verdict.SKIPPED, detail="7 s of 60 s", unmet=Unmet.TIME)
            result = replace(result, steps=(ZERO, late))
        return 5.0, result

    done = _run(NEW, tmp_path, script)
    sentences = {item.part.name: item.sentence for item in done}
    assert sentences["full"] == "all is well; no time for 1 of 1405 cases"
    assert sentences["framework"] == "all is well; no time for b"
    record = record_of_parts(FOUND, done, started="2026-11-21T12:00:00+00:00")
    assert {"full: no time for 1 of 1405 cases", "framework: no time for b"} <= set(record.notes)


@pytest.mark.parametrize(
    ("steps_pass", "rung", "of_host"), [(True, Rung.COLLECTIVES_GPU, True), (False, Rung.FRAMEWORK_GPU, False)]
)
def test_a_full_tier_that_had_no_time_for_a_case_proves_no_collectives(tmp_path, steps_pass, rung, of_host) -> None:
    def script(plan, limit):
        taken, result = _good(plan, limit)
        if plan.tier is Tier.FULL:
            late = replace(result.cases[-1], verdict=Verdict.SKIPPED, blame=TIME_IS_OVER, unmet=Unmet.TIME)
            result = replace(result, cases=(*result.cases[:-1], late))
        if plan.tier is Tier.FRAMEWORK and not steps_pass:
            result = replace(result, passed=False, steps=(replace(ZERO, verdict=Verdict.WRONG, detail="loss"),))
        return taken, result

    record = record_of_parts(FOUND, _run(H200, tmp_path, script), started="2026-11-21T12:00:00+00:00")

    assert not record.passed
    assert Rung.COLLECTIVES_GPU not in record.rungs
    assert (Rung.FRAMEWORK_GPU in record.rungs) is steps_pass
    assert record.failure is not None
    assert (record.failure.rung, record.failure.of_host) == (rung, of_host)
    assert record.failure.symptom == ("no time for 1 of 1405 cases" if steps_pass else "loss")


def test_the_result_of_a_part_is_on_disk_before_the_next_begins(tmp_path) -> None:
    written = []

    def script(plan, limit):
        written.append(len(list(tmp_path.glob("*.json"))))
        return 1.0, _as_expected(plan)

    _run(CPU, tmp_path, script)
    assert written == list(range(8))


# -- the record -----------------------------------------------------------------------------------------------------------

BAND = (
    Measurement(op="all_reduce", bytes=8192, ranks=2, rounds=50, median_us=20.0, p99_us=30.0, algbw=0.4, busbw=0.4),
    Measurement(op="all_reduce", bytes=1 << 26, ranks=2, rounds=20, median_us=2e4, p99_us=3e4, algbw=3.3, busbw=3.3),
)
ZERO = StepOutcome(name="deepspeed zero-2 fp32", verdict=Verdict.PASS, seconds=4.0, detail="loss 2 -> 1")


def _good(plan, _limit):
    more = {"bandwidth": BAND} if plan.tier is Tier.BANDWIDTH else {}
    more |= {"steps": (ZERO,)} if plan.tier is Tier.FRAMEWORK else {}
    return 5.0, _as_expected(plan, **more)


def test_one_record_holds_cases_steps_and_bandwidth_and_can_be_merged(tmp_path) -> None:
    record = record_of_parts(FOUND, _run(NEW, tmp_path, _good), started="2026-11-21T12:00:00+00:00")
    path = put_record(tmp_path / "records", record)
    read = read_record(path.name, path.read_bytes())
    assert read.passed
    assert read.rung is Rung.FRAMEWORK_GPU
    assert read.to_json()["rungs"][0] == "installed", "an environment that nobody locked here claims no lock"
    assert read.to_json()["cases"]["counts"]["pass"] > 1000
    assert read.to_json()["bandwidth"]["all_reduce"] == {"peak_busbw": 3.3, "bytes": 1 << 26, "least_us": 20.0}
    assert [s["name"] for s in read.to_json()["steps"]] == ["deepspeed zero-2 fp32"]
    assert any("one-rank, hostid, multi-rank, fault-hang" in note for note in read.to_json()["notes"])


def test_a_cell_of_torch_alone_is_built_by_asking_for_torch() -> None:
    from envsmith.matrix.cells import TOOLS, commands_of

    commands = commands_of(ALONE.cell, TOOLS)
    assert list(commands) == list(TOOLS)
    ask = "envsmith build --framework torch --torch 2.11.0 --cuda 13.0 --python 3.12 --engine venv"
    assert commands["venv"] == ask


@pytest.mark.parametrize(("subject", "proved"), [(FOUND, []), (ALONE, [Rung.FRAMEWORK_GPU])])
def test_steps_of_torch_prove_a_cell_of_torch_and_no_other_framework(tmp_path, subject, proved) -> None:
    def script(plan, limit):
        taken, result = _good(plan, limit)
        control = replace(ZERO, name="torch ddp fp32")
        return taken, replace(result, steps=(control,)) if result.steps else result

    record = record_of_parts(subject, _run(H200, tmp_path, script), started="2026-11-21T12:00:00+00:00")
    assert record.rungs == (Rung.INSTALLED, Rung.IMPORTED, Rung.COLLECTIVES_GPU, *proved)


def test_a_way_of_sharing_that_fails_is_a_note_and_does_not_speak_against_the_cell(tmp_path) -> None:
    def script(plan, limit):
        if plan.sharing == "multi-rank":
            return 9.0, _result(plan, passed=False)
        return _good(plan, limit)

    record = record_of_parts(FOUND, _run(NEW, tmp_path, script), started="2026-11-21T12:00:00+00:00")
    assert record.passed
    assert any(note.startswith("multi-rank failed: rank 1 never entered") for note in record.notes)


def test_a_full_tier_that_was_not_run_says_nothing_against_the_cell(tmp_path) -> None:
    record = record_of_parts(FOUND, _run(NEW, tmp_path, _good, budget=21.0), started="2026-11-21T12:00:00+00:00")
    assert not record.passed
    assert record.failure is not None
    assert record.failure.of_host
    assert "were left" in record.failure.symptom


def test_a_full_tier_that_failed_is_the_cell_s_failure(tmp_path) -> None:
    def script(plan, limit):
        return 9.0, _as_expected(plan) if plan.tier is not Tier.FULL else _result(plan, passed=False)

    record = record_of_parts(FOUND, _run(NEW, tmp_path, script), started="2026-11-21T12:00:00+00:00")
    assert not record.passed
    assert record.failure is not None
    assert (record.failure.rung, record.failure.of_host) == (Rung.COLLECTIVES_GPU, False)


def test_a_part_that_the_machine_failed_does_not_speak_against_the_cell(tmp_path) -> None:
    def script(plan, limit):
        taken, result = _good(plan, limit)
        cause = Attribution(fault=Fault.HOST, sentence="GPU 0 is sick")
        sick = {"passed": False, "exit_code": 10, "summary": "GPU 0 is sick", "cause": cause}
        return taken, replace(result, **sick) if plan.tier is Tier.FRAMEWORK else result

    record = record_of_parts(FOUND, _run(NEW, tmp_path, script), started="2026-11-21T12:00:00+00:00")
    assert not record.passed
    assert record.of_host


# -- what is here ---------------------------------------------------------------------------------------------------------


def _asked(monkeypatch, result: SmokeResult) -> None:
    monkeypatch.setattr("envsmith.smoke.everything.run", lambda *_args, **_kwargs: result)


def test_machine_is_what_cuda_says_when_it_is_started(monkeypatch) -> None:
    loaded = {"torch": "2.11.0+cu130", "nccl": "2.28.9", "nccl_runtime": "2.29.3"}
    result = SmokeResult(passed=True, exit_code=0, summary="", backend="nccl", loaded=loaded, cuda=CudaAnswer(count=1))  # fmt: skip
    _asked(monkeypatch, result)
    assert ask(VERSIONS, None, "nccl") == SmokeMachine(backend="nccl", gpus=1, nccl="2.29.3", torch="2.11.0+cu130")


def test_no_gpu_is_told_with_the_way_to_go_on_without_one(monkeypatch) -> None:
    summary = "the plan asks for NCCL, but CUDA is not usable here: no GPU is visible"
    _asked(
        monkeypatch, SmokeResult(passed=False, exit_code=2, summary=summary, backend="nccl", loaded={"torch": "2.13.0"})
    )
    with pytest.raises(SmokeError, match="Cannot use a GPU here") as caught:
        ask(VERSIONS, None, "nccl")
    assert "--backend gloo" in (caught.value.hint or "")


def test_limit_ends_an_agent_that_would_go_on_for_ever(tmp_path) -> None:
    import subprocess
    import sys

    class Stuck:
        def argv(self, args):
            return [sys.executable, "-c", 'import sys,time\nprint(\'{"event":"hello"}\',flush=True)\ntime.sleep(600)']

        def env(self):
            return {}

        def kill(self, process: subprocess.Popen[bytes]) -> None:
            process.kill()

    result = run.run(parts_of(VERSIONS, CPU)[0].plan, Stuck(), limit=1.0)
    assert not result.passed
    assert "had to be ended at the outer deadline" in result.summary


# -- the command ----------------------------------------------------------------------------------------------------------


def _command(monkeypatch, tmp_path, script) -> object:
    """`envsmith prove` on the machine NEW; ``script`` makes the results of its parts."""
    import sys

    from click.testing import CliRunner

    from envsmith.cli.prove import prove
    from envsmith.smoke import everything

    monkeypatch.setattr("envsmith.smoke.run.probe", lambda _target: VERSIONS)
    monkeypatch.setattr(everything, "ask", lambda *_: NEW)
    monkeypatch.setattr("envsmith.cli.prove.find_cell", lambda *_: FOUND)

    def run_all(parts, target, *, folder, **_):
        for part in parts:
            taken, result = (
                script(part.plan, part.limit) if part.plan else (10.0, _result(_parts(CPU)["one-rank"].plan))
            )
            yield Done(part=part, result=result, seconds=taken)

    monkeypatch.setattr(everything, "run_parts", run_all)
    return CliRunner().invoke(prove, [sys.executable, "-o", str(tmp_path), "--json"], standalone_mode=False)  # fmt: skip


def test_command_leaves_record_plot_and_summary(monkeypatch, tmp_path) -> None:
    done = _command(monkeypatch, tmp_path, _good)
    assert done.return_value == 0, done.output
    told = json.loads(done.stdout)
    assert told["record"]["rungs"][-1] == "framework step(gpu)"
    assert len(told["parts"]) == 12
    assert (tmp_path / "busbw.svg").read_text().startswith("<svg")
    summary = (tmp_path / "summary.md").read_text()
    assert "| bandwidth |" in summary
    assert "12 of 12 parts passed in 65 s (budget 600 s)." in summary
    (path,) = (tmp_path / "records").iterdir()
    assert read_record(path.name, path.read_bytes()).cell == FOUND.cell


def test_interruption_leaves_what_is_done(monkeypatch, tmp_path) -> None:
    def script(plan, limit):
        if plan.tier is Tier.FRAMEWORK:
            raise KeyboardInterrupt
        return _good(plan, limit)

    _command(monkeypatch, tmp_path, script)
    (path,) = (tmp_path / "records").iterdir()
    read = read_record(path.name, path.read_bytes())
    assert read.rung is Rung.COLLECTIVES_GPU
    assert read.to_json()["cases"]["counts"]["pass"] > 1000


def test_command_that_failed_in_one_part_ends_with_1(monkeypatch, tmp_path) -> None:
    def script(plan, limit):
        return (9.0, _result(plan, passed=False)) if plan.sharing == "multi-rank" else _good(plan, limit)

    assert _command(monkeypatch, tmp_path, script).return_value == 1
    assert "11 of 12 parts passed in 69 s (budget 600 s); multi-rank: " in (tmp_path / "summary.md").read_text()


def _preflight(rank: int) -> str:
    """Return the code of a preflight that blames a rank."""
    report = {"ok": False, "findings": [{"severity": "note"}, {"severity": "error", "ranks": [rank]}]}
    said = f"sys.stderr.write('preflight: failed: rank {rank} is bad')"
    return f"{said}; sys.stdout.write({json.dumps(report)!r}); sys.exit(1)"


NAMED = _preflight(1)


class Stand:
    """An environment whose preflight is ``code``; it notes what each rank was started with."""

    def __init__(self, folder: Path, code: str) -> None:
        self.folder, self.code = folder, code

    def argv(self, args):
        note = f"import json,os,sys,pathlib; pathlib.Path({str(self.folder)!r}, os.environ['RANK']).write_text(json.dumps([os.getpid(), dict(os.environ)]))"  # fmt: skip
        return [sys.executable, "-S", "-c", f"{note}; {self.code}"]

    def env(self):
        return {"OF": "the target"}


@pytest.mark.parametrize(
    ("code", "passed", "words"),
    [
        (NAMED, True, "rank 1 is bad"),
        ("sys.stderr.write('preflight: ok'); sys.exit(0)", False, "ok"),
        (_preflight(0), False, "rank 0"),
        ("sys.stderr.write('rank 1 is bad'); sys.exit(1)", False, "rank 1"),
        ("sys.exit(1)", False, "said nothing"),
        ("import time; time.sleep(60)", False, "did not end within 2 s"),
    ],
)
def test_preflight_passes_when_it_fails_in_time_and_names_the_rank_that_was_stopped(
    tmp_path, code, passed, words
) -> None:
    result = rehearse(Stand(tmp_path, code), "gloo", 2.0)
    assert result.passed == passed
    assert words in result.summary
    _, env = json.loads((tmp_path / "0").read_text())
    assert (env["WORLD_SIZE"], env["LOCAL_RANK"], env["OF"]) == ("2", "0", "the target")
    stopped = tmp_path / "1"
    if stopped.exists():  # it came as far as that before it was stopped
        assert not Path(f"/proc/{json.loads(stopped.read_text())[0]}").exists()


def test_ranks_that_share_a_gpu_are_told_how(tmp_path) -> None:
    rehearse(Stand(tmp_path, NAMED), "nccl", 2.0, is_shared=True)
    _, env = json.loads((tmp_path / "0").read_text())
    assert (env["LOCAL_RANK"], env["NCCL_HOSTID"]) == ("0", "envsmith-rank-0")
