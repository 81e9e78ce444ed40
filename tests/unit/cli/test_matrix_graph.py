"""``envsmith matrix graph`` writes the version graph, or the part around a component, to stdout."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from envsmith.cli.app import cli
from envsmith.errors import UsageError


def test_graph_around_a_component_is_json_with_evidence():
    result = CliRunner().invoke(
        cli, ["matrix", "graph", "--format", "json", "--around", "NCCL"], catch_exceptions=False
    )
    document = json.loads(result.stdout)
    assert {"nccl", "rule:torch-bundles-nccl"} <= {node["id"] for node in document["nodes"]}
    carried = [edge for edge in document["edges"] if edge["source"] == "rule:torch-bundles-nccl"]
    assert all(edge["evidence"] for edge in carried)


def test_default_is_dot():
    result = CliRunner().invoke(cli, ["matrix", "graph", "--around", "glibc"], catch_exceptions=False)
    assert result.stdout.startswith("digraph envsmith {")


def test_unknown_component_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="nccll"):
        CliRunner().invoke(cli, ["matrix", "graph", "--around", "nccll"], catch_exceptions=False)
