"""Every table that is made of the knowledge: a wheel of envsmith brings them, so that no first answer waits."""

from __future__ import annotations

from typing import Any

from envsmith.builder.engines.bases import BASES_TABLE
from envsmith.doctor.needed_releases import ROWS
from envsmith.doctor.rules import RULES
from envsmith.doctor.signatures import SIGNATURES
from envsmith.doctor.vocabulary import VARIABLES, WORDS
from envsmith.knowledge.graph.given_arguments import GIVEN_ARGUMENTS
from envsmith.knowledge.graph.load import GRAPH, TEXTS
from envsmith.knowledge.graph.refused_names import REFUSED_NAMES
from envsmith.knowledge.graph.runtime import RUNTIME_TABLE
from envsmith.knowledge.graph.tables import Table
from envsmith.knowledge.graph.wheels import catalogued, wheels_table
from envsmith.knowledge.names.changed_arguments import CHANGED_ARGUMENTS
from envsmith.knowledge.symbols.system_libraries import LIBRARIES


def every_table() -> tuple[Table[Any], ...]:
    """Return every table that is made of the knowledge."""
    wheels = map(wheels_table, catalogued())
    graph = (GRAPH, TEXTS, RUNTIME_TABLE, BASES_TABLE, LIBRARIES, CHANGED_ARGUMENTS, GIVEN_ARGUMENTS)
    return (*graph, REFUSED_NAMES, ROWS, SIGNATURES, RULES, WORDS, VARIABLES, *wheels)
