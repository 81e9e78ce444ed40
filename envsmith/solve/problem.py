"""A request (or a given set of releases) laid over the compiled knowledge: variables, nogoods by rule, wishes.

A variable is a component of the cell; several GPUs are several variables of one component. A release that the knowledge does not list
(a driver, a toolkit, a library of the host) becomes one more value, judged by evaluating the specs of the rows on it. A component that a
wheel carries, but nobody knows in which version, has the value ``None``: it satisfies no wish and breaks no rule.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from envsmith.model.cell import Platform
from envsmith.model.component import Role
from envsmith.model.rule import Knowledge, Row, RuleKind, Severity
from envsmith.model.version import WORDS, Spec, version_key
from envsmith.solve.kernel import Net, Nogood

_EXACT = re.compile(r"(={0,3})\s*([^*<>=!~,|\s]+)")
# Python releases are minors; a spec over patch releases admits a minor when it admits one of these.
_PATCHES = range(40)


@dataclass(frozen=True, slots=True)
class Wish:
    """Something that the request asks for: all of ``masks`` hold together. ``reason`` is set when the program added it itself."""

    component: str
    text: str
    masks: tuple[tuple[int, int], ...]
    reason: str | None = None
    host: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """The nogoods of one rule over the variables of a problem: ``(row number, nogood)``."""

    rule: str
    severity: Severity
    nogoods: tuple[tuple[int, Nogood], ...]


@dataclass(slots=True)
class Problem:
    """Variables and groups; wishes are added by who poses it. Everything is indexed by variable."""

    compiled: Compiled
    platform: Platform
    names: tuple[str, ...]
    components: tuple[str, ...]
    values: tuple[tuple[str | None, ...], ...]
    groups: tuple[Group, ...]
    wishes: tuple[Wish, ...] = ()
    _nets: dict[str, Net] = field(default_factory=dict)

    @property
    def full(self) -> list[int]:
        """The mask of all values of each variable."""
        return [(1 << len(values)) - 1 for values in self.values]

    def variable(self, name: str) -> int | None:
        """The (first) variable of a component."""
        return self.names.index(name) if name in self.names else None

    def rules_net(self, *severities: Severity) -> Net:
        """All rules of these severities."""
        key = "+".join(s.value for s in severities)
        if key not in self._nets and len(severities) > 1:
            first, *others = (self.rules_net(s) for s in severities)
            self._nets[key] = first.joined(others)
        elif key not in self._nets:
            nogoods = [nogood for g in self.groups if g.severity is severities[0] for _, nogood in g.nogoods]
            self._nets[key] = Net(self.full, nogoods)
        return self._nets[key]

    def without_warnings(self, rules: Collection[str]) -> Problem:
        """The same without the warnings of these rules."""
        groups = tuple(g for g in self.groups if g.severity is not Severity.WARNING or g.rule not in rules)
        return replace(self, groups=groups, _nets={})

    def part(self, index: int) -> Net:
        """The net of one group alone."""
        key = f"#{index}"
        if key not in self._nets:
            self._nets[key] = Net(self.full, [nogood for _, nogood in self.groups[index].nogoods])
        return self._nets[key]

    def with_wishes(self, wishes: Iterable[Wish]) -> Problem:
        """The same problem with other wishes; nets are shared."""
        return Problem(
            self.compiled,
            self.platform,
            self.names,
            self.components,
            self.values,
            self.groups,
            tuple(wishes),
            self._nets,
        )

    def mask(self, variable: int, spec: Spec) -> int:
        """The known values of a variable that satisfy ``spec``."""
        return spec_mask(self.components[variable], self.values[variable], spec)

    def bit(self, variable: int, version: str) -> int:
        """The mask of one value."""
        return 1 << self.values[variable].index(version)

    def assignment(self, domains: Sequence[int]) -> dict[str, str]:
        """Names and releases of a full assignment, without what is not known."""
        found = {}
        for name, values, domain in zip(self.names, self.values, domains, strict=True):
            value = values[domain.bit_length() - 1]
            if value is not None:
                found[name] = value
        return found


def exact_version(spec: Spec) -> str | None:
    """The one version that a spec names (``==2.9.1``, ``535.54.03``), or ``None`` for a range."""
    match = _EXACT.fullmatch(spec.text)
    if not match:
        return None
    text = match[2]
    if text in WORDS:
        return text
    key = version_key(text)
    bare = not match[1]
    if key is None or (bare and len(key.release) <= 2 and not (key.local or key.pre or key.post or key.is_devrelease)):
        return None
    return text


def spec_mask(component: str, values: Sequence[str | None], spec: Spec) -> int:
    """Which of ``values`` a spec of a request admits; where it speaks of patch releases of Python, a minor that has one."""
    by_patch = component == "python" and re.search(r"\d+\.\d+\.\d", spec.text)
    mask = 0
    for index, value in enumerate(values):
        if value is None:
            continue
        patches = by_patch and value.count(".") == 1
        if any(spec.contains(f"{value}.{p}") for p in _PATCHES) if patches else spec.contains(value):
            mask |= 1 << index
    return mask


def pose(
    compiled: Compiled,
    platform: Platform,
    names: Mapping[str, str],
    extras: Mapping[str, tuple[str, ...]],
    *,
    gaps: bool = True,
) -> Problem:
    """Lay the rules over ``names`` (variable -> component), with ``extras`` as further values of a component.

    ``gaps`` says whether a missing fact about a torch wheel counts against it (an answer must rest on facts) or not (a judgement may
    not hold it against anybody).
    """
    carried = _carriers(compiled, set(names.values())) if gaps else {}
    values: list[tuple[str | None, ...]] = []
    for component in names.values():
        known: list[str | None] = [*compiled.versions.get(component, ())]
        known += [v for v in extras.get(component, ()) if v not in known]
        if component in carried:
            known.append(None)
        values.append(tuple(known))
    index: dict[str, list[int]] = {}
    for variable, component in enumerate(names.values()):
        index.setdefault(component, []).append(variable)
    lay = _Lay(compiled, platform, index, extras, gaps=gaps)
    groups = []
    for rule in compiled.rules:
        if any(component in index for component in rule.components):
            groups += lay.groups(rule, carried)
    return Problem(compiled, platform, tuple(names), tuple(names.values()), tuple(values), tuple(groups))


def _carriers(compiled: Compiled, active: set[str]) -> dict[str, str]:
    """Component -> the rule that says which release of it a torch wheel carries."""
    found = {}
    for rule in compiled.rules:
        if (
            rule.bundles
            and len(rule.components) == 2
            and rule.components[0] == "torch"
            and rule.components[1] in active
        ):
            found[rule.components[1]] = rule.id
    return found if "torch" in active else {}


class _Lay:
    """Translates the rows of rules into nogoods over variables."""

    def __init__(
        self,
        compiled: Compiled,
        platform: Platform,
        index: Mapping[str, list[int]],
        extras: Mapping[str, tuple[str, ...]],
        *,
        gaps: bool,
    ) -> None:
        self.strict = gaps
        self.compiled, self.platform, self.index = compiled, platform.value, index
        self.known = {c: compiled.versions.get(c, ()) for c in index}
        self.extra = {c: tuple(v for v in extras.get(c, ()) if v not in self.known[c]) for c in index}
        self.masks: dict[int, tuple[str, int]] = {}

    def literal(self, number: int) -> tuple[str, int] | None:
        """Component and mask of a spec number, negated for ``~n``; ``None`` when the component is not in the cell."""
        if number in self.masks:
            return self.masks[number]
        component, text, mask = self.compiled.specs[number if number >= 0 else ~number]
        if component not in self.index:
            return None
        extra = self.extra[component]
        if extra:
            spec, size = Spec.parse(text), len(self.known[component])
            mask |= sum(
                1 << (size + i) for i, version in enumerate(extra) if _meets(self.compiled, component, spec, version)
            )
        if number < 0:
            mask = self.everything(component) & ~mask
            # Some release of it: nobody can say that it does not meet the spec.
            mask &= ~sum(1 << (len(self.known[component]) + i) for i, version in enumerate(extra) if version == "*")
        self.masks[number] = component, mask
        return component, mask

    def everything(self, component: str) -> int:
        """All values of a component but *not known*."""
        return (1 << (len(self.known[component]) + len(self.extra[component]))) - 1

    def groups(self, rule: CompiledRule, carried: Mapping[str, str]) -> list[Group]:
        """The rule's nogoods, errors and warnings apart."""
        found: dict[Severity, list[tuple[int, Nogood]]] = {}
        covered = 0
        for row in rule.rows:
            if row.platforms and self.platform not in row.platforms:
                continue
            for numbers in row.nogoods:
                literals = [self.literal(n) for n in numbers]
                if None in literals:
                    continue
                joined: dict[str, int] = {}
                for component, mask in filter(None, literals):
                    joined[component] = joined.get(component, -1) & mask
                if rule.components[0] == "torch" and len(rule.components) == 2:
                    covered |= joined.get("torch", 0)
                found.setdefault(row.severity, []).extend((row.number, n) for n in self.spread(joined))
        gap = self.gaps(rule, covered, carried) if self.strict else []
        if gap:
            found.setdefault(Severity.ERROR, []).extend(gap)
        return [Group(rule.id, severity, tuple(nogoods)) for severity, nogoods in found.items()]

    def spread(self, joined: Mapping[str, int]) -> list[Nogood]:
        """One nogood per choice of variables: a component with several variables (GPUs) is judged for each."""
        if not all(joined.values()):
            return []
        found: list[Nogood] = [()]
        for component, mask in joined.items():
            found = [(*nogood, (variable, mask)) for nogood in found for variable in self.index[component]]
        return found

    def gaps(self, rule: CompiledRule, covered: int, carried: Mapping[str, str]) -> list[tuple[int, Nogood]]:
        """What follows where a fact about a torch wheel is missing.

        Carried in an unknown version: the component is *not known* there, and known everywhere else. Compiled for unknown GPUs: such a
        build is no answer when a GPU is named. Torch releases from outside the knowledge are left alone.
        """
        if "torch" not in self.index or rule.components[0] != "torch" or len(rule.components) != 2:
            return []
        (torch,) = self.index["torch"]
        missing = ((1 << len(self.known["torch"])) - 1) & ~covered
        component = rule.components[1]
        if carried.get(component) == rule.id:
            (variable,) = self.index[component]
            everything = self.everything(component)
            found: list[tuple[int, Nogood]] = []
            if covered:
                found.append((-1, ((torch, covered), (variable, everything + 1))))
            if missing:
                found.append((-1, ((torch, missing), (variable, everything))))
            return found
        if rule.id == "torch-runs-on-gpu" and component in self.index and missing:
            return [(-1, ((torch, missing),))]
        return []


