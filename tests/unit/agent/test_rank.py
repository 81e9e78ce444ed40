"""What a raise in a framework's step says."""

from __future__ import annotations

from envsmith.agent.protocol import NO_GPU, NO_MEMORY, NO_TIME, Board, Phase, Skip
from envsmith.agent.rank import _stopped
from envsmith.agent.steps.stage import Stage
from envsmith.model.record import Unmet


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
    assert row["unmet"] == NO_GPU


def test_what_a_case_or_step_lacks_is_a_word_that_the_judge_knows() -> None:
    assert [unmet.value for unmet in Unmet] == [NO_TIME, NO_MEMORY, NO_GPU]
    assert Skip("memory: much", NO_MEMORY).row() == {"status": "skipped", "detail": "memory: much", "unmet": "memory"}
    assert Skip("no peer").row() == {"status": "skipped", "detail": "no peer"}


def test_import_of_a_framework_is_a_stage_of_its_own_kind() -> None:
    stage, board = Stage.__new__(Stage), Board()
    stage.rank, stage.board, stage.at, stage.job = 0, board, 0, {}

    stage.enter_import("deepspeed")
    during = (stage.in_import, *board.row(0)[:2], board.row(0)[3])
    stage.enter("train step 0")

    assert during == (True, 0, Phase.PREP, "import deepspeed")
    assert (stage.in_import, board.row(0)[1]) == (False, Phase.ENTERED)
