"""What an environment for a project must have: the releases in which every name that the code takes exists."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet

from envsmith.errors import ContradictionError, LockError
from envsmith.knowledge.graph.load import version_graph
from envsmith.knowledge.names.modules import distributions_behind, distributions_by_module
from envsmith.knowledge.names.presence import spec_of
from envsmith.lock.later import Later, later_wheel
from envsmith.model.cell import Request
from envsmith.model.component import ComponentTable, Role
from envsmith.model.finding import Solution, UnsatisfiableError
from envsmith.model.lock import Lock, Pin
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Severity
from envsmith.model.version import minor_of, public
from envsmith.project.code.judge_uses import Assumed, Index, NameNeed, Questions, is_guarded, outermost, severity_of
from envsmith.project.code.reading import ProjectUses, UsePlace
from envsmith.project.demand import Demand, Demands
from envsmith.solver import solve

# More exclusions than this make no specifier that anybody reads.
_MOST_HOLES = 8
_ORDER = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Inferred:
    """What a request gets from code. ``reasons`` say from what, a sentence each.

    ``components`` (frameworks among them) have the spec of all that is known, and in ``names`` that of the names alone.
    ``packages`` are requirements of what envsmith has no releases of. ``unnamed`` are modules for which nothing names a
    distribution: they are not installed.
    """

    components: Mapping[str, str]
    names: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()


def infer(uses: ProjectUses, requirements: Demands, index: Index) -> Inferred:
    """Return what the code of a project needs.

    A requirement that the project states is kept as long as a release that it allows has the names. What only a text
    for people names is installed where the code imports it.
    """
    questions, graph = Questions(index), version_graph()
    table = graph.components
    # Where torch is another one than the project's, so is what was pinned beside it.
    torch = requirements.of(["torch"])
    is_old = torch is not None and not graph.knows_release("torch", torch.spec or "*")
    owners, unnamed, spared = _owners(uses, requirements, questions, table)
    parts: dict[str, str] = {}
    names: dict[str, str] = {}
    packages: dict[str, str] = {}
    reasons = [
        f"{name} is left out: {where} does without it, and no file of the project names it"
        for name, where in spared.items()
    ]
    for distribution in sorted({*owners, *(d.name for d in requirements.demands if not d.is_optional)}):
        component = table.find(distribution)
        is_component = component is not None and component.distributions[:1] == (distribution,)
        name = component.name if component and is_component else distribution
        places, stated = owners.get(distribution, ()), requirements.of([distribution])
        spec, sentences = _Wish(distribution, name, places, stated).settle(questions)
        role = component.role if component and is_component else None
        names[name] = _Wish(distribution, name, places, None).settle(questions)[0]
        if role in (Role.FRAMEWORK, Role.CORE, Role.COMPANION) and graph.knows_release(name, spec):
            parts[name] = spec
        elif role in (Role.FRAMEWORK, Role.CORE) or (role is Role.COMPANION and is_old and spec != names[name]):
            parts[name] = names[name]
            sentences.append(f"{name} {spec}: envsmith knows no such release, so it gives way")
        elif role is not Role.HOST:
            packages[distribution] = spec
        reasons += sentences
    for python, _ in requirements.python:
        if graph.knows_release("python", python):
            parts["python"] = python
            reasons.append(f"python {python}: the project's own requirement")
    lines = tuple(f"{name}{'' if spec == '*' else spec}" for name, spec in sorted(packages.items()))
    return Inferred(
        components=parts, names=names, packages=lines, reasons=tuple(reasons), unnamed=tuple(sorted(unnamed))
    )


def _owners(
    uses: ProjectUses, requirements: Demands, questions: Questions, table: ComponentTable
) -> tuple[dict[str, list[UsePlace]], set[str], dict[str, str]]:
    """Return the uses of each distribution, modules without a known one, and where the code does without one.

    A guess would install what somebody else has put under that name. What is only taken under a guard is not needed,
    nor what no file names and functions take, when the code does without it elsewhere.
    """
    owners: dict[str, list[UsePlace]] = {}
    unnamed: set[str] = set()
    spared: dict[str, str] = {}
    tried = _tried(uses)
    tops = {p.use.chain[0] for p in uses.uses if severity_of(p.use) is Severity.ERROR}
    for place in uses.uses:
        top = place.use.chain[0]
        same = normal_name(top)
        component = table.find(same)
        distribution = questions.distribution(place.use) or distributions_by_module().get(top)
        if distribution is None and (requirements.of([same]) or (component and same in component.distributions)):
            distribution = same
        if is_guarded(place.use.guard) or place.use.guard.tests:
            continue
        if top in tried and top not in tops and not (distribution and requirements.of([distribution])):
            spared[distribution or top] = tried[top]
            continue
        for behind in distributions_behind(place.use.chain):
            owners.setdefault(behind, []).append(place)
        if distribution is None:
            unnamed.add(top)
        else:
            owners.setdefault(distribution, []).append(place)
    return owners, unnamed, spared


def _tried(uses: ProjectUses) -> dict[str, str]:
    """Return the modules whose absence the code takes, and where: it asks for one itself, or guards every import of it."""
    guarded = [p for p in uses.uses if is_guarded(p.use.guard)]
    needed = {p.use.chain[0] for p in uses.uses if p.use.imported and not is_guarded(p.use.guard)}
    return {
        p.use.chain[0]: p.where
        for p in reversed(guarded)
        if len(p.use.chain) == 1 or (p.use.imported and p.use.chain[0] not in needed)
    }


@dataclass(frozen=True, slots=True)
class _Wish:
    """One distribution: who takes what of it, and what the project states."""

    distribution: str
    name: str
    uses: Sequence[UsePlace]
    stated: Demand | None

    def settle(self, questions: Questions) -> tuple[str, list[str]]:
        """Return the spec, and why. Names that stop an import come first where not all can be had together."""
        reasons = []
        spec = self.stated.spec if self.stated else ""
        needs = sorted(questions.needs(self.uses), key=_weight)
        releases = next((n.presence.releases for n in needs), ())
        admitted = [r for r in releases if r in SpecifierSet(spec, prereleases=True)] if spec else list(releases)
        if self.stated and spec:
            reasons.append(f"{self.name} {spec}: {self.stated.where}")
        if needs and not admitted:
            # Older or newer than what was measured: nothing is known of its names.
            return spec or "*", reasons or self._seen()
        allowed, lacking, apart = list(admitted), list[NameNeed](), list[NameNeed]()
        for need in needs:
            # What is made at run time or in C++ may be there: only releases without the name are left out.
            having = need.presence.present | need.presence.unknown
            fitting = [r for r in allowed if r in having]
            if fitting:
                if len(fitting) < len(allowed):
                    reasons.append(f"{self.name} {spec_of(releases, having)}: {_places(need)} takes {need.name}")
                allowed = fitting
            else:
                (apart if having.intersection(admitted) or not spec else lacking).append(need)
        if lacking := outermost(lacking):
            reasons.append(
                f"{self.name} {spec} lacks {lacking[0].name}, which {_places(lacking[0])} takes{_more(lacking)}"
            )
        if apart := outermost(apart):
            reasons.append(
                f"{self.name}: no release has {apart[0].name} ({_places(apart[0])}) and what is named before{_more(apart)}"
            )
        narrowed = _spec(allowed, admitted)
        return ",".join(filter(None, (spec, narrowed))) or "*", reasons or self._seen()

    def _seen(self) -> list[str]:
        if self.stated:
            return [f"{self.name}: {self.stated.where}"]
        return [f"{self.name}: {self.uses[0].where} imports it"] if self.uses else []


def _weight(need: NameNeed) -> tuple[int, int, str]:
    worst = min(_ORDER.index(severity_of(place.use)) for place in need.places)
    return worst, -len(need.places), need.name


def _places(need: NameNeed) -> str:
    places = sorted(need.places, key=lambda t: _ORDER.index(severity_of(t.use)))
    further = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{places[0].where}{further}"


def _more(needs: Sequence[NameNeed]) -> str:
    return f", and {len(needs) - 1} more names" if len(needs) > 1 else ""


def _spec(allowed: Sequence[str], admitted: Sequence[str]) -> str:
    """Return a specifier that admits ``allowed`` of ``admitted``, oldest first."""
    if len(allowed) == len(admitted):
        return ""
    text = spec_of(admitted, set(allowed))
    # Names that come and go leave many holes: the releases from the last hole on.
    return text if text.count("!=") <= _MOST_HOLES else _spec(allowed[1:], admitted)


def newest_admitted(uses: ProjectUses, requirements: Demands, index: Index) -> dict[str, Assumed]:
    """Return the newest measured release of each distribution that a project takes from and admits.

    A project that admits no measured release of a distribution has none here.
    """
    questions = Questions(index)
    newest: dict[str, Assumed] = {}
    visited: set[str] = set()
    for place in uses.uses:
        distribution = questions.distribution(place.use)
        if distribution is None or distribution in visited:
            continue
        visited.add(distribution)
        presence = questions.ask(".".join(place.use.chain[:1])) or questions.ask(".".join(place.use.chain))
        demand = requirements.of([distribution])
        spec = demand.spec if demand else ""
        admits = SpecifierSet(spec).contains
        releases = reversed(presence.releases) if presence else ()
        version = next((release for release in releases if admits(release, prereleases=True)), None)
        if version is not None:
            newest[distribution] = Assumed(version=version, spec=spec)
    return newest


def exact_versions(requirements: Demands) -> dict[str, str]:
    """Return the releases that a project pins exactly, without their builds."""
    pins = ((demand.name, demand.exact) for demand in requirements.demands)
    return {name: public(version) for name, version in pins if version}


# What code and its requirements ask for, less what no cell can have: a pin of years ago is a wish, not an order.

Wishes = Mapping[str, str]
# What must be compiled against torch may not move it further from the date than this.
_TOO_FAR = dt.timedelta(days=365)
_MOST_STEPS = 24


def settle(
    wishes: Wishes, names: Wishes, request_of: Callable[[Wishes], Request]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the wishes that a cell can have together, and a sentence for each that gave way.

    ``names`` are the specs that the code itself needs. A pin of the project gives way to them first, then what is
    compiled against torch is left out, then a component. Where nothing helps, the wishes stay as they are: the refusal
    of the solver says why.
    """
    current, sentences = dict(wishes), list[str]()
    for _ in range(_MOST_STEPS):
        request = request_of(current)
        try:
            solution = solve(request)
        except UnsatisfiableError as error:
            name = _first_to_go(current, names, error)
            if name is None:
                return dict(wishes), ()
            sentences.append(_give_way(current, names, name, "no cell has it together with the rest"))
            continue
        far = _too_far(solution, request.date, current)
        if far is None:
            return current, tuple(sentences)
        current.pop(far)
        sentences.append(f"{far} is left out: with it torch would be a release of more than a year after the date")
    return dict(wishes), ()


