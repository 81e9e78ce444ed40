"""Refresh ``matrix/`` from the package index: plan what would change, show it, write it.

:func:`plan_refresh` reads and compares and writes nothing; :func:`apply` writes each file beside itself and renames it.
Facts that people wrote (builds of other indexes, notes, comments) keep their bytes; a run right after another one finds
nothing to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.cache import cache_folder
from envsmith.base.files import now, write_whole
from envsmith.errors import DataError, NetworkError, UsageError
from envsmith.frameworks import FRAMEWORKS
from envsmith.knowledge.graph.read import read_components
from envsmith.knowledge.symbols.table import FILE, SymbolTable
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.matrix.refresh.array_abi import ARRAYS, update_arrays
from envsmith.matrix.refresh.distribution_releases import update_releases
from envsmith.matrix.refresh.line_table import LineTable
from envsmith.matrix.refresh.linking import LINKED, update_linking, update_symbols
from envsmith.matrix.refresh.shared import Progress, RefreshRun
from envsmith.matrix.refresh.toolkit_rule import ToolkitRule
from envsmith.matrix.refresh.torch_releases import (
    read_recorded,
    record_facts,
    update_cuda,
    update_cuda_wheels,
    update_toolkit,
    update_torch,
)
from envsmith.model.component import ComponentTable, Role
from envsmith.model.version import minor_of
from envsmith.net.http import HttpClient

# What a build of torch carries is refreshed with torch, so that a new release can be solved at once.
_WITH_TORCH = ("triton", "torch", "nccl", "cudnn", "cuda")
_NEW_FILE = """\
# Final releases of {name}, oldest first; `requires` is what the METADATA of one file declares
# (a minor of Python counts when one of its patch releases does).
component: {name}
releases:
"""
_WHEELS_RECORD = Path("cases") / "wheels" / "torch.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChange:
    """One file that would be written. ``old`` is ``None`` for a new file; ``summary`` says in words what changed.

    A table of measurements is bytes, so its differences cannot be read. Only its summary says what changed.
    """

    path: Path
    old: str | bytes | None
    new: str | bytes
    summary: tuple[str, ...] = ()

    def diff(self, *, root: Path | None = None) -> str:
        """Return a unified diff, without context lines beyond one: records are long."""
        name = str(self.path.relative_to(root) if root and self.path.is_relative_to(root) else self.path)
        if isinstance(self.old, bytes) or isinstance(self.new, bytes):
            return f"a/{name} and b/{name} differ: {len(self.old or b'')} and {len(self.new)} bytes\n"
        before = (self.old or "").splitlines(keepends=True)
        return "".join(difflib.unified_diff(before, self.new.splitlines(keepends=True), f"a/{name}", f"b/{name}", n=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class RefreshPlan:
    """What a refresh found. ``problems`` are artifacts that could not be read: their lines stay, the rest is right.

    ``left_out`` is what the index lists and cannot be believed.
    """

    changes: tuple[FileChange, ...]
    problems: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    requests: int = 0
    bytes_read: int = 0


def refreshable(matrix_dir: Path, components: ComponentTable) -> list[str]:
    """Return the components that an updater keeps: distributions, CUDA, its toolkit.

    What is not of the index alone (a tool of the host, say) has a file of releases already or none.
    """
    listed = components.by_name.values()
    own = {c.name for c in listed if c.role is Role.COMPANION and c.distributions}
    names = [c.name for c in listed if c.distributions or c.name in {"cuda", "toolkit"}]
    return [n for n in names if n in own or (matrix_dir / "releases" / f"{n}.yaml").is_file()]


def _chosen(names: Sequence[str], matrix_dir: Path, components: ComponentTable) -> list[str]:
    """Return the components to refresh, torch's bundle first. ``UsageError`` for a name that nothing is known of."""
    possible = refreshable(matrix_dir, components)
    if not names:
        first = [n for n in (*_WITH_TORCH, "toolkit") if n in possible]
        return [*first, *(n for n in possible if n not in first)]
    chosen: list[str] = []
    for name in names:
        component = components.find(name)
        if component is None or component.name not in possible:
            near = difflib.get_close_matches(name, possible, n=1)
            raise UsageError(
                f"Cannot refresh --component {name}: no updater maintains it"
                + (f", did you mean {near[0]}?" if near else "."),
                hint="Use one of: " + ", ".join(possible) + ".",
            )
        chosen += _WITH_TORCH if component.name == "torch" else [component.name]
    return [n for n in dict.fromkeys(chosen) if n in possible]


