"""The names that a module compiled by Cython may have, read from its file."""

from __future__ import annotations

import re

# Cython keeps every name that a module binds as a text of its own, and those of each module among them. Since 3.1 it may
# keep all texts in one, and compressed: then none of them stands alone.
_OWN = (b"\0__pyx_capi__\0", b"\0cline_in_traceback\0", b"\0__test__\0")
_NAME = re.compile(rb"([A-Za-z_]\w{0,79})\0", re.ASCII)


def cython_names(content: bytes) -> frozenset[str] | None:
    """Return every name that a compiled module may bind, ``None`` where the file does not tell."""
    if b"\0__test__\0" not in content or not any(text in content for text in _OWN[:2]):
        return None
    return frozenset(name.decode() for name in _NAME.findall(content))
