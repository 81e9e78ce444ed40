"""What a cell demands of packages outside it: a rule's spec, or its opposite, as PEP 440."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envsmith.knowledge.graph.load import VersionGraph
from envsmith.model.cell import Platform
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.rule import Evidence, EvidenceKind, Knowledge, Row, Rule, RuleKind, Severity
from envsmith.model.version import Spec
from envsmith.solver.demands import demands_of

SOURCE = (Evidence(kind=EvidenceKind.REPORTED, source="a test", date="2026-01-01"),)
CELL = {"alpha": "2.0.0", "torch": "2.3.0+cu130"}


def demands(knowledge: Knowledge, row: Row, kind: RuleKind = RuleKind.REQUIRES, name: str = "a-rule") -> list[str]:
    rule = Rule(id=name, kind=kind, rows=(row,))
    return [text for text, _ in demands_of(VersionGraph.of(replace(knowledge, rules=(rule,))), CELL, Platform.LINUX_64)]


def row(*, when: dict[str, str], needs: dict[str, str] | None = None, **fields: object) -> Row:
    specs = [{name: Spec.parse(text) for name, text in part.items()} for part in (when, needs or {})]
    values: dict[str, object] = {"severity": Severity.ERROR, "evidence": SOURCE, **fields}
    return Row(when=specs[0], needs=specs[1], **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "demand"),
    [
        ("<2", ["numpy<2"]),
        (">=1.2,<2", ["numpy>=1.2,<2"]),
        ("1.26", ["numpy==1.26.*"]),
        ("1.26.4", ["numpy==1.26.4"]),
        ("==1.26.4", ["numpy==1.26.4"]),
        ("<2||>=2.1", ["numpy!=2.0.0"]),
        ("*", []),
    ],
)
def test_a_rule_that_needs_a_package_demands_its_spec(knowledge: Knowledge, spec: str, demand: list[str]) -> None:
    assert demands(knowledge, row(when={"alpha": ">=2"}, needs={"numpy": spec})) == demand


@pytest.mark.parametrize(
    ("spec", "demand"),
    [
        (">=2.0", ["numpy<2.0"]),
        ("<2", ["numpy>=2"]),
        ("<=2.0", ["numpy>2.0"]),
        (">2.0", ["numpy<=2.0"]),
        ("==2.0.0", ["numpy!=2.0.0"]),
        ("!=2.0.0", ["numpy==2.0.0"]),
        ("2.0", ["numpy!=2.0.*"]),
        ("==2.0.*", ["numpy!=2.0.*"]),
        (">=2,<2.1", ["numpy!=2.0.0"]),
        ("<1||>=2", ["numpy!=2.0.0,!=2.1.0"]),
        ("~=2.0", ["numpy!=2.0.0,!=2.1.0"]),
        (">=9,<10", []),
    ],
)
def test_a_rule_that_forbids_a_package_demands_the_opposite(knowledge: Knowledge, spec: str, demand: list[str]) -> None:
    assert demands(knowledge, row(when={"alpha": ">=2", "numpy": spec}), RuleKind.CONFLICTS) == demand


@pytest.mark.parametrize(
    "silent",
    [
        row(when={"alpha": "<2"}, needs={"numpy": "<2"}),
        row(when={"alpha": ">=2"}, needs={"torch": "<2"}),
        row(when={"alpha": ">=2"}, needs={"driver": ">=580"}),
        row(when={"alpha": ">=2"}, needs={"beta": "<1"}),
        row(when={"alpha": ">=2"}, needs={"numpy": "<2"}, severity=Severity.WARNING),
        row(when={"alpha": ">=2"}, needs={"numpy": "<2"}, platforms=(Platform.LINUX_AARCH64,)),
        row(when={"alpha": ">=2", "pydantic": "<2"}, needs={"numpy": "<2"}),
        row(when={"numpy": ">=2"}),
        row(when={"alpha": ">=2", "numpy": ">=2", "pydantic": "<2"}),
    ],
)
def test_a_rule_that_does_not_meet_the_cell_or_one_package_outside_it_demands_nothing(
    knowledge: Knowledge, silent: Row
) -> None:
    assert demands(knowledge, silent) == []


def test_what_a_release_declares_itself_is_left_to_the_resolver(knowledge: Knowledge) -> None:
    plain = row(when={"alpha": ">=2"}, needs={"numpy": "<2"}, platforms=(Platform.LINUX_64,))

    assert demands(knowledge, plain) == ["numpy<2"]
    assert demands(knowledge, plain, name="alpha-declares-numpy") == []
    assert demands(knowledge, plain, RuleKind.BUNDLES) == []


@pytest.mark.parametrize(
    ("distributions", "demand"),
    [
        ((), []),
        (("kernels",), ["kernels<2"]),
        (("other",), ["other<2"]),
        (("other", "kernels"), ["kernels<2"]),
        (("kernels-cu12", "kernels-cu13"), []),
    ],
)
def test_a_package_is_demanded_by_its_one_distribution_or_the_one_of_its_name(
    knowledge: Knowledge, distributions: tuple[str, ...], demand: list[str]
) -> None:
    kernels = Component(
        name="kernels", role=Role.COMPANION, short="k", title="Kernels", distributions=distributions, aliases=()
    )
    table = ComponentTable.of([*knowledge.components.by_name.values(), kernels])

    needs = row(when={"alpha": ">=2"}, needs={"kernels": "<2"})

    assert demands(replace(knowledge, components=table), needs) == demand