def open_context(
    matrix_dir: Path,
    *,
    offline: bool = False,
    jobs: int = 4,
    again: bool = False,
    progress: Progress | None = None,
    cache: Path | None = None,
) -> RefreshRun:
    """Return what a refresh works with: the package index that uv or pip is configured with, and the cache.

    ``again`` reads even what was measured already. Raises ``DataError`` for broken knowledge and ``EngineError`` where
    there is no uv to ask for the index.
    """
    store = cache if cache is not None else cache_folder()
    table = read_components(matrix_dir)
    context = RefreshRun(
        index=PackageIndex(HttpClient(cache=store, jobs=jobs, offline=offline), find_index()),
        components=table,
        today=now().date().isoformat(),
        jobs=jobs,
        again=again,
        cache=store,
    )
    if progress is not None:
        context.progress = progress
    return context


def plan_refresh(
    matrix_dir: Path,
    context: RefreshRun,
    *,
    components: Sequence[str] = (),
) -> RefreshPlan:
    """Read what changed in the world since ``matrix_dir`` was written. Writes only below the cache.

    ``components`` narrows the run. The METADATA that ``tests`` beside ``matrix_dir`` has recorded is kept in step.
    Raises ``UsageError``, ``DataError`` and ``NetworkError`` (the index itself cannot be read).
    """
    run = _Run(matrix_dir, context, matrix_dir.parent / "tests")
    for name in _chosen(components, matrix_dir, context.components):
        run.update(name)
    client = context.index.fetcher
    return RefreshPlan(
        changes=run.changes(),
        problems=tuple(context.problems),
        left_out=tuple(context.left_out),
        requests=client.wire.requests if isinstance(client, HttpClient) else 0,
        bytes_read=client.wire.bytes_read if isinstance(client, HttpClient) else 0,
    )


