"""The arrow with every edge pretended: what flows from stage to stage, and what stops it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from envsmith.agent.protocol import TIME_IS_OVER
from envsmith.base.progress import Clock, EventKind
from envsmith.builder import arrow as build
from envsmith.builder import options as envsmith_options
from envsmith.builder import proof
from envsmith.builder.engines import Choice
from envsmith.builder.engines.base import Built, Engine
from envsmith.errors import BuildError, ContentError, DataError, EngineError, NetworkError, UsageError
from envsmith.lock.conda import lock as conda_lock
from envsmith.lock.conda.model import CondaRequest
from envsmith.model.cell import Platform, Request
from envsmith.model.lock import Artifact, Compile, CompiledSource, GivenArchive, Lock, Pin
from envsmith.model.record import CaseOutcome, Rung, StepOutcome, Unmet, Verdict, record_text
from envsmith.smoke import run
from envsmith.smoke.bandwidth import Measurement
from envsmith.smoke.result import SmokeResult


class FakeEngine(Engine):
    name = "venv"

    images = None

    def __init__(self, *, wrong=False, broken=False):
        self.wrong, self.broken, self.builds = wrong, broken, 0

    def available(self):
        return None

    def pythons(self, base=None):
        return ("3.11",)

    def build(self, lock, directory, *, progress):
        self.builds += 1
        self.lock = lock
        if self.broken:
            raise BuildError("torch layer failed", details=["no space"])
        return Built(
            digest="sha256:" + "1" * 64, kind="venv", reference=str(directory), python=str(directory / "python")
        )

    def inspect(self, built):
        found = {pin.name: pin.version for pin in self.lock.pins} | {"python": "3.11.7"}
        return found | ({"torch": "0.1"} if self.wrong else {})

    def target(self, built):
        return object()


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
def world(monkeypatch, tmp_path):
    engine = FakeEngine()

    def choose(_name=None, **_settings):
        return Choice(engine=engine, why="it is here")

    def lock_cell(cell, options, **_):
        pins = tuple(
            Pin(
                name=n,
                version=v.split("+")[0],
                layer=n if n == "torch" else "framework",
                artifacts=(
                    Artifact(
                        filename=f"{n}-{v.split('+')[0]}-py3-none-any.whl",
                        sha256="a" * 64,
                        url="https://example.invalid/x.whl",
                    ),
                ),
            )
            for n, v in cell.components.items()
            if n in {"torch", "deepspeed"}
        )
        return Lock(
            cell=cell,
            request=options.request_text,
            exclude_newer="2026-11-20",
            python_version="3.11",
            pins=pins,
            resolver="none",
        )

    def no_channel(*_args, **_kwargs):
        raise NetworkError("the channel cannot be reached")

    monkeypatch.setattr("envsmith.builder.arrow.choose_engine", choose)
    monkeypatch.setattr(build, "lock_cell", lock_cell)
    monkeypatch.setattr(conda_lock, "lock_conda", no_channel)
    monkeypatch.setattr(run, "run", lambda *_a, **_k: _result(), raising=False)
    monkeypatch.chdir(tmp_path)
    return engine


def _options(tmp_path, **more):
    return envsmith_options.Options(
        request=Request(frameworks=["deepspeed"]), request_text="--framework deepspeed", output=tmp_path / "out", **more
    )


def test_a_build_ends_in_a_record_beside_its_lock(world, tmp_path):
    outcome = build.build(_options(tmp_path))
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
    assert build.build(_options(tmp_path)).cell.components["python"] == "3.11"


def test_a_frozen_lock_is_built_though_no_base_for_a_new_one_can_be_had(world, tmp_path):
    locked = build.build(_options(tmp_path))

    def no_base(_base=None):
        raise EngineError("no base image can be had")

    world.pythons = no_base
    assert build.build(_options(tmp_path, frozen=True)).lock.digest == locked.lock.digest


@pytest.mark.parametrize("name", ["", "lock.json", "renamed.json"])
def test_the_lock_of_a_file_is_built_without_a_request_a_solver_or_an_index(name, world, tmp_path, monkeypatch):
    first = build.build(_options(tmp_path))
    (first.directory / "renamed.json").write_text(first.lock.text())
    monkeypatch.setattr(build, "solve", None)
    monkeypatch.setattr(build, "lock_cell", None)
    world.pythons = None
    options = dataclasses.replace(_options(tmp_path), output=tmp_path / "elsewhere", request=Request())
    outcome = build.build(dataclasses.replace(options, lock=first.directory / name))
    assert outcome.lock.digest == first.lock.digest
    assert outcome.directory == tmp_path / "elsewhere" / first.lock.name
    assert outcome.record is not None
    written = {str(path.relative_to(outcome.directory)) for path in outcome.directory.rglob("*") if path.is_file()}
    assert {"Dockerfile", "steps/cell.sh", "requirements-uv.txt", "lock.json", "record.json"} <= written


def test_a_file_that_is_not_a_lock_is_refused(world, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(DataError, match=r"x\.json"):
        build.build(dataclasses.replace(_options(tmp_path), lock=tmp_path / "x.json"))


@pytest.mark.parametrize(
    "asked", [{"channels": ("conda-forge",)}, {"platforms": (Platform.LINUX_AARCH64,)}, {"tolerate": ("nccl",)}]
)
def test_an_unreachable_channel_is_a_note_and_the_build_goes_on(asked, world, tmp_path):
    outcome = build.build(_options(tmp_path, conda=CondaRequest(**asked)))
    assert any("no conda-lock.yml" in note and "cannot be reached" in note for note in outcome.notes)
    assert outcome.record is not None


def test_build_of_an_environment_asks_no_channel_and_tells_nothing_of_images(world, tmp_path):
    events = []
    outcome = build.build(_options(tmp_path), progress=events.append)
    assert [event.step for event in events if event.kind is EventKind.START] == ["solve", "lock", "build", "smoke test"]
    assert not any("conda" in event.text.lower() or "base " in event.text for event in events)
    assert outcome.notes == ()
    assert "Dockerfile" in outcome.files  # other engines can use the folder


def test_content_that_differs_from_the_lock_fails_the_build_and_leaves_no_record(world, tmp_path):
    first = build.build(_options(tmp_path))
    world.wrong = True
    with pytest.raises(ContentError) as error:
        build.build(_options(tmp_path))
    assert "torch" in str(error.value)
    assert not (first.directory / "record.json").exists()


def test_a_failed_build_step_leaves_the_lock_and_no_record(world, tmp_path):
    world.broken = True
    with pytest.raises(BuildError):
        build.build(_options(tmp_path))
    folder = next((tmp_path / "out").iterdir())
    assert (folder / "lock.json").exists()
    assert not (folder / "record.json").exists()


def test_the_lock_that_is_there_is_kept_for_the_same_request_and_date(world, tmp_path, monkeypatch):
    options = dataclasses.replace(
        _options(tmp_path), request=Request(frameworks=["deepspeed"], exclude_newer="2026-11-20")
    )
    build.build(options)
    monkeypatch.setattr(build, "lock_cell", lambda *_a, **_k: pytest.fail("locked again"))
    events = []
    build.build(options, progress=events.append)
    assert any(e.kind is EventKind.CACHED and e.step == "lock" for e in events)


@pytest.fixture
def given(world, monkeypatch):
    """Options of a lock with an archive of the user's, by the folder that it lies in."""
    plain = build.lock_cell

    def lock_cell(cell, options, **more):
        made = plain(cell, options, **more)
        (archive,) = options.compile.archives
        pin = Pin(name="my-ops", version="1.0", layer="framework", artifacts=(archive.artifact,), sdist=True)
        source = CompiledSource(name="my-ops", toolkit=False, archive=archive.origin)
        return dataclasses.replace(made, pins=(*made.pins, pin), compiled=(source,))

    monkeypatch.setattr(build, "lock_cell", lock_cell)

    def options(tmp_path, folder, **more):
        archive = GivenArchive(
            name="my-ops", version="1.0", address=f"file:///{folder}/x.tar.gz", sha256="b" * 64, size=1
        )
        request = Request(frameworks=["deepspeed"], exclude_newer="2026-11-20")
        return dataclasses.replace(_options(tmp_path, **more), request=request, compile=Compile(archives=(archive,)))

    return options


