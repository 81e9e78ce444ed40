"""What the knowledge amounts to: how many rules, known-bad cells and cells, and that nothing healthy is called bad."""

from __future__ import annotations

from itertools import islice

import pytest

from envsmith.knowledge.graph.tables import one_state
from envsmith.model.cell import Platform, Request
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.solver import cells, check, default_solver
from envsmith.solver.judge import judge
from envsmith.solver.known_bad import known_bad, stated_by_metadata

FRAMEWORKS = ("deepspeed", "megatron-core", "colossalai")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


@pytest.fixture(scope="module")
def knowledge():
    return default_solver().knowledge()


def test_a_hundred_rules_say_what_metadata_does_not(knowledge):
    assert sum(1 for rule in knowledge.rules if not stated_by_metadata(rule)) >= 100


def test_every_rule_has_evidence_and_a_cause(knowledge):
    assert not [r.id for r in knowledge.rules if not all(row.evidence for row in r.rows)]
    assert not [
        r.id for r in knowledge.rules if not stated_by_metadata(r) and not all(row.cause or r.cause for row in r.rows)
    ]


def test_trl_declares_what_its_metadata_says():
    judgement = check({"trl": "1.16.0", "torch": "2.5.1"})
    assert "trl-declares-torch" not in {finding.rule for finding in judgement.findings}


def test_a_hundred_and_fifty_known_bad_cells_with_what_a_user_sees(knowledge):
    bad = list(known_bad(knowledge))
    assert len(bad) >= 150
    assert sum(1 for _ in known_bad(knowledge, worst=True)) >= 150
    assert all(cell.symptom.strip() for cell in bad)


@one_state()
def missed(cells):
    """The known-bad cells that a judgement does not find by their rule, with what a user sees."""
    rows = []
    for cell in cells:
        judged = judge(default_solver(), cell.components, Platform.LINUX_64, mend=False)
        findings = [f for f in judged.findings if f.rule == cell.rule]
        if not findings or not all(f.symptom for f in findings):
            rows.append((cell.rule, dict(cell.components)))
    return rows


def test_check_finds_a_known_bad_cell_of_every_rule(knowledge):
    one_of_each_rule = {cell.rule: cell for cell in known_bad(knowledge)}
    assert missed(one_of_each_rule.values()) == []


@pytest.mark.slow
def test_check_finds_every_known_bad_cell_by_its_rule(knowledge):
    assert missed(known_bad(knowledge)) == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_default_requests_have_three_hundred_cells_over_the_pythons(framework):
    found = set()
    for python in PYTHONS:
        request = Request(frameworks={framework: Spec.parse("*")}, constraints={"python": Spec.parse(python)})
        found |= {str(cell.id) for cell in islice(cells(request), 200)}
    assert len(found) >= 300


def test_no_cell_that_a_framework_runs_or_ships_is_called_bad(healthy):
    allowed = [cell for cell in healthy if cell.declared]
    assert len(allowed) >= 100
    assert [(dict(c.given), [f.rule for f in c.alarms]) for c in allowed if c.alarms] == []


@pytest.mark.parametrize(
    ("given", "status", "rules"),
    [
        ({"torch": "2.9.1", "driver": "470.82.01"}, "bad", {"cuda-driver-floor"}),
        ({"torch": "2.13.0", "driver": "535.54.03"}, "bad", {"cuda-driver-floor"}),
        ({"torch": "2.13.0", "driver": "535.54.03", "toolkit": "12.6"}, "unknown", {"cuda-driver-floor"}),
        ({"torch": "2.13.0", "driver": "580.65.06"}, "ok", set()),
        ({"flash-attn": "*", "gpu": "v100"}, "bad", {"flash-attn-gpu"}),
        ({"deepspeed": "*", "gpu": "h100"}, "ok", set()),
        ({"deepspeed": "0.12.0", "python": "3.12", "setuptools": "none"}, "bad", {"deepspeed-needs-distutils"}),
        ({"deepspeed": "0.12.0", "python": "3.12", "setuptools": "75.0.0"}, "unknown", set()),
        ({"torch": "2.1.0.dev20230519+cu118", "deepspeed": "0.9.2"}, "unknown", {"deepspeed-cxx17"}),
        ({"torch": "2.1.2", "cuda": "12.4"}, "unknown", {"torch-bundles-cuda"}),
        ({"torch": "2.1.2+cu121", "cuda": "12.4"}, "bad", {"torch-bundles-cuda"}),
        ({"deepspeed": "0.5.1"}, "unknown", set()),
    ],
)
def test_set_is_judged_by_what_can_be_meant(given, status, rules):
    judgement = check(given)
    grave = {f.rule for f in judgement.findings if f.severity.value != "note"}
    assert (judgement.status, grave) == (status, rules)


