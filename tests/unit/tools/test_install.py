"""The first step of both commands of the README: an environment, uv from the index, the rest by uv."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# A Python that says what it is asked for. Its environments are folders with itself inside.
PYTHON = """#!/bin/sh
echo "$*" >>"$LOG"
case "$*" in
  -c*) exec {python} -c "$(printf '%s' "$2" | sed 's/sys.version_info/{version}/g')" ;;
  '-m venv '*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  "$FAILS"*) exit 3 ;;
esac
"""


@pytest.fixture
def tool(load_file):
    return load_file("tools/install.py")


@pytest.fixture
def make(tmp_path):
    """Runs the rule of the Makefile for an environment, with a Python of the given version."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")

    def run(environment, *, version="(3, 13)", fails="nothing", target=".tool"):
        python = tmp_path / "python"
        python.write_text(PYTHON.format(python=sys.executable, version=version))
        python.chmod(python.stat().st_mode | stat.S_IXUSR)
        log = tmp_path / "log"
        log.write_text("")
        ran = subprocess.run(
            ["make", f"PYTHON={python}", f"VENV={environment}", f"{environment}/{target}"],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "LOG": str(log), "FAILS": fails},
            capture_output=True,
            text=True,
            check=False,
        )
        return ran, log.read_text()

    return run


def test_envsmith_runs_uv_before_anything_of_the_index_but_uv_is_installed():
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import envsmith.lock.index.uv, envsmith.net.index_settings"
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_tool_alone_needs_no_group(tool):
    words = tool.arguments_of_uv([], {"PIP_CONFIG_FILE": os.devnull}, again=False)
    assert words == ["pip", "install", "--python", sys.executable, "--editable", f"{ROOT}[all]"]


def test_a_group_is_read_from_the_project_wherever_uv_runs(tool):
    words = tool.arguments_of_uv(["dev"], {"PIP_CONFIG_FILE": os.devnull}, again=False)
    assert words[-2:] == ["--group", f"{ROOT}/pyproject.toml:dev"]


def test_what_pip_finds_in_folders_uv_finds_there_too(tool, tmp_path):
    pip = {"PIP_NO_INDEX": "true", "PIP_FIND_LINKS": f"{tmp_path} {tmp_path}/absent https://wheels.test/w"}
    words = tool.arguments_of_uv([], {"PIP_CONFIG_FILE": os.devnull, **pip}, again=False)
    assert words[-5:] == ["--find-links", str(tmp_path), "--find-links", "https://wheels.test/w", "--no-index"]


def test_what_an_interrupted_run_has_left_is_installed_again(tool):
    assert tool.arguments_of_uv([], {"PIP_CONFIG_FILE": os.devnull}, again=True)[-1] == "--reinstall"


def test_a_build_asks_for_nothing_that_only_tests_need(make, tmp_path):
    ran, log = make(tmp_path / "new")
    assert ran.returncode == 0, ran.stderr
    assert "--group" not in log
    assert (tmp_path / "new/.tool").exists()


def test_tests_add_what_they_need_to_the_same_environment(make, tmp_path):
    make(tmp_path / "new")
    _, log = make(tmp_path / "new", target=".installed")
    assert log == "tools/install.py --group dev\n"


def test_an_older_python_is_one_sentence_and_leaves_nothing(make, tmp_path):
    ran, log = make(tmp_path / "new", version="(3, 9)")
    assert ran.returncode != 0
    assert "needs Python 3.10 or later" in ran.stderr
    assert "is 3.9" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "venv" not in log
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("step", ["-m pip ", "tools/install.py"])
def test_an_environment_that_was_begun_is_begun_again(make, tmp_path, step):
    ran, _ = make(tmp_path / "new", fails=step)
    assert ran.returncode != 0
    (tmp_path / "new/half").touch()
    ran, _ = make(tmp_path / "new")
    assert ran.returncode == 0
    assert not (tmp_path / "new/half").exists()


def test_an_environment_that_was_there_is_never_removed(make, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/work").touch()
    assert make(tmp_path / "mine", fails="tools/install.py")[0].returncode != 0
    assert make(tmp_path / "mine")[0].returncode == 0
    assert (tmp_path / "mine/work").exists()
