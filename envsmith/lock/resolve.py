"""Resolve a cell by uv, and judge the pinned packages by every rule again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envsmith.base.progress import EventKind, Progress, ProgressEvent, silent
from envsmith.errors import LockError, NetworkError
from envsmith.frameworks import FRAMEWORKS
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
from envsmith.lock.index.interpreters import find_interpreter, running_interpreter
from envsmith.lock.index.uv import Uv
from envsmith.lock.later import Later, days_from, later_wheel, later_wheels
from envsmith.lock.query import Query, Resolution, cutoff, resolve
from envsmith.lock.uv_output import Resolved, only_allowed, to_pins
from envsmith.model.cell import RUNTIME, TRAIN, Cell, Platform
from envsmith.model.component import ComponentTable, Role
from envsmith.model.finding import Judgement
from envsmith.model.lock import Compile, GivenArchive, Lock, Pin
from envsmith.model.rule import Severity
from envsmith.model.version import minor_of, public
from envsmith.model.wheel import ReadyWheel
from envsmith.net.http import HttpClient
from envsmith.solver import check

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


# Judges a cell with every pin that is a component.
Judge = Callable[[Cell, Mapping[str, str]], Judgement]


def judge_cell(cell: Cell, components: Mapping[str, str]) -> Judgement:
    """Judge by every rule. A repair may change what is pinned beside the cell, never the cell."""
    return check(components, cell.platform, keep=tuple(cell.components))


# The package layer of a lock: uv resolves under the cell's constraints, everything is hashed, the result is judged
# again.


_STEP = "lock"
# Each attempt adds a constraint or a later wheel.
_ATTEMPTS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolver:
    """Who resolves and who judges: by default the user's own uv and index, and the rules of the version graph.

    ``ready`` gives the ready wheel of a release that fits a cell, by default the project's own. ``later`` gives the
    next release with a wheel for the cell. ``find_links`` are folders or pages of files that are asked for by name
    (pip's own setting is not used: a local build would replace the wheel of the cell).
    """

    uv: Uv = field(default_factory=Uv)
    judge: Judge = judge_cell
    table: ComponentTable = field(default_factory=components)
    fetcher: Fetcher = field(default_factory=HttpClient)
    find_links: tuple[str, ...] = ()
    ready: Ready = best_wheel
    later: Later = later_wheel


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
    minor = _minor(cell)
    query = replace(
        query_of(cell, resolver.table, beside.constraints, archives=_with_ready(cell, compile, resolver)),
        interpreter=(find_interpreter(minor) or running_interpreter()).path,
        find_links=resolver.find_links,
        preferred=beside.preferred,
    )
    if flavour == TRAIN:
        query = replace(query, requirements=tuple(sorted({*query.requirements, "pip"})))

    def on_line(line: str) -> None:
        progress(ProgressEvent(kind=EventKind.LINE, step=_STEP, text=line))

    latest = cutoff(exclude_newer)
    for day in days_from(beside.date, exclude_newer):
        dated = replace(query, newest=cutoff(day), latest=latest)
        try:
            resolution, query, added = _judged(cell, dated, toolkit, resolver, on_line)
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
    ``toolkit`` is asked for once it is known which parts of it torch pins.
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
        is_dated = query.newest != query.latest and not by.uv.offline
        if is_dated and (later := later_wheels(resolution.packages, _fixed(query), cell, by.later)):
            query = replace(query, later=(*query.later, *later))
            continue
        if ready := _ready_instead(cell, resolution.packages, query, by.ready):
            query = replace(query, archives=(*query.archives, *ready))
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
        if wrong := differences(cell, pins, by.table):
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
            raise _refusal(cell, judged)
        added = (*added, *constraints)
        query = replace(query, constraints=tuple(sorted({*query.constraints, *(text for text, _ in constraints)})))
    raise LockError(
        f"Cannot {work}: no set of packages keeps every rule.",
        details=[text for text, _ in added],
        hint="Choose another cell, or another release of one of the packages with --with.",
    )


def _with_ready(cell: Cell, user: Compile, by: Resolver) -> tuple[GivenArchive | ReadyWheel, ...]:
    """Return the user's archives, and the ready wheels of the cell's components that the user has no archive of."""
    wheels = []
    for name, version in cell.components.items():
        component = by.table.by_name.get(name)
        for distribution in component.distributions if component and component.role is Role.COMPANION else ():
            wheel = None if user.archive(distribution) else by.ready(distribution, version, cell)
            wheels += [wheel] if wheel else []
    return (*user.archives, *wheels)


def _ready_instead(cell: Cell, packages: Iterable[Resolved], query: Query, ready: Ready) -> tuple[ReadyWheel, ...]:
    """Return ready wheels of what the resolver took as source, which the cell did not name."""
    own = {archive.name for archive in query.archives}
    wheels = (ready(p.name, p.version, cell) for p in packages if p.sdist and p.name not in own)
    return tuple(wheel for wheel in wheels if wheel)


def _fixed(query: Query) -> set[str]:
    """Return what has no other release: exact requirements, archives, and what is a later wheel already."""
    exact = (r.name for r in map(Requirement, query.requirements) if "==" in str(r.specifier))
    return {canonicalize_name(name) for name in (*exact, *(a.name for a in query.archives), *dict(query.later))}


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
        hint = f"Take another torch with --torch: the build {torch} is only on PyTorch's own index, which cannot be reached."
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


# Is what uv resolved still the cell? Versions against the cell, then every pin against every rule.

_HOST_FACTS = ("python", "cuda", "driver", "gpu", "toolkit", "gcc", "clang", "glibc", "cmake", "openmpi")


def differences(cell: Cell, pins: Iterable[Pin], table: ComponentTable) -> tuple[str, ...]:
    """Return a sentence for each component that is pinned in another version than the cell's, or not at all."""
    versions = {pin.name: pin.version for pin in pins}
    lines = []
    for name, version in cell.components.items():
        component = table.by_name.get(name)
        if component is None or name in _HOST_FACTS or not component.distributions:
            continue
        pinned = {d: versions[d] for d in component.distributions if d in versions}
        exact = _exact(name, version, cell)
        if exact == "none":
            lines += [f"{name}: the cell says none, the resolver pinned {d} {v}" for d, v in pinned.items()]
        elif not pinned and name in {*cell.frameworks, "torch"}:
            lines.append(f"{name}: the cell says {version}, the resolver pinned none")
        else:
            # A torch that ships its own NCCL or cuDNN inside the wheel has no pin to compare.
            lines += [
                f"{name}: the cell says {version}, the resolver pinned {d} {v}"
                for d, v in pinned.items()
                if not _same(v, exact) and (name == "torch" or not _same(public(v), exact))
            ]
    return tuple(lines)


def _exact(name: str, version: str, cell: Cell) -> str:
    """Return the version as the index has it: on the default index the build is not part of torch's."""
    return public(version) if name == "torch" and cell.index == "default" else version


def _same(pinned: str, version: str) -> bool:
    try:
        return Version(pinned) == Version(version)
    except InvalidVersion:
        return pinned == version


def as_components(cell: Cell, pins: Iterable[Pin], table: ComponentTable) -> dict[str, str]:
    """Return the cell with every pin that is a component: what the rules are asked about."""
    versions = dict(cell.components)
    for pin in pins:
        component = table.find(pin.name)
        if component is not None and pin.name in component.distributions:
            versions.setdefault(component.name, pin.version)
    return versions


def broken_rules(cell: Cell, pins: tuple[Pin, ...], table: ComponentTable, judge: Judge) -> Judgement | None:
    """Return the judgement of cell and pins together when a rule is broken, else ``None``."""
    judged = judge(cell, as_components(cell, pins, table))
    return judged if any(f.severity is Severity.ERROR for f in judged.findings) else None


def repairs(cell: Cell, judged: Judgement, table: ComponentTable) -> tuple[tuple[str, str], ...]:
    """Return the solved repair as constraints with their rule, or nothing where it would change the cell."""
    rules = ", ".join(sorted({f.rule for f in judged.findings if f.severity is Severity.ERROR}))
    changes = judged.repair.changes if judged.repair else ()
    lines = []
    for change in changes:
        component = table.by_name.get(change.component)
        if change.component in cell.components or component is None or not component.distributions or not change.new:
            return ()
        lines.append((f"{component.distributions[0]}=={change.new}", rules))
    return tuple(lines)


def _refusal(cell: Cell, judged: Judgement) -> LockError:
    errors = [f for f in judged.findings if f.severity is Severity.ERROR]
    return LockError(
        f"Cannot lock {cell.id}: its pinned packages break {len(errors)} rule{'s' if len(errors) > 1 else ''}.",
        details=[f"{f.message} [{f.rule}]" for f in errors],
        hint=errors[0].fix or "Choose another release of one of the packages with --with.",
    )


# What a cell wants of the package resolver: pure, a cell in, requirement lines out.


# What torch brings in exact versions: checked afterwards, never asked for.
_FOLLOW = frozenset({"python", "cuda", "nccl", "cudnn", "triton"})
# The C library that a lock is made for when the cell does not name one: the oldest that today's torch wheels run on.
DEFAULT_GLIBC = "2.28"
# The platforms that uv knows by their C library (uv 0.13), ascending.
_UV_GLIBC = ("2.17", "2.28", "2.31", "2.32", "2.33", "2.34", "2.35", "2.36", "2.37", "2.38", "2.39", "2.40")


def query_of(
    cell: Cell,
    table: ComponentTable,
    constraints: Sequence[tuple[str, str]] = (),
    *,
    archives: tuple[GivenArchive | ReadyWheel, ...] = (),
) -> Query:
    """Return the request to uv: the cell, and what is asked for beside it.

    ``archives`` are what of the cell is a file of the user's, or a ready wheel. ``LockError`` names the rule whose constraint is not a requirement.
    """
    own = {archive.name for archive in archives}
    lines: dict[str, str] = {
        canonicalize_name(Requirement(line).name): line for line in _requirements(cell, table, own)
    }
    lines = {name: line for name, line in lines.items() if name not in own}
    # Object collectives of torch pickle through numpy, which it does not declare.
    for name in ("numpy", *(n for framework in cell.frameworks for n in FRAMEWORKS[framework].undeclared)):
        lines.setdefault(name, name)
    for text, rule in constraints:
        _parse(text, rule)
    return Query(
        requirements=tuple(sorted({*lines.values(), *(line.partition(" --hash=")[0] for line in cell.further)})),
        constraints=tuple(sorted({*(text for text, _ in constraints), *_further(cell, table)})),
        python=_minor(cell),
        platform=uv_platform(cell.platform, cell.components.get("glibc")),
        backend=cell.torch_backend,
        archives=archives,
    )


def _further(cell: Cell, table: ComponentTable) -> Iterator[str]:
    """Yield for the further distributions of a component that they have its version, should one of them come along.

    So with triton: torch 2.2 and 2.3 do not declare it for Python 3.12, and others may.
    """
    for name, version in cell.components.items():
        component = table.by_name.get(name)
        follows = name in _FOLLOW - {"triton"}
        if component and component.role is not Role.HOST and not follows and version != "none":
            further = component.distributions[name != "triton" :]
            yield from (f"{distribution}=={_exact(name, version, cell)}" for distribution in further)


def _minor(cell: Cell) -> str:
    return minor_of(cell.components["python"])


def _parse(text: str, rule: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise LockError(
            f"Cannot use the rule {rule}: {text!r} is not a requirement that a package resolver understands."
        ) from None


def _requirements(cell: Cell, table: ComponentTable, archives: Collection[str]) -> list[str]:
    lines = []
    for name, version in cell.components.items():
        component = table.by_name.get(name)
        if component is None or component.role is Role.HOST or name in _FOLLOW or version in {"none", "cpu"}:
            continue
        if not component.distributions and name in archives:
            continue
        if not component.distributions:
            raise LockError(
                f"Cannot lock {cell.id}: {component.title} is not on the package index.",
                hint="Give its source archive, which is then compiled for the cell: --source "
                f"'{name}@ARCHIVE#sha256=…'.",
            )
        lines.append(f"{component.distributions[0]}{_extras(name, cell)}=={_exact(name, version, cell)}")
    return lines


def _extras(name: str, cell: Cell) -> str:
    if name in FRAMEWORKS and FRAMEWORKS[name].extras:
        return f"[{','.join(FRAMEWORKS[name].extras)}]"
    if name != "transformer-engine":
        return ""
    major = cell.components.get("cuda", "12").partition(".")[0]
    # Releases up to 2.8 have no such extra; uv only warns about one that does not exist.
    return f"[pytorch,core_cu{major}]" if major.isdigit() else "[pytorch]"


def uv_platform(platform: Platform, glibc: str | None) -> str:
    """Return the newest of uv's platforms that ``glibc`` can run, such as ``x86_64-manylinux_2_28``."""
    limit = Version(glibc or DEFAULT_GLIBC)
    fitting = [release for release in _UV_GLIBC if Version(release) <= limit] or [_UV_GLIBC[0]]
    return f"{platform.machine}-manylinux_{fitting[-1].replace('.', '_')}"


def overrides(cell: Cell, table: ComponentTable, resolved: dict[str, str]) -> tuple[str, ...]:
    """Return override lines for an NCCL that is not the one torch pins exactly."""
    version = cell.components.get("nccl")
    component = table.by_name.get("nccl")
    if version in {None, "none"} or component is None:
        return ()
    return tuple(
        f"{dist}=={version}" for dist in component.distributions if dist in resolved and resolved[dist] != version
    )
