"""The version graph as a ``networkx`` graph of facts, to draw and to query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsmith.graph.load import knowledge_of
from envsmith.model.rule import Knowledge, Row, Rule

if TYPE_CHECKING:
    import networkx as nx


def load(root: Path | None = None) -> nx.MultiDiGraph[Any]:
    """The graph of everything below ``root`` (default: the installed knowledge); see :func:`to_network`."""
    from envsmith.graph.files import find_matrix, list_files

    return to_network(knowledge_of(list_files(root or find_matrix())))


def to_network(knowledge: Knowledge) -> nx.MultiDiGraph[Any]:
    """Facts, not the expansion of all compatible pairs.

    A node per component (``"torch"``; ``kind="component"``) and per release (``("torch", "2.9.1+cu128")``; ``kind="release"``, with the
    fields of its line; a build of torch is its wheel), joined by an edge ``kind="release-of"``. A rule over two components is an edge from
    the one to the other, or from the release that its row names exactly; a rule over more is a node of its own (``kind="rule"``) with an
    edge to each component. Edges carry ``rule``, ``kind`` (bundles, requires, conflicts), ``when`` and ``spec`` as text, ``severity``,
    ``platforms`` and ``evidence``. ``graph.graph["digest"]`` names the state of the knowledge.
    """
    import networkx as nx

    graph: nx.MultiDiGraph[Any] = nx.MultiDiGraph(digest=knowledge.digest)
    for component in knowledge.components.by_name.values():
        graph.add_node(component.name, kind="component", role=component.role.value, title=component.title)
    for name, releases in knowledge.releases.items():
        for release in releases:
            node = (name, release.version)
            graph.add_node(
                node,
                kind="release",
                component=name,
                version=release.version,
                date=release.date,
                yanked=release.yanked,
                index=release.index,
                **{k: v for k, v in release.facts.items() if k not in {"kind", "component", "version"}},
            )
            if not graph.has_edge(node, name):
                graph.add_edge(node, name, kind="release-of", evidence=release.evidence)
    for rule in knowledge.rules:
        for number, row in enumerate(rule.rows):
            _add_row(graph, rule, row, number)
    return graph


def _add_row(graph: nx.MultiDiGraph[Any], rule: Rule, row: Row, number: int) -> None:
    facts = {
        "rule": rule.id,
        "row": number,
        "kind": rule.kind.value,
        "severity": row.severity.value,
        "when": {c: s.text for c, s in row.when.items()},
        "platforms": tuple(p.value for p in row.platforms),
        "evidence": row.evidence,
    }
    scope = row.scope
    if len(scope) <= 2:
        source, target = scope[0], scope[-1]
        spec = row.needs.get(target) or row.when[target]
        graph.add_edge(_node(graph, source, row.when[source].text), target, spec=spec.text, **facts)
        return
    node = ("rule", f"{rule.id}#{number}")
    graph.add_node(node, rule=rule.id, kind="rule", severity=row.severity.value, evidence=row.evidence)
    for component in scope:
        spec = row.needs.get(component) or row.when[component]
        graph.add_edge(node, component, spec=spec.text, role="needs" if component in row.needs else "when", **facts)


def _node(graph: nx.MultiDiGraph[Any], component: str, spec: str) -> Any:
    """The release that a spec names exactly, or the component."""
    release = (component, spec.removeprefix("=="))
    return release if release in graph else component
