"""A line of code in a file of an installed package, as a traceback shows it."""

from __future__ import annotations

from typing import NamedTuple


class CodeLine(NamedTuple):
    """One line: the path of its file below ``site-packages``, its number (from 1), its text without the indent."""

    path: str
    number: int
    text: str
