"""The version graph: YAML -> values -> graph.

>>> import envsmith.graph
>>> graph = envsmith.graph.load()  # doctest: +SKIP
>>> graph.out_edges(("torch", "2.9.1+cu128"), data=True)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["knowledge", "load", "read_knowledge", "to_network"]

if TYPE_CHECKING:
    from envsmith.graph.cached import knowledge
    from envsmith.graph.read import read_knowledge
    from envsmith.graph.network import load, to_network

_HOME = {
    "knowledge": "envsmith.graph.cached",
    "load": "envsmith.graph.network",
    "read_knowledge": "envsmith.graph.read",
    "to_network": "envsmith.graph.network",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that a solve imports neither YAML nor networkx."""
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'envsmith.graph' has no attribute {name!r}")