def _first_to_go(current: Wishes, names: Wishes, error: UnsatisfiableError) -> str | None:
    """Return the wish of a conflict that is given up first."""
    conflict = error.refusal.conflict if error.refusal else ()
    blamed = [c.rule.removeprefix("request:") for c in conflict if c.is_wish]
    mentioned = [name for member in conflict for name in member.components]
    inferred = [name for name in dict.fromkeys((*blamed, *mentioned)) if name in current]
    compiled = version_graph().compiled.built_on_torch
    pinned = [name for name in inferred if current[name] != names.get(name, "*")]
    ordered = [
        *(name for name in inferred if name in compiled),
        *(name for name in pinned if name not in {"torch", "python"}),
        *pinned,
        *(name for name in inferred if name != "torch"),
    ]
    return next(iter(ordered), None)


def _give_way(current: dict[str, str], names: Wishes, name: str, why: str) -> str:
    """Loosen a wish to what the code needs. A wish that is as loose as that is given up."""
    pin, needed = current[name], names.get(name, "*")
    if pin != needed:
        current[name] = needed
        return f"{name} {pin} gives way: {why}"
    current.pop(name)
    return f"{name} is left out: {why}"


def settle_lock(
    wishes: Wishes, names: Wishes, lock_of: Callable[[Wishes], Lock], later: Later = later_wheel
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the wishes, by distribution, that a lock can meet, and a sentence for each that gave way.

    A pin gives way where uv finds no packages with it, or where it would be compiled because its wheels are for older
    Pythons. Where something else is in the way, the lock itself will say so.
    """
    current, sentences = dict(wishes), list[str]()
    before: dict[str, str] = {}
    for _ in range(_MOST_STEPS):
        try:
            lock = lock_of(current)
        except LockError as error:
            blamed = _blamed(error, current, names)
            if not blamed:
                break
            sentences += [_give_way(current, names, name, error.reason) for name in blamed]
            continue
        except UnsatisfiableError as error:
            if before:  # no cell has a later release, so the earlier one is compiled
                return before, tuple(dict.fromkeys(sentences))
            name = _first_to_go(current, names, error)
            if name is None:
                raise
            sentences.append(_give_way(current, names, name, "no cell has it together with the rest"))
            continue
        before, number = dict(current), len(sentences)
        for pin in (pin for pin in lock.pins if pin.sdist):
            if newer := later(pin.name, pin.version, lock.cell):
                sentences += _wheel_instead(current, names, pin, newer, lock)
        if len(sentences) == number:
            break
    return current, tuple(dict.fromkeys(sentences))


def _blamed(error: LockError, current: Wishes, names: Wishes) -> list[str]:
    """Return the wishes that are at fault: pins of further packages before those of components, then the rest."""
    pinned = [name for name in current if current[name] != names.get(name, "*")]
    blamed = [name for name in pinned if name in error.names]
    table = version_graph().components
    if blamed:
        return [name for name in blamed if table.find(name) is None] or blamed[:1]
    if isinstance(error, ContradictionError):
        return [name for name in current if name in error.required and table.find(name) is None][:1]
    return [name for name in current if name in error.names]


def _wheel_instead(current: dict[str, str], names: Wishes, pin: Pin, newer: str, lock: Lock) -> list[str]:
    """Loosen what keeps a package at a release without a wheel for the cell's Python."""
    why = (
        f"{pin.name} {pin.version} has no wheel for Python {minor_of(lock.cell.components['python'])}, {newer} has one"
    )
    keeping = [pin.name, *(user.name for user in lock.pins if pin.name in user.requires)]
    pinned = [name for name in keeping if "==" in current.get(name, "") and current[name] != names.get(name, "*")]
    if pinned:
        return [_give_way(current, names, pinned[0], why)]
    if pin.name not in current or version_graph().components.find(pin.name) is None:
        return []
    needed = names.get(pin.name, "*").removeprefix("*")
    current[pin.name] = ",".join(filter(None, (needed, f">={newer}")))
    return [f"{pin.name} >={newer}: {why}"]


def _too_far(solution: Solution, date: str | None, current: Wishes) -> str | None:
    if date is None:
        return None
    graph = version_graph()
    torch = graph.released_on("torch", solution.cell.components.get("torch", ""))
    if not torch or dt.date.fromisoformat(torch) - dt.date.fromisoformat(date) <= _TOO_FAR:
        return None
    return next((name for name in current if name in graph.compiled.built_on_torch), None)
