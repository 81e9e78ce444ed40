"""What a step may ask of the place where it is run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from envsmith.agent.protocol import NO_GPU, Skip
from envsmith.agent.steps.stage import Stage


def test_program_that_takes_a_gpu_for_each_rank_is_not_asked_where_ranks_share_one() -> None:
    shared, own = SimpleNamespace(job={"sharing": "hostid"}), SimpleNamespace(job={"sharing": ""})
    Stage.need_own_gpu(own, "Lightning")
    with pytest.raises(Skip, match="Lightning takes a GPU for each rank") as refusal:
        Stage.need_own_gpu(shared, "Lightning")
    assert refusal.value.unmet == NO_GPU
