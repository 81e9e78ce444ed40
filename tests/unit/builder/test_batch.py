"""Many cells with the engine and the build pretended."""

from __future__ import annotations

import dataclasses
import json
import threading

import pytest

from envsmith.base.progress import EventKind, ProgressEvent
from envsmith.builder import batch
from envsmith.builder.engines import EngineChoice
from envsmith.builder.options import BuildOutcome, Options
from envsmith.errors import BuildError, InterruptedRunError, LockError, StorageError, UsageError
from envsmith.model.cell import Request


@pytest.fixture(scope="module")
def locks(load_file):
    return load_file("tests/unit/sample_locks.py")


class Engine:
    name = "fake"
    held: frozenset[str] = frozenset()
    shares_steps = False

    @property
    def images(self):
        return self

    def has_image(self, image):
        return image in self.held


class World:
    """Which request gives which lock, which builds fail, in which order they began."""

    def __init__(self, folder):
        self.folder, self.engine = folder, Engine()
        self.locks, self.fail, self.began, self.at_once, self.most = {}, {}, [], 0, 0
        self.gate = threading.Lock()
        # In the order in which they happened: "lock a", "build a", "built a".
        self.story = []
        self.delay = {}

    def options(self, name):
        return Options(request=Request(), request_text=f"--framework {name} --platform linux-64", output=self.folder)

    def lock_for(self, options, *, engine, progress):
        name = options.request_text.split()[1]
        self.story.append(f"lock {name}")
        if wait := self.delay.get(name):
            wait()
        if isinstance(self.locks[name], BaseException):
            raise self.locks[name]
        directory = self.folder / name
        directory.mkdir(exist_ok=True)
        lock = self.locks[name]
        return BuildOutcome(cell=lock.cell, lock=lock, directory=directory, files=())

    def build(self, options, *, engine, progress):
        assert engine is self.engine
        name = options.request_text.split()[1]
        self.story.append(f"build {name}")
        progress(ProgressEvent(kind=EventKind.START, step="build"))
        with self.gate:
            self.began.append(name)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        threading.Event().wait(0.05)
        with self.gate:
            self.at_once -= 1
        self.story.append(f"built {name}")
        if name in self.fail:
            raise self.fail[name]
        return BuildOutcome(cell=self.locks[name].cell, lock=self.locks[name], directory=self.folder / name, files=())


@pytest.fixture
def world(tmp_path, monkeypatch, locks):
    made = World(tmp_path)
    made.locks = {
        "a": locks.deepspeed(),
        "b": locks.deepspeed(deepspeed="0.19.7"),
        "c": locks.megatron(),
        "d": locks.deepspeed(deepspeed="0.19.6"),
    }
    monkeypatch.setattr(batch, "choose_engine", lambda _name: EngineChoice(engine=made.engine, why="test"))
    monkeypatch.setattr(batch, "lock_for", made.lock_for)
    monkeypatch.setattr(batch, "build", made.build)
    return made


def test_the_first_cell_of_each_torch_goes_before_its_neighbours(world):
    results = batch.build_many([world.options(n) for n in "abcd"], jobs=2)
    assert [r.good for r in results] == [True] * 4
    assert set(world.began[:2]) == {"a", "c"}
    assert world.most == 2


def test_a_cell_that_fails_takes_no_other_with_it(world):
    world.fail["a"] = BuildError("torch layer failed")
    world.locks["c"] = LockError("no")
    results = batch.build_many([world.options(n) for n in "abcd"], jobs=1)
    assert [r.good for r in results] == [False, True, False, True]
    assert isinstance(results[0].error, BuildError)
    assert isinstance(results[2].error, LockError)


def test_where_steps_are_shared_the_next_cells_are_locked_while_the_first_is_built(world, monkeypatch):
    world.engine.shares_steps = True
    building, locked = threading.Event(), threading.Event()
    build = world.build

    def slow(options, *, engine, progress):
        building.set()
        assert locked.wait(10)
        return build(options, engine=engine, progress=progress)

    # The second lock waits for the first build to begin, and that build for the last lock to be made.
    world.delay = {"b": lambda: building.wait(10), "d": locked.set}
    monkeypatch.setattr(batch, "build", slow)
    results = batch.build_many([world.options(n) for n in "abd"], jobs=1)
    assert [r.good for r in results] == [True] * 3
    assert world.story.index("lock d") < world.story.index("built a") < world.story.index("build b")


def test_elsewhere_everything_is_locked_before_anything_is_built(world):
    batch.build_many([world.options(n) for n in "abd"], jobs=2)
    assert world.story[:3] == ["lock a", "lock b", "lock d"]


