"""The Conda lock of a cell: solved by rattler over a channel's own index, proved equal to the pip lock, written for every tool.

>>> lock = lock_conda(cell, pins, cache_dir=cache)  # doctest: +SKIP
>>> write(lock, folder)  # doctest: +SKIP
"""

from __future__ import annotations

from envsmith.lock.conda.api import lock_conda, request_hash, up_to_date
from envsmith.lock.conda.compare import compare
from envsmith.lock.conda.load import load_lock
from envsmith.lock.conda.model import CondaLock, CondaPackage, CondaSpec, PipPackage, PlatformLock, RepoLimits
from envsmith.lock.conda.realise import realise
from envsmith.lock.conda.render import files
from envsmith.lock.conda.write import write

__all__ = [
    "CondaLock",
    "CondaPackage",
    "CondaSpec",
    "PipPackage",
    "PlatformLock",
    "RepoLimits",
    "compare",
    "files",
    "load_lock",
    "lock_conda",
    "realise",
    "request_hash",
    "up_to_date",
    "write",
]
