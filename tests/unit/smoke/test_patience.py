"""A busy machine is slow, not broken: what waits for a processor is waited for, what sleeps or loops is not, and neither is the cell's fault."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from envsmith.agent.processes import Patience, of_session, process_state, starved
from envsmith.errors import SmokeError
from envsmith.model.record import Rung, StepOutcome, Verdict
from envsmith.smoke.failure import failure_of
from envsmith.smoke.plan import Plan
from envsmith.smoke.run import LocalTarget, probe
from envsmith.smoke.verdict import judge


@pytest.fixture
def started():
    """Starts Python in a session of its own; ended at the end."""
    running = []

    def start(code: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True, stdout=subprocess.PIPE)
        running.append(process)
        assert process.stdout
        process.stdout.readline()
        return process

    yield start
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout:
            process.stdout.close()


LOOPS = "print('.', flush=True)\nwhile True: pass"
SLEEPS = "import time; print('.', flush=True); time.sleep(600)"


def test_who_wants_to_run_and_has_had_little_is_starved(started) -> None:
    assert starved([started(LOOPS).pid], waited=3600.0)


def test_who_sleeps_is_not_starved_however_little_it_has_had(started) -> None:
    pid = started(SLEEPS).pid
    until = time.monotonic() + 60
    while process_state(pid)[0] != "S" and time.monotonic() < until:
        time.sleep(0.05)  # what it printed is here before it sleeps
    assert not starved([pid], waited=3600.0, samples=3)


def test_who_has_had_its_time_is_not_starved(started) -> None:
    process = started(LOOPS)
    until = time.monotonic() + 60
    while process_state(process.pid)[1] < 20 and time.monotonic() < until:
        time.sleep(0.05)
    assert not starved([process.pid], waited=20 / os.sysconf("SC_CLK_TCK"))


def test_compiler_that_a_rank_started_belongs_to_its_session(started) -> None:
    code = (
        "import subprocess,sys; subprocess.Popen([sys.executable,'-S','-c','import time; time.sleep(600)']); " + SLEEPS
    )
    process = started(code)
    assert len(of_session(process.pid)) == 2


def test_patience_ends_at_four_limits_and_where_the_plan_has_none() -> None:
    patience = Patience(is_starved=lambda *_: True)
    assert patience.extends([1], 399.0, 100.0)
    assert not patience.extends([1], 401.0, 100.0)
    assert not Patience(allowed=False, is_starved=lambda *_: True).extends([1], 101.0, 100.0)


def _late() -> list[dict[str, object]]:
    detail = "`import torch` did not end within 480 s (load 29 on 2 processors)"
    return [{"event": "hello"}, {"event": "halt", "run": "import", "reason": "import", "detail": detail, "code": 5}, {"event": "bye", "seconds": {}}]  # fmt: skip


def test_import_that_did_not_end_is_told_with_the_load_and_is_the_host_s() -> None:
    result = judge(Plan.build({"torch": "2.13.0", "deepspeed": "0.19.8"}), _late())
    assert result.summary.startswith("`import torch` did not end within 480 s (load 29 on 2 processors)")
    failure = failure_of(result, (Rung.INSTALLED,))
    assert failure is not None
    assert (failure.rung, failure.of_host) == (Rung.IMPORTED, True)
    assert "did not end within 480 s" in failure.symptom


def test_step_that_was_not_reached_is_not_the_symptom() -> None:
    result = judge(Plan.build({"torch": "2.13.0", "deepspeed": "0.19.8"}), _late())
    assert StepOutcome(name="deepspeed zero-2 fp32", verdict=Verdict.NOT_RUN, detail="the run ended before this step") in result.steps  # fmt: skip


@pytest.mark.parametrize(("content", "mode", "words"), [("#!/bin/sh\necho no such module >&2\nexit 3\n", 0o755, "(status 3): no such module"), ("", 0o644, "Permission denied.")])  # fmt: skip
def test_interpreter_that_does_not_answer_is_told_with_its_own_words(tmp_path, content, mode, words) -> None:
    python = tmp_path / "python"
    python.write_text(content)
    python.chmod(mode)
    with pytest.raises(SmokeError) as caught:
        probe(LocalTarget(python=python))
    assert words in caught.value.message
    assert "--python" in (caught.value.hint or "")