@pytest.mark.parametrize(
    ("given", "component", "spec"),
    [
        ({"deepspeed": "0.14.0", "torch": "2.6.0"}, "deepspeed", ">=0.16,<0.17"),
        ({"torch": "2.9.1", "driver": "470.82.01"}, "torch", "==2.7.1+cu118"),
        ({"colossalai": "0.3.5", "python": "3.11"}, "colossalai", "==0.3.7"),
        ({"torch": "2.13.0", "gpu": "sm_70"}, "torch", "==2.13.0+cu126"),
    ],
)
def test_repair_is_near_and_goes_up_where_it_can(given, component, spec):
    repair = check(given).repair
    assert repair is not None
    (change,) = repair.changes
    assert change.component == component
    assert Spec.parse(spec).contains(change.new or "")


def test_tested_cells_show_hardly_a_note(healthy):
    notes = sum(1 for cell in healthy for f in cell.judgement.findings if f.severity.value == "note")
    assert notes <= len(healthy) / 2


def test_repair_leaves_alone_what_is_to_stay():
    given = {
        "colossalai": "0.3.5",
        "torch": "2.1.2+cu121",
        "cuda": "12.1",
        "python": "3.10",
        "numpy": "2.2.6",
        "setuptools": "84.0.0",
    }
    free, kept = check(given).repair, check(given, keep=("colossalai", "torch", "cuda", "python")).repair
    assert free is not None
    assert kept is not None
    assert [c.component for c in free.changes] == ["torch"]
    assert {c.component for c in kept.changes} == {"numpy", "setuptools"}


@pytest.mark.parametrize(("toolkit", "cuda"), [("11.7", "11"), ("12.6", "12"), ("13.0", "13")])
def test_toolkit_of_a_request_gives_a_build_of_its_major_and_never_one_without_cuda(toolkit, cuda):
    request = Request(frameworks={"deepspeed": Spec.parse("*")}, constraints={"toolkit": Spec.parse(toolkit)})
    assert next(iter(cells(request))).components["cuda"].split(".")[0] == cuda


def test_taxonomy_of_rules_names_rules_that_there_are(knowledge):
    from envsmith.doctor.signatures import catalogue

    taxonomy = catalogue().taxonomy
    ids = {rule.id for rule in knowledge.rules}
    assert sorted(set(taxonomy) - ids) == []
    assert {"deepspeed-zero-torch-floor", "megatron-core-torch-load", "torch-cudnn-runtime"} <= set(taxonomy)


def test_rules_with_one_symptom_are_of_one_cause(knowledge):
    """What the user sees is told as one failure class, whichever framework it comes from."""
    from envsmith.doctor.signatures import catalogue

    taxonomy = catalogue().taxonomy
    by_symptom: dict[str, set[str]] = {}
    for rule in knowledge.rules:
        if rule.symptom and rule.id in taxonomy:
            by_symptom.setdefault(rule.symptom, set()).add(taxonomy[rule.id].get("cause", rule.id))
    assert {s: c for s, c in by_symptom.items() if len(c) > 1} == {}


@pytest.mark.parametrize(
    ("given", "rule", "severity"),
    [
        ({"megatron-core": "0.12.0", "nemo-toolkit": "2.2.1"}, "megatron-core-nemo-inference-context", "warning"),
        ({"megatron-core": "0.11.0", "nemo-toolkit": "2.3.0"}, "megatron-core-nemo-inference-context", "warning"),
        ({"megatron-core": "0.12.0", "nemo-toolkit": "2.3.0"}, "megatron-core-nemo-inference-context", None),
        ({"megatron-core": "0.1.0", "numpy": "1.24.0"}, "megatron-core-np-float", "warning"),
        ({"megatron-core": "0.2.0", "numpy": "1.24.0"}, "megatron-core-np-float", None),
        ({"megatron-core": "0.5.0", "apex": "none"}, "megatron-core-needs-apex", "warning"),
        ({"megatron-core": "0.8.0", "apex": "none"}, "megatron-core-needs-apex", None),
        ({"nvidia-resiliency-ext": "*", "python": "3.9"}, "nvidia-resiliency-ext-python", "error"),
        ({"nvidia-resiliency-ext": "*", "python": "3.12"}, "nvidia-resiliency-ext-python", None),
        ({"colossalai": "0.0.1"}, "colossalai-first-beta", "warning"),
        ({"colossalai": "0.0.2"}, "colossalai-first-beta", None),
        ({"megatron-core": "0.19.0", "torch": "2.6.0"}, "megatron-core-torch-features", "note"),
        ({"megatron-core": "0.19.0", "torch": "2.9.0"}, "megatron-core-torch-features", None),
        ({"deepspeed": "0.18.9", "torch": "2.8.0"}, "deepspeed-torch-features", "note"),
        ({"deepspeed": "0.18.8", "torch": "2.8.0"}, "deepspeed-torch-features", None),
        ({"megatron-core": "0.16.0", "ngc-pytorch": "24.01"}, "megatron-core-ngc-base", "note"),
        ({"megatron-core": "0.15.3", "ngc-pytorch": "24.01"}, "megatron-core-ngc-base", None),
    ],
)
def test_bound_of_a_rule_holds_on_both_sides(given, rule, severity):
    found = {f.rule: f.severity.value for f in check(given).findings}
    assert found.get(rule) == severity


