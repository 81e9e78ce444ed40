"""The solver: kernel on bit masks, preferences, conflict and repair, judging and explaining.

The package is also the function of the Python interface, ``envsmith.solve(request)``: a package and a function of one name would take
each other's place as soon as either is imported.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envsmith.model.cell import Cell, Request


class _Callable(types.ModuleType):
    """The package itself, callable."""

    def __call__(self, request: Request) -> Cell:
        """The best cell for ``request``; :class:`~envsmith.errors.UnsatisfiableError` carries the refusal.

        :func:`envsmith.solve.api.solve` gives the reasons and alternatives too.
        """
        from envsmith.solve.api import solve

        return solve(request).cell


sys.modules[__name__].__class__ = _Callable
