"""What the flags of several verbs mean."""

from __future__ import annotations

import pytest

from envsmith.cli.flags import RequestFlags, exit_code
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity


@pytest.mark.parametrize(("fail_on", "code"), [("note", 1), ("warning", 1), ("error", 0), ("never", 0)])
def test_a_finding_as_severe_as_fail_on_says_makes_the_exit_code_1(fail_on, code):
    finding = Finding(rule="r", severity=Severity.WARNING, components={}, message="m")
    assert exit_code([finding], fail_on) == code


def test_a_stack_asks_for_its_members_and_a_further_flag_narrows_them():
    request = RequestFlags(stack=("hf",), with_=("transformers<5",), torch="2.13").request()
    assert list(request.frameworks) == ["accelerate"]
    assert {"peft", "trl", "datasets", "bitsandbytes", "safetensors"} <= request.constraints.keys()
    assert request.constraints["transformers"].contains("4.57.1")
    assert not request.constraints["transformers"].contains("5.0.0")


def test_what_a_lock_was_made_from_names_the_stack():
    assert "--stack hf" in RequestFlags(stack=("hf",)).text()
    assert RequestFlags(stack=("hf",)).names_something