def test_a_lock_is_kept_when_the_same_archive_lies_elsewhere_and_knows_where(given, tmp_path, monkeypatch):
    first = build.lock_only(given(tmp_path, "one"))
    assert build.lock_difference(given(tmp_path, "two", conda=None)) == ()
    monkeypatch.setattr(build, "lock_cell", lambda *_a, **_k: pytest.fail("locked again"))
    second = build.lock_only(given(tmp_path, "two"))
    assert second.lock.digest == first.lock.digest
    assert second.lock.pin("my-ops").artifacts[0].url == "file:///two/x.tar.gz"


def test_what_will_be_compiled_is_told(given, tmp_path):
    events = []
    build.lock_only(given(tmp_path, "one"), progress=events.append)
    assert f"my-ops is compiled from the archive with sha256 {'b' * 16}…" in [e.text for e in events]


def test_compiling_in_another_way_makes_a_lock_old(given, tmp_path, monkeypatch):
    options = given(tmp_path, "one", conda=None)
    build.lock_only(options)
    now = build.lock_cell

    def lock_cell(*a, **k):
        made = now(*a, **k)
        return dataclasses.replace(made, compiled=(dataclasses.replace(made.compiled[0], toolkit=True),))

    monkeypatch.setattr(build, "lock_cell", lock_cell)
    assert build.lock_difference(options) == ("compiled from source: in another way",)


