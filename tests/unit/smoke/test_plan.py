"""What a smoke test runs: cases of each tier, the digest of their list, the plan as JSON."""

from __future__ import annotations

import json

import pytest

from envsmith.agent.cases import OPERATIONS
from envsmith.agent.steps import STEPS
from envsmith.errors import UsageError
from envsmith.frameworks import FRAMEWORKS, added_frameworks
from envsmith.knowledge.graph.stacks import find_stack
from envsmith.model.cell import Cell
from envsmith.smoke.cases import full_cases, quick_cases
from envsmith.smoke.plan import Plan, Tier, framework_steps

TORCH = {"torch": "2.13.0+cpu", "deepspeed": "0.19.8"}


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("cases", [quick_cases, full_cases])
def test_case_names_are_unique_and_every_operation_is_known_to_the_agent(cases, ranks) -> None:
    found = cases(ranks)
    assert len({case.id for case in found}) == len(found)
    assert {case.op for case in found} <= set(OPERATIONS)


def test_quick_tier_has_at_least_85_cases_and_full_at_least_1200_verifiable_ones() -> None:
    assert len(quick_cases(4)) >= 85
    plan = Plan.build(TORCH, tier="full")
    to_be_verified = [c for c in plan.cases if plan.expect(c.id, "gloo").expect == "ok"]
    assert len(to_be_verified) >= 1200


def test_every_root_is_asked_in_both_tiers() -> None:
    for cases in (quick_cases(4), full_cases(4)):
        for op in ("broadcast", "reduce", "gather", "scatter"):
            assert {c.root for c in cases if c.op == op and c.rooted} == {0, 1, 2, 3}


def test_every_operation_of_the_agent_is_asked_by_the_full_tier() -> None:
    full = {op for op in OPERATIONS if not op.startswith("bw_")}
    assert {case.op for case in full_cases(4)} == full


def test_reinitialisation_is_the_last_case_because_it_destroys_the_groups() -> None:
    assert full_cases(4)[-1].op == "reinit"
    assert sum(case.op == "reinit" for case in full_cases(4)) == 1


def test_digest_depends_on_the_cases_only() -> None:
    plain = Plan.build(TORCH)
    assert plain.digest == Plan.build({"torch": "2.15.0"}, backend="nccl").digest
    assert plain.digest != Plan.build(TORCH, ranks=2).digest
    assert plain.digest != Plan.build(TORCH, tier="full").digest


def test_plan_is_one_line_of_json_that_says_everything() -> None:
    document = json.loads(json.dumps(Plan.build(TORCH, tier=Tier.FULL).to_json()))
    assert document["digest"].startswith("sha256:")
    assert document["ranks"] == 4
    assert {"import", "init", "first", "case", "group", "tier"} <= set(document["timeouts"])
    assert any(row.get("expected", {}).get("gloo", {}).get("expect") == "refused" for row in document["cases"])


def test_plan_of_a_cell_carries_its_frameworks_and_id() -> None:
    cell = Cell(
        components={"deepspeed": "0.19.8", "torch": "2.13.0+cu130", "cuda": "13.0", "python": "3.12"},
        chosen=("deepspeed", "torch", "cuda", "python"),
    )
    plan = Plan.build(cell)
    assert plan.cell == "ds0.19.8-torch2.13.0-cu130-py312"
    assert [step.kind for step in plan.steps] == ["deepspeed-zero"]


def test_deadlines_nest() -> None:
    for tier in ("quick", "full"):
        t = Plan.build(TORCH, tier=tier).timeouts
        # A starved rank gets four deadlines before it is called stuck: torch's own timeout must not come first.
        assert 4 * t.case < t.group
    assert Plan.build(TORCH).outer_deadline > Plan.build(TORCH).timeouts.tier + 300


@pytest.mark.parametrize(
    "bad", [{"ranks": 0}, {"ranks": 1025}, {"sharing": "mps"}, {"backend": "mpi"}, {"tier": "slow"}, {"engine": "3"}]
)
def test_nonsense_is_a_usage_error(bad) -> None:
    with pytest.raises(UsageError):
        Plan.build(TORCH, **bad)


