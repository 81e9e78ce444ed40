"""`check`: ok, bad or unknown, what is inferred, and the repair."""

from __future__ import annotations

import dataclasses

import pytest

from envsmith.errors import UsageError
from envsmith.knowledge.graph.read import read_knowledge
from envsmith.model.cell import Platform, Request
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.rule import Evidence, EvidenceKind, PassedRun, Release, Row, Rule, RuleKind, Severity
from envsmith.model.version import Spec
from envsmith.solver import check, constraints_for, default_solver, solve, solver_of
from envsmith.solver.known_bad import known_bad

SOURCE = (Evidence(kind=EvidenceKind.REPORTED, source="a test", date="2026-01-01"),)


def errors(judgement):
    return [f.rule for f in judgement.findings if f.severity is Severity.ERROR]


def test_tested_pair_is_ok(solver):
    found = check({"alpha": "2.0.0", "torch": "2.3.0+cu126", "python": "3.11.7"}, solver=solver)
    assert (found.status, errors(found), found.unknown) == ("ok", [], ())


def test_untested_newer_torch_is_unknown_not_ok(solver):
    found = check({"alpha": "2.0.0", "torch": "2.4.0+cu130"}, solver=solver)
    assert found.status == "unknown"
    assert found.unknown == ("whether alpha 2.0.0 and torch 2.4.0+cu130 work together: no run is known",)


def test_what_a_later_release_bars_is_told_once_where_another_rule_says_more():
    findings = check({"lm-eval": "0.4.9", "datasets": "4.0.0"}).findings

    assert [f.rule for f in findings] == ["lm-eval-dataset-scripts"]


def test_declared_range_is_no_proof(solver):
    assert check({"alpha": "1.0.0", "torch": "2.1.0+cu118"}, solver=solver).status == "unknown"


def ran(knowledge, **components):
    run = PassedRun(components=components, evidence=SOURCE[0])
    return solver_of(dataclasses.replace(knowledge, tested=(), runs=(run,)))


def test_a_run_on_x86_proves_nothing_of_arm():
    versions = {"deepspeed": "0.19.8", "torch": "2.10.0+cu128"}
    assert [check(versions, platform=platform).status for platform in Platform] == ["ok", "unknown"]


def test_a_name_that_is_not_known_is_the_only_reason():
    found = check({"depspeed": "0.14.2"})
    assert found.unknown == ("depspeed 0.14.2: envsmith knows no such component, did you mean deepspeed?",)


def test_a_run_proves_the_set_that_it_had_and_each_part_of_it(knowledge):
    solver = ran(knowledge, alpha="2.0.0", torch="2.3.0+cu130", python="3.11", numpy="2.1.0")

    whole = check({"alpha": "2.0.0", "torch": "2.3.0", "python": "3.11.7", "numpy": "2.1.0"}, solver=solver)
    part = check({"alpha": "2.0.0", "torch": "2.3.0+cu130", "gpu": "sm_90"}, solver=solver)

    assert (whole.status, part.status, whole.proof, part.proof) == ("ok", "ok", SOURCE[0], SOURCE[0])


@pytest.mark.parametrize(
    ("other", "nearest"),
    [
        ({"torch": "2.3.0+cu126"}, "torch 2.3.0+cu130"),
        ({"python": "3.10"}, "python 3.11"),
        ({"numpy": "2.0.0"}, "numpy 2.1.0"),
        ({"pydantic": "2.9"}, "no pydantic"),
    ],
)
def test_a_run_proves_no_other_set_and_the_difference_is_told(knowledge, other, nearest):
    solver = ran(knowledge, alpha="2.0.0", torch="2.3.0+cu130", python="3.11", numpy="2.1.0")

    found = check({"alpha": "2.0.0", "torch": "2.3.0", "python": "3.11", "numpy": "2.1.0", **other}, solver=solver)

    assert (found.status, found.proof) == ("unknown", None)
    assert found.unknown[0].endswith(f"work together: no run is known (the nearest had {nearest})")


def foretelling(knowledge, *runs):
    row = Row(
        when={"alpha": Spec.parse("==2.0.0")},
        needs={"numpy": Spec.parse("<2.1")},
        severity=Severity.WARNING,
        evidence=SOURCE,
    )
    rule = Rule(id="alpha-run-failed-install", kind=RuleKind.REQUIRES, stage="install", rows=(row,))
    return solver_of(dataclasses.replace(knowledge, rules=(*knowledge.rules, rule), tested=(), runs=runs))


