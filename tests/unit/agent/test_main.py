"""The agent's beginning and end, without torch."""

from __future__ import annotations

import subprocess
import sys

from envsmith.agent.protocol import Exit
from envsmith.smoke import run
from envsmith.smoke.bundle import bundle


def test_bootstrap_runs_the_source_from_standard_input_and_complains_about_a_missing_torch() -> None:
    plan = b'{"cases":[],"steps":[],"ranks":2,"backend":"gloo","timeouts":{"import":20,"init":5,"first":5,"case":1,"group":9,"tier":9}}'
    with subprocess.Popen(
        [sys.executable, "-S", *run.agent_arguments()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(run.agent_input(plan))
        process.stdin.flush()
        said = process.stdout.read()
    assert process.returncode == Exit.CONFIGURATION
    assert b"No module named 'torch'" in said


def test_agent_ends_when_its_outer_parent_goes_away() -> None:
    plan = b'{"cases":[],"steps":[],"ranks":2,"backend":"gloo","timeouts":{"import":20,"init":5,"first":5,"case":1,"group":9,"tier":9}}'
    done = subprocess.run(
        [sys.executable, "-S", *run.agent_arguments()],
        input=run.agent_input(plan),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert b'"event":"bye"' in done.stdout


def test_agent_without_a_plan_says_what_it_needs(tmp_path) -> None:
    path = tmp_path / "agent.py"
    path.write_bytes(bundle())
    done = subprocess.run([sys.executable, "-I", str(path)], capture_output=True, timeout=30, check=False, text=True)
    assert done.returncode == Exit.CONFIGURATION
    assert "--plan" in done.stderr
