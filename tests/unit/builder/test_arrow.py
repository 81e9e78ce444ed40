"""The arrow with every edge pretended: what flows from stage to stage, and what stops it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from build_helpers import options_in

from envsmith.base.progress import EventKind
from envsmith.builder import arrow as build
from envsmith.builder import locking
from envsmith.errors import BuildError, ContentError, DataError, EngineError, StorageError, UsageError
from envsmith.lock.conda.model import CondaRequest
from envsmith.model.cell import Platform, Request
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.record import CaseOutcome, Rung, StepOutcome, Verdict, record_text
from envsmith.model.version import Spec
from envsmith.smoke import run
from envsmith.smoke.bandwidth import Measurement
from envsmith.smoke.result import SmokeResult


def _result(passed=True, *, steps=Verdict.PASS):
    return SmokeResult(
        passed=passed,
        exit_code=0 if passed else 1,
        summary="2 of 2 cases",
        backend="gloo",
        ranks=4,
        placement="4 ranks on the CPU",
        cases=(CaseOutcome(case="barrier", verdict=Verdict.PASS if passed else Verdict.HANG, seconds=0.1),),
        steps=(StepOutcome(name="deepspeed zero-2", verdict=steps, detail=f"saw {Path.cwd()}"),),
        loaded={"torch": "2.13.0+cu130"},
    )


@pytest.fixture
def world(world, monkeypatch):
    monkeypatch.setattr(run, "run", lambda *_a, **_k: _result(), raising=False)
    return world


def test_a_build_ends_in_a_record_beside_its_lock(world, tmp_path):
    outcome = build.build(options_in(tmp_path))
    assert outcome.record is not None
    assert outcome.record.passed
    written = json.loads((outcome.directory / "record.json").read_text())
    assert written["lock"] == outcome.lock.digest
    assert written["environment"] == outcome.built.digest
    assert written["loaded"] == {"torch": "2.13.0+cu130"}
    assert written["rungs"][-1] == "framework step(cpu)"
    assert {"Dockerfile", "requirements.txt", "pylock.toml", "lock.json"} <= {
        p.name for p in outcome.directory.iterdir()
    }


def test_the_solver_is_told_which_pythons_the_engine_has(world, tmp_path):
    assert build.build(options_in(tmp_path)).cell.components["python"] == "3.11"


def test_an_engine_without_a_python_that_the_project_admits_is_a_refusal(world, tmp_path):
    options = options_in(tmp_path)
    narrowed = {"python": (Spec.parse(">=3.12"), "pyproject.toml:4")}

    with pytest.raises(UnsatisfiableError, match=r"here, and pyproject.toml:4 asks for >=3.12"):
        build.build(dataclasses.replace(options, request=dataclasses.replace(options.request, narrowed=narrowed)))


def test_a_frozen_lock_is_built_though_no_base_for_a_new_one_can_be_had(world, tmp_path):
    locked = build.build(options_in(tmp_path))

    def no_base(_base=None):
        raise EngineError("no base image can be had")

    world.pythons = no_base
    assert build.build(options_in(tmp_path, frozen=True)).lock.digest == locked.lock.digest


def test_a_folder_whose_record_cannot_be_taken_away_is_refused_with_another_place(world, tmp_path):
    record = build.build(options_in(tmp_path)).directory / "record.json"
    record.unlink()
    record.mkdir()

    with pytest.raises(StorageError, match="Cannot build in") as refused:
        build.build(options_in(tmp_path, frozen=True))

    assert f"--lock {record.parent} --output DIR" in refused.value.hint


@pytest.mark.parametrize("name", ["", "lock.json", "renamed.json"])
def test_the_lock_of_a_file_is_built_without_a_request_a_solver_or_an_index(name, world, tmp_path, monkeypatch):
    first = build.build(options_in(tmp_path))
    (first.directory / "renamed.json").write_text(first.lock.text())
    monkeypatch.setattr(locking, "choose", None)
    monkeypatch.setattr(locking, "lock_cell", None)
    world.pythons = None
    options = dataclasses.replace(options_in(tmp_path), output=tmp_path / "elsewhere", request=Request())
    outcome = build.build(dataclasses.replace(options, lock=first.directory / name))
    assert outcome.lock.digest == first.lock.digest
    assert outcome.directory == tmp_path / "elsewhere" / first.lock.name
    assert outcome.record is not None
    written = {str(path.relative_to(outcome.directory)) for path in outcome.directory.rglob("*") if path.is_file()}
    assert {"Dockerfile", "steps/cell.sh", "requirements-uv.txt", "lock.json", "record.json"} <= written


def test_a_file_that_is_not_a_lock_is_refused(world, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(DataError, match=r"x\.json"):
        build.build(dataclasses.replace(options_in(tmp_path), lock=tmp_path / "x.json"))


@pytest.mark.parametrize(
    "asked", [{"channels": ("conda-forge",)}, {"platforms": (Platform.LINUX_AARCH64,)}, {"tolerate": ("nccl",)}]
)
def test_an_unreachable_channel_is_a_note_and_the_build_goes_on(asked, world, tmp_path):
    outcome = build.build(options_in(tmp_path, conda=CondaRequest(**asked)))
    assert any("no conda-lock.yml" in note and "cannot be reached" in note for note in outcome.notes)
    assert outcome.record is not None


def test_build_of_an_environment_asks_no_channel_and_tells_nothing_of_images(world, tmp_path):
    events = []
    outcome = build.build(options_in(tmp_path), progress=events.append)
    assert [event.step for event in events if event.kind is EventKind.START] == ["solve", "lock", "build", "smoke test"]
    assert not any("conda" in event.text.lower() or "base " in event.text for event in events)
    assert outcome.notes == ()
    assert "Dockerfile" in outcome.files  # other engines can use the folder


def test_content_that_differs_from_the_lock_fails_the_build_and_leaves_no_record(world, tmp_path):
    first = build.build(options_in(tmp_path))
    world.wrong = True
    with pytest.raises(ContentError) as error:
        build.build(options_in(tmp_path))
    assert "torch" in str(error.value)
    assert not (first.directory / "record.json").exists()


def test_a_failed_build_step_leaves_the_lock_and_no_record(world, tmp_path):
    world.broken = True
    with pytest.raises(BuildError):
        build.build(options_in(tmp_path))
    folder = next((tmp_path / "out").iterdir())
    assert (folder / "lock.json").exists()
    assert not (folder / "record.json").exists()


def test_the_lock_that_is_there_is_kept_for_the_same_request_and_date(world, tmp_path, monkeypatch):
    options = dataclasses.replace(
        options_in(tmp_path), request=Request(frameworks=["deepspeed"], exclude_newer="2026-11-20")
    )
    build.build(options)
    monkeypatch.setattr(locking, "lock_cell", lambda *_a, **_k: pytest.fail("locked again"))
    events = []
    build.build(options, progress=events.append)
    assert any(e.kind is EventKind.CACHED and e.step == "lock" for e in events)


def test_a_failed_smoke_test_is_recorded_as_failed(world, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "run", lambda *_a, **_k: _result(passed=False, steps=Verdict.ERROR), raising=False)
    outcome = build.build(options_in(tmp_path))
    assert not outcome.record.passed
    assert outcome.record.rungs[-1] is Rung.IMPORTED


def test_what_was_timed_but_not_checked_is_recorded_and_proves_no_collective(world, tmp_path, monkeypatch):
    row = Measurement(
        op="all_reduce", bytes=8192, ranks=4, rounds=20, median_us=50.0, p99_us=60.0, algbw=1.0, busbw=1.5
    )
    timed = dataclasses.replace(_result(steps=Verdict.SKIPPED), bandwidth=(row,))
    monkeypatch.setattr(run, "run", lambda *_a, **_k: timed, raising=False)
    record = build.build(options_in(tmp_path)).record
    assert record.rungs[-1] is Rung.IMPORTED
    assert record.to_json()["bandwidth"] == {"all_reduce": {"peak_busbw": 1.5, "bytes": 8192, "least_us": 50.0}}
    assert "bandwidth" not in dataclasses.replace(record, bandwidth={}).to_json()


def test_a_record_does_not_tell_where_the_cell_stood(world, tmp_path):
    outcome = build.build(options_in(tmp_path))
    step = StepOutcome(name="x", verdict=Verdict.ERROR, detail=f"in {outcome.directory.resolve()}/venv/lib/x.py")
    text = record_text(dataclasses.replace(outcome.record, steps=(step,)), cell=Path(outcome.directory))
    assert str(outcome.directory.resolve()) not in text
    assert "in ./venv/lib/x.py" in text


def test_a_layout_needs_an_engine_that_makes_images(world, tmp_path):
    with pytest.raises(UsageError, match="makes no images"):
        build.build(options_in(tmp_path, oci=True))
    assert world.builds == 0


def test_a_layout_is_written_beside_the_lock_and_loaded_back_by_the_engine(world, tmp_path):
    asked = []

    class Images:
        @staticmethod
        def build(lock, directory, *, layout, packing, progress):
            asked.append((layout, packing))
            return world.build(lock, directory, progress=progress)

    world.images = Images

    outcome = build.build(options_in(tmp_path, oci=True, packing="zstd"))

    assert asked == [(outcome.directory / "oci", "zstd")]
    assert world.builds == 1
