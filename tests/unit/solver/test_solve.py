"""`solve`: preferences, warnings, drivers and GPUs, and refusals with a minimal conflict."""

from __future__ import annotations

import pytest

from envsmith.cli.solve import refusal_lines
from envsmith.errors import UsageError
from envsmith.knowledge.graph.read import read_knowledge
from envsmith.model.cell import Platform, Request
from envsmith.model.finding import Refusal, UnsatisfiableError
from envsmith.model.version import Spec
from envsmith.solver import cells, check, solve, solver_of
from envsmith.solver.choices import reasons
from envsmith.solver.kernel import Effort
from envsmith.solver.refusal import refuse


def write_files(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def request(
    *frameworks, driver=None, gpus=(), platform=Platform.LINUX_64, exclude_newer=None, narrowed=None, **constraints
):
    names = dict(f.split("==") if "==" in f else (f, "*") for f in frameworks)
    return Request(
        frameworks={n: Spec.parse(s) for n, s in names.items()},
        constraints={n: Spec.parse(s) for n, s in constraints.items()},
        driver=driver,
        gpus=gpus,
        platform=platform,
        exclude_newer=exclude_newer,
        narrowed=narrowed or {},
    )


def refusal(solver, asked) -> Refusal:
    with pytest.raises(UnsatisfiableError) as caught:
        solve(asked, solver=solver)
    found = caught.value.refusal
    assert isinstance(found, Refusal)
    return found


def test_newest_stable_framework_with_the_newest_torch_it_is_tested_with(solver):
    solution = solve(request("alpha"), solver=solver)
    assert str(solution.cell.id).startswith("alpha2.0.0-torch2.3.0-cu130")
    reason = "torch 2.4.0 is newer, but no test of it with alpha 2.0.0 is known (ask for it: --torch 2.4.0)."
    assert reason in solution.why
    assert any(c.components["torch"] == "2.4.0+cu130" for c in solution.alternatives)


def test_a_warning_is_avoided_when_it_can_be(solver):
    # torch 2.3 with Python 3.12 is warned of; 3.11 is next in the usual order.
    solution = solve(request("alpha"), solver=solver)
    assert solution.cell.components["python"] == "3.11"
    assert solution.warnings == ()


def test_a_warning_that_cannot_be_avoided_is_listed(solver):
    solution = solve(request("alpha", torch="2.3", python="3.12"), solver=solver)
    assert [w.rule for w in solution.warnings] == ["alpha-compile-python"]


def test_what_an_extra_asks_for_is_told_and_changes_no_answer(matrix_files, tmp_path):
    asked = matrix_files["releases/alpha.yaml"].replace(
        '"2.0.0", date: 2025-02-01,', '"2.0.0", date: 2025-02-01, extras: {torch: ">=2.4"},'
    )
    with_extra = solver_of(read_knowledge(write_files(tmp_path, {**matrix_files, "releases/alpha.yaml": asked})))

    solution = solve(request("alpha"), solver=with_extra)

    assert str(solution.cell.id).startswith("alpha2.0.0-torch2.3.0-cu130")
    assert [w.rule for w in solution.warnings] == ["alpha-extra-torch"]
    assert "alpha-extra-torch" in {f.rule for f in check(dict(solution.cell.components), solver=with_extra).findings}


def test_components_stand_in_the_documented_order(solver):
    cell = solve(request("alpha", numpy="*", driver="580.65.06"), solver=solver).cell
    assert list(cell.components) == ["alpha", "torch", "cuda", "python", "numpy", "nccl", "cudnn", "triton", "driver"]
    assert cell.chosen == ("alpha", "torch", "cuda", "python", "numpy")
    assert cell.index == "default"


def test_unknown_fact_is_absent_from_the_cell_and_satisfies_no_wish(solver):
    assert "nccl" not in solve(request(torch="2.2.0+cu121"), solver=solver).cell.components
    found = refusal(solver, request(torch="2.2.0+cu121", nccl=">=2.0"))
    assert "torch-bundles-nccl" in [c.rule for c in found.conflict]


def test_old_driver_gives_the_build_of_the_default_index_that_runs_on_it(solver):
    cell = solve(request("alpha", driver="535.54.03"), solver=solver).cell
    assert (cell.components["torch"], cell.components["cuda"], cell.index) == ("2.2.0+cu121", "12.1", "default")


def test_old_driver_gives_an_older_cuda_of_the_torch_that_is_asked_for(solver):
    cell = solve(request("alpha", torch="2.3", driver="535.54.03"), solver=solver).cell
    assert (cell.components["torch"], cell.components["cuda"], cell.index) == ("2.3.0+cu126", "12.6", "pytorch")


def test_driver_that_no_table_lists_is_judged_by_its_number(solver):
    assert solve(request("alpha", driver="999.1"), solver=solver).cell.components["cuda"] == "13.0"
    assert solve(request("alpha", driver="560.35.03"), solver=solver).cell.components["cuda"] == "12.1"


def test_named_driver_rules_out_builds_without_cuda(solver):
    found = refusal(solver, request(torch="2.2.0+cpu", driver="580.65.06"))
    assert {c.rule for c in found.conflict} == {"request:torch", "request:driver", "torch-bundles-cuda"}


def test_cuda_build_comes_before_a_build_without(solver):
    assert solve(request(torch="2.2"), solver=solver).cell.components["cuda"] == "12.1"
    assert solve(request(torch="2.2", cuda="cpu"), solver=solver).cell.components["torch"] == "2.2.0+cpu"


@pytest.mark.parametrize(
    ("gpu", "torch"), [("sm_70", "2.2.0+cu121"), ("sm_86", "2.3.0+cu130"), ("sm_100", "2.3.0+cu130")]
)
def test_gpu_needs_machine_code_that_runs_on_it(solver, gpu, torch):
    assert solve(request("alpha", gpus=(gpu,)), solver=solver).cell.components["torch"] == torch


def test_cell_must_run_on_every_gpu_that_is_named(solver):
    cell = solve(request(gpus=("sm_70", "sm_90")), solver=solver).cell
    assert cell.components["torch"] == "2.2.0+cu121"
    assert cell.components["gpu"] == "sm_70,sm_90"
    found = refusal(solver, request(gpus=("sm_70", "sm_100")))
    assert [c.rule for c in found.conflict] == ["request:gpu", "request:gpu", "torch-runs-on-gpu"]


def test_build_for_unknown_gpus_is_no_answer_when_a_gpu_is_named(solver):
    found = refusal(solver, request(torch="2.4", gpus=("sm_90",)))
    assert any("it is not known for which GPUs" in c.message for c in found.conflict)


def test_platform_has_its_own_builds(solver):
    cell = solve(request(platform=Platform.LINUX_AARCH64), solver=solver).cell
    assert (cell.components["torch"], cell.index, cell.platform) == ("2.3.0+cpu", "default", Platform.LINUX_AARCH64)
    found = refusal(solver, request(torch="2.4", platform=Platform.LINUX_AARCH64))
    assert "published for linux-64 only" in " ".join(c.message for c in found.conflict)


def test_pre_release_only_when_named_or_when_nothing_else_is_left(solver):
    assert solve(request("alpha==2.1.0rc1"), solver=solver).cell.components["alpha"] == "2.1.0rc1"
    assert solve(request("alpha==>2.0.1"), solver=solver).cell.components["alpha"] == "2.1.0rc1"
    assert solve(request("alpha==>=2.0"), solver=solver).cell.components["alpha"] == "2.0.0"


def test_yanked_release_only_when_pinned_exactly_or_when_nothing_else_is_left(solver):
    assert solve(request("alpha==2.0.1"), solver=solver).cell.components["alpha"] == "2.0.1"
    assert solve(request("alpha==>2.0.0,<2.1.0rc1"), solver=solver).cell.components["alpha"] == "2.0.1"


def test_refusal_names_the_rule_its_evidence_and_a_solved_repair(solver):
    found = refusal(solver, request("beta", torch=">=2.3"))
    assert [c.rule for c in found.conflict] == ["request:torch", "beta-declares-torch"]
    assert found.conflict[1].evidence[0].source == "index"
    assert "beta >=0.1,<=0.2 declares torch <=2.2.0" in found.conflict[1].message
    assert [c.component for c in found.repairs[0].changes] == ["torch"]
    assert found.repairs[0].cell.components["torch"] == "2.2.0+cu121"


def test_refusal_of_a_release_that_does_not_exist_says_what_does(solver):
    found = refusal(solver, request(torch="9.9"))
    assert len(found.conflict) == 1
    assert "no such release is known (the newest known is 2.4.0+cu130)" in found.conflict[0].message


def test_refusal_names_every_conflict_that_giving_up_another_leaves(solver):
    found = refusal(solver, request("beta", torch="9.9", python="3.12"))
    assert [c.rule for c in found.conflict] == ["request:torch"]
    assert [[c.rule for c in conflict] for conflict in found.further] == [
        ["request:python", "beta-declares-torch", "torch-wheels-python"]
    ]


def test_repairs_keep_the_host_when_anything_else_can_go(solver):
    found = refusal(solver, request("alpha", driver="535.54.03", cuda="13"))
    assert all(c.component not in {"driver", "gpu"} for r in found.repairs for c in r.changes)


def test_repairs_change_the_driver_when_nothing_else_can_go(solver):
    kept = refusal(solver, request("alpha==2.0.0", driver="470.57.02"))
    assert [[(c.component, c.new) for c in r.changes] for r in kept.repairs] == [[("alpha", "1.1.0")]]
    only = refusal(solver, request("alpha", driver="300.1"))
    assert [[(c.component, c.new) for c in r.changes] for r in only.repairs] == [[("driver", "580.65.06")]]


def test_narrowed_constraint_tells_its_reason(solver):
    narrowed = {"python": (Spec.parse("3.9"), "this host has Python 3.9 only")}
    found = refusal(solver, request("alpha==2.0.0", narrowed=narrowed))
    assert any("this host has Python 3.9 only" in c.message for c in found.conflict)


def test_a_companion_that_is_named_as_a_framework_is_a_companion(solver):
    wish = {"alpha": Spec.parse("*"), "numpy": Spec.parse("1.26")}
    assert solve(Request(frameworks=wish), solver=solver).cell.components["numpy"] == "1.26.4"


def test_exclude_newer_hides_what_came_later(solver):
    cell = solve(request("alpha", exclude_newer="2024-12-31"), solver=solver).cell
    assert (cell.components["alpha"], cell.components["torch"]) == ("1.1.0", "2.2.0+cu121")
    found = refusal(solver, request("alpha==2.0.0", exclude_newer="2024-12-31"))
    assert "request:exclude-newer" in [c.rule for c in found.conflict]


def test_python_patch_release_means_its_minor(solver):
    assert solve(request("alpha", python="3.11.7"), solver=solver).cell.components["python"] == "3.11"


def test_unlisted_companion_is_taken_when_it_is_named_exactly(solver):
    assert solve(request("alpha", numpy="2.1.7"), solver=solver).cell.components["numpy"] == "2.1.7"
    assert solve(request("alpha", numpy="2.1.7"), solver=solver).cell.components["alpha"] == "2.0.0"
    found = refusal(solver, request("alpha==1.1.0", numpy="2.1.7"))
    assert "alpha-numpy2" in [c.rule for c in found.conflict]


def test_companion_without_known_releases_asks_for_an_exact_one(solver):
    found = refusal(solver, request("alpha", pydantic=">=1"))
    assert "name one exactly" in found.conflict[0].message


def test_unknown_component_is_a_usage_error_with_the_nearest_name(solver):
    with pytest.raises(UsageError, match="alpah") as caught:
        solve(request("alpah"), solver=solver)
    assert "alpha" in (caught.value.hint or "")


@pytest.mark.parametrize("driver", ["", "five", "; rm -rf /", "1" * 200])
def test_malformed_driver_is_a_usage_error(solver, driver):
    with pytest.raises(UsageError):
        solve(request("alpha", driver=driver or "!"), solver=solver)


def test_enumeration_lists_every_cell_once_and_the_best_first(solver):
    found = list(cells(request("alpha"), solver=solver))
    keys = [tuple(c.components.items()) for c in found]
    assert len(set(keys)) == len(keys)
    assert found[0] == solve(request("alpha"), solver=solver).cell
    frameworks = {c.components["alpha"] for c in found}
    assert frameworks == {"1.0.0", "1.1.0", "2.0.0", "2.0.1", "2.1.0rc1"}


def test_enumeration_of_an_impossible_request_is_empty(solver):
    assert list(cells(request("beta", torch=">=2.3"), solver=solver)) == []


@pytest.mark.parametrize("day", ["yesterday", "2024-13-01", "2024", "20240101", "2024-01-01T00:00"])
def test_day_that_is_none_is_a_usage_error(solver, day):
    with pytest.raises(UsageError, match="not a day"):
        solve(request("alpha", exclude_newer=day), solver=solver)


RUNTIME = """
evidence: {read: {kind: measured, source: the wheels, date: 2026-01-01}}
needs: []
toolkits:
- {cuda: "13", distributions: [nvcc], home: nvidia/cu13, evidence: read}
- {cuda: "12", missing: the index has no nvcc for CUDA 12, evidence: read}
sources:
- {distribution: numpy, toolkit: true, requires: [], time: {text: an hour, evidence: read}, unreadable: {text: "<2", evidence: read}, evidence: read}
"""


@pytest.fixture
def compiling(matrix_files, tmp_path):
    """The solver of a knowledge in which numpy is compiled with nvcc."""
    return solver_of(read_knowledge(write_files(tmp_path, {**matrix_files, "runtime.yaml": RUNTIME})))


def test_what_is_compiled_gets_a_cuda_whose_compiler_can_be_locked_and_says_how_long_it_takes(compiling):
    solution = solve(request("alpha", numpy="*"), solver=compiling)

    assert solution.cell.components["cuda"] == "13.0"
    assert [(w.rule, w.severity.value) for w in solution.warnings] == [("numpy-compiled", "note")]
    assert "an hour" in solution.warnings[0].message


def test_a_cuda_without_a_compiler_is_refused_with_that_as_its_reason(compiling):
    found = refusal(compiling, request("alpha", numpy="*", cuda="12.6"))

    (rule,) = [c for c in found.conflict if not c.is_wish]
    assert rule.rule == "numpy-nvcc"
    assert "the index has no nvcc for CUDA 12" in rule.message
    assert found.repairs[0].cell.components["cuda"] == "13.0"


def test_a_release_whose_requirements_cannot_be_read_is_not_chosen(compiling):
    found = refusal(compiling, request("alpha", numpy="1.26.4"))
    assert "numpy-unreadable" in [c.rule for c in found.conflict]


def test_what_somebody_has_is_not_judged_by_what_can_be_locked(compiling):
    versions = {"alpha": "2.0.0", "torch": "2.3.0+cu126", "python": "3.11", "numpy": "1.26.4"}
    judgement = check(versions, solver=compiling)
    assert (judgement.status, [f.rule for f in judgement.findings]) == ("unknown", ["alpha-note"])


@pytest.mark.parametrize("absent", [{"driver": "none"}, {"gpus": ("none",)}])
def test_host_without_gpu_gets_the_build_without_cuda(solver, absent):
    cell = solve(request(torch="2.2", **absent), solver=solver).cell

    assert cell.components["torch"] == "2.2.0+cpu"


def test_build_that_was_asked_for_is_taken_on_a_host_without_gpu(solver):
    cell = solve(request(torch="2.2.0+cu121", gpus=("none",)), solver=solver).cell

    assert (cell.components["torch"], cell.components["gpu"]) == ("2.2.0+cu121", "none")


def test_no_cuda_asks_for_the_build_without_it(solver):
    assert solve(request(torch="2.2", cuda="none"), solver=solver).cell.components["cuda"] == "cpu"


def test_what_a_lock_installs_cannot_be_absent(solver):
    with pytest.raises(UsageError, match="Cannot solve with numpy none: only a part of the host can be absent"):
        solve(request(numpy="none"), solver=solver)


def test_a_build_without_cuda_is_not_the_way_out_of_a_conflict(tmp_path, matrix_files):
    rule = """
rules:
- id: beta-triton
  kind: conflicts
  when: {beta: "==0.2", triton: ">=2.2"}
  cause: it takes triton.ops
  evidence: [{kind: reported, source: an issue, date: 2026-01-01}]
"""
    solver = solver_of(read_knowledge(write_files(tmp_path, {**matrix_files, "rules/beta.yaml": rule})))
    asked = request("beta==0.2", torch="2.2.0")
    found = refusal(solver, asked)
    assert {member.rule for member in found.conflict} >= {"beta-triton", "request:cuda"}
    assert [repair.cell.components["torch"] for repair in found.repairs] == ["2.1.0+cu118", "2.2.0+cu121"]
    assert solve(request("beta==0.2", torch="2.2.0", cuda="cpu"), solver=solver).cell.components["torch"] == "2.2.0+cpu"


def test_a_platform_without_builds_for_cuda_has_the_one_without(solver):
    asked = request(torch="2.3.0", platform=Platform.LINUX_AARCH64)
    assert solve(asked, solver=solver).cell.components["torch"] == "2.3.0+cpu"


def test_a_search_that_must_end_gives_what_it_has_and_says_that_it_stopped(solver):
    posed = solver.pose(request("alpha==1.0.0", "beta==0.2", torch="2.4.0", python="3.9", driver="470.57.02"))
    whole, cut = refuse(solver, posed).refusal, refuse(solver, posed, Effort(is_over=lambda: True)).refusal
    assert (whole.stopped, cut.stopped) == (False, True)
    assert cut.conflict
    assert cut.repairs
    assert "stopped at its limit" in refusal_lines(cut)[-1]


def test_reasons_that_were_not_sought_are_not_invented(solver):
    posed = solver.pose(request("alpha==1.0.0"))
    answer = solver.best(posed)
    why = reasons(solver, posed, answer, Effort(is_over=lambda: True)).why
    assert any("the search for the reason stopped at its limit" in sentence for sentence in why)


def test_a_release_that_would_be_no_answer_is_no_reason_either():
    with pytest.raises(UnsatisfiableError) as failure:
        solve(Request(constraints={"bitsandbytes": "==0.45.0", "torch": ">=2.6"}))
    assert not [member for member in failure.value.refusal.conflict if "a0" in member.message]
