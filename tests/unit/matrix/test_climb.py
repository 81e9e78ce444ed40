"""The climb of one cell with lock, install and smoke test pretended: which rung fails, what is told, what is tried again."""

import dataclasses

import pytest
from records_help import job, plan

from envsmith.builder.engines.base import Built
from envsmith.errors import (
    BuildError,
    ContentError,
    EngineError,
    LockError,
    NetworkError,
    SmokeError,
    StorageError,
)
from envsmith.matrix.campaign.climb import climb
from envsmith.matrix.campaign.ground import Ground
from envsmith.model.lock import Artifact, Lock, Pin
from envsmith.model.record import CaseOutcome, Expected, Fault, Rung, StepFailure, StepOutcome, Verdict, record_text
from envsmith.smoke.fault import Attribution
from envsmith.smoke.result import SmokeResult

PIN = Pin(name="torch", version="2.6.0", layer="torch", artifacts=(Artifact(filename="torch.whl", sha256="a" * 64),))


def result(
    *, step=Verdict.PASS, detail="loss 9.6 -> 5.5", cases=Verdict.PASS, loaded=True, trace="", summary="fine", error="",
    in_import=False,
):  # fmt: skip
    good = step is Verdict.PASS and cases is Verdict.PASS
    detail = f"rank 0 in a step: {error}" if error else detail
    failure = StepFailure(error=error, quote=error, in_import=in_import)
    outcome = StepOutcome(
        name="deepspeed zero-2 fp32", verdict=step, detail=detail, facts={"trace": trace}, failure=failure
    )
    return SmokeResult(
        passed=good,
        exit_code=0 if good else 1,
        summary=summary,
        backend="gloo",
        ranks=2,
        cases=(CaseOutcome(case="all_reduce", verdict=cases),),
        steps=(outcome,),
        loaded={"torch": "2.6.0"} if loaded else {},
        digest="sha256:" + "c" * 64,
    )


class World:
    """What the rungs answer, one answer an attempt; the last one stays."""

    def __init__(self, tmp_path):
        self.ground = Ground(slot=tmp_path / "slot", cache=tmp_path / "cache")
        self.ground.slot.mkdir()
        self.locks, self.installs, self.smokes = [None], [None], [result()]
        self.judges, self.torch_caches, self.plans = [], [], []

    @staticmethod
    def _next(answers):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def lock_pip(self, cell, *, resolver, beside, request, exclude_newer, **_more):
        self.judges.append((resolver.judge, beside.constraints))
        self._next(self.locks)
        python = cell.components["python"]
        return Lock(
            cell=cell,
            request=request,
            exclude_newer=exclude_newer,
            python_version=python,
            pins=(PIN,),
            resolver="uv 0.13.8",
        )

    def realise(self, lock, directory, *, uv, torch_uv, **_more):
        self.torch_caches.append(torch_uv.cache)
        self._next(self.installs)
        return Built(
            digest="sha256:" + "b" * 64,
            kind="venv",
            reference=str(directory),
            python=str(directory / "venv/bin/python"),
        )

    def run(self, smoke_plan, target, **_more):
        self.plans.append((smoke_plan, target))
        return self._next(self.smokes)


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path)
    monkeypatch.setattr("envsmith.matrix.campaign.ground.lock_pip", made.lock_pip)
    monkeypatch.setattr("envsmith.matrix.campaign.ground.realise", made.realise)
    monkeypatch.setattr("envsmith.matrix.campaign.climb.run", made.run)
    return made


def ran(world, one=None):
    one = one or job()
    return climb(one, plan(one), world.ground)


def test_a_good_cell_comes_to_the_framework_step(world):
    made = ran(world)
    assert made.passed
    assert made.rungs[-1] is Rung.FRAMEWORK_CPU
    assert (made.failure, made.earlier, made.campaign, made.expected) == (None, (), "test", Expected.GOOD)
    assert made.cases.list == "sha256:" + "c" * 64
    assert {"lock", "install", "smoke"} <= made.seconds.keys()


def test_a_lock_that_cannot_be_made_ends_the_climb_at_locked(world):
    world.locks = [
        LockError("Cannot lock x: its packages contradict each other.", details=["error: No solution found", "because"])
    ]
    made = ran(world)
    assert made.rungs == (Rung.SOLVED,)
    assert made.failure.rung is Rung.LOCKED
    assert made.failure.symptom == "Cannot lock x: its packages contradict each other. error: No solution found"
    assert world.plans == []


def test_a_build_that_fails_ends_it_at_installed_with_its_last_lines(world):
    world.installs = [BuildError("x cannot be built", details=["Traceback", "FileNotFoundError: requirements.txt"])]
    made = ran(world)
    assert made.rungs == (Rung.SOLVED, Rung.LOCKED)
    assert (made.failure.rung, made.failure.log[-1]) == (Rung.INSTALLED, "FileNotFoundError: requirements.txt")


