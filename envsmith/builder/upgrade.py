"""A lock moved forward: what is named becomes as new as it can, and all else stays where it can."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from envsmith.base.progress import Clock, Progress, silent
from envsmith.builder import locking
from envsmith.builder.existing import changes, keeping
from envsmith.builder.options import BuildOutcome, Options
from envsmith.errors import LockError, UsageError
from envsmith.knowledge.graph.load import components, version_graph
from envsmith.lock import store
from envsmith.lock.days import last_day
from envsmith.model.cell import Cell, Request
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.lock import Lock
from envsmith.model.project_name import normal_name
from envsmith.model.version import Spec, public, version_key
from envsmith.solver import default_solver
from envsmith.solver.explain import explain_upgrade


@dataclass(frozen=True, kw_only=True, slots=True)
class Upgrade:
    """The new lock, what ``moved`` (``wandb: 0.22.0 -> 0.23.1``), and why what was named is not newer (``obstacles``)."""

    outcome: BuildOutcome
    moved: tuple[str, ...]
    obstacles: tuple[str, ...]


def upgrade(options: Options, names: Collection[str], *, progress: Progress = silent) -> Upgrade:
    """Lock again with newer releases of ``names``, or of everything where none is named, and write the files.

    Raises ``EnvsmithError`` when there is no lock of the request, and ``UsageError`` for a name that it does not have.
    """
    _, old = store.need(options.output, options.request_text)
    moving = tuple(_named(name, old) for name in names)
    options = keeping(options, old, moving) if moving else replace(options, renewed=True)
    clock = Clock(progress)

    def lock(request: Request) -> BuildOutcome:
        return locking.lock_request(replace(options, request=request), None, clock)

    refused = list[str]()
    try:
        outcome = lock(_newest_first(moving, old.cell, options.request))
    except (LockError, UnsatisfiableError) as error:  # its packages do not go together with what is kept
        refused.append(error.reason)
        outcome = lock(options.request)
    new = outcome.lock
    return Upgrade(
        outcome=outcome,
        moved=(*changes(old.cell.components, new.cell.components), *changes(_further(old), _further(new))),
        obstacles=(*refused, *(sentence for name in moving for sentence in _obstacles(name, new, options))),
    )


def _newest_first(names: Collection[str], cell: Cell, request: Request) -> Request:
    """Return a request for the newest releases of components that the rules admit together, without a warning."""
    solver = default_solver()
    for name in (name for name in names if name in cell.chosen):
        for version in _newer(name, cell, request):
            exact = replace(request, narrowed={**request.narrowed, name: (Spec.parse(f"=={version}"), "--upgrade")})
            answer = solver.best(solver.pose(exact.here))
            if answer is not None and "warning" in answer.avoided:
                request = exact
                break
    return request


def _named(name: str, lock: Lock) -> str:
    """Return the component or the distribution of a lock that a name means."""
    component = components().find(name)
    if component is not None and component.name in lock.cell.chosen:
        return component.name
    distribution = normal_name(name)
    if lock.pin(distribution) is None:
        raise UsageError(
            f"Cannot upgrade {name}: the lock of {lock.cell.id} does not have it.",
            hint="Name a package of the lock, or nothing to upgrade everything.",
        )
    return distribution


def _further(lock: Lock) -> Mapping[str, str]:
    """Return the distributions beside the cell's components."""
    find = components().find
    return {
        pin.name: pin.version
        for pin in lock.pins
        if (component := find(pin.name)) is None or component.name not in lock.cell.components
    }


def _obstacles(name: str, lock: Lock, options: Options) -> Iterator[str]:
    """Yield why a release of the lock is not newer."""
    component = components().find(name)
    if component is None or component.name not in lock.cell.components:
        yield from _obstacles_of_packages(name, lock, options)
        return
    name = component.name
    newer = _newer(name, lock.cell, options.request)
    if newer:
        yield from explain_upgrade(lock.cell.id, {name: Spec.parse(f"=={newer[0]}")}).sentences
    else:
        yield f"{name} {lock.cell.components[name]} is the newest that the request admits"


def _newer(name: str, cell: Cell, request: Request) -> list[str]:
    """Return the releases of a component that are newer than the cell's and that the request admits, newest first."""
    graph = version_graph()
    specs = [place[name] for place in (request.frameworks, request.constraints) if name in place]
    specs += [spec for wish, (spec, _) in request.narrowed.items() if wish == name]
    current = version_key(public(cell.components[name]))
    newer = {
        key: public(version)
        for version in graph.compiled.versions.get(name, ())
        if (key := version_key(public(version))) and current and key > current and not key.is_prerelease
        if all(spec.contains(version) for spec in specs)
        if graph.released_on(name, version) <= (request.exclude_newer or last_day())
    }
    return [newer[key] for key in sorted(newer, reverse=True)]


def _obstacles_of_packages(name: str, lock: Lock, options: Options) -> Iterator[str]:
    """Yield what uv says of a newer release of a package."""
    pin = lock.pin(name)
    version = pin.version if pin else ""
    bound = (f"{name}>{version}", "--upgrade")
    request = replace(options.request, bounds=(*options.request.bounds, bound))
    try:
        locking.lock_cell(lock.cell, replace(options, request=request))
    except LockError as error:
        # The first of uv's lines says that there is no solution, the others say why.
        why = " ".join(" ".join(error.details[1:]).split()).removeprefix("cause: ") or error.reason
        yield f"{name} {version} is the newest that fits: {why}"
