"""Which schedule of a pipeline is not asked of which torch."""

from __future__ import annotations

import pytest

from envsmith.agent.steps.torch_parallel import reason_to_skip


@pytest.mark.parametrize(
    ("schedule", "backend", "torch", "skipped"),
    [
        ("Schedule1F1B", "gloo", "2.4.1+cu121", True),
        ("Schedule1F1B", "gloo", "2.5.1+cu124", True),
        ("ScheduleGPipe", "gloo", "2.5.1+cu124", False),
        ("Schedule1F1B", "nccl", "2.5.1+cu124", False),
        ("Schedule1F1B", "gloo", "2.6.0+cu124", False),
        ("Schedule1F1B", "gloo", "2.15.0+cu132", False),
    ],
)
def test_schedule_that_hangs_on_gloo_is_skipped_with_its_reason(schedule, backend, torch, skipped) -> None:
    reason = reason_to_skip(schedule, backend, torch)
    assert bool(reason) is skipped
    assert not skipped or "hangs on gloo" in reason