def test_an_installation_that_failed_in_a_run_is_bad(knowledge):
    found = check({"alpha": "2.0.0", "numpy": "2.1.0"}, solver=foretelling(knowledge))

    assert (found.status, errors(found)) == ("bad", ["alpha-run-failed-install"])
    assert [(c.component, c.new) for c in found.repair.changes] == [("numpy", "2.0.0")]


def test_an_installation_that_failed_stays_a_warning_where_a_run_passed(knowledge):
    run = PassedRun(components={"alpha": "2.0.0", "numpy": "2.1.0", "torch": "2.3.0+cu130"}, evidence=SOURCE[0])
    solver = foretelling(knowledge, run)

    proved = check({"alpha": "2.0.0", "numpy": "2.1.0"}, solver=solver)
    other = check({"alpha": "2.0.0", "numpy": "2.1.0", "torch": "2.2.0"}, solver=solver)

    assert (proved.status, other.status) == ("ok", "unknown")
    assert [f.severity for f in proved.findings if f.rule == "alpha-run-failed-install"] == [Severity.WARNING]


def test_a_part_whose_import_fails_is_a_warning():
    found = check({"diffusers": "0.35.2", "transformers": "5.9.0"}, solver=default_solver())

    assert {f.rule: f.severity for f in found.findings} == {"diffusers-imports-transformers": Severity.WARNING}
    assert found.status == "unknown"


def test_a_warning_does_not_stand_under_ok_where_nobody_ran_the_set(knowledge):
    solver = solver_of(dataclasses.replace(knowledge, tested=()))

    found = check({"torch": "2.3.0+cu130", "alpha": "2.0.0", "python": "3.12"}, solver=solver)

    assert (found.status, [f.severity for f in found.findings][:1]) == ("unknown", [Severity.WARNING])


def test_broken_declaration_is_bad_with_a_solved_repair(solver):
    found = check({"beta": "0.2", "torch": "2.3.0+cu126"}, solver=solver)
    assert (found.status, errors(found)) == ("bad", ["beta-declares-torch"])
    assert found.findings[0].message == "beta >=0.1,<=0.2 declares torch <=2.2.0; torch 2.3.0+cu126 is there"
    assert found.repair is not None
    assert [(c.component, c.new) for c in found.repair.changes] == [("torch", "2.2.0+cu121")]


def test_a_repair_has_what_is_needed_where_nothing_else_is_wrong(solver):
    found = check({"alpha": "2.0.0", "torch": "2.3.0+cu126"}, needed={"alpha": Spec("<2.0.0")}, solver=solver)
    assert (found.status, errors(found)) == ("ok", [])
    assert found.repair is not None
    assert Spec("<2.0.0").contains(found.repair.cell.components["alpha"])


def test_there_is_no_repair_where_what_is_needed_is_there(solver):
    found = check({"alpha": "2.0.0", "torch": "2.3.0+cu126"}, needed={"alpha": Spec(">=2.0.0")}, solver=solver)
    assert found.repair is None


def test_what_the_wheel_carries_is_inferred_and_shown_as_inferred(solver):
    found = check({"torch": "2.3.0+cu130", "driver": "535.54.03"}, solver=solver)
    assert found.inferred == {"cuda": "13.0", "nccl": "2.27.5", "cudnn": "9.1.0.70", "triton": "2.3.0"}
    assert errors(found) == ["cuda-driver-floor"]
    assert found.findings[0].inferred == {"cuda": "13.0"}
    assert found.findings[0].fix == "update the driver"


def test_torch_without_a_build_is_bad_when_the_default_build_is(solver):
    bad = check({"torch": "2.3.0", "driver": "535.54.03"}, solver=solver)
    assert bad.status == "bad"
    assert bad.findings[0].message.startswith("as torch is the default build 2.3.0+cu130: ")
    assert bad.repair is not None
    assert bad.repair.changes[0].new == "2.3.0+cu126"
    every = check({"torch": "2.3.0", "driver": "470.57.02"}, solver=solver)
    assert (every.status, "default" in every.findings[0].message) == ("bad", False)


def test_torch_with_a_cuda_that_no_build_of_it_has_is_not_known(solver):
    found = check({"torch": "2.3.0", "cuda": "12.1"}, solver=solver)
    assert (found.status, errors(found), found.inferred) == ("unknown", [], {})
    assert [f.severity for f in found.findings] == [Severity.WARNING]
    assert check({"torch": "2.3.0+cu126", "cuda": "12.1"}, solver=solver).status == "bad"


def test_given_cuda_says_which_build_it_is(solver):
    found = check({"torch": "2.3.0", "cuda": "12.6", "driver": "535.54.03"}, solver=solver)
    assert (found.status, found.inferred["nccl"]) == ("ok", "2.26.2")


