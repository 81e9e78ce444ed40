"""The names that a module compiled by Cython may have, read from its file."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress

# Cython keeps every name that a module binds as a text of its own, and those of each module among them. Since 3.1 it may
# keep all texts in one, and compressed: then none of them stands alone.
_OWN = (b"\0__pyx_capi__\0", b"\0cline_in_traceback\0", b"\0__test__\0")
_NAME = re.compile(rb"([A-Za-z_]\w{0,79})\0", re.ASCII)
# What zlib writes first (RFC 1950), and the most that is unpacked: of one text, and how many. A module has one.
_ZLIB = re.compile(rb"x[\x01\x5e\x9c\xda]")
_MAX_TEXT, _MOST = 4 << 20, 16


def cython_names(content: bytes) -> frozenset[str] | None:
    """Return every name that a compiled module may bind, ``None`` where the file does not tell."""
    if b"\0__test__\0" not in content or not any(text in content for text in _OWN[:2]):
        return None
    return frozenset(name.decode() for name in _NAME.findall(content))


def may_name(content: bytes, name: str) -> bool:
    """Return whether a compiled module may bind a name: also where the file does not tell which it binds.

    The texts of a module of Cython stand in its file, as they are or together and compressed by zlib, as Cython does it by
    itself. What another compiler made may bind everything.
    """
    word = name.encode()
    if word in content or b"\0cython_runtime\0" not in content:
        return True
    if b"CYTHON_COMPRESS_STRINGS" not in content:
        return False
    texts = [text for text in itertools.islice(_inflated(content), _MOST) if b"__test__" in text]
    return not texts or any(word in text or len(text) == _MAX_TEXT for text in texts)


def _inflated(content: bytes) -> Iterator[bytes]:
    for start in _ZLIB.finditer(content):
        with suppress(zlib.error):
            yield zlib.decompressobj().decompress(content[start.start() :], _MAX_TEXT)