@pytest.mark.parametrize(
    ("given", "unlisted"),
    [
        ({"transformers": "4.231"}, True),
        ({"transformers": "4.23.1"}, False),
        ({"transformers": "99.0"}, True),
        ({"gcc": "11.4.0"}, False),
    ],
)
def test_release_of_a_companion_that_is_not_listed_is_not_called_ok(given, unlisted):
    judgement = check(given)
    assert any("is not among the releases" in reason for reason in judgement.unknown) == unlisted
    assert judgement.status == "unknown" or not unlisted


@pytest.mark.parametrize(
    ("given", "rule", "declares"),
    [
        ({"vllm": "0.11.0", "torch": "2.9.1"}, "vllm-declares-torch", "torch 2.8.0"),
        ({"torch": "2.15.0", "triton": "3.5.1"}, "torch-bundles-triton", "triton 3.9.0"),
        ({"transformers": "4.57.1", "tokenizers": "0.20.3"}, "transformers-declares-tokenizers", ">=0.22.0,<=0.23.0"),
        ({"diffusers": "0.36.0", "huggingface-hub": "0.30.2"}, "diffusers-declares-huggingface-hub", ">=0.34.0,<2.0"),
        ({"xformers": "0.0.30", "torch": "2.7.1"}, "xformers-declares-torch", "torch 2.7.0"),
        ({"vllm": "0.10.0", "xformers": "0.0.30", "torch": "2.7.0"}, "vllm-declares-xformers", "xformers 0.0.31"),
        ({"sglang": "0.5.3", "torch": "2.9.1"}, "sglang-declares-torch", "torch 2.8.0"),
        ({"vllm": "0.11.0", "transformers": "none", "torch": "2.8.0"}, "vllm-declares-transformers", ">=4.55.2"),
    ],
)
def test_what_a_release_declares_or_carries_is_held_against_the_set(given, rule, declares):
    judgement = check(given)

    errors = {f.rule: f.message for f in judgement.findings if f.severity is Severity.ERROR}
    assert (judgement.status, declares in errors.get(rule, "")) == ("bad", True), errors


def test_requirement_of_one_platform_is_held_against_that_platform_only():
    given = {"vllm": "0.10.0", "xformers": "0.0.30", "torch": "2.7.1"}
    rules = {p: {f.rule for f in check(given, p).findings} for p in Platform}
    assert ["vllm-declares-xformers" in rules[p] for p in (Platform.LINUX_64, Platform.LINUX_AARCH64)] == [True, False]


def test_file_of_the_index_says_more_than_a_page_about_it():
    assert not [f for f in check({"trl": "1.16.0", "torch": "2.5.1"}).findings if f.severity.value == "error"]


def test_every_release_of_a_distribution_names_the_file_that_was_read(knowledge):
    elsewhere = {"torch", "nccl", "cudnn", "cmake"}  # read by other updaters, or the host's
    unread = [
        f"{name} {release.version}"
        for name, releases in knowledge.releases.items()
        if knowledge.components.by_name[name].distributions and name not in elsewhere
        for release in releases
        if not any(e.sha256 for e in release.evidence)
    ]
    assert unread == []


def test_cuda_that_no_build_of_an_untagged_torch_has_is_a_doubt_and_the_rest_is_judged(knowledge):
    """People say CUDA and mean that of nvcc or of nvidia-smi, and a torch compiled from source can have any: nothing shows that it cannot work."""
    doubt = check({"torch": "2.1.2", "cuda": "12.4", "numpy": "2.0.0"})
    assert {f.rule: f.severity.value for f in doubt.findings if f.severity.value != "note"} == {
        "torch-bundles-cuda": "warning",
        "torch-numpy2": "error",
    }
    assert doubt.inferred == {}
    (finding,) = [f for f in doubt.findings if f.rule == "torch-bundles-cuda"]
    assert finding.fix == "If CUDA 12.4 is that of nvcc, say toolkit==12.4."
    assert check({"torch": "2.1.2+cu121", "cuda": "12.4"}).status == "bad"
    assert check({"torch": "2.1.2", "toolkit": "12.4"}).status == "ok"
