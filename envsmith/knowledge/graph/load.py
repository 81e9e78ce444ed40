"""The version graph as a solver uses it: read once per state of its files, kept compiled in the cache.

A reading from the cache imports neither networkx nor YAML. A rule is read when it is asked for, since most answers show
few of them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from envsmith.base.packed import Lazy
from envsmith.errors import DataError, LeftAsideWarning
from envsmith.frameworks import FRAMEWORKS
from envsmith.knowledge.graph.compile import Compiled, compile_knowledge
from envsmith.knowledge.graph.location import DataFiles, find_matrix, list_files
from envsmith.knowledge.graph.tables import FileState, Table
from envsmith.model.component import ComponentTable
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Knowledge, PassedRun, Rule, Tested
from envsmith.model.version import Spec, public


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """What every answer needs of a graph."""

    compiled: Compiled
    components: ComponentTable
    left_aside: tuple[str, ...]


class _Texts(NamedTuple):
    """What is shown of a graph. ``rest`` is the knowledge without its rules and without what was run."""

    digest: str
    rules: Mapping[str, Lazy[Rule]]
    tested: Lazy[tuple[Tested, ...]]
    runs: Lazy[tuple[PassedRun, ...]]
    rest: Lazy[Knowledge]

    @classmethod
    def of(cls, knowledge: Knowledge) -> _Texts:
        return cls(
            knowledge.digest,
            {rule.id: Lazy(rule) for rule in knowledge.rules},
            Lazy(knowledge.tested),
            Lazy(knowledge.runs),
            Lazy(replace(knowledge, rules=(), tested=(), runs=())),
        )

    def knowledge(self) -> Knowledge:
        rules = tuple(rule.value for rule in self.rules.values())
        return replace(self.rest.value, rules=rules, tested=self.tested.value, runs=self.runs.value)


@dataclass(slots=True)
class VersionGraph:
    """The compiled tables, and the texts behind them."""

    compiled: Compiled
    components: ComponentTable
    _texts: Lazy[_Texts]
    _knowledge: Knowledge | None = None

    @classmethod
    def of(cls, knowledge: Knowledge) -> VersionGraph:
        """Compile a knowledge."""
        return cls(compile_knowledge(knowledge), knowledge.components, Lazy(_Texts.of(knowledge)), knowledge)

    @property
    def tested(self) -> tuple[Tested, ...]:
        """Return what others ran or ship, and what was run here."""
        return self._texts.value.tested.value

    @property
    def runs(self) -> tuple[PassedRun, ...]:
        """Return each run here that passed, with all its releases."""
        return self._texts.value.runs.value

    def rule(self, rule_id: str) -> Rule:
        """Return one rule. ``KeyError`` when there is none of that id."""
        return self._texts.value.rules[rule_id].value

    def knowledge(self) -> Knowledge:
        """Return everything that the files say."""
        if self._knowledge is None:
            self._knowledge = self._texts.value.knowledge()
        return self._knowledge

    def without(self, rules: Container[str]) -> VersionGraph:
        """Return a graph that knows everything but ``rules``. The tables of this one are used again."""
        compiled, texts = self.compiled, self._texts.value
        gone = {number for number, rule in enumerate(compiled.rules) if rule.value.id in rules}
        about = {name: tuple(n for n in numbers if n not in gone) for name, numbers in compiled.about.items()}
        remaining = {rule_id: rule for rule_id, rule in texts.rules.items() if rule_id not in rules}
        return VersionGraph(replace(compiled, about=about), self.components, Lazy(texts._replace(rules=remaining)))

    def released_on(self, name: str, version: str) -> str:
        """Return the day on which a release of a component came out, ``""`` where it is not known."""
        compiled = self.compiled
        days = dict(zip(compiled.versions.get(name, ()), compiled.dates.get(name, ()), strict=False))
        return days.get(version) or next((day for build, day in days.items() if public(build) == version), "")

    def knows_release(self, name: str, text: str) -> bool:
        """Return whether a release of a component is known that a spec admits. No spec, no release."""
        try:
            spec = Spec.parse(text)
        except ValueError:
            return False
        return any(spec.contains(version) for version in self.compiled.versions.get(name, ()))

    def unknown_releases(self, versions: Mapping[str, str]) -> dict[str, str]:
        """Return the exact releases among versions that are not known, by their names on the package index."""
        unknown: dict[str, str] = {}
        for spelling, version in versions.items():
            component = self.components.find(spelling)
            name = spelling if component is None else next(iter(component.distributions), "")
            is_known = component is not None and self.knows_release(component.name, f"=={version}")
            if name and not is_known and version[:1].isdigit():
                unknown[normal_name(name)] = version
        return unknown


def _read_texts(files: DataFiles) -> _Texts:
    from envsmith.knowledge.graph.read import read_knowledge

    return _Texts.of(read_knowledge(files.root))


def _compile_texts(files: DataFiles) -> _Tables:
    knowledge = TEXTS.load(files).knowledge()
    return _Tables(compile_knowledge(knowledge), knowledge.components, knowledge.left_aside)


def _installed() -> DataFiles:
    return list_files(find_matrix())


def _frameworks() -> object:
    return [(f.name, f.short, f.title, f.distributions, f.aliases) for f in FRAMEWORKS.values()]


TEXTS = Table("texts", _installed, _Texts, _read_texts, _frameworks)
GRAPH = Table("graph", _installed, _Tables, _compile_texts, _frameworks)


@cache
def _graph_of(tables: _Tables, state: FileState) -> VersionGraph:
    return VersionGraph(tables.compiled, tables.components, Lazy(read=lambda: _texts_of(tables, state)))


def _texts_of(tables: _Tables, state: FileState) -> _Texts:
    texts = TEXTS.of(state)
    if texts.digest != tables.compiled.digest:
        raise DataError(
            f"Cannot read the knowledge in {state.files.root}: its files changed meanwhile.",
            hint="Run the same command again.",
        )
    return texts


def version_graph(files: DataFiles | None = None) -> VersionGraph:
    """Return the graph of ``files`` (default: the installed ones). ``DataError`` lists every problem of them.

    A record that is not one is left aside with a warning.
    """
    state = GRAPH.state(files)
    tables = GRAPH.of(state)
    for line in tables.left_aside:
        warnings.warn(line, LeftAsideWarning, stacklevel=2)
    return _graph_of(tables, state)


def knowledge(files: DataFiles | None = None) -> Knowledge:
    """Return all that the files say, as :func:`version_graph` reads them."""
    return version_graph(files).knowledge()


def components() -> ComponentTable:
    """Return every component of the installed knowledge."""
    return version_graph().components


def gpu_names() -> dict[str, str]:
    """Return ``{"h100": "sm_90", …}`` of the installed knowledge."""
    return dict(version_graph().compiled.gpus)


def newest_day() -> str | None:
    """Return the newest day on which a fact of the installed knowledge was read (``2026-11-21``). ``None`` without one.

    The files are searched, not parsed: ``--version`` must not wait for the graph.
    """
    root = find_matrix()
    days = (
        day.decode()
        for folder in ("releases", "rules", "tested")
        for path in sorted((root / folder).glob("*.yaml"))
        for day in re.findall(rb"\bkind: [a-z]+,.{0,2000}?\bdate: (\d{4}-\d\d-\d\d)", path.read_bytes())
    )
    return max(days, default=None)