@pytest.mark.parametrize("shares", [False, True])
def test_neighbours_are_built_though_the_first_of_their_torch_failed(world, shares):
    world.engine.shares_steps = shares
    world.fail["a"] = BuildError("torch layer failed")
    assert [r.good for r in batch.build_many([world.options(n) for n in "abd"], jobs=2)] == [False, True, True]


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), InterruptedRunError("the build was interrupted")])
def test_ctrl_c_while_a_cell_is_locked_ends_the_batch(world, shares, interrupt):
    world.engine.shares_steps = shares
    world.locks["b"] = interrupt
    with pytest.raises(type(interrupt)):
        batch.build_many([world.options(n) for n in "abcd"], jobs=1)
    assert "lock c" not in world.story
    assert "build c" not in world.story


def record(world, name, **fields):
    told = {"passed": True, "lock": world.locks[name].digest, "image": "sha256:1", **fields}
    (world.folder / name).mkdir(exist_ok=True)
    (world.folder / name / "record.json").write_text(json.dumps(told))


def test_what_an_earlier_run_finished_is_kept(world):
    world.engine.held = frozenset({"sha256:1"})
    record(world, "a")
    results = batch.build_many([world.options(n) for n in "ab"], jobs=1)
    assert [r.is_kept for r in results] == [True, False]
    assert world.began == ["b"]
    world.began.clear()
    batch.build_many([world.options(n) for n in "ab"], jobs=1, again=True)
    assert sorted(world.began) == ["a", "b"]


@pytest.mark.parametrize("fields", [{"passed": False}, {"lock": "sha256:2"}, {"image": "sha256:2"}, {"image": None}])
def test_a_record_of_something_else_keeps_nothing(world, fields):
    world.engine.held = frozenset({"sha256:1"})
    record(world, "a", **fields)
    assert batch.build_many([world.options("a")], jobs=1)[0].is_kept is False


def test_a_cell_whose_layout_is_asked_for_and_missing_is_not_kept(world):
    world.engine.held = frozenset({"sha256:1"})
    record(world, "a")
    wanted = dataclasses.replace(world.options("a"), oci=True)
    assert batch.build_many([wanted], jobs=1)[0].is_kept is False
    (world.folder / "a" / "oci").mkdir()
    (world.folder / "a" / "oci" / "index.json").write_text("{}")
    assert batch.build_many([wanted], jobs=1)[0].is_kept is True


def test_steps_say_whose_they_are(world):
    events = []
    batch.build_many([world.options("a")], jobs=1, progress=events.append)
    assert "[a] build" in {e.step for e in events}


def test_lines_of_a_file_are_cell_ids_or_flags():
    from envsmith.cli.build import read_cells

    text = "# ours\nds0.19.8-torch2.13.0-cu130-py311\n\n--framework megatron-core --torch '>=2.9,<2.14'  # and this\n"
    one, two = read_cells(text, "cells.txt")
    assert (one.framework, one.torch, one.cuda, one.python) == (
        ("deepspeed==0.19.8",),
        "==2.13.0+cu130",
        "13.0",
        "3.11",
    )
    assert (two.framework, two.torch) == (("megatron-core",), ">=2.9,<2.14")


def test_every_bad_line_is_told_with_its_number():
    from envsmith.cli.build import read_cells

    with pytest.raises(UsageError) as caught:
        read_cells("nonsense!\n--framework\n--no-such-flag x\n'unclosed\n--help\n", "cells.txt")
    assert [line.split(": ")[0] for line in caught.value.details] == [f"cells.txt:{n}" for n in range(1, 6)]
    with pytest.raises(UsageError, match="no cell"):
        read_cells("# nothing\n", "cells.txt")


def test_flags_that_exclude_each_other_are_refused(tmp_path):
    from click.testing import CliRunner

    from envsmith.cli.build import build

    cells = tmp_path / "cells.txt"
    cells.write_text("ds0.19.8-torch2.13.0-cu130-py311\n")
    for arguments in (["--all-frameworks", "--cells", str(cells)], ["--all-frameworks", "--framework", "deepspeed"]):
        with pytest.raises(UsageError):
            CliRunner().invoke(build, arguments, catch_exceptions=False, standalone_mode=False)
    cells.write_bytes(b"\xff\xfe")
    with pytest.raises(StorageError):
        CliRunner().invoke(build, ["--cells", str(cells)], catch_exceptions=False, standalone_mode=False)
