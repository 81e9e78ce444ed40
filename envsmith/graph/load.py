"""The version graph as a solver uses it: read once per state of its files, kept compiled in the cache.

A reading from the cache imports neither networkx nor YAML. A rule is unpickled when it is asked for, since most answers
show few of them.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import envsmith
from envsmith.cache import cached, unpickle
from envsmith.errors import LeftAsideWarning
from envsmith.frameworks import FRAMEWORKS
from envsmith.graph.compile import Compiled, CompiledRow, CompiledRule, compile_graph
from envsmith.graph.location import DataFiles, find_matrix, list_files
from envsmith.model.component import Component, ComponentTable
from envsmith.model.rule import Evidence, Knowledge, Release, Row, Rule, Tested
from envsmith.model.version import Spec

_SHAPES = (Compiled, CompiledRow, CompiledRule, Component, Evidence, Knowledge, Release, Row, Rule, Tested)
_MODULES = ("envsmith.model.", "envsmith.graph.compile")
_LOADED: dict[str, VersionGraph] = {}


@dataclass(slots=True)
class VersionGraph:
    """The compiled tables, and the texts behind them."""

    compiled: Compiled
    components: ComponentTable
    _pickled: Mapping[str, bytes]
    _rest: bytes
    left_aside: tuple[str, ...] = ()
    _rules: dict[str, Rule] = field(default_factory=dict)
    _knowledge: Knowledge | None = None

    @classmethod
    def of(cls, knowledge: Knowledge) -> VersionGraph:
        """Compile a knowledge."""
        from envsmith.graph.network import to_network

        rules = {rule.id: rule for rule in knowledge.rules}
        compiled, left_aside = compile_graph(to_network(knowledge)), knowledge.left_aside
        return cls(compiled, knowledge.components, {}, b"", left_aside, rules, knowledge)

    def rule(self, rule_id: str) -> Rule:
        """Return one rule. ``KeyError`` when there is none of that id."""
        if rule_id not in self._rules:
            self._rules[rule_id] = unpickle(self._pickled[rule_id], _MODULES)
        return self._rules[rule_id]

    def knowledge(self) -> Knowledge:
        """Return everything that the files say."""
        if self._knowledge is None:
            rules = tuple(self.rule(rule_id) for rule_id in self._pickled)
            self._knowledge = replace(unpickle(self._rest, _MODULES), rules=rules)
        return self._knowledge

    def without(self, rules: Container[str]) -> VersionGraph:
        """Return a graph that knows everything but ``rules``. The tables of this one are used again."""
        compiled, known = self.compiled, self.knowledge()
        about = {
            name: tuple(number for number in numbers if compiled.rules[number].id not in rules)
            for name, numbers in compiled.about.items()
        }
        rest = replace(known, rules=tuple(rule for rule in known.rules if rule.id not in rules))
        return replace(self, compiled=replace(compiled, about=about), _knowledge=rest)

    def released_on(self, name: str, version: str) -> str:
        """Return the day on which a release of a component came out, ``""`` where it is not known."""
        compiled = self.compiled
        days = dict(zip(compiled.versions.get(name, ()), compiled.dates.get(name, ()), strict=False))
        return days.get(version, "")

    def knows_release(self, name: str, text: str) -> bool:
        """Return whether a release of a component is known that a spec admits. No spec, no release."""
        try:
            spec = Spec.parse(text)
        except ValueError:
            return False
        return any(spec.contains(version) for version in self.compiled.versions.get(name, ()))

    def pickled(self) -> tuple[Compiled, ComponentTable, dict[str, bytes], bytes, tuple[str, ...]]:
        """Return the parts of this graph that the cache keeps."""
        knowledge = self.knowledge()
        rules = {rule.id: pickle.dumps(rule, 5) for rule in knowledge.rules}
        remainder = pickle.dumps(replace(knowledge, rules=()), 5)
        return self.compiled, self.components, rules, remainder, self.left_aside


def version_graph(files: DataFiles | None = None) -> VersionGraph:
    """Return the graph of ``files`` (default: the installed ones). ``DataError`` lists every problem of them.

    A record that is not one is left aside with a warning.
    """
    files = files or list_files(find_matrix())
    state = _state(files)
    if state not in _LOADED:
        _LOADED[state] = VersionGraph(*cached("graph", state, lambda: _read(files.root), modules=_MODULES))
    for line in _LOADED[state].left_aside:
        warnings.warn(line, LeftAsideWarning, stacklevel=2)
    return _LOADED[state]


def _read(root: Path) -> tuple[Compiled, ComponentTable, dict[str, bytes], bytes, tuple[str, ...]]:
    from envsmith.graph.read import read_knowledge

    return VersionGraph.of(read_knowledge(root)).pickled()


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


def _state(files: DataFiles) -> str:
    """Return what changes with every file of the matrix, the program, its frameworks, and the shape of what is kept."""
    shape = [(kind.__name__, vars(kind).get("_fields") or vars(kind)["__slots__"]) for kind in _SHAPES]
    frameworks = [(f.name, f.short, f.title, f.distributions, f.aliases) for f in FRAMEWORKS.values()]
    return f"{envsmith.__version__} {shape} {frameworks} {files.stamp()}"
