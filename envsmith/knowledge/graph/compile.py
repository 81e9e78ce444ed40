"""The version graph -> numbers.

Every spec as a mask over the releases of its component, every row as nogoods over specs.

The tables are what a solver needs and nothing else. Texts, evidence and dates of rules stay in the :class:`Knowledge`,
which is looked at when something has to be explained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from envsmith.model.cell import Platform, WheelPolicy
from envsmith.model.component import Role
from envsmith.model.rule import Release, Rule, RuleKind, Severity
from envsmith.model.version import Spec, version_key

if TYPE_CHECKING:
    import networkx as nx


# Rows and rules are named tuples: thousands of them are read from the cache for every answer, and a dataclass takes ten
# times as long to come back.


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
    torch releases)``, without runs that train nothing. ``built_on_torch`` import it while they
    are built. ``about`` are the numbers of the rules that speak of a component.
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
    about: Mapping[str, tuple[int, ...]]
    tested: tuple[tuple[str, int, int], ...]
    built_on_torch: tuple[str, ...]
    gpus: Mapping[str, str]

    def rules_of(self, components: Iterable[str]) -> list[CompiledRule]:
        """Return the rules that speak of one of these components, in the order of the files."""
        numbers = {number for component in components for number in self.about.get(component, ())}
        return [self.rules[number] for number in sorted(numbers)]


def compile_graph(graph: nx.MultiDiGraph[str]) -> Compiled:
    """Evaluate every spec of the graph against every release. No platform is chosen yet."""
    roles = {node: data["value"].role for node, data in graph.nodes(data=True) if data.get("kind") == "component"}
    releases: dict[str, list[Release]] = {}
    for _, component, data in graph.edges(data=True):
        if data["kind"] == "release-of":
            releases.setdefault(component, []).append(data["value"])
    specs = _Specs({name: tuple(sort_versions(names)) for name, names in _versions(graph, releases).items()})
    rules = tuple(_rule(graph, node, specs) for node, data in graph.nodes(data=True) if data.get("kind") == "rule")
    about: dict[str, list[int]] = {}
    for number, rule in enumerate(rules):
        for component in rule.components:
            about.setdefault(component, []).append(number)
    listed = {name: {r.version: r for r in group} for name, group in releases.items()}
    return Compiled(
        digest=graph.graph["digest"],
        roles=roles,
        versions=specs.versions,
        dates={
            name: tuple((listed[name][v].date or "") if v in listed.get(name, ()) else "" for v in versions)
            for name, versions in specs.versions.items()
        },
        pre={name: _mask(versions, _is_pre) for name, versions in specs.versions.items()},
        yanked={
            name: sum(1 << i for i, v in enumerate(versions) if v in listed.get(name, ()) and listed[name][v].yanked)
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
        rules=rules,
        about={name: tuple(numbers) for name, numbers in about.items()},
        tested=tuple(_tested(graph, specs)),
        built_on_torch=tuple(n for n, group in releases.items() if any("build_imports" in r.facts for r in group)),
        gpus=graph.graph["gpus"],
    )


def sort_versions(versions: Iterable[str]) -> list[str]:
    """Sort oldest first. The words (``cpu``, ``none``) come before all versions."""
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
        self.evaluated: list[tuple[str, str, int]] = []

    def mask(self, component: str, spec: Spec) -> int:
        return _mask(self.versions.get(component, ()), spec.contains)

    def number(self, component: str, text: str) -> int:
        key = (component, text)
        if key not in self.numbers:
            self.numbers[key] = len(self.evaluated)
            self.evaluated.append((component, text, self.mask(component, Spec(text))))
        return self.numbers[key]


def _mask(versions: Iterable[str], holds: Callable[[str], bool]) -> int:
    return sum(1 << i for i, version in enumerate(versions) if holds(version))


def _is_pre(version: str) -> bool:
    key = version_key(version)
    return key is not None and key.is_prerelease


def _versions(graph: nx.MultiDiGraph[str], releases: Mapping[str, list[Release]]) -> dict[str, list[str]]:
    """Return listed releases, what the wheels of torch carry, and the architectures that GPU names stand for."""
    by_component = {name: {r.version: None for r in group} for name, group in releases.items()}
    for _, _, data in graph.edges(data=True):
        if data["kind"] == RuleKind.BUNDLES.value and data["side"] == "needs":
            exact = data["spec"].removeprefix("==")
            if not set(exact) & set("*<>=!~,| "):
                by_component.setdefault(data["component"], {})[exact] = None
    for arch in graph.graph["gpus"].values():
        by_component.setdefault("gpu", {})[arch] = None
    return {name: list(versions) for name, versions in by_component.items()}


def _rule(graph: nx.MultiDiGraph[str], node: str, specs: _Specs) -> CompiledRule:
    edges = sorted((data for _, _, data in graph.out_edges(node, data=True)), key=_position)
    rule: Rule = graph.nodes[node]["value"]
    rows = [
        CompiledRow(number, Severity(first["severity"]), first["feature"], first["platforms"], _nogoods(row, specs))
        for number, group in groupby(edges, key=lambda data: data["row"])
        if (first := (row := list(group))[0])["feature"] or first["severity"] != Severity.NOTE.value or rule.locking
    ]
    components = tuple(dict.fromkeys(data["component"] for data in edges))
    notes = tuple(dict.fromkeys(row.scope for row in rule.rows if row.severity is Severity.NOTE))
    bundles = rule.kind is RuleKind.BUNDLES
    return CompiledRule(rule.id, bundles, rule.locking, components, tuple(rows), rule.policies, notes)


def _position(data: Mapping[str, Any]) -> tuple[int, bool, int]:
    return data["row"], data["side"] == "needs", data["place"]


def _nogoods(row: Sequence[Mapping[str, Any]], specs: _Specs) -> tuple[tuple[int, ...], ...]:
    """Return what is bad: all of ``when`` and not one of ``needs``, or ``when`` itself without ``needs``.

    ``*`` bars only a component that is known to be absent.
    """
    when = tuple(specs.number(data["component"], data["spec"]) for data in row if data["side"] == "when")
    needs = [~specs.number(data["component"], data["spec"]) for data in row if data["side"] == "needs"]
    return tuple((*when, need) for need in needs) if needs else (when,)


# What was only compiled, or only asked for an answer, is not proof that it trains.
_NO_TRAINING = frozenset({"build", "inference"})


def _tested(graph: nx.MultiDiGraph[str], specs: _Specs) -> Iterator[tuple[str, int, int]]:
    lines = [data["value"] for _, _, data in graph.edges(data=True) if data["kind"] == "tested"]
    for line in lines:
        if line.kind in _NO_TRAINING:
            continue
        framework, torch = specs.mask(line.framework, line.version), specs.mask("torch", line.torch)
        if framework and torch:
            yield line.framework, framework, torch
