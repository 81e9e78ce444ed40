"""What a step of DeepSpeed leaves out on the CPU, where it would compile, and what it says of that."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest

from envsmith.agent.steps import deepspeed as steps

OP = "deepspeed_shm_comm"


@dataclass
class _Stage:
    """A rank that notes where it is."""

    cuda: bool = False
    stages: list[str] = field(default_factory=list)

    def enter(self, what: str) -> None:
        self.stages.append(what)

    def enter_import(self, module: str) -> None:
        self.stages.append(f"import {module}")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A DeepSpeed that would compile its op, as releases since 0.14.1 do."""
    stand_in = ModuleType("deepspeed")
    stand_in.ops = SimpleNamespace(__compatible_ops__={OP: True, "cpu_adam": True})  # type: ignore[attr-defined]
    compiled: list[str] = []

    def init_distributed() -> None:
        compiled.extend([OP] if stand_in.ops.__compatible_ops__[OP] else [])

    stand_in.compiled = compiled  # type: ignore[attr-defined]
    stand_in.init_distributed = init_distributed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed", stand_in)
    return stand_in


def test_op_for_the_cpu_is_left_out_and_the_record_is_told(module) -> None:
    facts = steps.init_deepspeed(_Stage())
    assert facts == {"ops left out": [OP]}
    assert module.compiled == []
    assert module.ops.__compatible_ops__ == {OP: False, "cpu_adam": True}


def test_nothing_is_changed_on_a_gpu(module) -> None:
    assert steps.init_deepspeed(_Stage(cuda=True)) == {}
    assert module.compiled == [OP]


@pytest.mark.parametrize("ops", [{}, {"cpu_adam": True}, {OP: False}], ids=["none", "another", "not-compatible"])
def test_release_without_the_op_says_nothing_of_it(module, ops) -> None:
    module.ops.__compatible_ops__ = ops
    assert steps.leave_out_cpu_op(_Stage()) == {}


def test_release_without_a_list_of_ops_is_left_alone(module) -> None:
    module.ops = SimpleNamespace()
    assert steps.leave_out_cpu_op(_Stage()) == {}


def test_stage_is_named_before_what_may_hang(module) -> None:
    stage = _Stage()
    steps.init_deepspeed(stage)
    assert stage.stages == ["import deepspeed", "deepspeed.init_distributed"]
