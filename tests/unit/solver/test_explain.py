"""`explain`: why a cell, what a rule rules out, what an upgrade would change."""

from __future__ import annotations

import pytest

from envsmith.errors import UsageError
from envsmith.model.cell import Platform, Request, WheelPolicy
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.version import Spec
from envsmith.solver import solve
from envsmith.solver.explain import explain_cell, explain_rule, explain_upgrade


def test_cell_says_what_is_newer_and_which_rule_keeps_it_out(solver):
    found = explain_cell("alpha1.1.0-torch2.2.0-cu121-py311", solver=solver)
    text = "\n".join(found.sentences)
    assert "alpha 1.1.0 with torch 2.2.0+cu121 is tested (ci)" in text
    assert "alpha >=1.0.0,<=1.1.0 declares torch >=2.1,<2.3" in text
    assert "It could be had by giving up alpha 1.1.0 for" in text
    assert "alpha-declares-torch" in [m.rule for m in found.members]
    assert found.evidence


def test_impossible_cell_is_explained_by_its_conflict(solver):
    found = explain_cell("beta0.2-torch2.3.0-cu126-py311", solver=solver)
    assert "is not a valid cell" in found.sentences[0]
    assert found.repairs


def test_rule_says_what_it_rules_out_and_what_to_do(solver):
    text = "\n".join(explain_rule("cuda-driver-floor", solver=solver).sentences)
    assert "CUDA 13.* needs driver >=580" in text
    assert "It rules out 4 of 15 pairs of cuda and driver releases" in text
    assert "What to do: update the driver" in text


def test_unknown_rule_names_the_nearest(solver):
    with pytest.raises(UsageError) as caught:
        explain_rule("cuda-driver-flor", solver=solver)
    assert "cuda-driver-floor" in (caught.value.hint or "")


def test_upgrade_that_is_free_says_so(solver):
    found = explain_upgrade("alpha2.0.0-torch2.2.0-cu121-py311", {"torch": Spec.parse(">=2.3")}, solver=solver)
    assert found.sentences[0].startswith("Nothing blocks torch >=2.3: torch 2.2.0+cu121 becomes 2.3.0+cu130")


def test_blocked_upgrade_names_the_component_since_when_and_what_must_change(solver):
    found = explain_upgrade("alpha1.1.0-torch2.2.0-cu121-py311", {"torch": Spec.parse(">=2.3")}, solver=solver)
    text = "\n".join(found.sentences)
    assert "alpha 1.1.0 (published 2024-07-01) blocks torch >=2.3" in text
    assert "so since alpha 1.0.0 of 2024-02-01" in text
    assert "What must change: alpha 2.0.0 instead of ==1.1.0" in text


@pytest.mark.parametrize("cell", ["", "nonsense", "x1-y2", "alpha-torch"])
def test_text_that_is_no_cell_is_a_usage_error(solver, cell):
    with pytest.raises(UsageError):
        explain_cell(cell, solver=solver)


def why(solver, **request):
    return solve(Request(**{"frameworks": {"alpha": Spec.parse("*")}} | request), solver=solver).why


def test_newer_release_is_kept_out_by_the_rule_that_forbids_it(solver):
    sentences = why(solver, constraints={"torch": Spec.parse("==2.1.0")})
    assert (
        "alpha 1.1.0: 2.0.0 is newer, but alpha >=2.0.0,<=2.1.0rc1 declares torch >=2.2 and torch ==2.1.0 was asked for."
        in sentences
    )


def test_first_python_that_was_not_chosen_is_kept_out_by_the_warning_that_it_would_bring(solver):
    expected = (
        "Python 3.11: 3.12 is the usual choice, but alpha >=2, torch 2.3 and python 3.12:"
        " the compiler refuses Python 3.12 (a warning)."
    )
    assert expected in why(solver)


def test_reason_beside_an_earlier_choice_is_a_rule_about_that_choice(solver):
    sentences = why(solver, frameworks={"beta": Spec.parse("*")})
    assert "2.4.0 is newer, but beta >=0.1,<=0.2 declares torch <=2.2.0." in " ".join(sentences)


def test_newest_release_of_a_day_is_not_called_the_newest(solver):
    sentences = why(solver, exclude_newer="2024-08-01")
    assert "alpha 1.1.0: the newest release that the request admits." in sentences


def test_companion_that_is_the_newest_needs_no_sentence_and_an_older_one_has_its_reason(solver):
    newest = why(solver, constraints={"numpy": Spec.parse("*")})
    older = why(solver, frameworks={"alpha": Spec.parse("<2")}, constraints={"numpy": Spec.parse("*")})
    assert not [s for s in newest if s.startswith("numpy")]
    assert [s for s in older if s.startswith("numpy 1.26.4: 2.1.0 is newer, but alpha <2 and numpy >=2.0")]


def test_same_reason_is_given_once(solver):
    sentences = why(solver, frameworks={"alpha": Spec.parse("<2")})
    assert len([s for s in sentences if "alpha >=1.0.0,<=1.1.0 declares torch >=2.1,<2.3" in s]) == 1