def test_what_a_cell_asks_for_beside_its_components_is_imported() -> None:
    cell = Cell(
        components=TORCH, chosen=("torch",), further=("wandb>=0.18", "Hydra_Core ==1.3.2 --hash=sha256:" + "0" * 64)
    )

    step = Plan.build(cell).steps[-1]

    assert (step.kind, step.options) == ("imports", {"distributions": ["hydra-core", "wandb"]})


def test_each_framework_has_one_step_in_quick_and_all_known_ones_in_the_framework_tier() -> None:
    frameworks = dict.fromkeys(FRAMEWORKS, "1")
    assert len(framework_steps(dict.fromkeys(added_frameworks(), "1"), every=False, control=False)) == len(
        added_frameworks()
    )
    every = framework_steps(frameworks, every=True, control=True)
    of_packages = {"imports", "stack"}
    assert {step.kind for step in every} == set(STEPS) - of_packages
    assert {step.options.get("stage") for step in every if step.kind == "deepspeed-zero"} == {0, 1, 2, 3}
    assert all(step.why or step.stops_with for step in every if step.needs == "gpu"), (
        "skipped with a reason, or tried and stopped with one"
    )
    assert all(step.issues for step in every if step.needs != "gpu")


def test_framework_tier_runs_the_quick_cases_first_unless_they_are_left_out() -> None:
    assert Plan.build(TORCH, tier="framework").cases == Plan.build(TORCH).cases
    alone = Plan.build(TORCH, tier="framework").with_(cases=())
    assert not alone.cases
    assert alone.steps


def test_a_cell_of_torch_has_every_step_of_torch_and_another_cell_only_its_control() -> None:
    own = Plan.build({"torch": "2.9.1"}, tier="framework").steps
    control = Plan.build({"torch": "2.9.1"}, tier="quick").steps
    assert len(own) > len(control)
    assert Plan.build({"torch": "2.9.1", "accelerate": "1.15.0"}, tier="framework").steps[: len(control)] == control
    assert {"torch checkpoint resharded fp32"} <= {s.name for s in own}
    assert not [s for s in Plan.build({"torch": "2.9.1", "accelerate": "1.15.0"}).steps if s.name.startswith("torch ")]


def test_both_nccl_engines_of_torch_2_15_are_in_the_framework_tier() -> None:
    def engines(torch: str) -> set[object]:
        return {step.options.get("engine") for step in Plan.build({"torch": torch}, tier="framework").steps}

    assert engines("2.15.0+cu132") == {None, "2", "legacy"}
    assert engines("2.14.1") == {None}


def test_framework_tier_spreads_megatron_in_every_way() -> None:
    options = [step.options for step in framework_steps({"megatron-core": "1"}, every=True, control=False)]
    for key in ("tp", "pp", "cp", "ep"):
        assert {2} <= {row.get(key) for row in options}
    assert any(row.get("sequence_parallel") for row in options)


def test_context_parallelism_of_a_whole_layer_trains_in_bfloat16_where_only_fused_attention_can_do_it() -> None:
    steps = {step.name: step for step in framework_steps({"megatron-core": "0.16.1"}, every=True, control=False)}
    (name,) = [name for name, step in steps.items() if step.options.get("cp")]
    assert name == "megatron-core gpt cp=2 bf16"
    assert steps[name].options["dtype"] == "bfloat16"
    assert not steps[name].family, "its losses are not those of float32"
    assert all(name.endswith("fp32") for name, step in steps.items() if "dtype" not in step.options)


def test_a_cell_with_all_members_of_a_stack_has_the_step_that_trains_with_them() -> None:
    members = dict.fromkeys(find_stack("hf").requires, "1.0")
    plan = Plan.build({"torch": "2.13.0", **members}, tier="quick")
    assert [step.name for step in plan.steps] == ["accelerate ddp fp32", "stack hf"]
    assert plan.steps[-1].options["trainer"] == "trl"
    assert "stack hf" not in [step.name for step in Plan.build({"torch": "2.13.0", "peft": "0.17.1"}).steps]
