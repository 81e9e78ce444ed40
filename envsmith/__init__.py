"""envsmith: environments for distributed training that were solved, pinned, built and proved.

>>> import envsmith
>>> cell = envsmith.solve(envsmith.Request(frameworks={"deepspeed": ">=0.16"}))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envsmith.base.about import VERSION

__all__ = ["Cell", "CellId", "EnvsmithError", "Request", "Spec", "__version__", "check", "solve"]
__version__ = VERSION

if TYPE_CHECKING:
    from envsmith.errors import EnvsmithError
    from envsmith.model.cell import Cell, CellId, Request
    from envsmith.model.version import Spec
    from envsmith.solver import best_cell as solve
    from envsmith.solver import check

_HOME = {
    "Cell": ("envsmith.model.cell", "Cell"),
    "CellId": ("envsmith.model.cell", "CellId"),
    "Request": ("envsmith.model.cell", "Request"),
    "Spec": ("envsmith.model.version", "Spec"),
    "EnvsmithError": ("envsmith.errors", "EnvsmithError"),
    "check": ("envsmith.solver", "check"),
    "solve": ("envsmith.solver", "best_cell"),
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are asked for, so that ``envsmith --help`` imports none of them."""
    if name in _HOME:
        import importlib

        module, attribute = _HOME[name]
        return getattr(importlib.import_module(module), attribute)
    raise AttributeError(f"module 'envsmith' has no attribute {name!r}")
