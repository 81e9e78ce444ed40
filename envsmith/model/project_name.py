"""The name of a distribution in the one spelling that indexes compare.

``packaging.utils`` has the same function and brings tags, logging and subprocess with it, for which every command would
wait some milliseconds.
"""

from __future__ import annotations

import re

_SEPARATORS = re.compile(r"[-_.]+")


def normal_name(name: str) -> str:
    """Return a name in lower case, with one ``-`` for each run of ``-``, ``_`` and ``.`` (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()
