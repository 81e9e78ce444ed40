"""The tables that a wheel of envsmith brings, so that its first answer waits for no compiling."""

from __future__ import annotations

from typing import Any

from envsmith.doctor.needed_releases import ROWS
from envsmith.doctor.rules import RULES
from envsmith.doctor.signatures import SIGNATURES
from envsmith.doctor.vocabulary import VARIABLES, WORDS
from envsmith.graph.load import GRAPH
from envsmith.graph.tables import Table
from envsmith.graph.wheels import catalogued, wheels_table
from envsmith.symbols.system_libraries import LIBRARIES


def own_tables() -> tuple[Table[Any], ...]:
    """Return every table that is made of the knowledge."""
    wheels = map(wheels_table, catalogued())
    return (GRAPH, ROWS, SIGNATURES, RULES, WORDS, VARIABLES, LIBRARIES, *wheels)
