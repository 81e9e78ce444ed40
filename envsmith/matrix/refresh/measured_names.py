"""Refresh ``matrix/names``: which release of a package has which name, and which the import of it takes from others.

A release that was read already is not read again. Of a new one only those files are fetched that no release before it
has. A newer reader, or ``again``, measures everything anew, from the sources that the cache keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import Version

from envsmith.errors import NetworkError, UsageError
from envsmith.graph.fields import load_table
from envsmith.matrix.refresh.name_table import add_moves, count_names, measure, measure_takes, merge
from envsmith.matrix.refresh.shared import Context
from envsmith.matrix.refresh.source_store import SourceStore
from envsmith.matrix.refresh.updates import FileChange
from envsmith.names import takes
from envsmith.names.name_index import SUFFIX, SUMMARY
from envsmith.names.names_file import Head, Measured, NamesFile, Table, encode
from envsmith.names.stars import write_out
from envsmith.names.walk import UNMEASURED
from envsmith.python.index import IndexFile
from envsmith.python.release_sources import choose_file, open_archive

_SINCE = "2022-10-28"
_COLUMNS = ("distribution", "roots", "releases", "first", "last", "modules", "names", "bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """What ``packages.yaml`` says of a distribution.

    ``entries`` are names that programs begin with, and ``parts`` those that some programs import besides. What their
    import takes from other packages is measured too.
    """

    roots: tuple[str, ...] = ()
    since: str = _SINCE
    entries: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Packages:
    packages: Mapping[str, Package] = field(default_factory=dict)


def plan_names(folder: Path, context: Context, chosen: Sequence[str], store: Path) -> tuple[FileChange, ...]:
    """Measure what is new on the index for the packages of ``folder`` (``matrix/names``), or the chosen ones.

    ``UsageError`` for a package that the list does not have. What cannot be read is a problem of the context.
    """
    packages = read_packages(folder)
    missing = [name for name in chosen if name not in packages]
    if missing:
        hint = "Add it to matrix/names/packages.yaml."
        raise UsageError(f"Cannot measure {missing[0]}: it is not in the list of packages.", hint=hint)
    changes: list[FileChange] = []
    for name in chosen or packages:
        changes += _plan_package(folder, context, name, packages[name], store)
    return (*changes, *_plan_summary(folder, changes))


def read_packages(folder: Path) -> Mapping[str, Package]:
    """Return the packages that ``packages.yaml`` lists."""
    return load_table(_Packages, "packages.yaml", folder).packages


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kind:
    """A file of a package: how its table is made.

    ``reader`` is one more when the lines of the same source change, so that nothing is added to lines of another kind.
    """

    suffix: str
    reader: int
    measure: Callable[[SourceStore, Sequence[str], Package], Table]
    has_moves: bool = False


def _measure_names(sources: SourceStore, versions: Sequence[str], package: Package) -> Table:
    table = measure(sources, versions, package.roots)
    write_out(table, package.roots)
    return table


_KINDS = (
    _Kind(suffix=SUFFIX, reader=2, measure=_measure_names, has_moves=True),
    _Kind(
        suffix=takes.SUFFIX,
        reader=1,
        measure=lambda s, versions, p: measure_takes(s, versions, p.roots, (*p.entries, *p.parts)),
    ),
)


def _plan_package(folder: Path, context: Context, name: str, package: Package, store: Path) -> Iterator[FileChange]:
    package = package if package.roots else replace(package, roots=(name.replace("-", "_"),))
    try:
        listed = _releases(context, name, package.since)
    except NetworkError as error:
        context.problems.append(f"{name}: {error.message}")
        return
    kinds = _KINDS if package.entries else _KINDS[:1]
    states = [_state(folder / f"{name}{kind.suffix}", kind, listed, again=context.again) for kind in kinds]
    with SourceStore(store / f"{name}.sqlite") as sources:
        missing = set().union(*(state.new for state in states))
        complete = set(_fetch(context, name, {v: f for v, f in listed.items() if v in missing}, sources))
        for state in states:
            new = [v for v in state.new if v in complete]
            if new:
                yield from _plan_file(state, name, package, new, listed=listed, sources=sources)


@dataclass(frozen=True, slots=True)
class _State:
    """A file as it is, and the releases that are to be read for it."""

    path: Path
    kind: _Kind
    file: NamesFile | None
    new: tuple[str, ...]
    anew: bool


def _state(path: Path, kind: _Kind, listed: Mapping[str, IndexFile], *, again: bool) -> _State:
    file = NamesFile(path) if path.is_file() else None
    before = {m.version: m.sha256 for m in file.head.releases} if file is not None else {}
    anew = again or file is None or file.head.reader != kind.reader
    return _State(path, kind, file, tuple(v for v, f in listed.items() if anew or before.get(v) != f.sha256), anew)


def _plan_file(
    state: _State,
    name: str,
    package: Package,
    new: Sequence[str],
    *,
    listed: Mapping[str, IndexFile],
    sources: SourceStore,
) -> Iterator[FileChange]:
    table = state.kind.measure(sources, new, package)
    existing = state.file if not state.anew else None
    before = {m.version: m for m in existing.head.releases} if existing else {}
    stays = [v for v in before if v not in new]
    versions = sorted({*stays, *new}, key=Version)
    old: Table = existing.table() if existing else {}
    table = merge((old, list(before), stays), (table, new, new), versions=versions)
    if state.kind.has_moves:
        add_moves(table, 1 << (len(versions) - 1), package.roots)
    measured = tuple(before[v] if v in stays else _measured(v, listed[v]) for v in versions)
    head = Head(distribution=name, reader=state.kind.reader, roots=package.roots, releases=measured)
    content = encode(head, table)
    before_bytes = None if state.file is None else state.path.read_bytes()
    if content != before_bytes:
        counts = f"{len(new)} releases read, {count_names(table):,} names of {len(versions)} releases"
        yield FileChange(path=state.path, old=before_bytes, new=content, summary=(f"{state.path.name}: {counts}",))


def _releases(context: Context, name: str, since: str) -> dict[str, IndexFile]:
    """Return the file to read of each final release since that day, oldest version first."""
    releases = {}
    for version, files in context.project(name).releases().items():
        file = choose_file(files)
        if file is not None and not Version(version).is_prerelease and any((f.day or "") >= since for f in files):
            releases[version] = file
    return releases


def _measured(version: str, file: IndexFile) -> Measured:
    return Measured(version=version, date=file.day or "", filename=file.filename, sha256=file.sha256 or "")


def _fetch(context: Context, name: str, files: Mapping[str, IndexFile], sources: SourceStore) -> list[str]:
    """Return the releases whose sources are in the store now, oldest first."""
    complete = []
    for count, (version, file) in enumerate(files.items(), 1):
        context.progress(f"{name} {version}", count, len(files))
        try:
            if not sources.has(version, file.sha256 or ""):
                with open_archive(context.index.fetcher, file) as archive:
                    members = [m for m in archive.members if not UNMEASURED & set(m.path.split("/")[:-1])]
                    sources.add(version, file.sha256 or "", archive, members)
            complete.append(version)
        except NetworkError as error:
            context.problems.append(f"{name} {version}: {error.message}")
    return complete


def _plan_summary(folder: Path, changes: Sequence[FileChange]) -> tuple[FileChange, ...]:
    """Return the list of what every file holds: it names the file of a module, and shows a reviewer what changed."""
    files = [(c.path, c.new) for c in changes if c.path.suffix == SUFFIX and isinstance(c.new, bytes)]
    if not files:
        return ()
    path = folder / SUMMARY
    old = path.read_text(encoding="utf-8") if path.is_file() else None
    rows = {row.partition("\t")[0]: row for row in (old or "").splitlines()[1:] if row.count("\t") == len(_COLUMNS) - 1}
    for file, content in files:
        rows[file.name.removesuffix(SUFFIX)] = summary_row(content, file)
    text = "\n".join(["\t".join(_COLUMNS), *(rows[name] for name in sorted(rows))]) + "\n"
    return (FileChange(path=path, old=old, new=text, summary=(f"{SUMMARY}: {len(rows)} packages",)),)


def summary_row(content: bytes, path: Path) -> str:
    """Return the row of a file."""
    file = NamesFile(path, content)
    table = file.table()
    releases = file.head.releases
    roots = ",".join(file.head.roots)
    first, last = releases[0].version, releases[-1].version
    columns = (file.head.distribution, roots, len(releases), first, last, len(table), count_names(table), len(content))
    return "\t".join(str(column) for column in columns)
