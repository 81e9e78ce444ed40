"""What a raise in a framework's step says."""

from __future__ import annotations

from envsmith.agent.rank import _stopped


def _stage(told: str, cuda: bool) -> object:
    import types

    return types.SimpleNamespace(step={"stops_with": told}, cuda=cuda, in_import=False)


def test_step_that_stops_for_want_of_a_gpu_is_skipped_with_the_words_and_any_other_raise_is_an_error() -> None:
    row = _stopped(_stage("device is required", cuda=False), AssertionError("device is required"), "train step 0")
    assert row["status"] == "skipped"
    assert row["facts"]["needs a GPU"]["error"] == "AssertionError: device is required"
    assert _stopped(_stage("device is required", cuda=False), AssertionError("out of luck"), "")["status"] == "error"
    assert (
        _stopped(_stage("device is required", cuda=True), AssertionError("device is required"), "")["status"] == "error"
    )
    assert _stopped(_stage("", cuda=False), AssertionError("device is required"), "")["status"] == "error"
