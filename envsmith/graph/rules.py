"""``rules/<topic>.yaml`` -> :class:`Rule` values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envsmith.graph.evidence import named_evidence, read_evidence
from envsmith.graph.parse import Node
from envsmith.model.component import ComponentTable
from envsmith.model.evidence import Evidence
from envsmith.model.platform import Platform
from envsmith.model.rule import Row, Rule, RuleKind, Severity
from envsmith.model.version import Spec

__all__ = ["STAGES", "read_rules", "read_specs"]

STAGES = ("install", "build", "import", "init", "communication", "train", "checkpoint", "inference")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9_.]+)*")
_ROW = ("when", "needs", "severity", "symptom", "cause", "fix", "evidence")
_RULE = ("id", "kind", "rows", "stage", "signature", "platform", "title", *_ROW)


def read_rules(root: Node, table: ComponentTable) -> list[Rule]:
    """Every rule of one file; what is malformed is noted and left out."""
    fields = root.fields(("rules",), ("evidence",))
    named = named_evidence(fields.get("evidence"))
    rules = [_rule(node, named, table) for node in fields["rules"].sequence()] if "rules" in fields else []
    return [rule for rule in rules if rule]


def read_specs(node: Node, table: ComponentTable) -> tuple[dict[str, Spec], tuple[Platform, ...]]:
    """A mapping of component to spec; ``platform`` stands apart."""
    specs: dict[str, Spec] = {}
    platforms: tuple[Platform, ...] = ()
    for name, value in node.items():
        if name == "platform":
            member = value.choice(Platform)
            platforms = (member,) if member else ()
        elif name not in table.by_name:
            near = table.nearest(name)
            value.wrong(f"unknown component `{name}`", f"did you mean {near[0]}?" if near else "see components.yaml")
        else:
            spec = value.spec()
            if spec is not None:
                specs[name] = spec
    return specs, platforms


def _rule(node: Node, named: Mapping[str, Evidence], table: ComponentTable) -> Rule | None:
    fields = node.fields(("id", "kind"), _RULE)
    rule_id = fields["id"].text(maximum=80) if "id" in fields else None
    kind = fields["kind"].choice(RuleKind) if "kind" in fields else None
    if rule_id and not _ID.fullmatch(rule_id):
        fields["id"].wrong("not a rule id", "kebab case, topic first: deepspeed-elastic-log")
    stage = _text(fields, "stage")
    if stage and stage not in STAGES:
        fields["stage"].wrong("unknown stage", "choose " + ", ".join(STAGES))
    rows = _rows(node, fields, named, table, kind)
    signature = _signature(fields)
    if not rule_id or kind is None or not rows:
        return None
    return Rule(
        id=rule_id,
        kind=kind,
        rows=rows,
        stage=stage,
        signature=signature,
        symptom=_text(fields, "symptom"),
        cause=_text(fields, "cause"),
        fix=_text(fields, "fix"),
    )


def _signature(fields: Mapping[str, Node]) -> str | None:
    text = _text(fields, "signature")
    if text:
        try:
            re.compile(text)
        except re.error as error:
            fields["signature"].wrong(f"not a regular expression: {error}")
            return None
    return text


def _text(fields: Mapping[str, Node], name: str) -> str | None:
    return fields[name].text(maximum=4000) if name in fields else None


@dataclass(frozen=True, slots=True)
class _Reader:
    """What every row of one rule shares."""

    named: Mapping[str, Evidence]
    table: ComponentTable
    kind: RuleKind | None
    rule: Mapping[str, Node]
    shared: tuple[Evidence, ...]

    def row(self, line: Node, own: Mapping[str, Node]) -> Row | None:
        """One statement; ``own`` are its fields, which are those of the rule itself when that has no table."""
        if "when" not in own:
            if own is self.rule:
                line.problems.add(line.where, "`when` is missing", "add `when:` or `rows:`")
            return None
        when, platforms = read_specs(own["when"], self.table)
        needs, _ = read_specs(own["needs"], self.table) if "needs" in own else ({}, ())
        self.check_needs(line, own, needs)
        evidence = self.evidence(line, own)
        if not when and not own["when"].value:
            own["when"].wrong("speaks of no component")
        if not when or not evidence:
            return None
        inherited: dict[str, Any] = {}
        for name in ("symptom", "cause", "fix"):
            inherited[name] = _text(own, name) or _text(self.rule, name)
        severity = own.get("severity") or self.rule.get("severity")
        level = (severity.choice(Severity) if severity else None) or Severity.ERROR
        return Row(when=when, needs=needs, platforms=platforms, severity=level, evidence=evidence, **inherited)

    def check_needs(self, line: Node, own: Mapping[str, Node], needs: Mapping[str, Spec]) -> None:
        """Whether ``needs`` fits the kind of the rule."""
        if self.kind is RuleKind.CONFLICTS and needs:
            own["needs"].wrong("a rule of kind conflicts has no `needs`", "write kind: requires")
        if self.kind in (RuleKind.REQUIRES, RuleKind.BUNDLES) and "needs" not in own:
            line.problems.add(line.where, f"a row of kind {self.kind.value} needs `needs`")

    def evidence(self, line: Node, own: Mapping[str, Node]) -> tuple[Evidence, ...]:
        """The row's own evidence, else the rule's; none at all is a problem."""
        if own is not self.rule and "evidence" in own:
            return read_evidence(own["evidence"], self.named, owner=line)
        if "evidence" not in self.rule:
            read_evidence(None, self.named, owner=line)
        return self.shared


def _rows(
    node: Node, fields: dict[str, Node], named: Mapping[str, Evidence], table: ComponentTable, kind: RuleKind | None
) -> tuple[Row, ...]:
    has_table = "rows" in fields
    if has_table and "when" in fields:
        node.problems.add(node.where, "`when` and `rows` together", "move `when` into a row")
    lines = fields["rows"].sequence() if has_table else [node]
    if has_table and not lines:
        fields["rows"].wrong("no rows")
    shared = read_evidence(fields["evidence"], named, owner=node) if "evidence" in fields else ()
    reader = _Reader(named, table, kind, fields, shared)
    rows = [reader.row(line, line.fields(("when",), _ROW) if has_table else fields) for line in lines]
    return tuple(row for row in rows if row)