def test_other_nccl_than_the_wheel_pins_is_bad(solver):
    found = check({"torch": "2.3.0+cu126", "nccl": "2.20.5"}, solver=solver)
    assert errors(found) == ["torch-bundles-nccl"]
    assert [c.component for c in found.repair.changes] == ["nccl"]


def test_unknown_fact_is_not_held_against_anybody(solver):
    assert errors(check({"torch": "2.2.0+cu121", "nccl": "2.19.3"}, solver=solver)) == []
    found = check({"torch": "2.4.0+cu130", "gpu": "sm_90"}, solver=solver)
    assert (found.status, errors(found)) == ("unknown", [])
    assert "for which GPUs torch 2.4.0+cu130 is compiled" in found.unknown


def test_shorter_version_of_a_library_stands_for_what_begins_with_it(solver):
    assert errors(check({"torch": "2.3.0+cu126", "cudnn": "9.1.0"}, solver=solver)) == []
    assert errors(check({"torch": "2.3.0+cu126", "cudnn": "9.0.0"}, solver=solver)) == ["torch-bundles-cudnn"]


def test_gpu_may_be_named_by_product_or_capability(solver):
    for gpu in ("h100", "H200", "9.0", "sm_90"):
        assert check({"torch": "2.3.0+cu126", "gpu": gpu}, solver=solver).status == "ok"
    assert errors(check({"torch": "2.3.0+cu126", "gpu": "sm_100"}, solver=solver)) == ["torch-runs-on-gpu"]
    assert errors(check({"torch": "2.3.0+cu126", "gpu": "sm_90,sm_100"}, solver=solver)) == ["torch-runs-on-gpu"]


def test_alias_names_the_component(solver):
    assert errors(check({"alpha-lm": "1.1.0", "numpy": "2.1.0"}, solver=solver)) == ["alpha-numpy2"]


def test_notes_are_told_and_change_nothing(solver):
    found = check({"alpha": "2.0.0", "torch": "2.3.0+cu126"}, solver=solver)
    assert [(f.rule, f.severity) for f in found.findings] == [("alpha-note", Severity.NOTE)]


def test_set_that_only_all_rules_together_rule_out_is_bad(solver):
    # alpha 1.1.0 needs torch below 2.3, and no such torch has wheels for Python 3.12.
    found = check({"alpha": "1.1.0", "python": "3.12"}, solver=solver)
    assert found.status == "bad"
    assert "alpha >=1.0.0,<=1.1.0 declares torch >=2.1,<2.3" in found.findings[0].message
    assert "have wheels for Python 3.9 to 3.11 only" in found.findings[0].message


def test_release_that_is_not_known_makes_the_answer_unknown(solver):
    found = check({"torch": "9.9.9", "driver": "580.65.06"}, solver=solver)
    assert found.status == "unknown"
    assert found.unknown[0].startswith("torch 9.9.9 is not among the releases envsmith knows")


def test_component_that_is_not_known_makes_the_answer_unknown(solver):
    assert check({"frobnicator": "1.0"}, solver=solver).status == "unknown"


def test_nothing_given_is_unknown(solver):
    assert check({}, solver=solver).status == "unknown"


def test_set_that_no_rule_relates_is_unknown(solver):
    assert check({"numpy": "2.1.0"}, solver=solver).status == "unknown"


def test_host_facts_alone_are_judged(solver):
    assert errors(check({"cuda": "13.0", "driver": "535.54.03"}, solver=solver)) == ["cuda-driver-floor"]
    assert check({"cuda": "12.6", "driver": "535.54.03"}, solver=solver).status == "ok"


def test_platform_decides_which_builds_exist(solver):
    found = check({"torch": "2.3.0+cu126"}, Platform.LINUX_AARCH64, solver=solver)
    assert errors(found) == ["torch-wheels-platform"]


@pytest.mark.parametrize("text", ["", "latest", "1.2.3; import os", "=" * 50])
def test_malformed_version_is_a_usage_error(solver, text):
    with pytest.raises(UsageError):
        check({"torch": text}, solver=solver)


def test_judgement_never_changes_what_is_given(solver):
    given = {"torch": "2.3.0+cu130", "driver": "535.54.03"}
    check(given, solver=solver)
    assert given == {"torch": "2.3.0+cu130", "driver": "535.54.03"}


def test_every_best_cell_is_judged_without_errors(solver):
    for framework in ("alpha", "beta"):
        cell = solve(Request(frameworks={framework: Spec.parse("*")}), solver=solver).cell
        findings = check(cell.components, solver=solver).findings
        assert not [f for f in findings if f.severity is not Severity.NOTE]


