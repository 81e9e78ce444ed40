"""Every CPython of this host, its first patch releases too, answers with an empty cache and again with what it has kept.

Each gets the wheel of this checkout in an environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import zipfile

import pytest

from envsmith.lock.index.interpreters import _every
from envsmith.lock.index.uv import Uv

pytestmark = [pytest.mark.integration, pytest.mark.network]

REQUEST = ("--framework", "deepspeed")
# The second `solve` reads what the first has written.
COMMANDS = (
    ("solve", *REQUEST),
    ("solve", *REQUEST),
    ("check", "deepspeed==0.14.2", "torch==2.4.1"),
    ("doctor",),
    ("lock", *REQUEST, "--no-conda", "--output", "{folder}"),
)
# The answers: the set that is checked is bad, and what doctor says depends on the machine.
EXPECTED = {"check": {1}, "doctor": {0, 1}}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, pytestconfig):
    folder = tmp_path_factory.mktemp("wheel")
    Uv().check(
        ["build", "--wheel", "--out-dir", str(folder), str(pytestconfig.rootpath)], work="build the wheel of envsmith"
    )
    return next(folder.glob("*.whl"))


@pytest.mark.parametrize("minor", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_every_interpreter_answers_with_an_empty_cache(minor, wheel, tmp_path):
    # uv lists an interpreter by each of its names.
    interpreters = {each.version: each for each in _every(tuple(sorted(os.environ.items()))) if each.minor == minor}
    if not interpreters:
        pytest.skip(f"no CPython {minor} is found on this host")
    failures = [
        failure for each in interpreters.values() for failure in _failures(each, wheel, tmp_path / each.version)
    ]
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("minor", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_probe_works_in_every_interpreter(minor, pytestconfig, tmp_path):
    interpreters = {each.version: each for each in _every(tuple(sorted(os.environ.items()))) if each.minor == minor}
    if not interpreters:
        pytest.skip(f"no CPython {minor} is found on this host")
    Uv().check(["build", "--wheel", "--out-dir", str(tmp_path), str(pytestconfig.rootpath / "probe")], work="build it")
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        archive.extractall(tmp_path)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import envsmith.preflight; "
        "from envsmith.launch.run.__main__ import main; sys.exit(main())"
    )
    for each in interpreters.values():
        rank = f"RANK=0 WORLD_SIZE=1 {each.path} -c 'raise ValueError(7)'; exit 3"
        ran = subprocess.run(
            [each.path, "-I", "-S", "-c", code, "--", "sh", "-c", rank], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 3, ran.stderr
        assert "envsmith run: the launch of 1 rank ended with exit code 3" in ran.stderr
        assert "evidence: " in ran.stderr


def _failures(interpreter, wheel, folder):
    """What each command printed that did not answer."""
    python = folder / "environment/bin/python"
    Uv().check(["venv", "--python", interpreter.path, str(python.parents[1])], work="make an environment")
    Uv().check(["pip", "install", "--python", str(python), str(wheel)], work="install envsmith")
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    for command in COMMANDS:
        words = [word.format(folder=folder / "locked") for word in command]
        ran = subprocess.run(
            [str(python.with_name("envsmith")), *words, "--json"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode not in EXPECTED.get(command[0], {0}) or not _is_json(ran.stdout):
            yield f"{interpreter.version} {' '.join(words)}: exit {ran.returncode}\n{ran.stderr[-2000:]}{ran.stdout[-500:]}"


def _is_json(text):
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
