"""What the rules demand of Python distributions that are not in a cell: constraints for the package resolver."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from envsmith.knowledge.graph.load import VersionGraph
from envsmith.model.cell import Platform
from envsmith.model.component import Component, Role
from envsmith.model.rule import Row, Severity
from envsmith.model.version import Spec

_CLAUSE = re.compile(r"(>=|<=|==|!=|~=|<|>)?([^<>=!~*]+)(\.\*)?")
_OPPOSITE = {">=": "<", "<": ">=", "<=": ">", ">": "<=", "==": "!=", "!=": "=="}
# More exclusions than this say less than they cost; no rule of today comes near.
_MAX_EXCLUDED = 80


def demands_of(graph: VersionGraph, components: Mapping[str, str], platform: Platform) -> tuple[tuple[str, str], ...]:
    """Return ``(requirement, rule id)``, as ``("pydantic<2", "deepspeed-pydantic-2")``, in file order, each once.

    Only rules that make something fail count (severity error), and only such that speak of exactly one component
    outside the cell. What a release or wheel declares in its own metadata is left out: the resolver reads that itself.
    """
    demands: dict[tuple[str, str], None] = {}
    for compiled in graph.compiled.rules_of(components):
        if compiled.declared or compiled.bundles or all(name in components for name in compiled.components):
            continue
        for row in graph.rule(compiled.id).rows:
            if row.severity is Severity.ERROR and (not row.platforms or platform in row.platforms):
                for text in _row_demands(graph, row, components):
                    demands.setdefault((text, compiled.id))
    return tuple(demands)


def _row_demands(graph: VersionGraph, row: Row, components: Mapping[str, str]) -> Iterable[str]:
    outside = [c for c in row.when if c not in components]
    if any(
        c in components and not all(spec.contains(v) for v in components[c].split(",")) for c, spec in row.when.items()
    ):
        return
    if row.needs and not outside:
        for name, spec in row.needs.items():
            distribution = _distribution(graph.components.by_name.get(name))
            if name not in components and distribution and not spec.is_any:
                yield from _required(graph, name, distribution, spec)
    elif not row.needs and len(outside) == 1:
        (name,) = outside
        distribution = _distribution(graph.components.by_name.get(name))
        if distribution and len(row.when) > 1:
            yield from _forbidden(graph, name, distribution, row.when[name])


def _distribution(component: Component | None) -> str | None:
    """Return the distribution that carries a component's version, when there is one and only one.

    Frameworks come in by choice alone.
    """
    if component is None or not component.distributions or component.role is Role.FRAMEWORK:
        return None
    if len(component.distributions) == 1 or component.name in component.distributions:
        return component.name if component.name in component.distributions else component.distributions[0]
    return None


def _required(graph: VersionGraph, name: str, distribution: str, spec: Spec) -> Iterable[str]:
    if "||" not in spec.text:
        yield distribution + _explicit(spec)
        return
    yield from _excluded(graph, name, distribution, lambda v: not spec.contains(v))


def _forbidden(graph: VersionGraph, name: str, distribution: str, spec: Spec) -> Iterable[str]:
    """Return the opposite of a spec.

    In one clause where that can be said, else by excluding the releases that are known.
    """
    match = _CLAUSE.fullmatch(_explicit(spec)) if "||" not in spec.text and "," not in spec.text else None
    if match and match[1] in _OPPOSITE:
        yield f"{distribution}{_OPPOSITE[match[1]]}{match[2]}{match[3] or ''}"
        return
    yield from _excluded(graph, name, distribution, spec.contains)


def _excluded(graph: VersionGraph, name: str, distribution: str, bad: Callable[[str], bool]) -> Iterable[str]:
    versions = [version for version in graph.compiled.versions.get(name, ()) if bad(version)]
    if versions and len(versions) <= _MAX_EXCLUDED:
        yield distribution + ",".join(f"!={version}" for version in versions)


def _explicit(spec: Spec) -> str:
    """Return a spec as PEP 440: bare versions get their operator."""
    clauses = []
    for clause in spec.text.split(","):
        bare = clause[:1].isdigit()
        exact = Spec(clause).exact if bare else None
        clauses.append(clause if not bare else f"=={exact}" if exact else f"=={clause}.*")
    return ",".join(clauses)
