"""`solve`: companions that nobody asked for, because a component of the cell declares them."""

from __future__ import annotations

import dataclasses

import pytest

from envsmith.knowledge.graph.read import read_knowledge
from envsmith.model.cell import Request
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.version import Spec
from envsmith.solver import cells, check, constraints_for, solve, solver_of

EVIDENCE = "{index: {kind: declared, source: index, date: 2026-01-01}}"
FURTHER = """
- {name: trainer, role: companion, short: tr, title: Trainer, distributions: [trainer], aliases: []}
- {name: models, role: companion, short: mo, title: Models, distributions: [models], aliases: []}
- {name: launcher, role: companion, short: la, title: Launcher, distributions: [launcher], aliases: []}
"""


def request(framework, **constraints):
    name, _, version = framework.partition("==")
    specs = {n: Spec.parse(text) for n, text in constraints.items()}
    return Request(frameworks={name: Spec.parse(version or "*")}, constraints=specs)


def conflict_rules(solver, asked):
    with pytest.raises(UnsatisfiableError) as caught:
        solve(asked, solver=solver)
    return {member.rule for member in caught.value.refusal.conflict}


def releases(component: str, *lines: str) -> str:
    rows = "".join(f"- {{{line}, evidence: index}}\n" for line in lines)
    return f"component: {component}\nevidence: {EVIDENCE}\nreleases:\n{rows}"


@pytest.fixture
def solver_with(tmp_path):
    """A solver over a knowledge written as files."""

    def build(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return solver_of(read_knowledge(tmp_path))

    return build


@pytest.fixture
def brought(matrix_files, solver_with):
    """alpha 2.0.0 wants models 1, trainer 2 wants models 2 and a launcher that needs torch 2.3."""
    alpha = matrix_files["releases/alpha.yaml"].replace(
        'requires: {torch: ">=2.2"}, python', 'requires: {torch: ">=2.2", models: "==1.*"}, python'
    )
    files = {
        **matrix_files,
        "components.yaml": matrix_files["components.yaml"] + FURTHER.lstrip(),
        "releases/alpha.yaml": alpha,
        "releases/models.yaml": releases("models", 'version: "1.5"', 'version: "2.0", requires: {python: ">=3.12"}'),
        "releases/launcher.yaml": releases("launcher", 'version: "1.0"', 'version: "2.0", requires: {torch: ">=2.3"}'),
        "releases/trainer.yaml": releases(
            "trainer",
            'version: "1.0"',
            'version: "1.1", requires: {launcher: ">=2.0"}',
            'version: "2.0", requires: {launcher: ">=2.0", models: ">=2.0"}',
        ),
    }
    return solver_with(files)


def test_two_components_that_declare_different_releases_of_a_third_are_not_chosen_together(brought):
    solution = solve(request("alpha==2.0.0", trainer="*"), solver=brought)
    assert solution.cell.components["trainer"] == "1.1"
    assert not {"models", "launcher"} & set(solution.cell.components)


def test_the_declarations_of_a_third_component_are_the_conflict(brought):
    rules = conflict_rules(brought, request("alpha==2.0.0", trainer="2.0"))
    assert {"alpha-declares-models", "trainer-declares-models"} <= rules


def test_torch_is_one_that_what_is_brought_along_admits(brought):
    assert solve(request("alpha==1.1.0", trainer="*"), solver=brought).cell.components["trainer"] == "1.0"
    assert "launcher-declares-torch" in conflict_rules(brought, request("alpha==1.1.0", trainer="1.1"))


def test_what_no_chosen_release_declares_forbids_nothing(brought):
    # models 2.0 is for Python 3.12 only, and trainer 1.0 does not declare it.
    solution = solve(request("beta", trainer="1.0", python="3.9"), solver=brought)
    assert solution.cell.components["python"] == "3.9"


def test_a_cell_is_listed_once_whatever_comes_along(brought):
    ids = [str(cell.id) for cell in cells(request("alpha", trainer="*"), solver=brought)]
    assert len(ids) == len(set(ids))


def test_a_request_that_is_not_to_be_locked_asks_nothing_of_what_comes_along(brought):
    asked = dataclasses.replace(request("alpha==2.0.0", trainer="2.0"), lockable=False)
    assert solve(asked, solver=brought).cell.components["trainer"] == "2.0"


def test_two_given_releases_that_declare_a_third_differently_are_bad_together(brought):
    together = check({"alpha": "2.0.0", "trainer": "2.0"}, solver=brought)
    assert (together.status, together.findings[0].rule) == ("bad", "alpha-declares-models")
    assert check({"alpha": "2.0.0", "trainer": "1.1"}, solver=brought).status != "bad"


def test_a_release_before_all_that_are_known_may_be_what_two_given_ones_declare(matrix_files, solver_with):
    files = {
        **matrix_files,
        "components.yaml": matrix_files["components.yaml"] + FURTHER.lstrip(),
        "releases/models.yaml": releases("models", 'version: "1.5"', 'version: "2.0"'),
        "releases/launcher.yaml": releases("launcher", 'version: "1.0", requires: {models: "<2.0"}'),
        "releases/trainer.yaml": releases("trainer", 'version: "1.0", requires: {models: "!=1.5,<3"}'),
    }
    assert check({"launcher": "1.0", "trainer": "1.0"}, solver=solver_with(files)).findings == ()


def test_a_rule_of_torch_about_a_package_beside_the_cell_is_a_demand(matrix_files, solver_with):
    rule = """
rules:
- id: torch-numpy
  kind: conflicts
  when: {torch: "<2.3", numpy: ">=2.0"}
  cause: compiled against numpy 1
  evidence: [{kind: reported, source: an issue, date: 2026-01-01}]
"""
    solver = solver_with({**matrix_files, "rules/torch.yaml": rule})
    cell = solve(request("beta", torch="2.2"), solver=solver).cell
    assert constraints_for(cell, solver=solver) == (("numpy<2.0", "torch-numpy"),)
