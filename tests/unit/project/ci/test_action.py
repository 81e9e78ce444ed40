"""The composite action: its shell steps are run as they stand, in a scratch repository, with what a runner would put into their environment."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[4]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["id"]: step for step in ACTION["runs"]["steps"] if "id" in step}


@pytest.fixture
def runner(tmp_path):
    """A scratch repository and a runner: call it with a step's id and inputs, get its outputs, summary and what it printed."""
    repository = tmp_path / "repository"
    (repository / "mylib").mkdir(parents=True)
    (repository / "pyproject.toml").write_text(
        '[project]\nname = "mylib"\nversion = "1.0.0"\nrequires-python = ">=3.10"\ndependencies = [\n  "torch>=2.6",\n  "deepspeed>=0.16",\n]\n',
        encoding="utf-8",
    )
    git = ["git", "-c", "user.email=a@example.invalid", "-c", "user.name=a"]
    subprocess.run([*git, "init", "-q"], cwd=repository, check=True)
    subprocess.run([*git, "add", "-A"], cwd=repository, check=True)
    subprocess.run([*git, "commit", "-qm", "one"], cwd=repository, check=True)
    temporary = tmp_path / "temp"
    program = temporary / "envsmith" / "bin" / "envsmith"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m envsmith "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)

    def run(step: str, **inputs: str):
        given = {name: value.get("default", "") for name, value in ACTION["inputs"].items()} | inputs
        output, summary = temporary / "output", temporary / "summary"
        output.write_text("", encoding="utf-8")
        summary.write_text("", encoding="utf-8")
        environment = {
            **os.environ,
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            "RUNNER_TEMP": str(temporary),
            **{name: _evaluate(text, given) for name, text in STEPS[step].get("env", {}).items()},
        }
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]]
        done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
        outputs = dict(line.split("=", 1) for line in output.read_text(encoding="utf-8").splitlines())
        return done, outputs, summary.read_text(encoding="utf-8")

    run.repository = repository
    return run


def _evaluate(text: str, inputs: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        expression = match[1].strip()
        if expression == "github.action_path":
            return str(ROOT)
        return inputs[expression.removeprefix("inputs.")]

    return re.sub(r"\$\{\{(.*?)\}\}", value, text)


def test_check_writes_sarif_annotations_and_a_summary(runner):
    done, outputs, summary = runner("check")
    assert done.returncode == 0, done.stderr
    log = json.loads(Path(outputs["sarif"]).read_text(encoding="utf-8"))
    results = log["runs"][0]["results"]
    assert results
    for result in results:
        where = result["locations"][0]["physicalLocation"]
        assert where["artifactLocation"]["uri"] == "pyproject.toml"
        assert where["region"]["startLine"] >= 1
    commands = [line for line in done.stdout.splitlines() if line.startswith("::")]
    assert len(commands) == len(results)
    assert all(
        re.match(r"::(error|warning|notice) file=pyproject\.toml,line=\d+,title=envsmith [^:]+::.", c) for c in commands
    )
    assert summary.startswith("### envsmith: mylib")


def test_fail_on_decides_the_exit_code(runner):
    assert runner("check", **{"fail-on": "note"})[0].returncode == 1
    assert runner("check", **{"fail-on": "never"})[0].returncode == 0


def test_since_compares_with_a_revision(runner):
    path = runner.repository / "pyproject.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("torch>=2.6", "torch>=2.9"), encoding="utf-8")
    done, _, summary = runner("check", since="HEAD")
    assert "ci-support-dropped" in done.stdout
    assert "no longer possible: torch" in summary


def test_the_matrix_is_what_github_expects(runner):
    done, outputs, _ = runner("matrix")
    assert done.returncode == 0, done.stderr
    matrix = json.loads(outputs["matrix"])
    assert list(matrix) == ["include"]
    jobs = matrix["include"]
    assert len(jobs) == int(outputs["jobs"]) <= 256
    assert len({json.dumps(j, sort_keys=True) for j in jobs}) == len(jobs)
    assert len({j["id"] for j in jobs}) == len(jobs)
    assert {"python", "torch", "deepspeed", "constraints", "runner", "expect"} <= set(jobs[0])


def test_the_matrix_is_small_when_nothing_changed(runner):
    done, outputs, _ = runner("matrix", since="HEAD")
    assert done.returncode == 0, done.stderr
    assert int(outputs["jobs"]) == 2


def test_an_unknown_job_is_refused_with_the_nearest(runner):
    done, _, _ = runner("run", job="ds0.19.8-torch9.9")
    assert done.returncode == 2
    assert "hint: Try ds0.19.8" in done.stderr


def test_hostile_inputs_reach_no_shell(runner):
    runner("check", since="$(touch pwned)", directory=".")
    runner("run", job="`touch pwned`; touch pwned")
    assert not (runner.repository / "pwned").exists()


def test_expressions_stand_in_env_only():
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", "")


def test_foreign_actions_are_pinned_by_commit():
    for step in ACTION["runs"]["steps"]:
        if "uses" in step:
            assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", step["uses"])
