"""The version graph: YAML -> values -> networkx.

>>> import envsmith.graph
>>> graph = envsmith.graph.load()  # doctest: +SKIP
>>> graph.out_edges(("torch", "2.9.1+cu128"), data=True)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["components", "gpu_names", "knowledge", "load", "read_knowledge", "to_network"]

if TYPE_CHECKING:
    from envsmith.graph.cached import knowledge
    from envsmith.graph.names import components, gpu_names
    from envsmith.graph.network import load, to_network
    from envsmith.graph.read import read_knowledge

_HOME = {
    "components": "names",
    "gpu_names": "names",
    "knowledge": "cached",
    "load": "network",
    "read_knowledge": "read",
    "to_network": "network",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: networkx and yaml stay out of a solve."""
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(f"envsmith.graph.{_HOME[name]}"), name)
    raise AttributeError(f"module 'envsmith.graph' has no attribute {name!r}")
