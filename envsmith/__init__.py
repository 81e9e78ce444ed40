"""envsmith: environments for distributed training that were solved, pinned, built and proved.

>>> import envsmith
>>> cell = envsmith.solve(envsmith.Request(frameworks={"deepspeed": ">=0.16"}))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Cell", "CellId", "EnvsmithError", "Request", "Spec", "__version__", "check", "solve"]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from envsmith import solver as solve
    from envsmith.errors import EnvsmithError
    from envsmith.model.cell import Cell, CellId, Request
    from envsmith.model.version import Spec
    from envsmith.solver import check

_HOME = {
    "Cell": "envsmith.model.cell",
    "CellId": "envsmith.model.cell",
    "Request": "envsmith.model.cell",
    "Spec": "envsmith.model.version",
    "EnvsmithError": "envsmith.errors",
    "check": "envsmith.solver",
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are asked for, so that ``envsmith --help`` imports none of them."""
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(_HOME[name]), name)
    if name == "solve":
        import importlib

        return importlib.import_module("envsmith.solver")
    raise AttributeError(f"module 'envsmith' has no attribute {name!r}")