class _Run:
    """The tables of one run, each read once, so that NCCL sees what was just learned of torch."""

    def __init__(self, matrix_dir: Path, context: RefreshRun, tests: Path) -> None:
        self._releases = matrix_dir / "releases"
        self._context = context
        self._tables: dict[str, tuple[str | None, LineTable]] = {}
        self._summary: dict[str, list[str]] = {}
        self._apart: list[FileChange] = []
        self._record = tests / _WHEELS_RECORD
        self._recorded = read_recorded(self._record) if (tests / "cases").is_dir() else None
        self._recorded_before = self._record.read_text(encoding="utf-8") if self._record.is_file() else None

    def table(self, name: str) -> LineTable:
        """Return the table of a component. ``DataError`` when its file is not one that can be edited line by line."""
        if name not in self._tables:
            path = self._releases / f"{name}.yaml"
            old = _text(path) if path.is_file() else None
            text = _NEW_FILE.format(name=name) if old is None else old
            self._tables[name] = (old, LineTable.parse(text, f"releases/{path.name}"))
        return self._tables[name][1]

    def update(self, name: str) -> None:
        """Run the updater of one component. A failure for one project does not stop the others."""
        self._context.progress(name, 0, 0)
        try:
            self._summary[name] = self._updater(name)()
        except NetworkError as error:
            self._context.problems.append(f"{name}: {error.message}")
            if not self._summary and len(self._context.problems) > 1:
                raise NetworkError(
                    "Cannot refresh anything: the package index does not answer.",
                    hint=error.hint,
                    details=self._context.problems,
                ) from None

    def _updater(self, name: str) -> Callable[[], list[str]]:
        table, context = self.table(name), self._context
        own: dict[str, Callable[[], list[str]]] = {
            "torch": lambda: [*update_torch(table, context, self._recorded), *self._symbols(table)],
            "nccl": lambda: update_cuda_wheels(table, context, name, None),
            "cudnn": lambda: update_cuda_wheels(table, context, name, self.table("torch")),
            "cuda": lambda: update_cuda(table, context, self.table("torch")),
            "toolkit": lambda: update_toolkit(table, context),
        }
        if name in own:
            return own[name]
        if name in LINKED:
            return lambda: [*update_releases(table, context, name), *self._linking(name)]
        if name in ARRAYS:
            return lambda: [*update_releases(table, context, name), *self._arrays(name)]
        framework = FRAMEWORKS.get(name)
        if framework and framework.toolkit_table:
            toolkit_rule = ToolkitRule(name, framework.toolkit_table)
            return lambda: [*update_releases(table, context, name), *self._builder(toolkit_rule)]
        return lambda: update_releases(table, context, name)

    def _symbols(self, torch: LineTable) -> list[str]:
        """Add to ``symbols/torch.bin`` what the builds export that are new in the table of torch."""
        path = self._releases.parent / "symbols" / FILE
        if not path.parent.is_dir():
            return []
        new, summary = update_symbols(path, torch.records, self._context)
        if new is not None:
            old = path.read_bytes() if path.exists() else None
            self._apart.append(FileChange(path=path, old=old, new=new, summary=tuple(summary)))
        return []

    def _linking(self, name: str) -> list[str]:
        """Add what new compiled wheels of a component link with to ``rules/linking.yaml``."""
        folder = self._releases.parent / "symbols"
        if not (folder / FILE).is_file():
            return []
        records, table = self.table(name).records, SymbolTable(folder)
        return self._beside("linking.yaml", lambda text: update_linking(text, {name: records}, table, self._context))

    def _arrays(self, name: str) -> list[str]:
        """Add which new compiled wheels of a component were built for numpy 1 to ``rules/arrays.yaml``."""
        records = self.table(name).records
        return self._beside("arrays.yaml", lambda text: update_arrays(text, name, records, self._context))

    def _beside(self, filename: str, update: Callable[[str | None], tuple[str | None, list[str]]]) -> list[str]:
        """Bring a file of measured rules up to date, to which several components of a run may add."""
        path = self._releases.parent / "rules" / filename
        before = next((c for c in self._apart if c.path == path), None)  # of another component in this run
        text = str(before.new) if before else _text(path) if path.is_file() else None
        new, summary = update(text)
        if new is not None and new != text:
            if before is not None:
                self._apart.remove(before)
            old = before.old if before else text
            lines = (*(before.summary if before else ()), *summary)
            self._apart.append(FileChange(path=path, old=old, new=new, summary=lines))
        return []

    def _builder(self, rule: ToolkitRule) -> list[str]:
        """Update the rows of the toolkit rule after the tables of the framework's releases that were opened."""
        path = self._releases.parent / "rules" / "toolkit.yaml"
        read = self._context.read.get(rule.framework, {})
        if not path.is_file():
            return []
        toolkits = [str(r["version"]) for name in ("toolkit", "cuda") for r in self.table(name).records]
        old = path.read_text(encoding="utf-8")
        releases = [str(r["version"]) for r in self.table(rule.framework).records]
        minors = (minor_of(v) for v in toolkits)
        new, summary, doubts = rule.update(old, read, releases, minors, self._context.today)
        self._context.problems += doubts
        if new != old:
            self._apart.append(FileChange(path=path, old=old, new=new, summary=tuple(summary)))
        return summary

    def changes(self) -> tuple[FileChange, ...]:
        """Return every file whose bytes would differ."""
        changes = []
        for name, (old, table) in self._tables.items():
            new = table.text()
            if new != old and table.records:
                summary = tuple(self._summary.get(name, ()))
                changes.append(FileChange(path=self._releases / f"{name}.yaml", old=old, new=new, summary=summary))
        if self._recorded is not None and "torch" in self._summary:
            used = {r.get("sha256") for r in self.table("torch").records}
            new = record_facts(f for f in self._recorded.values() if f.sha256 in used)
            if new != self._recorded_before:
                summary = ("recorded METADATA of torch wheels",)
                changes.append(FileChange(path=self._record, old=self._recorded_before, new=new, summary=summary))
        return (*changes, *self._apart)


def apply(changes: Iterable[FileChange]) -> list[Path]:
    """Write the files. ``DataError`` when one changed since it was read, ``StorageError`` when it cannot be written."""
    written = []
    for change in changes:
        path = change.path
        existing = None if not path.exists() else path.read_bytes() if isinstance(change.old, bytes) else _text(path)
        if existing != change.old:
            raise DataError(
                f"Cannot write {path}: it was changed while the refresh ran.", hint="Run the refresh again."
            )
        write_whole(path, change.new)
        written.append(path)
    return written


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Cannot read {path}: {error}.") from None
