"""Which distributions a treatment changes: uv resolves it with as much of the environment as can stay."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from envsmith.base.schema import AsJson, written
from envsmith.doctor.mend.environment import Environment, Installed
from envsmith.doctor.mend.treatment import Treatment
from envsmith.errors import LockError
from envsmith.lock.build_requires import build_requires
from envsmith.lock.cell_query import uv_platform
from envsmith.lock.days import cutoff, last_day
from envsmith.lock.index.uv import Uv
from envsmith.lock.query import Query, resolve
from envsmith.lock.resolve import build_pins
from envsmith.lock.uv_output import closure, is_of_torch, to_pins
from envsmith.model.cell import Platform
from envsmith.model.lock import Pin
from envsmith.model.project_name import normal_name
from envsmith.model.version import minor_of, public
from envsmith.net.http import HttpClient

if TYPE_CHECKING:
    from envsmith.net.http import Fetcher


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageChange(AsJson):
    """One line of the difference. ``why`` names the rules, or the package that needs it."""

    name: str
    old: str | None = field(metadata=written("from"))
    new: str | None = field(metadata=written("to"))
    why: str = ""

    @property
    def sentence(self) -> str:
        """Return ``numpy 2.0.2 -> 1.26.4``."""
        if self.old == self.new:
            return f"{self.name} {self.old} (installed again)"
        return f"{self.name} {self.old or '(absent)'} -> {self.new or '(removed)'}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedTreatment:
    """What a treatment changes, and the exact files for it. ``build`` is what source distributions are built with."""

    changes: tuple[PackageChange, ...]
    pins: tuple[Pin, ...] = ()
    build: tuple[Pin, ...] = ()
    backend: str = ""

    @property
    def removed(self) -> tuple[str, ...]:
        """Return what goes."""
        return tuple(change.name for change in self.changes if change.new is None)

    @property
    def again(self) -> tuple[str, ...]:
        """Return what stays in its version and is installed anew."""
        return tuple(change.name for change in self.changes if change.old == change.new)

    def after(self, freeze: Mapping[str, str]) -> dict[str, str]:
        """Return name to version once the changes are made."""
        versions = {**freeze, **{c.name: c.new for c in self.changes}}
        return {name: version for name, version in versions.items() if version is not None}


def difference(
    environment: Environment,
    treatment: Treatment,
    *,
    keep: Collection[str] = (),
    glibc: str | None = None,
    uv: Uv | None = None,
    fetcher: Fetcher | None = None,
) -> ResolvedTreatment:
    """Return the fewest changes that treat an environment. ``LockError`` when no set of packages does.

    At first all that the treatment does not name stays. Where that cannot be, its neighbours may change, and at last
    everything that an index has. ``keep`` and what is not from an index never change.
    """
    tool = uv or Uv()
    if fixed := sorted(set(keep) & treatment.names):
        raise LockError(
            f"Cannot mend {environment.root}: {', '.join(fixed)} would have to change, and --keep holds it.",
            hint=f"Leave out --keep {fixed[0]}, or mend the rest by hand.",
        )
    refusal: LockError | None = None
    earlier: frozenset[str] | None = None
    for free in _widening(environment, treatment, keep):
        if free == earlier:
            continue
        earlier = free
        query = _query(environment, treatment, free, glibc)
        try:
            resolution = resolve(query, tool, work=f"mend {environment.root}")
        except LockError as error:
            refusal = refusal or error
            continue
        pins = {pin.name: pin for pin in to_pins(resolution.packages, {})}
        changes = _changes(environment, treatment, pins, query)
        changed = tuple(pins[change.name] for change in changes if change.name in pins)
        build = _build(changed, query, tool, fetcher)
        return ResolvedTreatment(changes=changes, pins=changed, build=build, backend=treatment.backend)
    raise refusal or LockError(f"Cannot mend {environment.root}: nothing can be installed.")


def _widening(environment: Environment, treatment: Treatment, keep: Collection[str]) -> Iterator[frozenset[str]]:
    """Yield what may change beside the treatment: nothing, its neighbours, everything."""
    movable = frozenset(
        name
        for name, distribution in environment.distributions.items()
        if name not in keep
        and name not in treatment.names
        and not distribution.is_local
        and "+" not in distribution.version
    )
    touched = set(treatment.names)
    neighbours = {
        name
        for name in environment.distributions
        for requirement in environment.edges(name)
        if normal_name(requirement.name) in touched
    }
    for name in touched & set(environment.distributions):
        neighbours |= {normal_name(requirement.name) for requirement in environment.edges(name)}
    yield frozenset()
    yield movable & neighbours
    yield movable


def _query(environment: Environment, treatment: Treatment, free: frozenset[str], glibc: str | None) -> Query:
    follows = _of_torch(environment) if "torch" in treatment.install else frozenset()
    stays = [n for n in environment.distributions if n not in treatment.names and n not in follows]
    again = {n: f"{n}=={environment.distributions[n].version}" for n in treatment.again}
    return Query(
        requirements=tuple(sorted({*{**again, **treatment.install}.values(), *free})),
        python=minor_of(environment.python),
        platform=uv_platform(Platform.host(), glibc),
        newest=cutoff(last_day()),
        interpreter=str(environment.interpreter),
        # torch names its libraries exactly: another one is possible by override alone.
        overrides=tuple(sorted(t for n, t in treatment.install.items() if is_of_torch(n) and n != "torch")),
        backend=treatment.backend,
        edges=False,
        present=tuple(_stay(environment, name, treatment) for name in stays if name not in free),
        preferred=tuple((d.name, public(d.version)) for d in environment.distributions.values()),
    )


def _of_torch(environment: Environment) -> frozenset[str]:
    """Return what only the installed torch asks for: its libraries go where it goes."""
    edges = {name: [normal_name(r.name) for r in environment.edges(name)] for name in environment.distributions}
    own = {name for name in closure(["torch"], edges) if is_of_torch(name) and name != "torch"}
    elsewhere = {target for name, targets in edges.items() if name not in {*own, "torch"} for target in targets}
    return frozenset(own - elsewhere)


def _stay(environment: Environment, name: str, treatment: Treatment) -> Installed:
    """Return a distribution that stays, without requirements that are violated already: they are not to be mended."""
    requires = [
        str(requirement)
        for requirement in environment.edges(name)
        if normal_name(requirement.name) not in treatment.remove and environment.has(requirement)
    ]
    return replace(environment.distributions[name], requires=tuple(requires))


def _changes(
    environment: Environment, treatment: Treatment, pins: Mapping[str, Pin], query: Query
) -> tuple[PackageChange, ...]:
    stays = {d.name: d.version for d in query.present}
    changes = []
    for name in sorted({*environment.distributions, *pins}):
        installed = environment.distributions.get(name)
        old = installed.version if installed else None
        new = pins[name].version if name in pins else stays.get(name)
        if new is None or old is None or not is_same(old, new) or name in treatment.again:
            changes.append(PackageChange(name=name, old=old, new=new, why=_why(name, environment, treatment)))
    return tuple(changes)


def _why(name: str, environment: Environment, treatment: Treatment) -> str:
    if name in treatment.reasons:
        return treatment.reasons[name]
    if is_of_torch(name):
        return "goes with torch"
    users = [
        user
        for user in environment.distributions
        if user in treatment.names and name in {normal_name(r.name) for r in environment.edges(user)}
    ]
    return f"{', '.join(users)} needs another release" if users else "the new releases need it"


def is_same(old: str, new: str) -> bool:
    """Return whether two versions are one. The default index does not write a build into torch's version."""
    try:
        a, b = Version(old), Version(new)
    except InvalidVersion:
        return old == new
    return a == b or (b.local is None and a.local is not None and Version(a.public) == b)


def _build(pins: tuple[Pin, ...], query: Query, uv: Uv, fetcher: Fetcher | None) -> tuple[Pin, ...]:
    needed = build_requires(pins, fetcher or HttpClient())
    if not needed:
        return ()
    names = ", ".join(pin.name for pin in pins if pin.sdist)
    torch = tuple(f"torch=={public(d.version)}" for d in query.present if d.name == "torch")
    return build_pins(
        replace(query, requirements=needed, constraints=torch), uv, work=f"resolve the build requirements of {names}"
    )