def test_a_conda_lock_cannot_hold_an_archive(given, tmp_path):
    noted = build.lock_only(given(tmp_path, "one"))
    assert any(
        "no conda-lock.yml: Cannot write a Conda lock: my-ops is built from a source archive" in note
        for note in noted.notes
    )
    with pytest.raises(UsageError, match="my-ops is built from a source archive"):
        build.lock_and_render(
            noted.cell, given(tmp_path, "one", conda_only=True), engine=None, clock=Clock(lambda _e: None)
        )


def test_a_failed_smoke_test_is_recorded_as_failed(world, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "run", lambda *_a, **_k: _result(passed=False, steps=Verdict.ERROR), raising=False)
    outcome = build.build(_options(tmp_path))
    assert not outcome.record.passed
    assert outcome.record.rungs[-1] is Rung.IMPORTED


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        (Verdict.PASS, Rung.FRAMEWORK_CPU),
        (Verdict.SKIPPED, Rung.COLLECTIVES_CPU),
        (Verdict.WRONG, Rung.COLLECTIVES_CPU),
    ],
)
def test_a_rung_is_proved_only_by_a_step_that_ran_and_passed(steps, last):
    assert proof.rungs_of(_result(steps=steps))[-1] is last


def test_cases_that_had_no_time_prove_no_collectives():
    result = _result(steps=Verdict.SKIPPED)
    late = CaseOutcome(case="all_reduce", verdict=Verdict.SKIPPED, blame=TIME_IS_OVER, unmet=Unmet.TIME)

    rungs = proof.rungs_of(dataclasses.replace(result, cases=(*result.cases, late)))

    assert rungs[-1] is Rung.IMPORTED


def test_what_was_timed_but_not_checked_is_recorded_and_proves_no_collective(world, tmp_path, monkeypatch):
    row = Measurement(
        op="all_reduce", bytes=8192, ranks=4, rounds=20, median_us=50.0, p99_us=60.0, algbw=1.0, busbw=1.5
    )
    timed = dataclasses.replace(_result(steps=Verdict.SKIPPED), bandwidth=(row,))
    monkeypatch.setattr(run, "run", lambda *_a, **_k: timed, raising=False)
    record = build.build(_options(tmp_path)).record
    assert record.rungs[-1] is Rung.IMPORTED
    assert record.to_json()["bandwidth"] == {"all_reduce": {"peak_busbw": 1.5, "bytes": 8192, "least_us": 50.0}}
    assert "bandwidth" not in dataclasses.replace(record, bandwidth={}).to_json()


def test_a_record_does_not_tell_where_the_cell_stood(world, tmp_path):
    outcome = build.build(_options(tmp_path))
    step = StepOutcome(name="x", verdict=Verdict.ERROR, detail=f"in {outcome.directory.resolve()}/venv/lib/x.py")
    text = record_text(dataclasses.replace(outcome.record, steps=(step,)), cell=Path(outcome.directory))
    assert str(outcome.directory.resolve()) not in text
    assert "in ./venv/lib/x.py" in text


def test_the_default_date_is_the_last_complete_day(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")  # 2026-01-01T00:00:00Z
    assert build.last_day() == "2025-12-31"


def test_a_layout_needs_an_engine_that_makes_images(world, tmp_path):
    with pytest.raises(UsageError, match="makes no images"):
        build.build(_options(tmp_path, oci=True))
    assert world.builds == 0


def test_a_layout_is_written_beside_the_lock_and_loaded_back_by_the_engine(world, tmp_path):
    asked = []

    class Images:
        @staticmethod
        def build(lock, directory, *, layout, packing, progress):
            asked.append((layout, packing))
            return world.build(lock, directory, progress=progress)

    world.images = Images

    outcome = build.build(_options(tmp_path, oci=True, packing="zstd"))

    assert asked == [(outcome.directory / "oci", "zstd")]
    assert world.builds == 1
