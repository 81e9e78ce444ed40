"""The Conda lock of a cell: solved by rattler over a channel's own index, proved equal to the pip lock, written for every tool.

>>> lock = lock_conda(cell, pins, cache_dir=cache)  # doctest: +SKIP
>>> write(lock, folder)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envsmith.lock.conda.api import lock_conda, request_hash, up_to_date
    from envsmith.lock.conda.comparison import compare
    from envsmith.lock.conda.installation import realise
    from envsmith.lock.conda.load import load_lock
    from envsmith.lock.conda.model import CondaLock, CondaPackage, CondaSpec, PipPackage, PlatformLock, RepoLimits
    from envsmith.lock.conda.narrow import narrow_to_channels
    from envsmith.lock.conda.render import files
    from envsmith.lock.conda.writing import write

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
    "narrow_to_channels",
    "realise",
    "request_hash",
    "up_to_date",
    "write",
]

_HOME = {
    "lock_conda": "api",
    "request_hash": "api",
    "up_to_date": "api",
    "compare": "comparison",
    "load_lock": "load",
    "realise": "installation",
    "files": "render",
    "narrow_to_channels": "narrow",
    "write": "writing",
    **dict.fromkeys(("CondaLock", "CondaPackage", "CondaSpec", "PipPackage", "PlatformLock", "RepoLimits"), "model"),
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are asked for: a reader of Conda files needs none of the solver."""
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
