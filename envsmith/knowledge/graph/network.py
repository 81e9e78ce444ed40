"""The version graph: a ``networkx.MultiDiGraph`` of facts.

People look at it and export it. The solver's tables are compiled from the same values. Nodes are texts of three kinds:

- a component, ``torch``,
- a release, ``torch==2.9.1+cu128`` (a build of torch is its wheel),
- a rule, ``rule:torch-bundles-nccl``.

A release has an edge to its component (``release-of``). A rule has an edge to each component that it speaks of, or to
the release that it names exactly, for each row and ``side`` (``when`` or ``needs``), with the ``spec`` that the row
states. Its kind is that of the rule: ``bundles``, ``requires`` or ``conflicts``. A framework has an edge to torch for
each test (``tested``). Every edge carries its evidence. These are facts, about seven thousand edges, not the expansion
of all pairs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import networkx as nx

from envsmith.errors import UsageError
from envsmith.model.rule import Knowledge, Row, Rule

FORMATS = ("dot", "json")
_SHAPES = {"component": "box", "release": "ellipse", "rule": "note"}


def to_network(knowledge: Knowledge) -> nx.MultiDiGraph[str]:
    """Return the graph of all releases, rules and tests. ``graph.graph["digest"]`` names the state of the files."""
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(digest=knowledge.digest, gpus=knowledge.gpus)
    for component in knowledge.components.by_name.values():
        graph.add_node(
            component.name, kind="component", role=component.role.value, title=component.title, value=component
        )
    for name, releases in knowledge.releases.items():
        for release in releases:
            node = f"{name}=={release.version}"
            facts = {"date": release.date, "yanked": release.yanked, "index": release.index}
            graph.add_node(node, kind="release", component=name, version=release.version, **facts)
            graph.add_edge(node, name, kind="release-of", value=release, evidence=release.evidence)
    for rule in knowledge.rules:
        node = f"rule:{rule.id}"
        graph.add_node(node, kind="rule", rule=rule.kind.value, stage=rule.stage, cause=rule.cause, value=rule)
        for number, row in enumerate(rule.rows):
            _add_row(graph, node, rule, row, number)
    for tested in knowledge.tested:
        graph.add_edge(
            tested.framework,
            "torch",
            kind="tested",
            by=tested.kind,
            when=tested.version.text,
            spec=tested.torch.text,
            value=tested,
            evidence=tested.evidence,
        )
    return graph


def _add_row(graph: nx.MultiDiGraph[str], node: str, rule: Rule, row: Row, number: int) -> None:
    for side, specs in (("when", row.when), ("needs", row.needs)):
        for place, (component, spec) in enumerate(specs.items()):
            exact = f"{component}=={spec.text.removeprefix('==')}"
            graph.add_edge(
                node,
                exact if exact in graph else component,
                kind=rule.kind.value,
                component=component,
                side=side,
                row=number,
                place=place,
                spec=spec.text,
                severity=row.severity.value,
                feature=row.feature or "",
                platforms=tuple(p.value for p in row.platforms),
                evidence=row.evidence,
            )


def around(graph: nx.MultiDiGraph[str], component: str) -> nx.MultiDiGraph[str]:
    """Return the part of the graph that speaks of a component: its releases, its rules, and what those rules name."""
    if component not in graph:
        raise UsageError(f"Cannot find {component!r}: the version graph has no such component.")
    near = nx.ego_graph(graph.to_undirected(as_view=True), component, radius=2).nodes
    # A subgraph of networkx lists its nodes in the order of a set, which differs from run to run.
    part: nx.MultiDiGraph[str] = nx.MultiDiGraph(**graph.graph)
    part.add_nodes_from((node, data) for node, data in graph.nodes(data=True) if node in near)
    part.add_edges_from((a, b, data) for a, b, data in graph.edges(data=True) if a in near and b in near)
    return part


def export(graph: nx.MultiDiGraph[str], form: str) -> str:
    """Return the graph as text in one of :data:`FORMATS`."""
    plain: nx.MultiDiGraph[str] = nx.MultiDiGraph(digest=graph.graph["digest"])
    plain.add_nodes_from((node, _texts(data)) for node, data in graph.nodes(data=True))
    plain.add_edges_from((source, target, _texts(data)) for source, target, data in graph.edges(data=True))
    if form == "json":
        return json.dumps(nx.node_link_data(plain, edges="edges"), indent=1, ensure_ascii=False) + "\n"
    return _dot(plain)


def _texts(data: Mapping[str, Any]) -> dict[str, str | int]:
    texts: dict[str, str | int] = {}
    for key, value in data.items():
        if key == "evidence":
            texts[key] = "; ".join(dict.fromkeys(map(str, value)))
        elif isinstance(value, tuple):
            texts[key] = ",".join(value)
        elif isinstance(value, (str, int)):
            texts[key] = value
    return {key: value for key, value in texts.items() if value != ""}


def _dot(graph: nx.MultiDiGraph[str]) -> str:
    lines = ["digraph envsmith {", "  rankdir=LR;"]
    for node, data in graph.nodes(data=True):
        lines.append(f"  {json.dumps(node)} [shape={_SHAPES[data.get('kind', 'component')]}];")
    for source, target, data in graph.edges(data=True):
        label = " ".join(str(data[key]) for key in ("side", "when", "spec") if key in data)
        lines.append(f"  {json.dumps(source)} -> {json.dumps(target)} [label={json.dumps(label or data['kind'])}];")
    return "\n".join([*lines, "}"]) + "\n"
