"""Which cases a rank leaves out before it runs them, without torch."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envsmith.agent.cases.kit import Kit
from envsmith.agent.protocol import Skip


def _world(capability: tuple[int, int], *, backend: str = "nccl") -> Any:
    cuda = SimpleNamespace(get_device_capability=lambda _device: capability)
    torch = SimpleNamespace(float32="float32", cuda=cuda)
    groups = {"world": (None, [0, 1])}
    return SimpleNamespace(
        torch=torch,
        dist=None,
        over=False,
        size=2,
        rank=0,
        groups=groups,
        backend=backend,
        cuda=backend == "nccl",
        device=0,
    )


CASE = {"op": "all_reduce", "dtype": "float32", "n": 5, "expected": {"nccl": {"expect": "ok", "min_sm": 90}}}


@pytest.mark.parametrize("capability", [(7, 0), (8, 0), (8, 9)])
def test_case_that_needs_a_newer_gpu_is_left_out(capability: tuple[int, int]) -> None:
    with pytest.raises(Skip, match="needs sm_90"):
        Kit(_world(capability), 0, CASE, None)


@pytest.mark.parametrize("capability", [(9, 0), (10, 0), (12, 1)])
def test_case_runs_on_a_gpu_that_is_new_enough(capability: tuple[int, int]) -> None:
    assert Kit(_world(capability), 0, CASE, None).member


def test_what_a_gpu_must_be_is_not_asked_of_a_processor() -> None:
    assert Kit(_world((0, 0), backend="gloo"), 0, CASE, None).member