def _meets(compiled: Compiled, component: str, spec: Spec, version: str) -> bool:
    """``Spec.contains`` for what a set can say beyond versions: ``*`` is some release, ``none`` is no release at all."""
    if version == "*":
        return spec.is_any
    if version == "none" and compiled.roles.get(component) is not Role.CORE:
        return not spec.is_any and spec.contains(version)
    return spec.contains(version)


def open_to_any(compiled: Compiled, component: str) -> bool:
    """Whether a release that the knowledge does not list may be named: facts of a host and companions, not what we choose between."""
    return compiled.roles.get(component) in (Role.HOST, Role.COMPANION)


# Knowledge -> numbers: every spec as a mask over the releases of its component, every row as nogoods over specs.
#
# The compiled form is what a solver needs and nothing else; it is kept as JSON in the cache, so that a solve reads neither YAML nor
# evidence. Texts, evidence and dates stay in the :class:`Knowledge`, which is loaded when something has to be explained.


@dataclass(frozen=True, slots=True)
class CompiledRow:
    """``nogoods`` are tuples of spec numbers: all these specs together are bad; ``~n`` stands for *not* in spec ``n``."""

    number: int
    severity: Severity
    platforms: tuple[str, ...]
    nogoods: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule by id; ``bundles`` for what a wheel carries."""

    id: str
    bundles: bool
    components: tuple[str, ...]
    rows: tuple[CompiledRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """Versions by component (oldest first) and the masks over them.

    ``pre`` and ``yanked`` mark releases that are not taken by default; ``dates`` are ISO days or ``""``; ``torch_index`` tells per
    platform where a build is found; ``tested`` holds ``(framework, mask of releases, mask of torch releases, is a record)``.
    """

    digest: str
    roles: Mapping[str, Role]
    versions: Mapping[str, tuple[str, ...]]
    dates: Mapping[str, tuple[str, ...]]
    pre: Mapping[str, int]
    yanked: Mapping[str, int]
    torch_index: Mapping[str, Mapping[str, str]]
    specs: tuple[tuple[str, str, int], ...]
    rules: tuple[CompiledRule, ...]
    tested: tuple[tuple[str, int, int, bool], ...]
    gpus: Mapping[str, str]
    distributions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON; masks are hexadecimal texts."""
        return {
            "digest": self.digest,
            "roles": {n: r.value for n, r in self.roles.items()},
            "versions": {n: list(v) for n, v in self.versions.items()},
            "dates": {n: list(v) for n, v in self.dates.items()},
            "pre": {n: f"{m:x}" for n, m in self.pre.items()},
            "yanked": {n: f"{m:x}" for n, m in self.yanked.items()},
            "torch_index": {p: dict(t) for p, t in self.torch_index.items()},
            "specs": [[c, t, f"{m:x}"] for c, t, m in self.specs],
            "rules": [
                [r.id, r.bundles, r.components, [[w.number, w.severity.value, w.platforms, w.nogoods] for w in r.rows]]
                for r in self.rules
            ],
            "tested": [[f, f"{v:x}", f"{t:x}", rec] for f, v, t, rec in self.tested],
            "gpus": dict(self.gpus),
            "distributions": dict(self.distributions),
        }

    @classmethod
    def from_json(cls, data: Any) -> Compiled:
        """The inverse; ``ValueError``, ``TypeError`` or ``KeyError`` when it is not what :meth:`to_json` wrote."""
        severities = {s.value: s for s in Severity}
        return cls(
            digest=data["digest"],
            roles={n: Role(r) for n, r in data["roles"].items()},
            versions={n: tuple(v) for n, v in data["versions"].items()},
            dates={n: tuple(v) for n, v in data["dates"].items()},
            pre={n: int(m, 16) for n, m in data["pre"].items()},
            yanked={n: int(m, 16) for n, m in data["yanked"].items()},
            torch_index=data["torch_index"],
            specs=tuple((c, t, int(m, 16)) for c, t, m in data["specs"]),
            rules=tuple(
                CompiledRule(
                    i,
                    b,
                    tuple(c),
                    tuple(CompiledRow(n, severities[s], tuple(p), tuple(map(tuple, g))) for n, s, p, g in rows),
                )
                for i, b, c, rows in data["rules"]
            ),
            tested=tuple((f, int(v, 16), int(t, 16), bool(rec)) for f, v, t, rec in data["tested"]),
            gpus=data["gpus"],
            distributions=data["distributions"],
        )