def test_demands_on_what_the_cell_does_not_hold(solver):
    old = solve(Request(frameworks={"alpha": Spec.parse("1.1.0")}), solver=solver).cell
    assert constraints_for(old, solver=solver) == (("numpy<2.0", "alpha-numpy2"), ("pydantic<2", "alpha-pydantic"))
    new = solve(Request(frameworks={"alpha": Spec.parse("2.0.0")}), solver=solver).cell
    assert constraints_for(new, solver=solver) == ()


def test_giving_up_cuda_is_no_repair_beside_a_gpu(solver):
    found = check({"torch": "2.2.0", "gpu": "sm_100"}, solver=solver)
    assert found.status == "bad"
    assert found.repair.cell.components["torch"] == "2.3.0+cu130"


def test_large_set_is_judged_quickly_and_in_any_order(solver):
    have = {
        "alpha": "1.1.0",
        "torch": "2.2.0+cu121",
        "python": "3.10",
        "numpy": "2.1.0",
        "driver": "535.54.03",
        "gpu": "sm_90",
        "glibc": "2.31",
    }
    one = check(have, solver=solver)
    other = check(dict(reversed(have.items())), solver=solver)
    assert errors(one) == errors(other) == ["alpha-numpy2"]
    for judgement in (one, other):
        assert [(c.component, c.new) for c in judgement.repair.changes] == [("numpy", "1.26.4")]


@pytest.mark.parametrize("part", ["gpu", "driver", "glibc"])
@pytest.mark.parametrize("word", ["none", "absent"])
def test_part_of_the_host_that_is_absent_breaks_no_rule_over_its_releases(solver, part, word):
    found = check({"torch": "2.3.0", part: word}, solver=solver)

    assert (found.status, found.findings, found.unknown) == ("ok", (), ())
    assert found.inferred["torch"] == "2.3.0+cu130"


def test_no_cuda_is_the_build_without_it(solver):
    found = check({"torch": "2.2.0", "cuda": "none", "gpu": "none"}, solver=solver)

    assert (found.status, found.inferred) == ("ok", {"nccl": "none", "cudnn": "none"})


def test_build_without_cuda_is_not_inferred_where_nobody_stated_it(solver):
    found = check({"torch": "2.2.0", "triton": "2.1.0"}, solver=solver)

    assert (found.status, errors(found)) == ("bad", ["torch-bundles-triton"])
    assert [(c.component, c.new) for c in found.repair.changes] == [("triton", "2.2.0")]


def test_build_without_cuda_is_inferred_with_a_note_where_the_platform_has_no_other(solver):
    found = check({"torch": "2.3.0"}, Platform.LINUX_AARCH64, solver=solver)

    assert found.inferred["cuda"] == "cpu"
    assert [(f.rule, f.severity) for f in found.findings] == [("torch-bundles-cuda", Severity.NOTE)]
    assert found.findings[0].message == (
        "torch 2.3.0+cpu is built without CUDA, and linux-aarch64 has no other build of it"
    )


@pytest.mark.parametrize(
    "beside", [{"gpu": "sm_90"}, {"driver": "580.65.06"}, {"nccl": "2.18.1"}, {"cuda": "12.6"}, {"gpu": "*"}]
)
def test_build_without_cuda_is_not_inferred_where_cuda_is_stated(solver, beside):
    found = check({"torch": "2.3.0", **beside}, Platform.LINUX_AARCH64, solver=solver)

    assert (found.status, found.inferred, found.findings) == ("unknown", {}, ())
    assert found.unknown == ("which build of torch 2.3.0 it is: with CUDA none was published for linux-aarch64",)


def test_rules_over_releases_of_torch_hold_for_a_build_that_nobody_published(solver):
    given = {"alpha": "1.0.0", "torch": "2.3.0", "gpu": "sm_90"}
    assert errors(check(given, Platform.LINUX_AARCH64, solver=solver)) == ["alpha-declares-torch"]


@pytest.mark.parametrize("version", ["1.20.0", "1.26.5", "2.9.0", "2.2.0rc1"])
def test_release_of_a_companion_that_nobody_read_is_unknown(solver, version):
    found = check({"torch": "2.2.0", "numpy": version}, solver=solver)

    assert (found.status, errors(found)) == ("unknown", [])
    assert found.unknown == (f"numpy {version} is not among the releases envsmith knows (the newest is 2.1.0)",)


