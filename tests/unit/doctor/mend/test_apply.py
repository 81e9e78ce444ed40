"""Mending in place: better or as before, whatever happens in between."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from lock_helpers import uv_for
from mended import BAD, GOOD, as_numpy_says, mend, numpy_repair
from tiny_index import TinyIndex

from envsmith.base.progress import Clock, silent
from envsmith.doctor.mend.apply import Mender, undo_last
from envsmith.doctor.mend.environment import read_environment
from envsmith.doctor.mend.twin import store_of
from envsmith.errors import UsageError

BEFORE = ("click==8.0", "numpy==2.0.2", "tool==1.0")
AFTER = ("click==8.0", "numpy==1.26.4", "tool==1.0")


def frozen(env):
    """Every distribution as ``name==version``, sorted."""
    return tuple(f"{name}=={d.version}" for name, d in sorted(read_environment(env).distributions.items()))


def script_output(root: Path) -> str:
    return subprocess.run([root / "bin" / "tool"], capture_output=True, text=True, check=True).stdout


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_a_repair_changes_what_it_names_and_nothing_else(env: Path, numpy_index: TinyIndex, tmp_path: Path) -> None:
    untouched = (env / "lib").glob("python3*/site-packages/click.py")
    inode = next(untouched).stat().st_ino

    result = mend(env, numpy_index.url, tmp_path / "uv-cache")

    assert result.status == "mended"
    assert [change.sentence for change in result.changes] == ["numpy 2.0.2 -> 1.26.4"]
    assert frozen(env) == AFTER
    assert next((env / "lib").glob("python3*/site-packages/click.py")).stat().st_ino == inode
    assert script_output(env) == "runs\n"
    assert "relocatable" not in (env / "pyvenv.cfg").read_text()


def test_a_script_that_a_mend_installs_runs_from_the_environment_s_own_place(
    env: Path, numpy_index: TinyIndex, tmp_path: Path
) -> None:
    uv_for(numpy_index.url, tmp_path / "uv-cache").check(
        ["pip", "install", "--quiet", "--no-deps", "--python", str(env / "bin" / "python"), "tool==2.0"], work="x"
    )
    before = script_output(env)
    numpy_index.add("tool")
    mender = Mender(uv=uv_for(numpy_index.url, tmp_path / "uv-cache"), trial=as_numpy_says)
    diagnosis = numpy_repair()

    proposal = mender.propose(diagnosis, env)
    mender.apply(proposal, Clock(silent))

    assert script_output(env) == before == "runs\n"
    assert str(store_of(env)) not in (env / "bin" / "tool").read_text()


def test_undo_puts_the_same_files_back(env: Path, numpy_index: TinyIndex, tmp_path: Path) -> None:
    old = contents(env)
    mend(env, numpy_index.url, tmp_path / "uv-cache")

    result = undo_last(env, all)

    assert [change.sentence for change in result.changes] == ["numpy 1.26.4 -> 2.0.2"]
    assert contents(env) == old
    assert not store_of(env).exists()


def test_a_second_undo_is_refused(env: Path, numpy_index: TinyIndex, tmp_path: Path) -> None:
    mend(env, numpy_index.url, tmp_path / "uv-cache")
    undo_last(env, all)

    with pytest.raises(UsageError, match="envsmith has not mended it"):
        undo_last(env, all)


@pytest.mark.parametrize("after", [BAD, pytest.param(None, id="the trial raises")])
def test_what_does_not_help_leaves_the_same_files(
    env: Path, numpy_index: TinyIndex, tmp_path: Path, after: object
) -> None:
    old = contents(env)

    def trial(_python: Path, _distributions: object, _clock: Clock, step: str) -> object:
        if after is None and step.endswith("after"):
            raise KeyboardInterrupt
        return BAD

    mender = Mender(uv=uv_for(numpy_index.url, tmp_path / "uv-cache"), trial=trial)  # type: ignore[arg-type]
    proposal = mender.propose(numpy_repair(), env)
    if after is None:
        with pytest.raises(KeyboardInterrupt):
            mender.apply(proposal, Clock(silent))
    else:
        assert mender.apply(proposal, Clock(silent)).status == "rolled back"

    assert contents(env) == old
    assert not store_of(env).exists()


@pytest.mark.parametrize("each", [pytest.param(5, marks=pytest.mark.slow)])
def test_killed_at_any_moment_the_environment_is_the_old_or_the_new_one(
    env: Path, numpy_index: TinyIndex, tmp_path: Path, each: int
) -> None:
    """Moments drawn with a seed from the whole run and from its end, where the two change places, and both last ones."""
    program = Path(__file__).parent / "mended.py"
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(program.parent.parent)])}
    arguments = (sys.executable, str(program), str(env), numpy_index.url, str(tmp_path / "uv-cache"))

    def run(stage: str, number: int) -> str:
        command = [*arguments, stage, str(number)]
        return subprocess.run(command, check=False, env=variables, stdout=subprocess.PIPE, text=True).stdout

    moments = []
    for stage in ("start", "after"):
        events = int(run(stage, 0))
        undo_last(env, all)
        moments += [(stage, number) for number in random.Random(7).sample(range(1, events), each)] + [(stage, events)]
    seen = set()

    for stage, number in moments:
        run(stage, number)
        freeze = frozen(env)
        seen.add(freeze)
        assert freeze in {BEFORE, AFTER}
        assert script_output(env) == "runs\n"
        if freeze == AFTER:
            undo_last(env, all)

    assert seen == {BEFORE, AFTER}
    assert mend(env, numpy_index.url, tmp_path / "uv-cache").status == "mended"
    assert len([path for path in store_of(env).iterdir() if path.is_dir()]) == 1


def test_what_works_already_may_change_as_long_as_it_works(env: Path, numpy_index: TinyIndex, tmp_path: Path) -> None:
    mender = Mender(uv=uv_for(numpy_index.url, tmp_path / "uv-cache"), trial=lambda *_: GOOD)

    assert mender.apply(mender.propose(numpy_repair(), env), Clock(silent)).status == "mended"


def test_what_only_comes_further_is_kept_and_not_called_mended(
    env: Path, numpy_index: TinyIndex, tmp_path: Path
) -> None:
    steps = {"smoke test before": BAD, "smoke test after": dataclasses.replace(BAD, rungs=BAD.rungs + 1)}
    mender = Mender(uv=uv_for(numpy_index.url, tmp_path / "uv-cache"), trial=lambda *words: steps[words[3]])

    result = mender.apply(mender.propose(numpy_repair(), env), Clock(silent))

    assert result.status == "improved"
    assert frozen(env) == AFTER


def test_a_package_that_is_not_installed_cannot_be_kept(env: Path, numpy_index: TinyIndex, tmp_path: Path) -> None:
    mender = Mender(uv=uv_for(numpy_index.url, tmp_path / "uv-cache"))

    with pytest.raises(UsageError, match="Cannot keep torch: it is not installed"):
        mender.propose(numpy_repair(), env, keep=["torch"])
