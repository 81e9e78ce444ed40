"""The package layer of a lock: uv resolves under the cell's constraints, everything is hashed, the result is judged again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from envsmith.engine.base import Event, EventKind, Progress, silent
from envsmith.errors import LockError, NetworkError
from envsmith.lock.resolve import Query, Resolution, cutoff, resolve
from envsmith.lock.uv_output import to_pins
from envsmith.lock.verify import Judge, broken_rules, refuse_differences, refuse_rules, repairs
from envsmith.lock.wanted import overrides, wanted
from envsmith.model.cell import Cell
from envsmith.model.given import Compile
from envsmith.model.lock import CompiledSource, Pin
from envsmith.sources.runtime import Source, sources_of
from envsmith.sources.uv import Uv

if TYPE_CHECKING:
    from envsmith.model.component import ComponentTable
    from envsmith.sources.http import Fetcher
    from envsmith.sources.interpreters import Interpreter

__all__ = ["Pinned", "lock_pip"]

_STEP = "lock"
# Each attempt adds a constraint; a chain of three broken rules has not been seen.
_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """``pins`` and ``build_pins`` sorted by name; ``resolver`` is ``uv 0.13.8``; ``facts`` are remarks that are not part of the lock.

    ``constraints`` are all that held: those that were given and those that the repair of a broken rule added, each with its rule.
    """

    pins: tuple[Pin, ...]
    build_pins: tuple[Pin, ...]
    resolver: str
    compiled: tuple[CompiledSource, ...] = ()
    constraints: tuple[tuple[str, str], ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def lock_pip(
    cell: Cell,
    *,
    constraints: Sequence[tuple[str, str]] = (),
    exclude_newer: str,
    interpreter: Interpreter | None = None,
    progress: Progress = silent,
    uv: Uv | None = None,
    table: ComponentTable | None = None,
    fetcher: Fetcher | None = None,
    judge: Judge | None = None,
    find_links: Sequence[str] = (),
    also: Sequence[str] = (),
    told: Compile | None = None,
) -> Pinned:
    """Resolve and pin a cell. The same cell, constraints and date give the same pins.

    ``constraints`` are ``(requirement, rule id)``; ``exclude_newer`` an ISO day, counted in full and in UTC; ``find_links`` are folders or
    pages of files that the caller asks for by name (pip's own setting is not used: a local build would replace the wheel of the cell);
    ``also`` are requirements beside the cell (the toolkit of a ``devel`` image); ``told`` is what the user says about what is compiled.
    Raises ``LockError``, ``NetworkError``, ``StorageError``, ``ContentError``, ``InterruptedRunError``.
    """
    uv = uv or Uv()
    table = table or _components()
    told = told or Compile()
    want = wanted(cell, table, constraints, also, given=[a.name for a in told.archives])
    query = Query(
        requirements=want.requirements,
        constraints=want.constraints,
        python=want.python,
        platform=want.platform,
        backend=want.backend,
        newest=cutoff(exclude_newer),
        interpreter=(interpreter or _interpreter(want.python)).path,
        find_links=tuple(find_links),
        given=told.archives,
    )

    def on_line(line: str) -> None:
        progress(Event(kind=EventKind.LINE, step=_STEP, text=line))

    resolution, query, added = _judged(cell, query, _Resolver(uv, table, judge, on_line))
    pins = to_pins(resolution.packages, resolution.requires)
    sources = sources_of(pins, cell, told)
    build_pins = _build_pins(cell, _Built(pins, sources), query, _Resolver(uv, table, judge, on_line), fetcher)
    return Pinned(
        pins=pins,
        build_pins=build_pins,
        compiled=tuple(source.compiled(cell, told) for source in sources),
        constraints=(*constraints, *added),
        resolver=uv.version,
        facts=_facts(resolution, query.overrides),
    )


@dataclass(frozen=True, slots=True)
class _Resolver:
    """What a resolution needs besides its query."""

    uv: Uv
    table: ComponentTable
    judge: Judge | None
    on_line: Callable[[str], None]


def _judged(cell: Cell, query: Query, by: _Resolver) -> tuple[Resolution, Query, tuple[tuple[str, str], ...]]:
    """Resolve until the cell is kept and no rule is broken; the constraints that this took are told.

    The resolver chooses what the cell does not name (setuptools, numpy). Where its newest release breaks a rule, the solver's own repair
    is made a constraint; where the repair would change the cell, the lock is refused.
    """
    what = f"cell {cell.id}: resolving packages"
    added: tuple[tuple[str, str], ...] = ()
    for _ in range(_ATTEMPTS):
        with _own_index(cell):
            resolution = resolve(query, by.uv, what=what, on_line=by.on_line)
        forced = overrides(cell, by.table, {p.name: p.version for p in resolution.packages})
        if forced and forced != query.overrides:
            query = replace(query, overrides=forced)
            continue
        pins = to_pins(resolution.packages, resolution.requires)
        refuse_differences(cell, pins, by.table)
        judged = broken_rules(cell, pins, by.table, by.judge)
        if judged is None:
            return resolution, query, added
        more = [line for line in repairs(cell, judged, by.table) if line not in added]
        if not more:
            raise refuse_rules(cell, judged)
        added = (*added, *more)
        query = replace(query, constraints=tuple(sorted({*query.constraints, *(text for text, _ in more)})))
    raise LockError(f"{what}: no set of packages was found that keeps every rule", details=[text for text, _ in added])


@contextmanager
def _own_index(cell: Cell) -> Iterator[None]:
    """Say what a torch build that is not on the default index needs, when it cannot be had."""
    try:
        yield
    except NetworkError as error:
        if cell.index != "pytorch":
            raise
        torch = cell.components["torch"]
        hint = f"torch {torch} is only on PyTorch's own index; where that cannot be reached, ask for the build of the default index (leave --cuda out)"
        raise NetworkError(error.message, details=error.details, hint=hint) from None


def _interpreter(minor: str) -> Interpreter:
    """What uv runs setup scripts with while it resolves: this Python's own when it is of the cell's minor version, else the best there is."""
    from envsmith.sources.interpreters import find_interpreter, running_interpreter

    return find_interpreter(minor) or running_interpreter()


def _components() -> ComponentTable:
    from envsmith.graph.names import components

    return components()


@dataclass(frozen=True, slots=True)
class _Built:
    """The pins of a lock, and how those of them are compiled that need more than they declare."""

    pins: tuple[Pin, ...]
    sources: tuple[Source, ...]


def _build_pins(cell: Cell, built: _Built, query: Query, by: _Resolver, fetcher: Fetcher | None) -> tuple[Pin, ...]:
    pins, sources = built.pins, built.sources
    if not any(pin.sdist for pin in pins):
        return ()
    from envsmith.lock.build_requires import build_requires
    from envsmith.sources.http import HttpClient

    # torch with all that it imports: the layer that the builder stands on has only the heavy part of it.
    undeclared = {
        s.distribution: (*s.requires, "torch", *(_toolkit(cell, s.distribution) if s.toolkit else ())) for s in sources
    }
    needed = build_requires(pins, fetcher or HttpClient(), undeclared)
    if not needed:
        return ()
    # What is compiled against the cell's torch is compiled beside it, so that nothing of the cell may be of another version there.
    held = tuple(f"{pin.name}=={pin.version}" for pin in pins) if sources else _torch(pins)
    build = replace(query, requirements=needed, constraints=held, overrides=(), wheels_only=True, edges=False, given=())
    names = ", ".join(pin.name for pin in pins if pin.sdist)
    resolution = resolve(build, by.uv, what=f"cell {cell.id}: resolving what {names} is built with")
    return to_pins(resolution.packages, resolution.requires, layer="build")


def _toolkit(cell: Cell, name: str) -> tuple[str, ...]:
    """The CUDA compiler of the cell's own CUDA; ``LockError`` where the index has none."""
    from envsmith.sources.runtime import load_runtime, toolkit_for, toolkit_parts

    found = toolkit_for(cell, load_runtime())
    if found is None or found.missing:
        cuda = cell.components.get("cuda", "cpu")
        raise LockError(
            f"cell {cell.id}: {name} is compiled with nvcc: {found.missing if found else f'no toolkit is known for CUDA {cuda}'}",
            hint=f"take a cell with CUDA 13 (--cuda 13), whose nvcc is on the package index, or leave {name} out and build it on top of the cell",
        )
    return toolkit_parts(cell, found)


def _torch(pins: tuple[Pin, ...]) -> tuple[str, ...]:
    """What is built against torch is built against the torch of the cell."""
    return tuple(f"torch=={pin.version}" for pin in pins if pin.name == "torch")


def _facts(resolution: Resolution, forced: tuple[str, ...]) -> dict[str, str]:
    facts = {}
    if resolution.undated:
        names = "every project" if resolution.undated == ("*",) else ", ".join(resolution.undated)
        facts["exclude_newer"] = (
            f"not applied to {names}: the index tells no upload times, a later run may give newer releases"
        )
    if forced:
        facts["overrides"] = f"{', '.join(forced)} in place of the release that torch pins"
    return facts
