"""The version graph holds components, releases, rules and tests with their evidence; people can look at it."""

from __future__ import annotations

import json

import networkx as nx
import pytest

from envsmith.errors import UsageError
from envsmith.knowledge.graph.compile import compile_knowledge
from envsmith.knowledge.graph.network import around, export, to_network
from envsmith.knowledge.graph.read import read_knowledge


@pytest.fixture
def graph(matrix):
    return to_network(read_knowledge(matrix.root))


def test_graph_holds_components_releases_and_rules_with_evidence(graph):
    assert graph.nodes["torch"]["kind"] == "component"
    assert graph.nodes["torch==2.1.0+cu118"]["index"] == "default"
    (edge,) = (d for d in graph["rule:torch-bundles-nccl"]["nccl"].values() if d["side"] == "needs")
    assert edge["kind"] == "bundles"
    assert edge["spec"] == "==2.18.1"
    assert edge["evidence"][0].source == "the notes"
    assert "torch==2.1.0+cu118" in graph["rule:torch-bundles-nccl"]
    assert set(graph.successors("rule:alpha-old")) == {"alpha", "torch", "gcc"}
    assert graph.edges["alpha", "torch", 0]["kind"] == "tested"


def test_rules_about_a_component_are_found_by_it(matrix):
    compiled = compile_knowledge(read_knowledge(matrix.root))
    assert [rule.id for rule in compiled.rules_of(["gcc"])] == ["alpha-old"]
    assert "torch-bundles-cuda" in [rule.id for rule in compiled.rules_of(["cuda", "gcc"])]
    assert compiled.rules_of(["nothing"]) == []


def test_part_keeps_the_order_of_the_whole_graph(graph):
    part = list(around(graph, "gcc"))
    assert part == [node for node in graph if node in part]


def test_part_around_a_component_has_its_releases_and_rules(graph):
    part = around(graph, "gcc")
    assert set(part) == {"gcc", "rule:alpha-old", "alpha", "torch"}
    with pytest.raises(UsageError, match="Cannot find 'gc'"):
        around(graph, "gc")


def test_json_is_read_again_by_networkx(graph):
    document = json.loads(export(graph, "json"))
    again = nx.node_link_graph(document, edges="edges")
    assert set(again) == set(graph)
    assert again.number_of_edges() == graph.number_of_edges()
    shown = [data["evidence"] for _, _, data in again.out_edges("rule:alpha-old", data=True)]
    assert shown == ["reported 2026-01-01: an issue"] * 3


def test_dot_names_every_node_and_labels_its_edges(graph):
    text = export(around(graph, "gcc"), "dot")
    assert text.startswith("digraph envsmith {")
    assert '"rule:alpha-old" -> "gcc" [label="when >=13"];' in text
    assert (
        '"alpha" -> "torch" [label="==1.1.0 ==2.1.0"];' in text or '"alpha" -> "torch" [label="1.1.0 2.1.0"];' in text
    )
