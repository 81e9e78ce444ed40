"""``rules/<topic>.yaml`` -> :class:`Rule` values."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    defaults = {name: _text(fields, name) for name in ("symptom", "cause", "fix")}
    stage = _text(fields, "stage")
    if stage and stage not in STAGES:
        fields["stage"].wrong("unknown stage", "choose " + ", ".join(STAGES))
    rows = _rows(node, fields, named, table, kind)
    signature = _signature(fields)
    if not rule_id or kind is None or not rows:
        return None
    return Rule(id=rule_id, kind=kind, rows=rows, stage=stage, signature=signature, **defaults)


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
    rows = []
    for line in lines:
        own = line.fields(("when",), _ROW) if has_table else fields
        row = _row(line, own, fields, named, table, kind, shared)
        if row:
            rows.append(row)
    return tuple(rows)


def _row(
    line: Node,
    own: Mapping[str, Node],
    rule: Mapping[str, Node],
    named: Mapping[str, Evidence],
    table: ComponentTable,
    kind: RuleKind | None,
    shared: tuple[Evidence, ...],
) -> Row | None:
    if "when" not in own:
        if own is rule:
            line.problems.add(line.where, "`when` is missing", "add `when:` or `rows:`")
        return None
    when, platforms = read_specs(own["when"], table)
    needs, _ = read_specs(own["needs"], table) if "needs" in own else ({}, ())
    if kind is RuleKind.CONFLICTS and needs:
        own["needs"].wrong("a rule of kind conflicts has no `needs`", "write kind: requires")
    if kind in (RuleKind.REQUIRES, RuleKind.BUNDLES) and not needs:
        line.problems.add(line.where, f"a rule of kind {kind.value} needs `needs`")
    evidence = shared
    if own is not rule and "evidence" in own:
        evidence = read_evidence(own["evidence"], named, owner=line)
    elif "evidence" not in rule:
        read_evidence(None, named, owner=line)
    if not when or not evidence:
        if not when:
            own["when"].wrong("speaks of no component")
        return None
    inherited: dict[str, Any] = {}
    for name in ("symptom", "cause", "fix"):
        inherited[name] = _text(own, name) or _text(rule, name)
    severity = own.get("severity") or rule.get("severity")
    level = severity.choice(Severity) if severity else Severity.ERROR
    return Row(
        when=when, needs=needs, platforms=platforms, severity=level or Severity.ERROR, evidence=evidence, **inherited
    )
