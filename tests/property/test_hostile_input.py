"""Hostile input: every reader gives a value or one of our errors, and every verb an exit code of the table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tests" / "fuzz")]

from fuzz_readers import READERS, once  # noqa: E402
from hostile import inputs  # noqa: E402

EXAMPLES = int(os.environ.get("ENVSMITH_FUZZ_EXAMPLES", "10"))


# Whole, some of these inputs keep a reader busy for half a minute. What goes up with the square of a length shows in a part too.
@pytest.mark.parametrize("length", [30_000, pytest.param(None, marks=pytest.mark.slow)], ids=["begin", "whole"])
@pytest.mark.parametrize("name", READERS)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.sampled_from(inputs.CONTENTS))
def test_every_reader_answers_hostile_bytes(name: str, length: int | None, content: bytes) -> None:
    once(name, content[:length].decode("utf-8", "surrogateescape"))


@pytest.mark.slow
@pytest.mark.parametrize(("attack", "share"), [("inputs", "0.008"), ("secrets", "0.05"), ("mend", "0.05")])
def test_an_attack_breaks_nothing(attack: str, share: str) -> None:
    command = [sys.executable, str(ROOT / "bench" / "robust.py"), attack, "--scale", share]

    finished = subprocess.run(command, capture_output=True, text=True, check=False)

    assert finished.returncode == 0, finished.stdout + finished.stderr
