"""The arrow of the design in one place: request -> cell -> lock -> files -> environment or image -> smoke test -> record.

Each stage is a function that takes the value before it, in a module of its own: ``choosing``, ``locking`` (``current`` for a lock that is
there), ``proving``; ``run`` is all of them. Nothing here decides anything: deciding is the solver's, the engine's, the verdict's.
"""

from __future__ import annotations

from envsmith.pipeline.choosing import last_day, narrow, solve_for
from envsmith.pipeline.current import lock_difference
from envsmith.pipeline.locking import lock_cell
from envsmith.pipeline.proving import progress_line, record_of, rungs_of
from envsmith.pipeline.run import build, lock_for, lock_only
from envsmith.pipeline.values import Options, Outcome

__all__ = [
    "Options",
    "Outcome",
    "build",
    "last_day",
    "lock_cell",
    "lock_difference",
    "lock_for",
    "lock_only",
    "narrow",
    "progress_line",
    "record_of",
    "rungs_of",
    "solve_for",
]
