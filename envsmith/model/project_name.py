"""The name of a distribution in the one spelling that indexes compare, for every module of ours.

``packaging.utils`` has the same function and brings tags, logging and subprocess with it, for which every command would
wait some milliseconds.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from packaging.utils import NormalizedName

_SEPARATORS = re.compile(r"[-_.]+")


def normal_name(name: str) -> NormalizedName:
    """Return a name in lower case, with one ``-`` for each run of ``-``, ``_`` and ``.`` (PEP 503)."""
    return cast("NormalizedName", _SEPARATORS.sub("-", name).lower())
