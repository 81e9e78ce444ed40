"""For which numpy a compiled wheel was built, read from its files.

A compiled file that uses numpy's arrays names the module from which it takes them: ``numpy.core._multiarray_umath`` where
it was built with the headers of numpy 1 (``numpy.core.multiarray`` before 1.16), ``numpy._core._multiarray_umath`` where
those of numpy 2 were there. One of Cython that takes numpy's types alone names that module where it says what failed to
import, and asks for the sizes of types: a dtype of numpy 1 is larger than one of numpy 2. What was built for numpy 1 cannot
be imported beside numpy 2.
"""

from __future__ import annotations

import re

from envsmith.lock.index.remote_wheel import RemoteWheel
from envsmith.net.http import Fetcher

_NEW = re.compile(rb"numpy\._core\.(?:_multiarray_umath|multiarray failed to import)")
# Headers before numpy 1.16 named the module that an error message names too.
_OLD = re.compile(rb"numpy\.core\.(?:_multiarray_umath|multiarray(?:\0| failed to import))")
# Of the compiled files of a wheel the smallest are asked first. More than these names none in any wheel that was read.
_MOST, _MAX_BYTES, _BUDGET = 24, 160 << 20, 1 << 30


def built_for(url: str, fetcher: Fetcher, *, budget: int = _BUDGET) -> str:
    """Return ``one`` where the first compiled file that names numpy was built for numpy 1, else ``both`` or ``none``.

    ``NetworkError`` where more than ``budget`` bytes would have to be read.
    """
    with RemoteWheel(fetcher, url, budget=budget) as wheel:
        compiled = sorted((size, name) for name, _, size in wheel.entries() if name.endswith(".so"))
        for size, name in compiled[:_MOST]:
            text = wheel.read(name, max_bytes=_MAX_BYTES) if size <= _MAX_BYTES else b""
            if _NEW.search(text):
                return "both"
            if _OLD.search(text):
                return "one"
    return "none"
