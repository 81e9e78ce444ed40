"""Which cells can be had from Conda channels at all: the solver is told before it chooses, not refused afterwards.

Channels have far fewer builds of PyTorch than the package index. The best cell for which a channel has every part becomes the request.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from envsmith.errors import LockError
from envsmith.lock.conda.api import asked_of, cutoff
from envsmith.lock.conda.channels import fetch_indexes
from envsmith.lock.conda.model import CondaPackage, RepoLimits, Tell
from envsmith.lock.conda.names import cuda_of_build, listing, torch_release
from envsmith.lock.conda.plan import core_problems, cuda_of, python_of
from envsmith.lock.conda.view import Offers, opened
from envsmith.model.cell import Cell, Request
from envsmith.model.version import Spec

__all__ = ["narrow_to_channels"]

Cells = Callable[[Request], Iterable[Cell]]
# Cells that are tried: the best ones of a request differ in one companion first, and a look costs a tenth of a millisecond.
_TRIED = 5000


def narrow_to_channels(
    request: Request,
    cells: Cells,
    *,
    channels: Sequence[str],
    cache_dir: Path,
    offline: bool = False,
    exclude_newer: str | None = None,
    tolerate: Sequence[str] = (),
    progress: Tell = lambda _line: None,
    limits: RepoLimits | None = None,
) -> Request:
    """``request`` bound to the torch, CUDA and Python of the best cell that the channels can give.

    ``cells`` lists every valid cell of a request, best first. ``LockError`` says what the channels have instead; ``NetworkError`` as
    :func:`envsmith.lock.conda.lock_conda`.
    """
    indexes = fetch_indexes(
        channels,
        [request.platform.value],
        cache_dir=cache_dir,
        offline=offline,
        progress=progress,
        limits=limits or RepoLimits(),
    )
    with opened(indexes) as sparse:
        offer = Offers(sparse, cutoff(exclude_newer))
        builds = offer("pytorch")
        some = _roughly(request, builds, channels)
        first: list[str] = []
        for cell in _some(cells(some)):
            if cuda_of(cell) is None and "cuda" not in request.constraints:
                continue  # nobody means a CPU build who did not say so
            problems = core_problems(asked_of(cell, tolerate), offer, request.platform)
            if not problems:
                return _bound(request, cell, channels)
            first = first or problems
    shown = ", ".join(channels)
    have = listing(sorted({f"{p.version} for {cuda_of_build(p.build)}" for p in builds}, reverse=True))
    raise LockError(
        f"no cell of this request can be had from {shown}",
        details=first or [f"the channel has pytorch {have}" if have else "the channel has no pytorch"],
        hint="ask for less, give another --channel, or let NCCL differ with --conda-tolerate nccl",
    )


def _some(cells: Iterable[Cell]) -> Iterator[Cell]:
    for number, cell in enumerate(cells):
        if number >= _TRIED:
            return
        yield cell


def _roughly(request: Request, builds: Sequence[CondaPackage], channels: Sequence[str]) -> Request:
    """Without what no build of PyTorch has: each of torch, CUDA and Python for itself."""
    told = {
        "torch": {p.version for p in builds},
        "cuda": {c for p in builds if (c := cuda_of_build(p.build))},
        "python": {v for p in builds if (v := python_of(p))},
    }
    narrowed = dict(request.narrowed)
    for name, versions in told.items():
        if not versions:
            continue
        marks = ".*" if name == "python" else ""
        spec = Spec.parse(" || ".join(f"=={v}{marks}" for v in sorted(versions)))
        reason = f"channel {', '.join(channels)} has pytorch with {name} {listing(sorted(versions))}"
        narrowed.setdefault(name, (spec, reason))
    return dataclasses.replace(request, narrowed=narrowed)


def _bound(request: Request, cell: Cell, channels: Sequence[str]) -> Request:
    """The request that only this combination of torch, CUDA, Python and frameworks answers."""
    shown = ", ".join(channels)
    reason = f"channel {shown} has pytorch {torch_release(cell.components['torch'])} for CUDA {cuda_of(cell) or 'none'} and Python {cell.components['python']}"
    names = [n for n in ("torch", "cuda", "python", *cell.frameworks) if n in cell.components]
    exact = {n: (Spec.parse(f"=={cell.components[n]}"), reason) for n in names}
    return dataclasses.replace(request, narrowed={**request.narrowed, **exact})
