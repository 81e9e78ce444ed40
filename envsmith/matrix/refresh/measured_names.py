"""Refresh ``matrix/names``: which release of a package has which name, and which the import of it takes from others.

A release that was read already is not read again. Of a new one only those files are fetched that no release before it
has. A newer reader, or ``again``, measures everything anew, from the sources that the cache keeps.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import Version

from envsmith.errors import NetworkError, UsageError
from envsmith.knowledge.graph.fields import load_table
from envsmith.knowledge.names import takes
from envsmith.knowledge.names.decorators import without_decorators
from envsmith.knowledge.names.dotted import is_below
from envsmith.knowledge.names.name_index import SUMMARY
from envsmith.knowledge.names.names_file import SUFFIX, Head, MeasuredRelease, NamesFile, Table, add_part, encode
from envsmith.knowledge.names.reach import Memo, PackageUses
from envsmith.knowledge.names.stars import write_out
from envsmith.knowledge.names.takes import takes_of
from envsmith.knowledge.names.walk import UNMEASURED
from envsmith.lock.index.index import IndexFile
from envsmith.lock.index.module_lines import module_lines, module_of
from envsmith.lock.index.release_sources import Archive, SourceMember, choose_file, open_archive
from envsmith.matrix.refresh.shared import RefreshRun
from envsmith.matrix.refresh.updates import FileChange

_SINCE = "2022-10-28"
_COLUMNS = ("distribution", "roots", "releases", "first", "last", "modules", "names", "bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """What ``packages.yaml`` says of a distribution.

    ``entries`` are names that programs begin with, and ``parts`` those that some programs import besides. What their
    import takes from other packages is measured too. Without ``names`` nothing else is: no package takes from it.
    """

    roots: tuple[str, ...] = ()
    since: str = _SINCE
    entries: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    names: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class _Packages:
    packages: Mapping[str, Package] = field(default_factory=dict)


def plan_names(folder: Path, context: RefreshRun, chosen: Sequence[str], store: Path) -> tuple[FileChange, ...]:
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
    _Kind(suffix=SUFFIX, reader=3, measure=_measure_names, has_moves=True),
    _Kind(
        suffix=takes.SUFFIX,
        reader=4,
        measure=lambda s, versions, p: measure_takes(s, versions, p.roots, (*p.entries, *p.parts)),
    ),
)


def _plan_package(folder: Path, context: RefreshRun, name: str, package: Package, store: Path) -> Iterator[FileChange]:
    package = package if package.roots else replace(package, roots=(name.replace("-", "_"),))
    try:
        listed = _releases(context, name, package.since)
    except NetworkError as error:
        context.problems.append(f"{name}: {error.message}")
        return
    is_measured = {SUFFIX: package.names, takes.SUFFIX: bool(package.entries)}
    kinds = [kind for kind in _KINDS if is_measured[kind.suffix]]
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
    # A part says what differs from the release before: of releases older than all it would say everything again.
    is_older = existing is not None and Version(versions[0]) < Version(next(iter(before)))
    content = encode(head, table) if existing is None or is_older else add_part(existing, head, table)
    before_bytes = None if state.file is None else state.path.read_bytes()
    if content != before_bytes:
        counts = f"{len(new)} releases read, {count_names(table):,} names of {len(versions)} releases"
        yield FileChange(path=state.path, old=before_bytes, new=content, summary=(f"{state.path.name}: {counts}",))


def _releases(context: RefreshRun, name: str, since: str) -> dict[str, IndexFile]:
    """Return the file to read of each final release since that day, oldest version first."""
    releases = {}
    for version, files in context.project(name).releases().items():
        file = choose_file(files)
        if file is not None and not Version(version).is_prerelease and any((f.day or "") >= since for f in files):
            releases[version] = file
    return releases


def _measured(version: str, file: IndexFile) -> MeasuredRelease:
    return MeasuredRelease(version=version, date=file.day or "", filename=file.filename, sha256=file.sha256 or "")


def _fetch(context: RefreshRun, name: str, files: Mapping[str, IndexFile], sources: SourceStore) -> list[str]:
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


# The tables of a distribution from the sources of its releases: its names, and what its import takes from others.


def measure(store: SourceStore, versions: Sequence[str], roots: Iterable[str]) -> Table:
    """Return the lines of every module, each with the bits of the releases that have it."""
    table: Table = defaultdict(lambda: defaultdict(int))
    sources: dict[str, dict[str, dict[SourceMember, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    roots = tuple(roots)
    with_compiled = 0
    for at, version in enumerate(versions):
        members, compiled = store.members(version)
        with_compiled |= bool(compiled) << at
        for member in members:
            if is_below(module_of(member.path), roots):
                sources[module_of(member.path)][member.path][member] |= 1 << at
        for module in compiled:
            if is_below(module, roots):
                table[module][""] |= 1 << at
                table[module]["* !"] |= 1 << at
    binaries = {module: lines[""] for module, lines in table.items()}
    for module, paths in sources.items():
        no_stub = with_compiled & ~_compiled_bits(binaries, module)
        for line, bits in module_lines(module, paths, store.read, no_stub=no_stub, compiled=binaries).items():
            table[module][without_decorators(line)] |= bits
    _add_folders(table, roots)
    _add_listed(table, {module for module, paths in sources.items() if any("/__init__." in path for path in paths)})
    _add_endings(table, roots)
    _add_put(table)
    return {module: dict(lines) for module, lines in table.items() if lines[""]}


def _compiled_bits(binaries: Mapping[str, int], module: str) -> int:
    """Return the releases in which a module is compiled, or lies inside of a compiled one."""
    parts = module.split(".")
    bits = 0
    for depth in range(1, len(parts) + 1):
        bits |= binaries.get(".".join(parts[:depth]), 0)
    return bits


def _add_folders(table: Table, roots: Sequence[str]) -> None:
    """Add the packages that have no ``__init__``: a folder can be imported too."""
    for module, lines in list(table.items()):
        bits = lines[""]
        while is_below(module := module.rpartition(".")[0], roots):
            table[module][""] |= bits


def _add_listed(table: Table, packages: Iterable[str]) -> None:
    """Write out ``* /``: such a package brings what the packages in its folder list, whether or not it names them."""
    for package in packages:
        above = table.get(package.rpartition(".")[0], {})
        if listing := above.get("* /", 0) & table[package].get("", 0):
            above[f"* >{package}"] = above.get(f"* >{package}", 0) | listing
    for lines in table.values():
        lines.pop("* /", None)


def _add_endings(table: Table, roots: Iterable[str]) -> None:
    """Add to the roots what a class of modules makes of names with some ending (``_LazyModule`` of transformers 5)."""
    ended = [
        (line.partition(".* ")[2], bits) for lines in table.values() for line, bits in lines.items() if ".* ?" in line
    ]
    for body, bits in ended:
        for root in roots if body != "?" else ():
            table[root][f"* {body}"] |= bits


def _add_put(table: Table) -> None:
    """Add to modules what others of the package put into them when they run: perhaps, as nobody sees whether they do.

    And to a class what others give an object that has its name, ``self.trainer.datamodule = …`` to ``Trainer``, or any
    object, where the class has that attribute in another release.
    """
    attributes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for lines in list(table.values()):
        for line in [line for line in lines if line.startswith("* @")]:
            owner, _, name = line.removeprefix("* @").partition(":")
            bits = lines.pop(line)
            if owner.startswith("."):
                attributes[_plain(owner[1:])][name] |= bits
            elif "" in table.get(owner, {}):
                put = f"{name} ~"
                table[owner][put] = table[owner].get(put, 0) | bits & table[owner][""]
    every: dict[str, int] = defaultdict(int)
    for of_object in attributes.values():
        for name, bits in of_object.items():
            every[name] |= bits
    for lines in table.values():
        classes: dict[str, int] = defaultdict(int)
        members: dict[str, dict[str, int]] = defaultdict(dict)
        for line, bits in lines.items():
            name, _, body = line.partition(" ")
            owner, _, member = name.rpartition(".")
            if not owner and body.lstrip("?+-").startswith((":", "@:")):
                classes[name] |= bits
            elif owner and member in every:
                members[owner][member] = every[member]
        for name, having in classes.items():
            for attribute, bits in {**members[name], **attributes.get(_plain(name), {})}.items():
                if bits & having:
                    line = f"{name}.{attribute} ."
                    lines[line] = lines.get(line, 0) | bits & having


def _plain(name: str) -> str:
    """Return the name of a class, or of an object, as both may be spelt alike."""
    return name.replace("_", "").lower()


def merge(*parts: tuple[Table, Sequence[str], Sequence[str]], versions: Sequence[str]) -> Table:
    """Return one table of ``versions`` from tables, each with its releases and those of them that count."""
    merged: Table = defaultdict(lambda: defaultdict(int))
    for table, own, counted in parts:
        places = {at: versions.index(version) for at, version in enumerate(own) if version in set(counted)}
        moved: dict[int, int] = {0: 0}
        for module, lines in table.items():
            for line, bits in lines.items():
                if bits not in moved:
                    moved[bits] = sum(1 << place for at, place in places.items() if bits >> at & 1)
                if moved[bits]:
                    merged[module][line] |= moved[bits]
    return {module: dict(lines) for module, lines in merged.items()}


def add_moves(table: Table, newest: int, roots: Iterable[str]) -> int:
    """Add where a class or function is defined now, where its last place lost it, and return how many.

    The name must be defined once in the newest release: two places would be a guess.
    """
    now: dict[str, set[str]] = defaultdict(set)
    gone: list[tuple[str, str]] = []
    written = tuple(f" ^{root}." for root in roots)
    before: dict[tuple[str, str], int] = {}
    for module, lines in table.items():
        for line in [line for line in lines if any(mark in line for mark in written)]:
            before[module, line] = lines.pop(line)  # of the refresh before: another release is the newest now
        current = {line.partition(" ")[0] for line, bits in lines.items() if bits & newest}
        for line, bits in lines.items():
            name, _, body = line.partition(" ")
            if "." in name or not body.lstrip("?+-").startswith(("(", ":", "@:", "~(")):
                continue
            if bits & newest:
                now[name].add(module)
            elif name not in current:
                gone.append((module, name))
    moves = {(module, name) for module, name in gone if len(now[name]) == 1 and len(name) > 4}
    for module, name in moves:
        line = f"{name} ^{next(iter(now[name]))}.{name}"
        table[module][line] = before.get((module, line), 0) | newest
    return len(moves)


def count_names(table: Mapping[str, Mapping[str, int]]) -> int:
    """Return how many names the modules of a table bind."""
    return sum(1 for lines in table.values() for line in lines if line and not line.startswith("*"))


def measure_takes(store: SourceStore, versions: Sequence[str], roots: Sequence[str], entries: Sequence[str]) -> Table:
    """Return the lines of each entry, each with the bits of the releases that have it.

    What an earlier entry takes is not repeated: where it lacks, that one fails too. Then comes what functions take
    when they are called.
    """
    table: Table = {entry: defaultdict(int) for entry in entries}
    memo: Memo[SourceMember] = Memo()
    for at, version in enumerate(versions):
        members, _ = store.members(version)
        uses = PackageUses(roots, {member.path: member for member in members}, store.read, memo)
        before: set[str] = set()
        for entry in entries:
            takes = [take for take in takes_of(uses.at_import(entry)) if take.path not in before]
            for take in takes:
                table[entry][take.line()] |= 1 << at
            before |= {take.path for take in takes}
        for entry in entries:
            later = [take for take in takes_of(uses.in_functions(entry), later=True) if take.path not in before]
            for take in later:
                table[entry][take.line()] |= 1 << at
            before |= {take.path for take in later}
    return {entry: dict(lines) for entry, lines in table.items()}


# The sources of measured releases, kept between runs: each distinct file once, and what every release consists of.

_TABLES = """
create table if not exists release (version text primary key, sha256 text, members text, compiled text);
create table if not exists source (path text, crc int, size int, data blob, primary key (path, crc, size));
"""


class SourceStore:
    """A file of one distribution's sources below the cache. A context manager."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path)
        self._database.executescript(_TABLES)

    def __enter__(self) -> SourceStore:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def has(self, version: str, sha256: str) -> bool:
        """Return whether a release is complete and was read from this very file."""
        row = self._database.execute("select sha256 from release where version = ?", (version,)).fetchone()
        return row is not None and row[0] == sha256

    def add(self, version: str, sha256: str, archive: Archive, members: Iterable[SourceMember]) -> int:
        """Store the sources of a release and return how many were read: those that no other release has."""
        members = tuple(members)
        new = {m.path: m for m in members if not self._holds(m)}
        for path, data in archive.read(new):
            member = new[path]
            row = (path, member.crc, member.size, zlib.compress(data, 6))
            self._database.execute("insert or replace into source values (?, ?, ?, ?)", row)
        listed = json.dumps([list(m) for m in members]), json.dumps(sorted(archive.compiled))
        self._database.execute("insert or replace into release values (?, ?, ?, ?)", (version, sha256, *listed))
        self._database.commit()
        return len(new)

    def _holds(self, member: SourceMember) -> bool:
        query = "select 1 from source where path = ? and crc = ? and size = ?"
        return self._database.execute(query, member).fetchone() is not None

    def members(self, version: str) -> tuple[tuple[SourceMember, ...], frozenset[str]]:
        """Return the sources of a release and its compiled modules."""
        query = "select members, compiled from release where version = ?"
        members, compiled = self._database.execute(query, (version,)).fetchone()
        return tuple(SourceMember(*m) for m in json.loads(members)), frozenset(json.loads(compiled))

    def read(self, member: SourceMember) -> bytes:
        """Return one source."""
        query = "select data from source where path = ? and crc = ? and size = ?"
        return zlib.decompress(self._database.execute(query, member).fetchone()[0])

    def versions(self) -> Iterator[str]:
        """Yield the releases that are complete."""
        yield from (row[0] for row in self._database.execute("select version from release"))
