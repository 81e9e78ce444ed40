"""The bounds of preference, each on a knowledge of a few dated releases: docs/explanation/choices.md in small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envsmith.errors import UsageError
from envsmith.model.cell import Request
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.rule import Evidence, EvidenceKind, Knowledge, Release, Row, Rule, RuleKind, Severity
from envsmith.model.rule import Tested as Line
from envsmith.model.version import Spec
from envsmith.solver import cells, check, solve, solver_of
from envsmith.solver.prefer import _listed

SOURCE = (Evidence(kind=EvidenceKind.REPORTED, source="a test", date="2026-01-01"),)
ROLES = {"alpha": Role.FRAMEWORK, "torch": Role.CORE, "kernels": Role.COMPANION, "arrays": Role.COMPANION}
COMPANIONS = {
    "kernels": {"1.0": "2023-01-01", "2.0": "2026-01-01"},
    "arrays": {"1.0": "2023-01-01", "2.0": "2026-01-01"},
}
TORCH = {"2.1": "2024-01-01", "2.2": "2025-01-01", "2.3": "2025-06-01", "2.4": "2026-01-01"}
ALPHA = {"1.0": "2022-01-01", "2.0": "2024-06-01", "3.0": "2026-01-01"}


def knowledge(*warnings, alpha=ALPHA, tested=()):
    listed = {"alpha": alpha, "torch": TORCH, **COMPANIONS}
    releases = {
        name: tuple(
            Release(
                component=name,
                version=version,
                date=day,
                facts={"build_imports": ("torch",)} if name == "kernels" else {},
                evidence=SOURCE,
            )
            for version, day in versions.items()
        )
        for name, versions in listed.items()
    }
    rules = tuple(
        Rule(
            id=f"warning-{number}",
            kind=RuleKind.CONFLICTS,
            rows=(
                Row(
                    when={name: Spec.parse(spec) for name, spec in when.items()},
                    severity=Severity.WARNING,
                    evidence=SOURCE,
                ),
            ),
        )
        for number, when in enumerate(warnings)
    )
    lines = tuple(
        Line(framework="alpha", version=Spec.exactly(a), torch=Spec.exactly(t), kind=kind, evidence=SOURCE)
        for a, t, kind in tested
    )
    table = ComponentTable.of(Component(name=n, role=r, short=n[:3], title=n) for n, r in ROLES.items())
    return Knowledge(components=table, releases=releases, rules=rules, tested=lines)


def chosen(facts, **asked):
    frameworks = {"alpha": Spec.parse(asked.pop("alpha", "*"))}
    request = Request(frameworks=frameworks, constraints={name: Spec.parse(spec) for name, spec in asked.items()})
    solution = solve(request, solver=solver_of(facts))
    assert next(cells(request, solver=solver_of(facts))) == solution.cell
    return dict(solution.cell.components), [w.rule for w in solution.warnings]


def test_a_warning_is_avoided_at_the_price_of_two_years():
    components, warnings = chosen(knowledge({"alpha": ">=3.0"}))

    assert (components["alpha"], warnings) == ("2.0", [])


def test_a_warning_is_taken_where_avoiding_it_costs_more_than_two_years():
    components, warnings = chosen(knowledge({"alpha": ">=2.0"}))

    assert (components["alpha"], warnings) == ("3.0", ["warning-0"])


def test_a_warning_that_stays_takes_no_other_warning_with_it():
    facts = knowledge({"alpha": ">=2.0"}, {"torch": ">=2.4"}, {"torch": ">=2.3"})

    components, warnings = chosen(facts)

    assert (components, warnings) == ({"alpha": "3.0", "torch": "2.2"}, ["warning-0"])


def test_no_part_need_be_younger_than_the_oldest_of_the_answer():
    facts = knowledge({"alpha": ">=2.0"}, alpha={"1.0": "2023-02-01", "2.0": "2024-06-01", "3.0": "2026-01-01"})

    assert chosen(facts)[0]["alpha"] == "3.0"
    assert chosen(facts, arrays="1.0")[0]["alpha"] == "1.0"


def test_a_tested_release_comes_before_a_newer_one_for_one_year():
    tested = [("1.0", "2.1", "ci")]
    near = knowledge(alpha={"1.0": "2025-02-01", "2.0": "2026-01-01"}, tested=tested)
    far = knowledge(alpha={"1.0": "2024-12-01", "2.0": "2026-01-01"}, tested=tested)

    assert chosen(near)[0]["alpha"] == "1.0"
    assert chosen(far)[0]["alpha"] == "2.0"


def test_tested_torch_comes_before_newer_torch_for_one_year():
    assert chosen(knowledge(tested=[("3.0", "2.2", "ci")]))[0]["torch"] == "2.2"
    assert chosen(knowledge(tested=[("3.0", "2.1", "ci")]))[0]["torch"] == "2.4"


def test_a_run_that_trains_nothing_proves_nothing():
    for kind in ("inference", "build"):
        assert chosen(knowledge(tested=[("3.0", "2.2", kind)]))[0]["torch"] == "2.4"


def test_torch_of_the_age_of_the_framework_comes_before_torch_that_was_tested_later():
    facts = knowledge(tested=[("2.0", "2.4", "record")])

    assert chosen(facts, alpha="2.0")[0]["torch"] == "2.1"
    assert chosen(facts, alpha="2.0", torch=">=2.2")[0]["torch"] == "2.2"


def test_torch_is_of_the_age_of_a_companion_that_is_compiled_against_it():
    assert chosen(knowledge(), kernels="==1.0")[0]["torch"] == "2.1"
    assert chosen(knowledge(), arrays="==1.0")[0]["torch"] == "2.4"


def test_what_is_compiled_against_torch_ages_it_where_only_a_file_asks_for_it():
    wish = {"kernels": (Spec.parse("==1.0"), "requirements.txt:3")}
    request = Request(frameworks={"alpha": Spec.parse("*")}, narrowed=wish)
    assert solve(request, solver=solver_of(knowledge())).cell.components["torch"] == "2.1"


def test_a_companion_is_of_the_age_of_the_framework():
    assert chosen(knowledge(), alpha="2.0", torch="2.1", arrays="*")[0]["arrays"] == "1.0"
    assert chosen(knowledge(), arrays="*")[0]["arrays"] == "2.0"


def test_a_version_that_equals_a_listed_release_is_that_release():
    assert chosen(knowledge(), arrays="==1")[0]["arrays"] == "1.0"


def test_a_framework_without_tested_lines_leaves_the_choice_to_the_one_that_has_some():
    facts = knowledge()
    lines = [Line(framework="beta", version=Spec.exactly("1.0"), torch=Spec.exactly("2.2"), kind="ci", evidence=SOURCE)]
    beta = Release(component="beta", version="1.0", date="2026-01-01", evidence=SOURCE)
    parts = [*facts.components.by_name.values(), Component(name="beta", role=Role.FRAMEWORK, short="be", title="beta")]
    both = replace(
        facts,
        components=ComponentTable.of(parts),
        releases={**facts.releases, "beta": (beta,)},
        tested=tuple(lines),
    )
    request = Request(frameworks={"alpha": Spec.parse("*"), "beta": Spec.parse("*")})

    assert solve(request, solver=solver_of(both)).cell.components["torch"] == "2.2"


def test_a_repair_leaves_no_warning_behind_however_old_its_releases_are():
    facts = knowledge({"alpha": ">=2.0"})
    broken = Row(when={"alpha": Spec.parse(">=3.0"), "torch": Spec.parse("*")}, evidence=SOURCE)
    rule = Rule(id="an-error", kind=RuleKind.CONFLICTS, rows=(broken,))
    given = {"alpha": "3.0", "torch": "2.4"}

    judgement = check(given, solver=solver_of(replace(facts, rules=(*facts.rules, rule))))

    assert judgement.repair is not None
    assert judgement.repair.cell.components["alpha"] == "1.0"


def test_values_are_tried_in_the_stated_order_and_only_those_that_are_still_possible():
    assert list(_listed(1, [2, 0, 1])((0, 0b011))) == [0b001, 0b010]
    assert list(_listed(0, [2, 0, 1])((0b110,))) == [0b100, 0b010]


# ``--date``: what was newest on a day.


def of_date(day, *warnings, **constraints):
    request = Request(frameworks={"alpha": "*"}, constraints=constraints, date=day)
    return solve(request, solver=solver_of(knowledge(*warnings, tested=(("3.0", "2.4", "ci"),))))


def test_a_date_prefers_what_was_newest_on_that_day():
    assert dict(of_date("2025-02-01", arrays="*").cell.components) == {"alpha": "2.0", "torch": "2.2", "arrays": "1.0"}


def test_a_date_forbids_nothing():
    cell = of_date("2021-01-01", torch=">=2.2").cell
    assert (cell.components["alpha"], cell.components["torch"]) == ("1.0", "2.2")


def test_a_warning_moves_a_release_of_the_time_and_not_by_years():
    assert of_date("2025-02-01", {"alpha": "2.0", "torch": "2.2"}).cell.components["torch"] == "2.3"
    far = of_date("2025-02-01", {"alpha": "2.0", "torch": "<2.4"})
    assert far.cell.components["torch"] in {"2.2", "2.4"}
    assert far.cell.components["alpha"] == "2.0"


def test_the_reason_names_the_date():
    why = of_date("2025-02-01").why
    assert "alpha 2.0: 3.0 is newer, but it came out on 2026-01-01, after the date 2025-02-01." in why


def test_a_date_that_is_not_a_day_is_refused():
    with pytest.raises(UsageError, match="--date"):
        of_date("yesterday")