def sort_versions(versions: Iterable[str]) -> list[str]:
    """Oldest first; the words (``cpu``, ``none``) before all versions."""
    words: list[str] = []
    numbers: list[str] = []
    for version in dict.fromkeys(versions):
        (words if version_key(version) is None else numbers).append(version)
    return [*sorted(words), *sorted(numbers, key=lambda v: (version_key(v), v))]


class _Specs:
    """Numbers the specs and evaluates each once."""

    def __init__(self, versions: Mapping[str, tuple[str, ...]]) -> None:
        self.versions = versions
        self.numbers: dict[tuple[str, str], int] = {}
        self.found: list[tuple[str, str, int]] = []

    def mask(self, component: str, spec: Spec) -> int:
        return sum(1 << i for i, v in enumerate(self.versions.get(component, ())) if spec.contains(v))

    def number(self, component: str, spec: Spec) -> int:
        key = (component, spec.text)
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = len(self.found)
            self.found.append((component, spec.text, self.mask(component, spec)))
        return number


def compile_knowledge(knowledge: Knowledge) -> Compiled:
    """Evaluate every spec against every release; no platform is chosen yet."""
    versions = {name: tuple(vs) for name, vs in _versions(knowledge).items()}
    specs = _Specs(versions)
    rules = tuple(
        CompiledRule(
            rule.id,
            rule.kind is RuleKind.BUNDLES,
            rule.components,
            tuple(
                CompiledRow(i, row.severity, tuple(p.value for p in row.platforms), _nogoods(row, specs))
                for i, row in enumerate(rule.rows)
                if row.severity is not Severity.NOTE
            ),
        )
        for rule in knowledge.rules
    )
    tested = []
    for line in knowledge.tested:
        masks = specs.mask(line.framework, line.version), specs.mask("torch", line.torch)
        if all(masks):
            tested.append((line.framework, *masks, line.kind == "record"))
    dates, yanked = _marks(knowledge, versions)
    return Compiled(
        digest=knowledge.digest,
        roles={c.name: c.role for c in knowledge.components.by_name.values()},
        versions=versions,
        dates=dates,
        pre={n: _pre(vs) for n, vs in versions.items()},
        yanked=yanked,
        torch_index={
            p.value: {
                r.version: r.index or "default" for r in knowledge.releases.get("torch", ()) if _on(r.platforms, p)
            }
            for p in Platform
        },
        specs=tuple(specs.found),
        rules=rules,
        tested=tuple(tested),
        gpus=knowledge.gpus,
        distributions={d: c.name for c in knowledge.components.by_name.values() for d in c.distributions},
    )