def test_release_that_came_out_long_after_its_neighbours_is_passed_over_for_that():
    request = Request(frameworks={"colossalai": Spec.parse("==0.5.0")}, constraints={"numpy": Spec.parse("*")})
    (sentence,) = [s for s in solve(request).why if s.startswith("numpy")]
    assert "is newer, but it came out on 202" in sentence
    assert sentence.endswith("months after colossalai 0.5.0 of 2025-06-04.")


def test_newer_torch_whose_default_build_cannot_be_had_is_passed_over_for_the_default_index():
    sentences = why(None, frameworks={"deepspeed": Spec.parse("==0.18.3")}, gpus=("sm_61",), constraints={
        "torch": Spec.parse(">=2.7,<2.10"), "transformers": Spec.parse("==4.57.3")})  # fmt: skip

    (passed_over,) = (s for s in sentences if s.startswith("torch 2.9.1 is newer"))
    assert "torch 2.9.1+cu128 is compiled for sm_70" in passed_over
    assert passed_over.endswith("a build of the PyTorch index: one of the default index comes first.")


@pytest.mark.parametrize(
    ("framework", "constraints"),
    [("==0.11.1", {}), ("*", {"cuda": Spec.parse("==11.7"), "python": Spec.parse("==3.7")})],
    ids=["the release ran in another build", "only a build without CUDA ran"],
)
def test_tested_torch_that_would_not_come_first_is_not_named(framework, constraints):
    sentences = why(None, frameworks={"deepspeed": Spec.parse(framework)}, constraints=constraints)

    passed_over = [s for s in sentences if "was tested as well" in s]
    assert not [s for s in passed_over if "the usual order" in s or "without CUDA" in s]


@pytest.mark.parametrize(
    ("framework", "cuda", "sentence"),
    [
        ("colossalai", "*", "torch 1.13.0 to 2.5.1 are compiled for"),
        ("deepspeed", "12.6", "torch 2.6.0 to 2.14.1 with CUDA 12.6 are compiled for"),
    ],
)
def test_refusal_of_a_gpu_names_those_builds_only_that_do_not_run_there(framework, cuda, sentence):
    wishes = {"frameworks": {framework: Spec.parse("*")}, "constraints": {"cuda": Spec.parse(cuda)}}

    (message,) = [m for m in conflict(gpus=("sm_120",), **wishes) if "compiled for" in m]

    assert message.startswith(sentence)


def conflict(**request):
    with pytest.raises(UnsatisfiableError) as caught:
        solve(Request(**request))
    return [member.message for member in caught.value.refusal.conflict]


def test_what_every_build_says_is_never_unknown_in_a_refusal():
    wishes = {"frameworks": {"megatron-core": Spec.parse("*")}, "constraints": {"flash-attn": Spec.parse("*")}}

    messages = conflict(driver="525.60.13", gpus=("sm_80",), wheels=WheelPolicy.NONE, **wishes)

    assert len(messages) == 3
    assert not [m for m in messages if "not known" in m]


def test_build_that_the_platform_does_not_have_is_not_one_of_unknown_gpus():
    wishes = {"frameworks": {"deepspeed": Spec.parse("*")}, "constraints": {"torch": Spec.parse("2.1")}}

    messages = conflict(gpus=("sm_75",), platform=Platform.LINUX_AARCH64, **wishes)

    expected = "no build of torch 2.1.0, 2.1.1 and 2.1.2 for linux-aarch64 is known to run on a GPU"
    assert messages == ["torch 2.1 was asked for", expected]


def test_refusal_of_a_cuda_counts_the_builds_of_the_platform_only():
    wishes = {"frameworks": {"megatron-core": Spec.parse("*")}, "constraints": {"cuda": Spec.parse("11.8")}}

    messages = conflict(platform=Platform.LINUX_AARCH64, **wishes)

    assert messages == ["cuda 11.8 was asked for", "no known build of torch for linux-aarch64 is made with CUDA 11.8"]


def test_every_row_that_keeps_a_release_out_is_named_where_a_rule_has_several():
    wishes = {"frameworks": {"colossalai": Spec.parse("==0.4.9")}, "constraints": {"python": Spec.parse("3.13")}}

    (message,) = [m for m in conflict(**wishes) if "do not work together" in m]

    assert "torch >=2.2,<2.4 and python >=3.12" in message
    assert "torch >=2.4,<2.6 and python >=3.13" in message


def test_cuda_of_builds_is_named_from_the_oldest_to_the_newest():
    messages = conflict(frameworks={}, constraints={"torch": Spec.parse("2.11")}, driver="470.82.01")

    assert "torch 2.11.0 is built with CUDA 12.6 to 13.0" in messages


@pytest.mark.parametrize(
    ("request_of", "sentence"),
    [
        (
            {"constraints": {"numpy": Spec.parse("==99")}},
            "numpy 99: envsmith knows no such release (the newest known is 2.1.0). A lock asks the index for it.",
        ),
        ({"driver": "9999"}, "driver 9999: newer than all that envsmith knows (the newest known is 580.65.06)."),
    ],
)
def test_what_the_cell_has_on_the_word_of_the_request_alone_is_said(solver, request_of, sentence):
    assert sentence in why(solver, **request_of)


def test_a_driver_of_a_branch_that_is_known_needs_no_word(solver):
    assert not any("driver" in each for each in why(solver, driver="580.99"))
