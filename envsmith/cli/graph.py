"""``envsmith matrix graph``: the version graph, drawn."""

from __future__ import annotations

from dataclasses import dataclass

from envsmith.cli.console import print_out
from envsmith.cli.declare import ExistingFolder, choice, option, verb
from envsmith.cli.flags import matrix_option
from envsmith.cli.values import parse_component
from envsmith.knowledge.graph.load import version_graph
from envsmith.knowledge.graph.location import find_matrix, list_files


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphFlags:
    """The options of ``matrix graph``."""

    form: str = choice(["dot", "json"], "--format", "Format.", default="dot")
    around: str | None = option("COMPONENT", "Only its releases, its rules, and what those name.")
    folder: ExistingFolder | None = matrix_option()


@verb(
    GraphFlags,
    "envsmith matrix graph --around nccl | dot -Tsvg > nccl.svg",
    "envsmith matrix graph --json > versions.json",
)
def graph(settings: GraphFlags) -> int:
    """Show the version graph: components, releases and rules, and edges with specs and evidence."""
    from envsmith.knowledge.graph import network  # it imports networkx

    loaded = version_graph(list_files(settings.folder or find_matrix()))
    drawn = network.to_network(loaded.knowledge())
    if settings.around is not None:
        component, _spec = parse_component(settings.around, loaded.components, flag="--around")
        drawn = network.around(drawn, component.name)
    print_out(network.export(drawn, settings.form), nl=False)
    return 0
