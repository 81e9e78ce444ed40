"""The version graph as a solver uses it: read once per state of its files, kept compiled in the cache.

A reading from the cache imports neither networkx nor YAML. A rule is unpickled when it is asked for, since most answers
show few of them.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import envsmith
from envsmith.files import read_cached, write_cached
from envsmith.frameworks import FRAMEWORKS
from envsmith.graph.compile import Compiled, CompiledRow, CompiledRule, compile_graph
from envsmith.graph.files import DataFiles, find_matrix, list_files
from envsmith.model.component import Component, ComponentTable
from envsmith.model.rule import Evidence, Knowledge, Release, Row, Rule, Tested

_SHAPES = (Compiled, CompiledRow, CompiledRule, Component, Evidence, Knowledge, Release, Row, Rule, Tested)
_LOADED: dict[str, VersionGraph] = {}


@dataclass(slots=True)
class VersionGraph:
    """The compiled tables, and the texts behind them."""

    compiled: Compiled
    components: ComponentTable
    _pickled: Mapping[str, bytes]
    _rest: bytes
    _rules: dict[str, Rule] = field(default_factory=dict)
    _knowledge: Knowledge | None = None

    @classmethod
    def of(cls, knowledge: Knowledge) -> VersionGraph:
        """Compile a knowledge."""
        from envsmith.graph.network import to_network

        rules = {rule.id: rule for rule in knowledge.rules}
        return cls(compile_graph(to_network(knowledge)), knowledge.components, {}, b"", rules, knowledge)

    def rule(self, rule_id: str) -> Rule:
        """Return one rule. ``KeyError`` when there is none of that id."""
        if rule_id not in self._rules:
            self._rules[rule_id] = _unpickled(self._pickled[rule_id])
        return self._rules[rule_id]

    def knowledge(self) -> Knowledge:
        """Return everything that the files say."""
        if self._knowledge is None:
            rules = tuple(self.rule(rule_id) for rule_id in self._pickled)
            self._knowledge = replace(_unpickled(self._rest), rules=rules)
        return self._knowledge

    def pickled(self) -> bytes:
        """Return what :func:`_from_pickle` reads again."""
        knowledge = self.knowledge()
        rules = {rule.id: pickle.dumps(rule, 5) for rule in knowledge.rules}
        others_pickled = pickle.dumps(replace(knowledge, rules=()), 5)
        return pickle.dumps((self.compiled, self.components, rules, others_pickled), 5)


def version_graph(files: DataFiles | None = None) -> VersionGraph:
    """Return the graph of ``files`` (default: the installed ones). ``DataError`` lists every problem of them."""
    files = files or list_files(find_matrix())
    key = _key(files)
    if key not in _LOADED:
        content = read_cached(f"graph-{key[:32]}")
        graph = _from_pickle(content, key) if content is not None else None
        if graph is None:
            from envsmith.graph.read import read_knowledge

            graph = VersionGraph.of(read_knowledge(files.root))
            body = graph.pickled()
            write_cached("graph", key[:32], key.encode() + hashlib.sha256(body).digest() + body)
        _LOADED[key] = graph
    return _LOADED[key]


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


def _key(files: DataFiles) -> str:
    """Return what changes with every file of the matrix, the program, its frameworks, and the shape of what is kept."""
    shape = [(kind.__name__, kind.__slots__) for kind in _SHAPES]
    frameworks = [(f.name, f.short, f.title, f.distributions, f.aliases) for f in FRAMEWORKS.values()]
    return hashlib.sha256(f"{envsmith.__version__} {shape} {frameworks} {files.stamp()}".encode()).hexdigest()


class _Unpickler(pickle.Unpickler):
    """Makes values of our own classes and nothing else, so that a foreign cache file runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("envsmith.model.") or module == "envsmith.graph.compile":
            kind = super().find_class(module, name)
            if isinstance(kind, type):
                return kind
        raise pickle.UnpicklingError(f"{module}.{name} has no place in the cache")


def _unpickled(content: bytes) -> Any:
    return _Unpickler(io.BytesIO(content)).load()


def _from_pickle(content: bytes, key: str) -> VersionGraph | None:
    """Return what was kept under ``key``, or ``None`` when the bytes are damaged or of something else."""
    start = len(key) + 32
    body = content[start:]
    if content[: len(key)] != key.encode() or content[len(key) : start] != hashlib.sha256(body).digest():
        return None
    try:
        return VersionGraph(*_unpickled(body))
    except Exception:  # noqa: BLE001 - a pickle can fail in any way, and is then made again
        return None
