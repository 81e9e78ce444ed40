"""A request (or a given set of releases) laid over the compiled knowledge: variables, nogoods by rule, wishes.

A variable is a component of the cell. Several GPUs are several variables of one component. A release that the knowledge
does not list (a driver, a toolkit, a library of the host) becomes one more value, judged by evaluating the specs of the
rows on it. A component that a wheel carries, in an unknown version, has the value ``None``: it satisfies no
wish and breaks no rule.

What the components of a cell declare is installed beside them, though the user did not ask for it. Such a component has a
variable without a name: no wish and no preference speaks of it, its errors bind what the others can be.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from envsmith.knowledge.graph.compile import Compiled, CompiledRule
from envsmith.model.cell import Platform, WheelPolicy
from envsmith.model.component import Role
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.solver.kernel import Domains, Net, Nogood, excess

Masks = Sequence[tuple[int, int]]
# Python releases are minors; a spec over patch releases admits a minor when it admits one of these.
_PATCHES = range(40)
_KEEP_PROBLEMS = 24


class Wish(NamedTuple):
    """Something that the request asks for: all of ``masks`` hold together.

    ``reason`` is set when the program added it itself.
    """

    component: str
    text: str
    masks: tuple[tuple[int, int], ...]
    reason: str | None = None
    host: bool = False


class RuleNogoods(NamedTuple):
    """The nogoods of one rule over the variables of a problem: ``(row number, nogood)``."""

    rule: str
    severity: Severity
    nogoods: tuple[tuple[int, Nogood], ...]


@dataclass(slots=True)
class Problem:
    """Variables and groups, indexed by variable. Wishes are added by who poses the problem.

    ``names`` ends before the components that others bring along. ``compiling`` are combinations of which a lock must
    compile something. ``advice`` are warnings that are told of an answer and cost it nothing.
    """

    compiled: Compiled
    platform: Platform
    names: tuple[str, ...]
    components: tuple[str, ...]
    values: tuple[tuple[str | None, ...], ...]
    groups: tuple[RuleNogoods, ...]
    wishes: tuple[Wish, ...] = ()
    compiling: tuple[Nogood, ...] = ()
    advice: tuple[RuleNogoods, ...] = ()
    _nets: dict[str, Net] = field(default_factory=dict)
    _warnings: list[Nogood] = field(default_factory=list)
    _alike: dict[tuple[int, int], int] = field(default_factory=dict)
    _masks: dict[tuple[int, str], int] = field(default_factory=dict)

    @property
    def full(self) -> list[int]:
        """Return the mask of all values of each variable."""
        return [(1 << len(values)) - 1 for values in self.values]

    def variable(self, name: str) -> int | None:
        """Return the (first) variable of a component."""
        return self.names.index(name) if name in self.names else None

    def rules_net(self, *severities: Severity) -> Net:
        """Return all rules of these severities."""
        key = "+".join(s.value for s in severities)
        if key not in self._nets and len(severities) > 1:
            first, *nets = (self.rules_net(s) for s in severities)
            self._nets[key] = first.joined(nets)
        elif key not in self._nets:
            nogoods = [nogood for g in self.groups if g.severity is severities[0] for _, nogood in g.nogoods]
            self._nets[key] = Net(self.full, nogoods)
        return self._nets[key]

    def without_warnings(self, rules: Collection[str]) -> Problem:
        """Return the same without the warnings of these rules."""
        groups = tuple(g for g in self.groups if g.severity is not Severity.WARNING or g.rule not in rules)
        return replace(self, groups=groups, _nets={}, _warnings=[])

    def firm(self, domains: Sequence[int]) -> Problem:
        """Return the problem in which the warnings that an assignment does not have are errors. Nets are shared."""
        extra = []
        for group in (g for g in self.groups if g.severity is Severity.WARNING):
            avoided = tuple(row for row in group.nogoods if not all(domains[v] & mask for v, mask in row[1]))
            extra.append(RuleNogoods(group.rule, Severity.ERROR, avoided))
        hard = self.rules_net(Severity.ERROR)
        nets = {key: net for key, net in self._nets.items() if key.startswith("#")}
        nets[Severity.ERROR.value] = hard.joined([Net(self.full, [n for _, n in g.nogoods]) for g in extra])
        return replace(self, groups=(*self.groups, *extra), _nets=nets, _alike={})

    def part(self, index: int) -> Net:
        """Return the net of one group alone."""
        key = f"#{index}"
        if key not in self._nets:
            self._nets[key] = Net(self.full, [nogood for _, nogood in self.groups[index].nogoods])
        return self._nets[key]

    def warnings(self, domains: Sequence[int]) -> list[Nogood]:
        """Return the nogood of each single warning that an assignment within ``domains`` can have, by name of the rule."""
        if not self._warnings:
            groups = sorted((g for g in self.groups if g.severity is Severity.WARNING), key=lambda group: group.rule)
            self._warnings += [nogood for group in groups for _, nogood in group.nogoods]
        possible = []
        for nogood in self._warnings:
            for variable, mask in nogood:
                if not domains[variable] & mask:
                    break
            else:
                possible.append(nogood)
        return possible

    def passes(self, masks: Masks, floor: Masks, *, every: bool) -> Iterator[tuple[Net, Masks, bool]]:
        """Yield rules to keep, bounds, and whether no warning is left: without warnings, with the fewest, then whatever."""
        hard, gentle = self.rules_net(Severity.ERROR), self.rules_net(Severity.ERROR, Severity.WARNING)
        yield gentle, floor, True
        domains = hard.begin([*masks, *floor])
        if domains is None:
            raise AssertionError("the answer that set the floor does not keep to it")
        yield self._gentlest(domains), floor, False
        if every:
            yield gentle, (), True
            yield hard, (), False

    def _gentlest(self, domains: Domains) -> Net:
        """Return the errors with the warnings that solvable ``domains`` can avoid, as many as fit together in order."""
        hard, rows = self.rules_net(Severity.ERROR), [Net(self.full, [nogood]) for nogood in self.warnings(domains)]
        unavoidable = excess(hard, domains, rows, range(len(rows)))
        return hard.joined([row for number, row in enumerate(rows) if number not in unavoidable])

    def alike(self, variable: int, mask: int) -> int:
        """Return the values of a variable that no error tells apart from those of ``mask``."""
        key = variable, mask
        if key not in self._alike:
            alike = self.full[variable]
            for _, nogood in (row for g in self.groups if g.severity is Severity.ERROR for row in g.nogoods):
                for number, values in nogood:
                    if number == variable:
                        alike &= values if values & mask == mask else ~values if not values & mask else mask
            self._alike[key] = alike
        return self._alike[key]

    def with_wishes(self, wishes: Iterable[Wish]) -> Problem:
        """Return the same problem with other wishes. Nets are shared."""
        return replace(self, wishes=tuple(wishes))

    def mask(self, variable: int, spec: Spec) -> int:
        """Return the known values of a variable that a spec admits.

        Where it speaks of patch releases of Python, a minor that has one is admitted.
        """
        by_patch = self.components[variable] == "python" and re.search(r"\d+\.\d+\.\d", spec.text)
        mask = 0
        for index, value in enumerate(self.values[variable]):
            if value is None:
                continue
            patches = by_patch and value.count(".") == 1
            if any(spec.contains(f"{value}.{p}") for p in _PATCHES) if patches else spec.contains(value):
                mask |= 1 << index
        return mask

    def wish(self, component: str, spec: Spec, *, reason: str | None = None) -> Wish:
        """Return the wish that a component, the first of its kind, has one of the releases that a spec admits."""
        variable = self.names.index(component)
        if (variable, spec.text) not in self._masks:
            self._masks[variable, spec.text] = self.mask(variable, spec)
        return Wish(component, spec.text, ((variable, self._masks[variable, spec.text]),), reason=reason)

    def bit(self, variable: int, version: str) -> int:
        """Return the mask of one value."""
        return 1 << self.values[variable].index(version)

    def with_cuda(self) -> tuple[int, int] | None:
        """Return the variable of CUDA and the mask of builds with it. ``None`` where there is no build without."""
        cuda = self.variable("cuda")
        if cuda is None or "cpu" not in self.values[cuda]:
            return None
        return cuda, self.full[cuda] & ~self.bit(cuda, "cpu")


@dataclass(slots=True)
class KeptProblems:
    """Problems without their wishes: requests and judgements over the same components share their tables."""

    _problems: dict[Hashable, Problem] = field(default_factory=dict, repr=False)

    def get(self, key: Hashable, make: Callable[[], Problem]) -> Problem:
        """Return the problem of a key, made where it is not kept. Those that were asked for last are kept."""
        problem = self._problems.pop(key, None) or make()
        if len(self._problems) >= _KEEP_PROBLEMS:
            self._problems.pop(next(iter(self._problems)))
        self._problems[key] = problem
        return problem


def pose(
    compiled: Compiled,
    platform: Platform,
    names: Mapping[str, str],
    extras: Mapping[str, tuple[str, ...]],
    *,
    gaps: bool = True,
    lockable: WheelPolicy | None = None,
    features: Collection[str] = (),
) -> Problem:
    """Lay the rules over ``names`` (variable -> component), with ``extras`` as further values of a component.

    ``gaps`` says whether a missing fact about a torch wheel counts against it (an answer must rest on facts) or not (a
    judgement may not hold it against anybody). ``lockable`` adds the rules about what can be locked with the ready
    wheels that it admits, and what the components bring along. ``features`` are in use: notes about them are errors.
    """
    carried = _carriers(compiled, set(names.values())) if gaps else {}
    # Where every build says what it carries, it is never unknown.
    unknown = {
        c for c, r in carried.items() if "torch" in extras or _silent_on(compiled, r, platform, of_platform=True)
    }
    brought = _brought(compiled, names.values()) if lockable else ()
    components = (*names.values(), *brought)
    values: list[tuple[str | None, ...]] = []
    for component in components:
        listed: list[str | None] = [*compiled.versions.get(component, ())]
        listed += [v for v in extras.get(component, ()) if v not in listed]
        if component in unknown or component in brought:
            listed.append(None)
        values.append(tuple(listed))
    index: dict[str, list[int]] = {}
    for variable, component in enumerate(components):
        index.setdefault(component, []).append(variable)
    lay = _Lay(compiled, platform, index, extras, brought=frozenset(brought), features=features, gaps=gaps)
    groups: list[RuleNogoods] = []
    advice: list[RuleNogoods] = []
    compiling: list[Nogood] = []
    for rule in compiled.rules_of(index):
        if rule.locking and (lockable is None or (rule.policies and lockable not in rule.policies)):
            continue
        (advice if gaps and rule.is_extra else groups).extend(lay.groups(rule, carried))
        compiling += lay.notes(rule) if rule.locking else []
    return Problem(
        compiled=compiled,
        platform=platform,
        names=tuple(names),
        components=components,
        values=tuple(values),
        groups=tuple(groups),
        compiling=tuple(compiling),
        advice=tuple(advice),
    )


def _brought(compiled: Compiled, components: Iterable[str]) -> tuple[str, ...]:
    """Return the companions that ``components`` declare, and those that these declare, without ``components``."""
    present = list(dict.fromkeys(components))
    asked_for = len(present)
    for component in present:
        for rule in compiled.rules_of([component]):
            source, target = rule.declared or ("", "")
            if source == component and target not in present and compiled.versions.get(target):
                present += [target] if compiled.roles[target] is Role.COMPANION else []
    return tuple(present[asked_for:])


def contradicted(compiled: Compiled, platform: Platform, masks: Mapping[str, int]) -> list[str]:
    """Return what a given release declares, is not given, and has no listed release that all given ones leave.

    ``masks`` has the given components, each with the mask of its releases.
    """
    remaining: dict[str, int] = {}
    declared: set[str] = set()
    for rule in compiled.rules_of(masks):
        if rule.locking:
            continue
        _, target = rule.declared or ("", "")
        rows = (row for row in rule.rows if row.severity is Severity.ERROR)
        here = (row for row in rows if not row.platforms or platform.value in row.platforms)
        for component, barred in (_barred(compiled, numbers, masks) for row in here for numbers in row.nogoods):
            listed = len(compiled.versions.get(component, ()))
            remaining[component] = remaining.get(component, (1 << listed) - 1) & ~barred
            declared |= {component} & {target} if listed else set()
    return [component for component in remaining if component in declared and not remaining[component]]


def _barred(compiled: Compiled, numbers: Sequence[int], masks: Mapping[str, int]) -> tuple[str, int]:
    """Return what of a nogood is not given, and its releases that all given ones bar. Both are empty where none is."""
    absent, barred = "", 0
    for number in numbers:
        component, _, mask = compiled.specs[number if number >= 0 else ~number]
        met = mask if number >= 0 else ~mask
        if component not in masks and absent in {"", component}:
            absent, barred = component, met & barred if absent else met
        elif component not in masks or not masks[component] or masks[component] & ~met:
            return "", 0
    return absent, barred


def _carriers(compiled: Compiled, active: set[str]) -> dict[str, CompiledRule]:
    """Return by component the rule that says which release of it a torch wheel carries."""
    pairs = [r for r in compiled.rules_of(["torch"]) if r.bundles and len(r.components) == 2]
    carriers = {r.components[1]: r for r in pairs if r.components[0] == "torch" and r.components[1] in active}
    return carriers if "torch" in active else {}


def carried_by(compiled: Compiled, torches: int, platform: Platform) -> list[str]:
    """Return the components of which it is known what each of these builds of torch carries."""
    rules = _carriers(compiled, {*compiled.versions}) if torches else {}
    return [name for name, rule in rules.items() if not torches & _silent_on(compiled, rule, platform)]


def _silent_on(compiled: Compiled, rule: CompiledRule, platform: Platform, *, of_platform: bool = False) -> int:
    """Return the builds of torch (those that the platform has) of which no row of a rule speaks."""
    listed = compiled.versions.get("torch", ())
    here = compiled.torch_index.get(platform.value, {}) if of_platform else listed
    silent = sum(1 << i for i, version in enumerate(listed) if version in here)
    rows = (row for row in rule.rows if not row.platforms or platform.value in row.platforms)
    for component, _, mask in (compiled.specs[n] for row in rows for numbers in row.nogoods for n in numbers if n >= 0):
        silent &= ~mask if component == "torch" else -1
    return silent


class _Lay:
    """Translates the rows of rules into nogoods over variables."""

    def __init__(
        self,
        compiled: Compiled,
        platform: Platform,
        index: Mapping[str, list[int]],
        extras: Mapping[str, tuple[str, ...]],
        *,
        brought: frozenset[str],
        features: Collection[str],
        gaps: bool,
    ) -> None:
        self.strict, self.features = gaps, features
        self.brought = brought
        self.compiled, self.platform, self.index = compiled, platform, index
        self.listed = {c: compiled.versions.get(c, ()) for c in index}
        self.extra = {c: tuple(v for v in extras.get(c, ()) if v not in self.listed[c]) for c in index}
        self.masks: dict[int, tuple[str, int]] = {}

    def literal(self, number: int) -> tuple[str, int] | None:
        """Return component and mask of a spec number, negated for ``~n``.

        ``None`` when the component is not in the cell.
        """
        if number in self.masks:
            return self.masks[number]
        component, text, mask = self.compiled.specs[number if number >= 0 else ~number]
        if component not in self.index:
            return None
        extra = self.extra[component]
        if extra:
            spec, size = Spec.parse(text), len(self.listed[component])
            mask |= sum(
                1 << (size + i) for i, version in enumerate(extra) if _meets(self.compiled, component, spec, version)
            )
        if number < 0:
            # Some release of it: it may meet the spec. Of a part of the host that is absent
            # a rule over its releases says nothing, only one that it must be there.
            host = self.compiled.roles.get(component) is Role.HOST and text != "*"
            mask |= self.extras(component, "*") | (self.extras(component, "none") if host else 0)
            mask = self.everything(component) & ~mask
        self.masks[number] = component, mask
        return component, mask

    def extras(self, component: str, word: str) -> int:
        """Return the mask of ``word`` among the values of a component that the knowledge does not list."""
        extra = self.extra.get(component, ())
        return 1 << (len(self.listed[component]) + extra.index(word)) if word in extra else 0

    def unmet(self, component: str, mask: int) -> int:
        """Return what a release that declares ``component`` bars: its absence too, or nothing where all would be."""
        everything = self.everything(component)
        return mask | everything + 1 if mask != everything else 0

    def everything(self, component: str) -> int:
        """Return all values of a component but *not known*."""
        return (1 << (len(self.listed[component]) + len(self.extra[component]))) - 1

    def groups(self, rule: CompiledRule, carried: Mapping[str, CompiledRule]) -> list[RuleNogoods]:
        """Return the rule's nogoods, errors and warnings apart."""
        by_severity: dict[Severity, list[tuple[int, Nogood]]] = {}
        beside = not self.brought.isdisjoint(rule.components)
        _, declared = (rule.declared if beside else None) or ("", "")
        for row in rule.rows:
            severity = Severity.ERROR if row.feature in self.features else row.severity
            if severity is Severity.NOTE or (row.platforms and self.platform.value not in row.platforms):
                continue
            if beside and severity is not Severity.ERROR:
                continue
            laid = [(row.number, nogood) for numbers in row.nogoods for nogood in self.laid(numbers, declared)]
            by_severity.setdefault(severity, []).extend(laid)
        gap = self.gaps(rule, carried) if self.strict else []
        if gap:
            by_severity.setdefault(Severity.ERROR, []).extend(gap)
        return [RuleNogoods(rule.id, severity, tuple(nogoods)) for severity, nogoods in by_severity.items()]

    def notes(self, rule: CompiledRule) -> list[Nogood]:
        """Return the combinations of which a rule says something worth knowing, here and on this platform."""
        rows = [r for r in rule.rows if r.severity is Severity.NOTE and not r.feature]
        here = [r for r in rows if not r.platforms or self.platform.value in r.platforms]
        return [nogood for row in here for numbers in row.nogoods for nogood in self.laid(numbers, "")]

    def laid(self, numbers: Sequence[int], declared: str) -> list[Nogood]:
        """Return one nogood of specs over the variables: none where a component of it is not part of the problem."""
        joined: dict[str, int] = {}
        for number in numbers:
            literal = self.masks.get(number) or self.literal(number)
            if literal is None:
                return []
            component, mask = literal
            joined[component] = joined.get(component, -1) & mask
        if "toolkit" in joined and any(n < 0 and self.masks[n][0] == "toolkit" for n in numbers):
            for component, mask in self.on_a_gpu():
                joined[component] = joined.get(component, -1) & mask
        if declared in self.brought:
            joined[declared] = self.unmet(declared, joined[declared])
        return self.spread(joined)

    def spread(self, joined: Mapping[str, int]) -> list[Nogood]:
        """Return one nogood per choice of variables: a component with several variables (GPUs) is judged for each."""
        if not all(joined.values()):
            return []
        literals = ([(variable, mask) for variable in self.index[component]] for component, mask in joined.items())
        return list(itertools.product(*literals))

    def on_a_gpu(self) -> list[tuple[str, int]]:
        """Return what a need of the toolkit rests on: a GPU to compile for, where it is known whether there is one."""
        absent = {name: self.extras(name, "none") for name in ("gpu", "driver")}
        return [(name, self.everything(name) & ~mask) for name, mask in absent.items() if mask]

    def gaps(self, rule: CompiledRule, carried: Mapping[str, CompiledRule]) -> list[tuple[int, Nogood]]:
        """Return what follows where a fact about a torch wheel is missing.

        Carried in an unknown version: the component is *not known* there, and known everywhere else. Compiled for
        unknown GPUs: such a build is not an answer when a GPU is named. Torch releases from outside the knowledge are left
        alone.
        """
        component = rule.components[-1]
        of_gpu = rule.id == "torch-runs-on-gpu" and {"torch", component} <= set(self.index)
        if carried.get(component) is not rule and not of_gpu:
            return []
        (torch,), silent = self.index["torch"], _silent_on(self.compiled, rule, self.platform)
        everything = self.everything(component)
        if of_gpu:
            named = everything & ~self.extras(component, "none")
            return [(-1, nogood) for nogood in self.spread({"torch": silent, component: named})]
        (variable,), listed = self.index[component], (1 << len(self.listed["torch"])) - 1
        pairs = ((listed & ~silent, everything + 1), (silent, everything))
        return [(-1, ((torch, mask), (variable, values))) for mask, values in pairs if mask]


def _meets(compiled: Compiled, component: str, spec: Spec, version: str) -> bool:
    """Do as ``Spec.contains``, also for ``*``, which is some release, and ``none``, which is not a release at all."""
    if version == "*":
        return spec.is_any
    if version == "none" and compiled.roles.get(component) is not Role.CORE:
        return not spec.is_any and spec.contains(version)
    return spec.contains(version)
