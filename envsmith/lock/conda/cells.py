"""Which cells can be had from Conda channels at all: the solver knows before it chooses, instead of failing afterwards.

Channels have far fewer builds of PyTorch than the package index. The best cell for which a channel has every part
becomes the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from envsmith.errors import LockError
from envsmith.lock.conda.channels import Channels
from envsmith.lock.conda.model import CondaPackage
from envsmith.lock.conda.names import cuda_of_build, listing
from envsmith.lock.conda.specs import core_problems, cuda_of, python_of, without
from envsmith.model.cell import Cell, Request
from envsmith.model.version import Spec, public

# Cells that are tried: the best ones of a request differ in one companion first, and a look costs a tenth of a
# millisecond.
_TRIED = 5000

Cells = Callable[[Request], Iterable[Cell]]


def narrow_to_channels(request: Request, cells: Cells, channels: Channels, tolerate: Sequence[str] = ()) -> Request:
    """Bind ``request`` to the torch, CUDA and Python of the best cell that the channels can give.

    ``cells`` lists every valid cell of a request, best first. Components that are ``tolerate``d may differ.
    ``LockError`` says what the channels have instead.
    """
    names, builds = ", ".join(channels.labels), channels("pytorch")
    first: list[str] = []
    for cell in islice(cells(_narrowed_to_builds(request, builds, names)), _TRIED):
        if cuda_of(cell) is None and "cuda" not in request.constraints:
            continue  # a CPU build must be asked for
        problems = core_problems(without(cell, tolerate), channels, request.platform)
        if not problems:
            return _bound(request, cell, names)
        first = first or problems
    have = listing(sorted({f"{p.version} for {cuda_of_build(p.build)}" for p in builds}, reverse=True))
    raise LockError(
        f"Cannot find a cell of this request: {names} has none.",
        details=first or [f"the channel has pytorch {have}" if have else "the channel has no pytorch"],
        hint="Ask for less, give another --channel, or let NCCL differ with --conda-tolerate nccl.",
    )


def _narrowed_to_builds(request: Request, builds: Sequence[CondaPackage], channels: str) -> Request:
    """Leave out what no build of PyTorch has: each of torch, CUDA and Python for itself."""
    versions_of = {
        "torch": {p.version for p in builds},
        "cuda": {c for p in builds if (c := cuda_of_build(p.build))},
        "python": {v for p in builds if (v := python_of(p))},
    }
    narrowed = dict(request.narrowed)
    for name, versions in versions_of.items():
        if not versions:
            continue
        marks = ".*" if name == "python" else ""
        spec = Spec.parse(" || ".join(f"=={v}{marks}" for v in sorted(versions)))
        narrowed.setdefault(name, (spec, f"channel {channels} has pytorch with {name} {listing(sorted(versions))}"))
    return replace(request, narrowed=narrowed)


def _bound(request: Request, cell: Cell, channels: str) -> Request:
    """Return the request that only this combination of torch, CUDA, Python and frameworks answers."""
    torch = f"pytorch {public(cell.components['torch'])} for CUDA {cuda_of(cell) or 'none'}"
    reason = f"channel {channels} has {torch} and Python {cell.components['python']}"
    names = [n for n in ("torch", "cuda", "python", *cell.frameworks) if n in cell.components]
    exact = {n: (Spec.parse(f"=={cell.components[n]}"), reason) for n in names}
    return replace(request, narrowed={**request.narrowed, **exact})
