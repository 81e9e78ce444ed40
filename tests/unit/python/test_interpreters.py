"""Which interpreters a host has: real ones are asked, broken ones passed over."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from envsmith.python import interpreters
from envsmith.python.interpreters import Interpreter, find_interpreter, find_interpreters


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreters._found.cache_clear()
    monkeypatch.setattr(interpreters, "_TIMEOUT", 2.0)


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def answer(version: str, *, name: str = "cpython", path: str = "/usr/bin/true", free: str = "false") -> str:
    import platform

    return f"""echo '["{name}", "{version}", "{platform.machine()}", true, true, {free}, "{path}"]'"""


def env(tmp_path: Path, path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "PATH": str(path), "PYENV_ROOT": str(tmp_path / "pyenv")}


def minors(found: tuple[Interpreter, ...]) -> dict[str, str]:
    return {i.minor: i.version for i in found}


def test_the_running_interpreter_is_found_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "find_interpreters", lambda _env: pytest.fail("searched"))
    found = find_interpreter(f"{sys.version_info[0]}.{sys.version_info[1]}")
    assert found is not None
    assert found.version == ".".join(map(str, sys.version_info[:3]))


def test_pyenv_and_path_are_searched_and_the_newest_patch_release_wins(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "python3.8", answer("3.8.1"))
    script(tmp_path / "pyenv" / "versions" / "3.8.18" / "bin" / "python3", answer("3.8.18"))
    found = find_interpreters(env(tmp_path, tmp_path / "bin"))
    assert minors(found)["3.8"] == "3.8.18"
    assert [i.minor for i in found] == [
        i.minor for i in sorted(found, key=lambda i: [int(p) for p in i.version.split(".")], reverse=True)
    ]


def test_broken_shims_and_other_implementations_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    script(folder / "python3.1", "exit 1")
    script(folder / "python3.2", "echo nonsense")
    script(folder / "python3.3", answer("3.3.1", name="pypy"))
    script(folder / "python3.4", answer("3.4.0rc1"))
    script(folder / "python3.5", answer("3.5.1", free="true"))
    script(folder / "python3.6", "echo '[]'")
    script(folder / "python3.7", "kill -9 $$")
    (folder / "python3").write_bytes(b"\x7fELF broken")
    (folder / "python3").chmod(0o755)
    assert not {"3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7"} & set(minors(find_interpreters(env(tmp_path, folder))))


def test_a_shim_that_hangs_does_not_hold_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "_TIMEOUT", 0.3)
    script(tmp_path / "bin" / "python3.5", "exec sleep 30")
    assert "3.5" not in minors(find_interpreters(env(tmp_path, tmp_path / "bin")))


def test_conda_interpreters_are_left_out(tmp_path: Path) -> None:
    script(tmp_path / "conda" / "bin" / "python3.5", answer("3.5.9"))
    (tmp_path / "conda" / "conda-meta").mkdir()
    assert "3.5" not in minors(find_interpreters(env(tmp_path, tmp_path / "conda" / "bin")))


def test_an_exact_version_is_that_one_or_none(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "python3.5", answer("3.5.9"))
    host = env(tmp_path, tmp_path / "bin")
    assert find_interpreter("3.5.9", host) is not None
    assert find_interpreter("3.5.8", host) is None
    assert find_interpreter("3.99", host) is None
