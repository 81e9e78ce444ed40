"""``envsmith matrix graph``: the version graph, drawn."""

from __future__ import annotations

from pathlib import Path

import click

from envsmith.cli.console import print_out
from envsmith.cli.flags import matrix_option
from envsmith.cli.values import parse_component
from envsmith.knowledge.graph.load import version_graph
from envsmith.knowledge.graph.location import find_matrix, list_files

_EXAMPLES = """\b
Examples:
  envsmith matrix graph --around nccl | dot -Tsvg > nccl.svg
  envsmith matrix graph --format json > versions.json
"""


@click.command(epilog=_EXAMPLES)
@click.option("--format", "form", type=click.Choice(["dot", "json"]), default="dot", show_default=True, help="Format.")
@click.option("--around", metavar="COMPONENT", help="Only its releases, its rules, and what those name.")
@matrix_option
def graph(*, form: str, around: str | None, folder: Path | None) -> int:
    """Show the version graph: components, releases and rules, and edges with specs and evidence."""
    from envsmith.knowledge.graph import network  # it imports networkx

    loaded = version_graph(list_files(folder or find_matrix()))
    drawn = network.to_network(loaded.knowledge())
    if around is not None:
        component, _spec = parse_component(around, loaded.components, flag="--around")
        drawn = network.around(drawn, component.name)
    print_out(network.export(drawn, form), nl=False)
    return 0