def test_a_framework_that_cannot_be_imported_fails_the_rung_imported(world):
    failed = result(
        step=Verdict.ERROR, error="ImportError: no log", in_import=True, trace="File x\nImportError: no log"
    )
    world.smokes = [failed]
    made = ran(world)
    assert made.rungs == (Rung.SOLVED, Rung.LOCKED, Rung.INSTALLED)
    assert (made.failure.rung, made.failure.symptom) == (Rung.IMPORTED, "ImportError: no log")
    assert made.failure.log == ("File x", "ImportError: no log")
    assert made.cases.counts == {"pass": 1}, "the collectives that passed are told all the same"


def test_a_bad_value_fails_the_collectives(world):
    world.smokes = [result(cases=Verdict.WRONG, summary="case 0 all_reduce: 3 wrong")]
    made = ran(world)
    assert made.failure.rung is Rung.COLLECTIVES_CPU
    assert made.rungs[-1] is Rung.IMPORTED


@pytest.mark.parametrize(
    "symptom",
    [
        "RuntimeError: Found no NVIDIA driver on your system",
        "RuntimeError: 0 active drivers ([]). There should only be one.",
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method",
    ],
)
def test_a_host_without_a_gpu_is_not_the_cells_fault(world, symptom):
    world.smokes = [result(step=Verdict.ERROR, error=symptom)]
    made = ran(world)
    assert made.failure.of_host
    assert not made.passed
    assert len(world.plans) == 1, "nothing is gained by trying again"


def test_what_was_not_expected_is_tried_once_more_and_told_as_flaky(world):
    world.smokes = [result(step=Verdict.ERROR, error="RuntimeError: odd"), result()]
    made = ran(world)
    assert made.passed
    assert [e.symptom for e in made.earlier] == ["RuntimeError: odd"]


def test_an_expected_failure_is_believed(world):
    world.smokes = [result(step=Verdict.ERROR, error="RuntimeError: odd")]
    made = ran(world, job(expected=Expected.BAD))
    assert not made.passed
    assert len(world.plans) == 1


def test_a_hang_is_tried_again_even_where_failure_was_expected(world):
    world.smokes = [result(step=Verdict.HANG, detail="no end after 900 s")]
    made = ran(world, job(expected=Expected.BAD))
    assert len(world.plans) == 2
    assert len(made.earlier) == 1


def test_a_network_that_is_away_is_no_record(world):
    world.locks = [NetworkError("the index cannot be reached")]
    with pytest.raises(NetworkError):
        ran(world)


def test_a_known_bad_cell_is_locked_without_its_rules_and_with_all_others(world):
    one = job(expected=Expected.BAD, framework="0.8.1", torch="2.15.0+cu132")
    with_rules = type(one)(
        cell=one.cell,
        expected=Expected.BAD,
        rules=("deepspeed-torch-six", "deepspeed-elastic-log", "deepspeed-elastic-socket"),
    )
    ran(world, with_rules)
    judge, constraints = world.judges[0]
    errors = {f.rule for f in judge(one.cell, dict(one.cell.components)).findings if f.severity.value == "error"}
    assert not errors & set(with_rules.rules)
    assert any(rule == "deepspeed-pydantic2" for _, rule in constraints)


def test_the_wheels_of_torch_lie_in_a_cache_of_their_own(world):
    ran(world)
    assert world.torch_caches == [world.ground.cache / "torch" / "2.6.0+cu124"]
    assert list((world.ground.cache / "torch" / "2.6.0+cu124").glob("envsmith-ready-*"))


def test_a_busy_machine_is_given_time(world):
    ran(world)
    smoke_plan, target = world.plans[0]
    assert smoke_plan.timeouts.case >= 30
    assert all(step.deadline >= 600 for step in smoke_plan.steps)
    assert "-B" not in target.argv(["-I", "-B", "-c", "x"])


def test_no_path_of_this_machine_stands_in_a_record(world, tmp_path):
    where = str(world.ground.slot.resolve())
    world.smokes = [
        result(
            step=Verdict.ERROR,
            detail=f"rank 0 in x: OSError: {where}/venv",
            trace=f"File {where}/venv/a.py",
            summary=where,
        )
    ]
    assert where not in record_text(ran(world), cell=world.ground.slot)


@pytest.mark.parametrize(
    "error",
    [
        StorageError("the disk is full"),
        NetworkError("no index answers"),
        EngineError("Python 3.12 is not on this host"),
        SmokeError("the interpreter cannot be started"),
        BuildError("x cannot be built", details=["error: failed to write: No space left on device (os error 28)"]),
        ContentError("x cannot be read", details=["OSError: [Errno 5] Input/output error"]),
    ],
)
def test_what_the_machine_refused_writes_no_record_against_the_cell(world, error):
    world.installs = [error]
    with pytest.raises(type(error)):
        ran(world)


@pytest.mark.parametrize("fault", [Fault.HOST, Fault.UNKNOWN])
def test_run_that_failed_by_the_machine_s_fault_writes_no_record(world, fault):
    cause = Attribution(fault=fault, sentence="64 ranks share 2 processors")
    world.smokes = [dataclasses.replace(result(cases=Verdict.HANG), cause=cause)]
    with pytest.raises(SmokeError, match="64 ranks share 2 processors"):
        ran(world)
