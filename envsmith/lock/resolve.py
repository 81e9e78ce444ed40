"""Resolve a cell by uv, and judge the pinned packages by every rule again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.version import Version

from envsmith.base.progress import Progress, lines_of, silent
from envsmith.errors import LockError, NetworkError
from envsmith.knowledge.graph.load import components
from envsmith.knowledge.graph.runtime import (
    TorchSource,
    load_runtime,
    sources_of,
    toolkit_for,
    toolkit_parts,
    toolkit_requirements,
)
from envsmith.knowledge.wheels.offers import Ready, best_wheel
from envsmith.lock.build_requires import build_requires
from envsmith.lock.cell_query import IMAGE_GLIBC, fixed, further_constraints, overrides, query_of, uv_platform
from envsmith.lock.days import cutoff, days_from
from envsmith.lock.index.interpreters import find_interpreter, running_interpreter
from envsmith.lock.index.uv import Uv
from envsmith.lock.kept_cell import Judge, broken_rules, differences, judge_cell, refusal, repairs
from envsmith.lock.later import Later, later_wheel, later_wheels, newer_glibc, wheel_glibc
from envsmith.lock.query import Archive, Query, Resolution, resolve
from envsmith.lock.uv_output import Resolved, only_allowed, to_pins
from envsmith.model.cell import RUNTIME, TRAIN, Cell
from envsmith.model.component import ComponentTable, Role
from envsmith.model.lock import Compile, Lock, Pin
from envsmith.net.http import HttpClient

if TYPE_CHECKING:
    from envsmith.net.http import Fetcher


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """What a lock takes beside the cell.

    ``constraints`` are ``(requirement, rule id)``, or where a bound of the user stands. ``date`` is the ISO day whose
    newest releases are preferred. ``preferred`` are names and versions that stay where they can.
    """

    constraints: tuple[tuple[str, str], ...] = ()
    date: str | None = None
    preferred: tuple[tuple[str, str], ...] = ()


# The package layer of a lock: uv resolves under the cell's constraints, everything is hashed, the result is judged
# again.


# Each attempt adds a constraint or a later wheel.
_ATTEMPTS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolver:
    """Who resolves and who judges: by default the user's own uv and index, and the rules of the version graph.

    ``ready`` gives the ready wheel of a release that fits a cell, by default the project's own. ``later`` gives the
    next release with a wheel for the cell, ``glibc`` the oldest glibc of a release's wheels: one up to ``newest_glibc``
    is better than a source. ``find_links`` are folders or pages of files that are asked for by name (pip's own setting
    is not used: a local build would replace the wheel of the cell).
    """

    uv: Uv = field(default_factory=Uv)
    judge: Judge = judge_cell
    table: ComponentTable = field(default_factory=components)
    fetcher: Fetcher = field(default_factory=HttpClient)
    find_links: tuple[str, ...] = ()
    ready: Ready = best_wheel
    later: Later = later_wheel
    glibc: Later = wheel_glibc
    newest_glibc: str = IMAGE_GLIBC


def lock_pip(
    cell: Cell,
    *,
    request: str = "",
    exclude_newer: str,
    beside: Beside | None = None,
    flavour: str = RUNTIME,
    compile: Compile | None = None,  # noqa: A002 - the word of the lock
    resolver: Resolver | None = None,
    progress: Progress = silent,
) -> Lock:
    """Resolve and pin a cell as a lock without its image part. The same cell, ``beside`` and date give the same lock.

    ``request`` is what the lock says that it was made from. ``exclude_newer`` is an ISO day, counted in full and in
    UTC. ``compile`` is what the user says about what is compiled.
    Raises ``LockError``, ``NetworkError``, ``StorageError``, ``ContentError``, ``InterruptedRunError``.
    """
    resolver = resolver or Resolver()
    compile = compile or Compile()  # noqa: A001 - as above
    beside = beside or Beside()
    toolkit = toolkit_requirements(cell, flavour)
    query = query_of(cell, resolver.table, beside.constraints, archives=_with_ready(cell, compile, resolver))
    interpreter = find_interpreter(query.python) or running_interpreter()
    preferred = tuple({**dict(beside.preferred), **dict(query.preferred)}.items())
    query = replace(query, interpreter=interpreter.path, find_links=resolver.find_links, preferred=preferred)
    if flavour == TRAIN:
        query = replace(query, requirements=tuple(sorted({*query.requirements, "pip"})))
    latest = cutoff(exclude_newer)
    for day in days_from(beside.date, exclude_newer):
        dated = replace(query, newest=cutoff(day), latest=latest)
        try:
            resolution, query, added = _judged(cell, dated, toolkit, resolver, lines_of(progress, "lock"))
            break
        except LockError:
            if day == exclude_newer:
                raise
    pins = only_allowed(to_pins(resolution.packages, resolution.requires), cell.further)
    sources = sources_of(pins, cell, compile)
    return Lock(
        cell=cell,
        request=request,
        exclude_newer=exclude_newer,
        python_version=cell.components["python"],
        pins=pins,
        build_pins=_build_pins(cell, pins, sources, query, resolver),
        constraints=(*beside.constraints, *added),
        flavour=flavour,
        compiled=tuple(source.compiled(cell, compile) for source in sources),
        resolver=resolver.uv.version,
        facts=_facts(resolution, query.overrides) | ({"date": f"packages as of {day}"} if beside.date else {}),
    )


def _judged(
    cell: Cell, query: Query, toolkit: tuple[str, ...], by: Resolver, on_line: Callable[[str], None]
) -> tuple[Resolution, Query, tuple[tuple[str, str], ...]]:
    """Resolve until the cell is kept and no rule is broken. The constraints that this took are returned.

    The resolver chooses what the cell does not name (setuptools, numpy). Where its newest release breaks a rule, the
    solver's own repair is made a constraint. Where the repair would change the cell, the lock is refused. The
    ``toolkit`` is asked for once it is known which parts of it torch pins. Each attempt keeps what the one before it
    chose, where that can be kept.
    """
    work = f"resolve the packages of {cell.id}"
    added: tuple[tuple[str, str], ...] = ()
    for _ in range(_ATTEMPTS):
        try:
            with _own_index(cell):
                resolution = resolve(query, by.uv, work=work, on_line=on_line)
        except LockError:
            if not query.later:
                raise
            query = replace(query, later=(), latest=query.newest)  # no later wheel fits
            continue
        query = replace(query, preferred=tuple((p.name, p.version) for p in resolution.packages))
        is_dated = query.newest != query.latest and not by.uv.offline
        if is_dated and (later := later_wheels(resolution.packages, fixed(cell, query, by.table), cell, by.later)):
            query = replace(query, later=(*query.later, *later))
            continue
        if ready := _ready_instead(cell, resolution.packages, query, by.ready):
            query = replace(query, archives=(*query.archives, *ready))
            continue
        if not by.uv.offline and (glibc := _newer_glibc(cell, resolution.packages, query, by)):
            query = replace(query, platform=uv_platform(cell.platform, glibc))
            continue
        if toolkit:
            parts, toolkit = _following(toolkit, resolution.packages), ()
            query = replace(query, requirements=tuple(sorted({*query.requirements, *parts})))
            continue
        forced = overrides(cell, by.table, {p.name: p.version for p in resolution.packages})
        if forced and forced != query.overrides:
            query = replace(query, overrides=forced)
            continue
        pins = to_pins(resolution.packages, resolution.requires)
        wrong = differences(cell, pins, by.table)
        if wrong and (exact := further_constraints(cell, query, by.table)):
            query = replace(query, constraints=tuple(sorted({*query.constraints, *exact})))
            continue
        if wrong:
            raise LockError(
                f"Cannot lock {cell.id}: the package resolver chose other versions than the cell has.",
                details=wrong,
                hint="Report it with this output: the metadata on the index differs from what envsmith knows.",
            )
        judged = broken_rules(cell, pins, by.table, by.judge)
        if judged is None:
            return resolution, query, added
        constraints = [line for line in repairs(cell, judged, by.table) if line not in added]
        if not constraints:
            raise refusal(cell, judged)
        added = (*added, *constraints)
        query = replace(query, constraints=tuple(sorted({*query.constraints, *(text for text, _ in constraints)})))
    raise LockError(
        f"Cannot {work}: no set of packages keeps every rule.",
        details=[text for text, _ in added],
        hint="Choose another cell, or another release of one of the packages with --with.",
    )


def _with_ready(cell: Cell, user: Compile, by: Resolver) -> tuple[Archive, ...]:
    """Return the user's archives, and the ready wheels of the cell's components that the user has no archive of."""
    wheels = []
    for name, version in cell.components.items():
        component = by.table.by_name.get(name)
        for distribution in component.distributions if component and component.role is Role.COMPANION else ():
            wheel = None if user.archive(distribution) else by.ready(distribution, version, cell)
            wheels += [wheel] if wheel else []
    return (*user.archives, *wheels)


def _ready_instead(cell: Cell, packages: Iterable[Resolved], query: Query, ready: Ready) -> tuple[Archive, ...]:
    """Return ready wheels of what the resolver took as source, which the cell did not name."""
    own = {archive.name for archive in query.archives}
    wheels = (ready(p.name, p.version, cell) for p in packages if p.sdist and p.name not in own)
    return tuple(wheel for wheel in wheels if wheel)


def _newer_glibc(cell: Cell, packages: Iterable[Resolved], query: Query, by: Resolver) -> str | None:
    """Return the glibc of wheels in place of which the resolver took sources. ``None`` once it was told."""
    if query.platform != uv_platform(cell.platform, own := cell.components.get("glibc")):
        return None
    return newer_glibc(packages, {archive.name for archive in query.archives}, cell, own or by.newest_glibc, by.glibc)


def _following(toolkit: Iterable[str], pins: Iterable[Resolved | Pin]) -> list[str]:
    """Return the parts of a toolkit in the releases of ``pins``: what torch pins may have a number of its own."""
    names = {pin.name for pin in pins}
    return [name if (name := Requirement(line).name) in names else line for line in toolkit]


@contextmanager
def _own_index(cell: Cell) -> Iterator[None]:
    """Say what a torch build that is not on the default index needs, when it cannot be had."""
    try:
        yield
    except NetworkError as error:
        if cell.index != "pytorch":
            raise
        torch = cell.components["torch"]
        remedy = "a build with CUDA (without --cuda cpu)" if torch.endswith("+cpu") else "another torch with --torch"
        hint = f"Take {remedy}: the build {torch} is only on PyTorch's own index, which cannot be reached."
        raise NetworkError(error.message, details=error.details, hint=hint) from None


# An older setuptools asks for wheel when it builds, whatever the source distribution says.
_BRINGS_WHEEL = "70.1"


def _build_pins(
    cell: Cell, pins: tuple[Pin, ...], sources: tuple[TorchSource, ...], query: Query, resolver: Resolver
) -> tuple[Pin, ...]:
    if not any(pin.sdist for pin in pins):
        return ()

    # torch with all that it imports: the layer that the builder stands on has only the heavy part of it.
    undeclared = {
        s.distribution: (*s.requires, "torch", *_following(_toolkit(cell, s.distribution) if s.toolkit else (), pins))
        for s in sources
    }
    needed = build_requires(pins, resolver.fetcher, undeclared)
    if not needed:
        return ()
    # What is compiled against the cell's torch is compiled beside it, so that nothing of the cell may be of another
    # version there.
    fixed = (
        tuple(f"{pin.name}=={pin.version}" for pin in pins)
        if sources
        else tuple(f"torch=={pin.version}" for pin in pins if pin.name == "torch")
    )
    names = ", ".join(pin.name for pin in pins if pin.sdist)
    build = replace(query, requirements=needed, constraints=fixed)
    return build_pins(build, resolver.uv, work=f"resolve the build requirements of {names} for {cell.id}")


def build_pins(query: Query, uv: Uv, *, work: str) -> tuple[Pin, ...]:
    """Return what source distributions are built with, where ``query`` asks for their build requirements."""
    build = replace(query, overrides=(), wheels_only=True, edges=False, archives=(), present=(), preferred=(), later=())
    resolution = resolve(build, uv, work=work)
    versions = {package.name: package.version for package in resolution.packages}
    if "wheel" not in versions and Version(versions.get("setuptools", _BRINGS_WHEEL)) < Version(_BRINGS_WHEEL):
        resolution = resolve(replace(build, requirements=(*query.requirements, "wheel")), uv, work=work)
    return to_pins(resolution.packages, resolution.requires, layer="build")


def _toolkit(cell: Cell, name: str) -> tuple[str, ...]:
    toolkit = toolkit_for(cell, load_runtime())
    if toolkit is None or toolkit.missing:
        cuda = cell.components.get("cuda", "cpu")
        raise LockError(
            f"Cannot lock {cell.id}: {name} is compiled with nvcc, and "
            f"{toolkit.missing if toolkit else f'no toolkit is known for CUDA {cuda}'}.",
            hint=f"Use a cell with CUDA 13 (--cuda 13), whose nvcc is on the package index, or leave {name} out "
            "and build it on top of the cell.",
            names=[name],
        )
    return toolkit_parts(cell, toolkit)


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
