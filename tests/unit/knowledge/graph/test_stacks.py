"""Stacks: packages that people install together, read from their files, and the step that proves them."""

from __future__ import annotations

import pytest

from envsmith.agent.steps import STEPS
from envsmith.agent.steps.tiny import MODELS
from envsmith.agent.steps.trainers import TRAINERS
from envsmith.errors import DataError, UsageError
from envsmith.knowledge.graph.stacks import find_stack, load_stacks, stack_names, stacks_of

HEAD = "schema: 1\ntitle: A stack\nevidence: {read: {kind: documented, source: somewhere, date: 2026-11-23}}\n"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "stacks").mkdir()
    return tmp_path


def test_every_stack_has_members_evidence_and_a_step_that_the_agent_knows():
    stacks = load_stacks()
    assert list(stacks) == stack_names()
    for stack in stacks.values():
        assert len(stack.distributions) == len(stack.requires)
        assert stack.evidence
        assert stack.step.kind in STEPS
        if stack.training is not None:
            assert stack.step.options["trainer"] in TRAINERS
            assert stack.training.model in MODELS


def test_a_stack_without_training_is_proved_by_its_imports():
    step = find_stack("rlhf").step
    assert (step.kind, step.trains) == ("imports", False)
    assert step.options["distributions"] == ["verl", "vllm", "ray", "transformers", "peft", "datasets", "tensordict"]


def test_a_stack_names_the_method_of_its_trainer_and_the_launcher_of_its_ranks():
    assert find_stack("grpo").step.options["trainer"] == "trl-grpo"
    assert find_stack("ray-deepspeed").step.launcher == "ray"
    assert find_stack("ray-deepspeed").step.options["trainer"] == "deepspeed"


def test_components_that_hold_all_members_are_of_the_stack_and_fewer_are_not():
    names = {"torch", "python", *find_stack("hf").requires}
    assert [stack.name for stack in stacks_of(names)] == ["hf"]
    assert stacks_of(names - {"peft"}) == ()


def test_a_stack_that_is_part_of_another_is_left_out(root):
    for name, members in (("small", '{peft: "*"}'), ("large", '{peft: "*", trl: "*"}')):
        (root / "stacks" / f"{name}.yaml").write_text(f"{HEAD}requires: {members}\n")
    stacks = load_stacks(root).values()
    assert [stack.name for stack in stacks_of({"peft", "trl"}, stacks)] == ["large"]
    assert [stack.name for stack in stacks_of({"peft"}, stacks)] == ["small"]


def test_an_unknown_stack_is_refused_with_those_that_exist():
    with pytest.raises(UsageError) as caught:
        find_stack("hff")
    assert "hf-deepspeed" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('requires: {petf: "*"}\n', "unknown component `petf`"),
        ('requires: {peft: "*"}\ntraining: {model: llama, trainer: trl}\n', "training.trainer: not a member"),
        ('requires: {peft: "*"}\ntraining: {model: bert, trainer: peft}\n', "training.model"),
        ('requires: {peft: "*"}\nimports: [peft]\n', "unknown key"),
        ("requires: [", "not valid YAML"),
    ],
)
def test_what_is_wrong_with_a_stack_stands_in_the_error(root, text, words):
    (root / "stacks" / "bad.yaml").write_text(HEAD + text)
    with pytest.raises(DataError) as caught:
        load_stacks(root)
    assert any("stacks/bad.yaml" in line and words in line for line in caught.value.details), caught.value.details