def _on(platforms: tuple[Platform, ...], platform: Platform) -> bool:
    return not platforms or platform in platforms


def _versions(knowledge: Knowledge) -> dict[str, list[str]]:
    """Listed releases, plus what the wheels of torch carry, plus the architectures that GPU names stand for."""
    found: dict[str, set[str]] = {n: {r.version for r in rs} for n, rs in knowledge.releases.items()}
    bundles = (row for rule in knowledge.rules if rule.kind is RuleKind.BUNDLES for row in rule.rows)
    for name, spec in (need for row in bundles for need in row.needs.items()):
        exact = spec.text.removeprefix("==")
        if not set(exact) & set("*<>=!~,| "):
            found.setdefault(name, set()).add(exact)
    if knowledge.gpus:
        found.setdefault("gpu", set()).update(knowledge.gpus.values())
    return {name: sort_versions(vs) for name, vs in found.items()}


def _pre(versions: tuple[str, ...]) -> int:
    keys = [version_key(v) for v in versions]
    return sum(1 << i for i, k in enumerate(keys) if k is not None and k.is_prerelease)


def _marks(
    knowledge: Knowledge, versions: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    dates, yanked = {}, {}
    for name, known in versions.items():
        releases = {r.version: r for r in knowledge.releases.get(name, ())}
        dates[name] = tuple((releases[v].date or "") if v in releases else "" for v in known)
        yanked[name] = sum(1 << i for i, v in enumerate(known) if v in releases and releases[v].yanked)
    return dates, yanked


def _nogoods(row: Row, specs: _Specs) -> tuple[tuple[int, ...], ...]:
    """``when`` all hold and one of ``needs`` does not; without ``needs``, ``when`` itself. ``*`` bars only a component that is known to be absent."""
    when = tuple(specs.number(name, spec) for name, spec in row.when.items())
    if not row.needs:
        return (when,)
    return tuple((*when, ~specs.number(name, spec)) for name, spec in row.needs.items())
