"""The knowledge -> numbers.

Every spec as a mask over the releases of its component, every row as nogoods over specs.

The tables are what a solver needs and nothing else. Texts, evidence and dates of rules stay in the :class:`Knowledge`,
which is looked at when something has to be explained.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from packaging.specifiers import Specifier
from packaging.version import Version

from envsmith.base.packed import Lazy
from envsmith.model.cell import Platform, WheelPolicy
from envsmith.model.component import Role
from envsmith.model.rule import Knowledge, Row, Rule, RuleKind, Severity
from envsmith.model.version import Spec, version_key

# Rows and rules are named tuples: thousands of them are read from the cache for every answer, and a dataclass takes
# longer to come back.


class CompiledRow(NamedTuple):
    """``nogoods`` are tuples of spec numbers: all these specs together are bad.

    ``~n`` stands for *not* in spec ``n``. A note is kept where it is an error with its ``feature``, or says what a lock
    compiles.
    """

    number: int
    severity: Severity
    feature: str
    platforms: tuple[str, ...]
    nogoods: tuple[tuple[int, ...], ...]


class CompiledRule(NamedTuple):
    """A rule by id. ``bundles`` says that a wheel carries it, ``locking`` that it holds for what is to be locked only.

    ``policies`` are those of ready wheels under which it holds, all of them when empty.
    ``notes`` are the components of each row that is a note.
    """

    id: str
    bundles: bool
    locking: bool
    components: tuple[str, ...]
    rows: tuple[CompiledRow, ...]
    policies: tuple[WheelPolicy, ...] = ()
    notes: tuple[tuple[str, ...], ...] = ()

    @property
    def is_extra(self) -> bool:
        """Tell whether it is what an extra of releases requires."""
        return "-extra-" in self.id

    @property
    def declared(self) -> tuple[str, str] | None:
        """Return the component whose releases declare something, and of what. ``None`` for any other rule."""
        source, middle, target = self.id.partition("-declares-")
        return (source.partition("[")[0], target) if middle else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """Versions by component (oldest first) and the masks over them.

    ``pre`` and ``yanked`` mark releases that are not taken by default. ``dates`` are ISO days or ``""``.
    ``torch_index`` tells per platform where a build is found. ``tested`` holds ``(framework, mask of releases, mask of
    torch releases in any build, mask of the builds that ran)``, without runs that train nothing. ``built_on_torch``
    import it while they are built. ``about`` are the numbers of the rules that speak of a component.
    """

    digest: str
    roles: Mapping[str, Role]
    versions: Mapping[str, tuple[str, ...]]
    dates: Mapping[str, tuple[str, ...]]
    pre: Mapping[str, int]
    yanked: Mapping[str, int]
    torch_index: Mapping[str, Mapping[str, str]]
    specs: tuple[tuple[str, str, int], ...]
    rules: tuple[Lazy[CompiledRule], ...]
    about: Mapping[str, tuple[int, ...]]
    tested: tuple[tuple[str, int, int, int], ...]
    built_on_torch: tuple[str, ...]
    gpus: Mapping[str, str]
    gpus_on_arm: tuple[str, ...]

    def rules_of(self, components: Iterable[str]) -> list[CompiledRule]:
        """Return the rules that speak of one of these components, in the order of the files."""
        numbers = {number for component in components for number in self.about.get(component, ())}
        return [self.rules[number].value for number in sorted(numbers)]

    def speaks_of(self, releases: Mapping[str, str], row: CompiledRow) -> bool:
        """Tell whether all that a row is about is among these releases. What it says that they need is not looked at."""
        when = (self.specs[number] for number in row.nogoods[0] if number >= 0)
        return all(name in releases and Spec.parse(text).contains(releases[name]) for name, text, _ in when)


def compile_knowledge(knowledge: Knowledge) -> Compiled:
    """Evaluate every spec of the rules against every release. No platform is chosen yet."""
    releases = knowledge.releases
    specs = _Specs({name: tuple(sort_versions(names)) for name, names in _versions(knowledge).items()})
    rules = [_rule(rule, specs) for rule in knowledge.rules]
    about: dict[str, list[int]] = {}
    for number, rule in enumerate(rules):
        for component in rule.components:
            about.setdefault(component, []).append(number)
    listed = {name: {r.version: r for r in group} for name, group in releases.items()}
    return Compiled(
        digest=knowledge.digest,
        roles={name: component.role for name, component in knowledge.components.by_name.items()},
        versions=specs.versions,
        dates={
            name: tuple((listed[name][v].date or "") if v in listed.get(name, ()) else "" for v in versions)
            for name, versions in specs.versions.items()
        },
        pre={name: _mask(map(_is_pre, versions)) for name, versions in specs.versions.items()},
        yanked={
            name: _mask(v in listed.get(name, ()) and bool(listed[name][v].yanked) for v in versions)
            for name, versions in specs.versions.items()
        },
        torch_index={
            platform.value: {
                r.version: r.index or "default"
                for r in releases.get("torch", ())
                if not r.platforms or platform in r.platforms
            }
            for platform in Platform
        },
        specs=tuple(specs.evaluated),
        rules=tuple(map(Lazy, rules)),
        about={name: tuple(numbers) for name, numbers in about.items()},
        tested=tuple(_tested(knowledge, specs)),
        built_on_torch=tuple(n for n, group in releases.items() if any("build_imports" in r.facts for r in group)),
        gpus=knowledge.gpus,
        gpus_on_arm=knowledge.gpus_on_arm,
    )


def sort_versions(versions: Iterable[str]) -> list[str]:
    """Sort oldest first. The words (``cpu``, ``none``) come before all versions."""
    words: list[str] = []
    numbers: list[str] = []
    for version in dict.fromkeys(versions):
        (words if version_key(version) is None else numbers).append(version)
    return [*sorted(words), *sorted(numbers, key=lambda v: (version_key(v), v))]


# The epoch and the numbers of a version, without zeros at the end.
_Base = tuple[int, tuple[int, ...]]


class _Specs:
    """Numbers the specs and evaluates each once."""

    def __init__(self, versions: Mapping[str, tuple[str, ...]]) -> None:
        self.versions = versions
        self.numbers: dict[tuple[str, str], int] = {}
        self.evaluated: list[tuple[str, str, int]] = []
        self._listed = {component: _Listed(each) for component, each in versions.items()}

    def mask(self, component: str, spec: Spec) -> int:
        listed = self._listed.get(component)
        return listed.mask(spec) if listed else 0

    def number(self, component: str, spec: Spec) -> int:
        key = (component, spec.text)
        if key not in self.numbers:
            self.numbers[key] = len(self.evaluated)
            self.evaluated.append((component, spec.text, self.mask(component, spec)))
        return self.numbers[key]


class _Listed:
    """The versions of a component, oldest first, and the mask of each clause over them.

    Only versions with the numbers of a clause's own are asked whether it admits them. Order tells of all others.
    """

    def __init__(self, versions: tuple[str, ...]) -> None:
        self._every = (1 << len(versions)) - 1
        keys = [version_key(version) for version in versions]
        self._words = {version: 1 << i for i, (version, key) in enumerate(zip(versions, keys, strict=True)) if not key}
        self._keys = [key for key in keys if key]
        self._bases = [_base(key) for key in self._keys]
        self._masks: dict[Specifier, int] = {}

    def mask(self, spec: Spec) -> int:
        """Return the mask of the versions that satisfy a spec."""
        if spec.is_any:
            return self._every
        words, sets = spec.parts
        mask = sum(self._words.get(word, 0) for word in words)
        for clauses in sets:
            both = self._every ^ sum(self._words.values())
            for clause in clauses:
                both &= self._clause(clause)
            mask |= both
        return mask

    def _clause(self, clause: Specifier) -> int:
        if clause not in self._masks:
            self._masks[clause] = self._asked(clause) << len(self._words)
        return self._masks[clause]

    def _asked(self, clause: Specifier) -> int:
        low, high, mask = 0, len(self._keys), 0
        if clause.operator in _OUTSIDE:
            first, beyond = _reach(clause)
            low, high = bisect_left(self._bases, first), bisect_left(self._bases, beyond)
            below, above = _OUTSIDE[clause.operator]
            mask = below * ((1 << low) - 1) | above * ((1 << len(self._keys)) - (1 << high))
        return mask | _mask(clause.contains(key, prereleases=True) for key in self._keys[low:high]) << low


# Whether a clause admits the versions before those that are asked, and those after them.
_OUTSIDE = {"<": (1, 0), "<=": (1, 0), ">": (0, 1), ">=": (0, 1), "==": (0, 0), "!=": (1, 1), "~=": (0, 0)}


def _reach(clause: Specifier) -> tuple[_Base, _Base]:
    """Return the first numbers of which a clause must be asked, and the first beyond."""
    version = Version(clause.version.removesuffix(".*"))
    epoch, numbers = _base(version)
    last = version.release
    if clause.operator == "~=":
        last = last[:-1]
    elif not clause.version.endswith(".*"):
        return (epoch, numbers), (epoch, (*numbers, 0))
    return (epoch, numbers), (epoch, (*last[:-1], last[-1] + 1))


def _base(version: Version) -> _Base:
    """Return what two versions share that differ in their suffix only."""
    numbers = version.release
    while numbers and not numbers[-1]:
        numbers = numbers[:-1]
    return version.epoch, numbers


def _mask(flags: Iterable[bool]) -> int:
    return sum(1 << i for i, flag in enumerate(flags) if flag)


def _is_pre(version: str) -> bool:
    key = version_key(version)
    return key is not None and key.is_prerelease


def _versions(knowledge: Knowledge) -> dict[str, list[str]]:
    """Return listed releases, what the wheels of torch carry, and the architectures that GPU names stand for."""
    by_component = {name: {r.version: None for r in group} for name, group in knowledge.releases.items() if group}
    for rule in (rule for rule in knowledge.rules if rule.kind is RuleKind.BUNDLES):
        for component, spec in (pair for row in rule.rows for pair in row.needs.items()):
            exact = spec.text.removeprefix("==")
            if not set(exact) & set("*<>=!~,| "):
                by_component.setdefault(component, {})[exact] = None
    for arch in knowledge.gpus.values():
        by_component.setdefault("gpu", {})[arch] = None
    return {name: list(versions) for name, versions in by_component.items()}


def _rule(rule: Rule, specs: _Specs) -> CompiledRule:
    rows = []
    for number, row in enumerate(rule.rows):
        if row.feature or row.severity is not Severity.NOTE or rule.locking:
            platforms = tuple(platform.value for platform in row.platforms)
            rows.append(CompiledRow(number, row.severity, row.feature or "", platforms, _nogoods(row, specs)))
    notes = tuple(dict.fromkeys(row.scope for row in rule.rows if row.severity is Severity.NOTE))
    bundles = rule.kind is RuleKind.BUNDLES
    return CompiledRule(rule.id, bundles, rule.locking, rule.components, tuple(rows), rule.policies, notes)


def _nogoods(row: Row, specs: _Specs) -> tuple[tuple[int, ...], ...]:
    """Return what is bad: all of ``when`` and not one of ``needs``, or ``when`` itself without ``needs``.

    ``*`` bars only a component that is known to be absent.
    """
    when = tuple(specs.number(component, spec) for component, spec in row.when.items())
    needs = [~specs.number(component, spec) for component, spec in row.needs.items()]
    return tuple((*when, need) for need in needs) if needs else (when,)


def _tested(knowledge: Knowledge, specs: _Specs) -> Iterator[tuple[str, int, int, int]]:
    builds: dict[Spec | None, int] = {}
    for line in knowledge.tested:
        if not line.trains:
            continue
        framework, torch = specs.mask(line.framework, line.version), specs.mask("torch", line.torch)
        if line.cuda not in builds:
            builds[line.cuda] = _builds(knowledge, specs, line.cuda)
        if framework and torch:
            yield line.framework, framework, torch, torch & builds[line.cuda]


def _builds(knowledge: Knowledge, specs: _Specs, cuda: Spec | None) -> int:
    """Return the builds of torch with a CUDA, or those of the default index where a line names none."""
    if cuda is None:
        default = {r.version for r in knowledge.releases.get("torch", ()) if r.index in (None, "default")}
        return _mask(version in default for version in specs.versions.get("torch", ()))
    made_with = [row for rule in knowledge.rules if rule.id == "torch-bundles-cuda" for row in rule.rows]
    builds = {
        row.when["torch"].text.removeprefix("==")
        for row in made_with
        if cuda.contains(row.needs["cuda"].text.removeprefix("=="))
    }
    return _mask(version in builds for version in specs.versions.get("torch", ()))
