"""The libraries of CUDA that a compiled wheel loads and does not bring, read from the names in its files.

A file names what the dynamic linker loads with it (``libcudnn.so.8``), and in its constants what it opens when it first
uses the GPU. The number is that of the interface: a library of another one is not loaded in its place.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from dataclasses import dataclass

from envsmith.lock.index.compiled import library_names
from envsmith.lock.index.remote_wheel import RemoteWheel
from envsmith.net.http import Fetcher

# The number of these is the major version of CUDA, or of cuDNN. Others of CUDA have numbers of their own. A library that
# auditwheel took into a wheel has a hash in its name: ``libcudnn-463fd6d5.so.8.9.7``.
_NAME = re.compile(
    rb"\b(?P<stem>lib(?:cudart|cublas|cublasLt|cudnn\w*))(?:-[0-9a-f]{8})?\.so(?:\.(?P<major>\d+)[.\d]*)?\b"
)
# A person waits: of the compiled files the smallest are read, up to so many and to so many bytes.
_MOST, _MAX_BYTES = 24, 12 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedLibrary:
    """What ``member`` of a wheel loads by ``name``, and the ``majors`` that any file of the wheel loads of its kind."""

    name: str
    member: str
    majors: frozenset[int]


def loaded_libraries(url: str, fetcher: Fetcher) -> dict[str, LoadedLibrary]:
    """Return what a wheel loads of ``cuda`` and ``cudnn``, as far as its smaller files tell.

    ``NetworkError`` where it cannot be read.
    """
    loaded = defaultdict[str, list[tuple[str, str, int]]](list)
    with RemoteWheel(fetcher, url, budget=2 * _MAX_BYTES) as wheel:
        members = frozenset(library_names(wheel))
        own = {match["stem"] for match in _NAME.finditer(" ".join(members).encode())}
        sizes = sorted((size, name) for name, _, size in wheel.entries() if name in members)[:_MOST]
        totals = itertools.accumulate(size for size, _ in sizes)
        for member in (name for (_, name), total in zip(sizes, totals, strict=True) if total <= _MAX_BYTES):
            names = sorted(
                _NAME.finditer(wheel.read(member, max_bytes=_MAX_BYTES)), key=lambda match: match["stem"] in own
            )
            for kind in sorted({_kind(match) for match in names if match["stem"] not in own}):
                of_kind = (match for match in names if _kind(match) == kind and match["major"])
                loaded[kind] += ((match[0].decode(), member, int(match["major"])) for match in of_kind)
    return {
        kind: LoadedLibrary(name=places[0][0], member=places[0][1], majors=frozenset(major for *_, major in places))
        for kind, places in loaded.items()
        if places
    }


def _kind(match: re.Match[bytes]) -> str:
    return "cudnn" if match["stem"].startswith(b"libcudnn") else "cuda"
