"""Which interpreters a host has: those that uv finds, without what no cell can be made of."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest

from envsmith.lock.index import interpreters
from envsmith.lock.index.interpreters import (
    Interpreter,
    find_interpreter,
    find_interpreters,
    running_interpreter,
)

BASE = running_interpreter()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    interpreters._every.cache_clear()


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def row(tmp_path: Path, version: str, **more: object) -> dict[str, object]:
    """One line of ``uv python list``, with an executable that is there."""
    path = script(tmp_path / "bin" / f"python-{version}-{len(list(tmp_path.rglob('*')))}", "exit 0")
    fields = {"implementation": "cpython", "variant": "default", "arch": platform.machine()}
    return {"version": version, "path": str(path), "os": "linux", **fields, **more}


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A uv that lists what it is told."""

    def tell(*rows: object, text: str | None = None) -> None:
        (tmp_path / "answer").write_text(text if text is not None else json.dumps(rows))
        program = script(tmp_path / "uv", f"cat {tmp_path / 'answer'}")
        monkeypatch.setattr(interpreters, "find_uv", lambda: str(program))

    return tell


def env(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "HOME": str(tmp_path / "home"),
        "PATH": str(tmp_path / "bin"),
        "PYENV_ROOT": str(tmp_path / "pyenv"),
        **more,
    }


def minors(found: tuple[Interpreter, ...]) -> dict[str, str]:
    return {i.minor: i.version for i in found}


def test_the_running_interpreter_is_found_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "_every", lambda _env: pytest.fail("searched"))
    found = find_interpreter(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert found is not None
    assert found.version == ".".join(map(str, sys.version_info[:3]))


def test_the_newest_patch_release_of_each_minor_wins(tmp_path: Path, uv) -> None:
    uv(row(tmp_path, "3.8.1"), row(tmp_path, "3.8.18"), row(tmp_path, "3.7.9"))
    found = find_interpreters(env(tmp_path))
    assert minors(found)["3.8"] == "3.8.18"
    assert [i.minor for i in found] == sorted(minors(found), key=lambda m: int(m.split(".")[1]), reverse=True)


def test_what_no_cell_can_be_made_of_is_passed_over(tmp_path: Path, uv) -> None:
    uv(
        row(tmp_path, "3.3.1", implementation="pypy"),
        row(tmp_path, "3.4.0rc1"),
        row(tmp_path, "3.5.1", variant="freethreaded"),
        row(tmp_path, "3.6.1", arch="riscv64"),
        row(tmp_path, "3.7.1", path=None),
        row(tmp_path, "3.8.1", path=str(tmp_path / "gone")),
    )
    assert not {"3.3", "3.4", "3.5", "3.6", "3.7", "3.8"} & set(minors(find_interpreters(env(tmp_path))))


@pytest.mark.parametrize("text", ["", "nonsense", "{"])
def test_a_uv_that_answers_nonsense_leaves_the_interpreter_that_runs(tmp_path: Path, uv, text: str) -> None:
    uv(text=text)
    assert find_interpreters(env(tmp_path)) == (BASE,)


def test_interpreters_of_conda_and_of_virtual_environments_are_left_out(tmp_path: Path, uv) -> None:
    conda = script(tmp_path / "conda" / "bin" / "python3.5", "exit 0")
    (tmp_path / "conda" / "conda-meta").mkdir()
    venv = script(tmp_path / "venv" / "bin" / "python3.6", "exit 0")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    uv(row(tmp_path, "3.5.9", path=str(conda)), row(tmp_path, "3.6.9", path=str(venv)))
    assert find_interpreters(env(tmp_path)) == (BASE,)


def test_an_exact_version_is_that_one_or_none(tmp_path: Path, uv) -> None:
    uv(row(tmp_path, "3.5.9"), row(tmp_path, "3.5.7"))
    host = env(tmp_path)
    assert find_interpreter("3.5.9", host) is not None
    assert find_interpreter("3.5.7", host) is not None
    assert find_interpreter("3.5.8", host) is None
    assert find_interpreter("3.99", host) is None


def test_uv_itself_finds_the_interpreters_of_pyenv_beside_broken_shims(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "python3.1", "exit 1")
    script(tmp_path / "bin" / "python3.2", "echo nonsense")
    script(tmp_path / "bin" / "python3.7", "kill -9 $$")
    link = tmp_path / "pyenv" / "versions" / "x" / "bin" / "python3"
    link.parent.mkdir(parents=True)
    link.symlink_to(BASE.path)
    every = interpreters._every(tuple(env(tmp_path, UV_CACHE_DIR=str(tmp_path / "cache")).items()))
    assert str(link) in {i.path for i in every}
    assert not {"3.1", "3.2", "3.7"} & {i.minor for i in every}


def test_a_shim_that_hangs_does_not_hold_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "_TIMEOUT", 0.5)
    script(tmp_path / "bin" / "python3.5", "exec sleep 30")
    assert find_interpreters(env(tmp_path, UV_CACHE_DIR=str(tmp_path / "cache"))) == (BASE,)
