"""What the rules demand of Python distributions that are not in a cell: handed to the package resolver as constraints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from envsmith.model.component import Component, Role
from envsmith.model.platform import Platform
from envsmith.model.rule import Knowledge, Row, Severity
from envsmith.model.version import Spec
from envsmith.solve.problem import exact_version

__all__ = ["demands_of"]

_CLAUSE = re.compile(r"(>=|<=|==|!=|~=|<|>)?([^<>=!~*]+)(\.\*)?")
_OPPOSITE = {">=": "<", "<": ">=", "<=": ">", ">": "<=", "==": "!=", "!=": "=="}
# More exclusions than this say less than they cost; no rule of today comes near.
_MAX_EXCLUDED = 80


def demands_of(knowledge: Knowledge, components: Mapping[str, str], platform: Platform) -> tuple[tuple[str, str], ...]:
    """``(requirement, rule id)``, as ``("pydantic<2", "deepspeed-pydantic-2")``, in file order, each once.

    Only rules that make something fail count (severity error), and only such that speak of exactly one component outside the cell. What a
    release declares in its own metadata is left out: the resolver reads that itself.
    """
    found: dict[tuple[str, str], None] = {}
    for rule in knowledge.rules:
        if "-declares-" in rule.id or rule.id.startswith("torch-"):
            continue
        for row in rule.rows:
            if row.severity is Severity.ERROR and (not row.platforms or platform in row.platforms):
                for text in _row_demands(knowledge, row, components):
                    found.setdefault((text, rule.id))
    return tuple(found)


def _row_demands(knowledge: Knowledge, row: Row, components: Mapping[str, str]) -> Iterable[str]:
    outside = [c for c in row.when if c not in components]
    if any(c in components and not _admits(spec, components[c]) for c, spec in row.when.items()):
        return
    if row.needs and not outside:
        for name, spec in row.needs.items():
            distribution = _distribution(knowledge.components.by_name.get(name))
            if name not in components and distribution and not spec.is_any:
                yield from _required(knowledge, name, distribution, spec)
    elif not row.needs and len(outside) == 1:
        (name,) = outside
        distribution = _distribution(knowledge.components.by_name.get(name))
        if distribution and len(row.when) > 1:
            yield from _forbidden(knowledge, name, distribution, row.when[name])


def _admits(spec: Spec, version: str) -> bool:
    return all(spec.contains(v) for v in version.split(","))


def _distribution(component: Component | None) -> str | None:
    """The distribution that carries a component's version, when there is one and only one. Frameworks come in by choice alone."""
    if component is None or not component.distributions or component.role is Role.FRAMEWORK:
        return None
    if len(component.distributions) == 1 or component.name in component.distributions:
        return component.name if component.name in component.distributions else component.distributions[0]
    return None


def _required(knowledge: Knowledge, name: str, distribution: str, spec: Spec) -> Iterable[str]:
    if "||" not in spec.text:
        yield distribution + _explicit(spec)
        return
    yield from _excluded(knowledge, name, distribution, lambda v: not spec.contains(v))


def _forbidden(knowledge: Knowledge, name: str, distribution: str, spec: Spec) -> Iterable[str]:
    """The opposite of a spec: in one clause where that can be said, else by excluding the releases that are known."""
    match = _CLAUSE.fullmatch(_explicit(spec)) if "||" not in spec.text and "," not in spec.text else None
    if match and match[1] in _OPPOSITE:
        yield f"{distribution}{_OPPOSITE[match[1]]}{match[2]}{match[3] or ''}"
        return
    yield from _excluded(knowledge, name, distribution, spec.contains)


def _excluded(knowledge: Knowledge, name: str, distribution: str, bad: Callable[[str], bool]) -> Iterable[str]:
    known = [r.version for r in knowledge.releases.get(name, ()) if bad(r.version)]
    if known and len(known) <= _MAX_EXCLUDED:
        yield distribution + ",".join(f"!={version}" for version in known)


def _explicit(spec: Spec) -> str:
    """A spec as PEP 440: bare versions get their operator."""
    clauses = []
    for clause in spec.text.split(","):
        bare = clause[:1].isdigit()
        exact = exact_version(Spec(clause)) if bare else None
        clauses.append(clause if not bare else f"=={exact}" if exact else f"=={clause}.*")
    return ",".join(clauses)
