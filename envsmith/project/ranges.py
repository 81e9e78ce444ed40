"""Whether what a project declares can be had together with what is pinned beside it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from envsmith.graph.load import components, version_graph
from envsmith.model.cell import Platform, Request
from envsmith.model.component import Role
from envsmith.model.finding import Finding, Judgement
from envsmith.model.version import Spec
from envsmith.project.demand import Demands
from envsmith.project.division import divide
from envsmith.project.folder import Part, read_project_file
from envsmith.solve.judge_ranges import judge_ranges
from envsmith.solve.problem import exact_version


@dataclass(frozen=True, kw_only=True, slots=True)
class Declarations:
    """What files of projects ask for, by part: all of a file's parts hold together with those of other files."""

    parts: tuple[tuple[str, Demands], ...] = ()
    always: Demands = field(default_factory=Demands)

    @classmethod
    def of(cls, path: Path) -> Declarations:
        """Read one file. ``DataError`` where it cannot be read."""
        (_, always), *further = read_project_file(path)
        return cls(parts=tuple((_words(part), demands) for part, demands in further), always=always)

    def naming(self, names: Collection[str]) -> Demands:
        """Return the smallest part that names all of some components: what is always asked for, or that and an extra."""
        for demands in (self.always, *(demands for _, demands in self.parts)):
            if set(names) <= {*_components(dict.fromkeys((demand.name for demand in demands.demands), ""))}:
                return demands
        return self.always

    def joined(self, further: Declarations) -> Declarations:
        """Return both as one."""
        return Declarations(parts=(*self.parts, *further.parts), always=self.always.joined(further.always))

    def judge(
        self, earlier: Judgement, versions: Mapping[str, str], platform: Platform, *, keep: Collection[str] = ()
    ) -> Judgement:
        """Return an earlier judgement of what is pinned with that of the ranges beside it.

        The ranges are judged without extras and groups, then with each. Every rule is named once. The repair leaves
        ``keep`` alone where it can.
        """
        graph = version_graph()
        names = _components(versions)
        pinned = {name: version for name, version in names.items() if graph.knows_release(name, f"=={version}")}
        # Of a pinned release that the graph does not know, what is pinned was judged already.
        judge = partial(_judge, pinned=pinned, left_out={*names} - {*pinned}, platform=platform, keep=keep)
        judgement = _joined(earlier, judge(self.always))
        for words, demands in self.parts:
            judgement = _joined(judgement, judge(self.always.joined(demands)), words)
        return judgement


def _words(part: Part) -> str:
    return f"with extra {part.extras[0]}" if part.extras else f"with group {part.groups[0]}"


def _components(versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of components that are not of the host."""
    pairs = ((components().find(name), version) for name, version in versions.items())
    return {c.name: version for c, version in pairs if c and c.role is not Role.HOST}


def _judge(
    demands: Demands,
    *,
    pinned: Mapping[str, str],
    left_out: Collection[str],
    platform: Platform,
    keep: Collection[str],
) -> Judgement:
    """Judge the ranges of some requirements beside what is pinned.

    What the project overrides is not held to what packages declare about it.
    """
    graph = version_graph()
    division = divide(demands, tuple(pinned), graph, platform)
    narrowed = dict(division.narrowed)
    for name, version in pinned.items():
        spec, earlier = Spec.parse(f"=={version}"), narrowed.get(name)
        if earlier is None or exact_version(earlier[0]):  # a version that is stated beside a file wins over its pin
            narrowed[name] = spec, "given"
        elif earlier[0].text != spec.text:
            narrowed[name] = earlier[0].meet(spec), f"{earlier[1]} and given"
    away = {*left_out, *_components(dict.fromkeys(demands.overridden, ""))}
    narrowed = {name: wish for name, wish in narrowed.items() if name not in away}
    table = graph.components.by_name
    frameworks = {name: Spec.parse("*") for name in narrowed if table[name].role is Role.FRAMEWORK}
    return judge_ranges(replace(Request(frameworks=frameworks, platform=platform), narrowed=narrowed), keep=keep)


def _joined(first: Judgement, second: Judgement, words: str = "") -> Judgement:
    """Return two judgements as one: the worse status, each rule once. ``words`` say of what the second is."""
    rules = {finding.rule for finding in first.findings}
    further = tuple(_said(finding, words) for finding in second.findings if finding.rule not in rules)
    status = max((first.status, second.status), key=("ok", "unknown", "bad").index)
    return replace(
        first,
        status=status,
        findings=(*first.findings, *further),
        unknown=tuple(dict.fromkeys((*first.unknown, *second.unknown))),
        repair=first.repair or second.repair,
    )


def _said(finding: Finding, words: str) -> Finding:
    return replace(finding, message=f"{words}: {finding.message}") if words else finding
