"""envsmith: environments for distributed training that were solved, pinned, built and proved.

>>> import envsmith
>>> solution = envsmith.solve(envsmith.Request(frameworks={"deepspeed": envsmith.Spec.parse("*")}))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["Cell", "CellId", "EnvsmithError", "Request", "Spec", "__version__", "check", "solve"]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from envsmith.errors import EnvsmithError
    from envsmith.model.cell import Cell, CellId, Request
    from envsmith.model.version import Spec
    from envsmith.solve.api import check, solve

_HOME = {
    "Cell": "envsmith.model.cell",
    "CellId": "envsmith.model.cell",
    "Request": "envsmith.model.cell",
    "Spec": "envsmith.model.version",
    "EnvsmithError": "envsmith.errors",
    "check": "envsmith.solve.api",
    "solve": "envsmith.solve.api",
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are asked for, so that ``envsmith --help`` imports none of them."""
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'envsmith' has no attribute {name!r}")