def test_build_of_a_listed_release_is_not_unknown(solver):
    found = check({"torch": "2.2.0", "numpy": "2.1.0+mkl"}, solver=solver)

    assert found.unknown == ("whether torch 2.2.0 and numpy 2.1.0+mkl work together: no run is known",)


def test_component_without_rules_and_declarations_is_unknown_and_the_rest_is_judged(knowledge):
    title = Component(name="extra", role=Role.COMPANION, short="ex", title="Extra", distributions=("extra",))
    table = ComponentTable.of([*knowledge.components.by_name.values(), title])
    unread = solver_of(dataclasses.replace(knowledge, components=table))

    unknown = check({"torch": "2.2.0", "extra": "1.0"}, solver=unread)
    bad = check({"torch": "2.2.0", "triton": "2.1.0", "extra": "1.0"}, solver=unread)

    assert (unknown.status, unknown.unknown) == ("unknown", ("extra: no rule and no declaration speaks of it",))
    assert errors(bad) == ["torch-bundles-triton"]


def test_what_a_release_declares_is_not_held_against_a_torch_that_does_not_carry_it(matrix_files, tmp_path):
    lines = matrix_files["releases/torch.yaml"].replace('cudnn: "8.7.0", triton: "2.1.0", ', "")
    alpha = matrix_files["releases/alpha.yaml"].replace(
        '{torch: ">=2.1,<2.3"}', '{torch: ">=2.1,<2.3", triton: "==0.2.3"}'
    )
    files = {**matrix_files, "releases/torch.yaml": lines, "releases/alpha.yaml": alpha}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    solver = solver_of(read_knowledge(tmp_path))

    assert errors(check({"alpha": "1.0.0", "torch": "2.1.0"}, solver=solver)) == []
    assert errors(check({"alpha": "1.0.0", "torch": "2.2.0"}, solver=solver)) == ["alpha-declares-triton"]


def test_library_beside_a_torch_without_cuda_is_not_what_torch_carries(solver):
    found = check({"torch": "2.2.0+cpu", "nccl": "2.18.1"}, solver=solver)

    assert (found.status, found.inferred["nccl"]) == ("ok", "none")


def test_repair_lists_what_torch_carries_otherwise(solver):
    found = check({"torch": "2.3.0+cu130", "nccl": "2.27.5", "driver": "535.54.03"}, solver=solver)

    assert [(c.component, c.new) for c in found.repair.changes] == [("torch", "2.3.0+cu126"), ("nccl", "2.26.2")]


def test_unknown_name_is_listed_and_the_rest_is_judged(solver):
    found = check({"torch": "2.2.0", "triton": "2.1.0", "numpyy": "1"}, solver=solver)

    assert (found.status, errors(found)) == ("bad", ["torch-bundles-triton"])
    assert found.unknown == ("numpyy 1: envsmith knows no such component, did you mean numpy?",)


def test_known_bad_releases_are_the_newest_stable_ones_with_builds_told_of_torch_only(knowledge):
    def of(name, version, **fields):
        return Release(component=name, version=version, date="2026-01-01", evidence=SOURCE, **fields)

    later = {
        "alpha": (of("alpha", "1.5.0+local"), of("alpha", "1.6.0", yanked="broken"), of("alpha", "1.7.0rc1")),
        "torch": (of("torch", "2.4.0+cu130"),),
        "numpy": (of("numpy", "1.26.4"), of("numpy", "2.1.0"), of("numpy", "2.2.0")),
    }
    bad = Row(
        when={"alpha": Spec.parse("<2"), "torch": Spec.parse("*")},
        needs={"numpy": Spec.parse("<2.2")},
        symptom="it stops",
        evidence=SOURCE,
    )
    rule = Rule(id="a-rule", kind=RuleKind.REQUIRES, rows=(bad, bad))

    (one,) = known_bad(dataclasses.replace(knowledge, releases=later, rules=(rule,)))

    assert one.components == {"alpha": "1.5.0+local", "torch": "2.4.0", "numpy": "2.2.0"}


def test_nightly_of_torch_is_warned_of_what_the_release_breaks_and_told_no_note_of_it():
    release = check({"torch": "2.6.0", "deepspeed": "0.15.4", "nccl": "2.21.5"})
    nightly = check({"torch": "2.6.0a0+git1", "deepspeed": "0.15.4", "nccl": "2.21.5"})

    assert Severity.NOTE in {finding.severity for finding in release.findings}
    assert [(f.rule, f.severity) for f in nightly.findings] == [("deepspeed-weights-only", Severity.WARNING)]
    assert nightly.findings[0].message.startswith("if torch 2.6.0a0+git1 already has what 2.6.0 has: ")
