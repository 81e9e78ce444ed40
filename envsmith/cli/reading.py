"""What ``--from`` names, the same on ``check`` and ``doctor``."""

from __future__ import annotations

import sys
from pathlib import Path

from envsmith.errors import UsageError

__all__ = ["open_source"]


def open_source(source: str) -> tuple[str, list[str]]:
    """The text of a file, or of stdin for ``-``, bounded, and notes on what was left out. :class:`UsageError` when it cannot be read."""
    from envsmith.sources.reports import read_bounded

    if source == "-":
        return read_bounded(sys.stdin.buffer)
    try:
        with Path(source).open("rb") as file:
            return read_bounded(file)
    except OSError as error:
        raise UsageError(f"--from {source}: {error.strerror or error}", hint="give a file, or - for stdin") from error
