"""The version graph: YAML -> values -> networkx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["components", "gpu_names", "load", "read_knowledge", "to_network"]

if TYPE_CHECKING:
    from envsmith.graph.load import read_knowledge
    from envsmith.graph.names import components, gpu_names
    from envsmith.graph.network import load, to_network

_HOME = {"components": "names", "gpu_names": "names", "load": "network", "read_knowledge": "load", "to_network": "network"}


def __getattr__(name: str) -> Any:
    """Import what is asked for: networkx and yaml stay out of a solve."""
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(f"envsmith.graph.{_HOME[name]}"), name)
    raise AttributeError(f"module 'envsmith.graph' has no attribute {name!r}")
