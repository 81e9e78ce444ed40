"""The names of a distribution that was not measured, read on the package index when a question needs them.

A few of its releases are opened, and in each only the modules that the question leads to. :func:`between` names the
next to open until two that differ are neighbours, so that what is said of a border is exact.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import TypeVar

from packaging.version import Version

from envsmith.errors import ContentError, NetworkError
from envsmith.knowledge.names.names_file import Head, MeasuredRelease, ModuleLines, callables_in
from envsmith.knowledge.names.walk import UNMEASURED
from envsmith.lock.index.cython_names import cython_names, may_name
from envsmith.lock.index.index import IndexFile, PackageIndex
from envsmith.lock.index.module_lines import ModuleMemo, module_lines, module_of
from envsmith.lock.index.release_sources import Archive, SourceMember, choose_file, open_archive

_Task = TypeVar("_Task")
_Answer = TypeVar("_Answer")
# How many releases are opened at first, and about how many at most.
FIRST, MOST = 7, 24
# A name that was only reserved, or a slip: it says nothing of the time before 0.0.1.
_PLACEHOLDER = Version("0")
# A person waits for the answer, in seconds.
_LONGEST = 10.0
_JOBS = 8
# An sdist is fetched as a whole.
_MAX_SDIST = 8 << 20
# The largest compiled module that is read for its names.
_MAX_COMPILED = 4 << 20
# How long the sources may be together in which a class is looked for by its name.
_MAX_SEARCHED = 40 << 20
# What a source has that may bind names which it does not spell.
_MAKES_NAMES = re.compile(
    rb"import \(?\*|globals|vars\(|locals\(|exec\(|__getattr__|sys\.modules|azy|attach|__members__"
)


def spread(count: int, most: int = FIRST) -> set[int]:
    """Return up to ``most`` places of releases: both ends, and others between them at equal distances."""
    return {round(at * (count - 1) / (most - 1)) for at in range(most)} if count else set()


def between(places: Iterable[int], state: Mapping[int, object]) -> set[int]:
    """Return the places half-way between neighbours that differ and have others between them."""
    pairs = itertools.pairwise(sorted(places))
    return {(low + high) // 2 for low, high in pairs if high - low > 1 and state[low] != state[high]}


class AskedReleases:
    """The final releases of a project, opened when they are asked for. A context manager.

    They are those of the last ``years`` before the newest, or all of them where ``among`` is an older release. That one
    is with them where it is no final one.

    ``NotFoundError`` where the index has no such project, ``NetworkError`` where it takes ``longest`` seconds.
    """

    def __init__(
        self,
        packages: PackageIndex,
        project: str,
        *,
        years: int | None = None,
        among: str | None = None,
        longest: float = _LONGEST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.project = project
        self._fetcher = packages.fetcher
        files = _readable_files(packages.project(project).releases(), among)
        recent = _of_years(files, years)
        self._files = files if among in files and among not in recent else recent
        self._archives: dict[str, Archive | None] = {}
        self._sources: dict[SourceMember, bytes] = {}
        self.memo = ModuleMemo()
        self.is_closed = False
        self._opened = ExitStack()
        self._clock = clock
        self._longest, self._end = longest, clock() + longest

    def __enter__(self) -> AskedReleases:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True
        self._opened.close()

    @property
    def is_late(self) -> bool:
        """Return whether the time is over."""
        return self._clock() > self._end

    @property
    def versions(self) -> tuple[str, ...]:
        """Return the releases that can be read, oldest first."""
        return tuple(self._files)

    def names(self, places: Iterable[int], root: str, *, unread: Collection[int] = ()) -> AskedNames:
        """Open the releases at some places of :attr:`versions`, and return their names below an import root.

        A release that cannot be read is left out. Of those at ``unread`` places nothing is known.
        """
        opened = self._opened_at(places)
        archives = {self.versions[at]: opened.get(at) for at in sorted({*opened, *unread})}
        versions = list(archives)
        files = [(version, self._files[version]) for version in versions]
        releases = tuple(
            MeasuredRelease(version=v, date=f.day or "", filename=f.filename, sha256=f.sha256 or "") for v, f in files
        )
        head = Head(
            distribution=self.project,
            reader=0,
            roots=(root,),
            releases=releases,
            is_sample=len(opened) < len(self.versions),
            unread=sum((archive is None) << at for at, archive in enumerate(archives.values())),
        )
        return AskedNames(head, list(archives.values()), self)

    def sources(self, places: Iterable[int], paths: Collection[str]) -> dict[int, dict[str, bytes]]:
        """Return the files of ``paths``, below ``site-packages``, that each release at some places has.

        A release that cannot be read is left out.
        """
        archives = self._opened_at(places)
        chosen = {at: [member for member in each.members if member.path in paths] for at, each in archives.items()}
        contents = self.read([*archives.values()], [member for members in chosen.values() for member in members])
        return {at: {member.path: contents[member] for member in members} for at, members in chosen.items()}

    def _opened_at(self, places: Iterable[int]) -> dict[int, Archive]:
        chosen = {at: self.versions[at] for at in sorted(places)}
        self._open([version for version in chosen.values() if version not in self._archives])
        return {at: archive for at, version in chosen.items() if (archive := self._archives[version])}

    def _open(self, versions: Sequence[str]) -> None:
        def enter(version: str) -> tuple[AbstractContextManager[Archive], Archive]:
            manager = open_archive(self._fetcher, self._files[version])
            return manager, manager.__enter__()

        def enter_where_it_can_be_read(version: str) -> tuple[AbstractContextManager[Archive], Archive] | None:
            with suppress(NetworkError, ContentError):
                return twice(enter, version)
            return None

        for version, entered in self._in_time(enter_where_it_can_be_read, versions).items():
            self._archives[version] = entered[1] if entered else None
            if entered:
                self._opened.push(entered[0])

    def read(self, archives: Sequence[Archive], members: Sequence[SourceMember]) -> Mapping[SourceMember, bytes]:
        """Return sources, those that were not read yet out of the first of the archives that has them.

        ``NetworkError`` where one cannot be read: its release is left out from there on.
        """
        owners: dict[int, list[SourceMember]] = defaultdict(list)
        for member in dict.fromkeys(members):
            if member not in self._sources:
                owners[next(at for at, archive in enumerate(archives) if _has(archive, member))].append(member)

        def read(at: int) -> list[tuple[str, bytes]]:
            return list(archives[at].read([member.path for member in owners[at]]))

        def read_or_leave_out(at: int) -> list[tuple[str, bytes]]:
            try:
                return twice(read, at)
            except NetworkError:
                self._archives |= {v: None for v, archive in self._archives.items() if archive is archives[at]}
                raise

        for at, sources in self._in_time(read_or_leave_out, list(owners)).items():
            by_path = dict(sources)
            self._sources |= {member: by_path[member.path] for member in owners[at]}
        return {member: self._sources[member] for member in members}

    def _in_time(self, work: Callable[[_Task], _Answer], tasks: Sequence[_Task]) -> dict[_Task, _Answer]:
        if tasks and self.is_late:
            raise NetworkError(
                f"Cannot read {self.project} on the package index: it takes more than {self._longest:.0f} s."
            )
        with ThreadPoolExecutor(max_workers=_JOBS) as pool:
            return dict(zip(tasks, pool.map(work, tasks), strict=True))


def twice(work: Callable[[_Task], _Answer], task: _Task) -> _Answer:
    """Return what work gives, at the second attempt where the network fails at the first."""
    with suppress(NetworkError):
        return work(task)
    return work(task)


def _readable_files(releases: Mapping[str, Sequence[IndexFile]], among: str | None) -> dict[str, IndexFile]:
    """Return the file to read of each final release, and of ``among``, that has one of a size worth waiting for."""
    final = (v for v in map(Version, releases) if not v.is_prerelease and v != _PLACEHOLDER)
    wanted = {*final, *([Version(among)] if among else [])}
    chosen = {version: choose_file(files) for version, files in releases.items() if Version(version) in wanted}
    return {v: f for v, f in chosen.items() if f is not None and (f.is_wheel or (f.size or 0) <= _MAX_SDIST)}


def _of_years(files: Mapping[str, IndexFile], years: int | None) -> dict[str, IndexFile]:
    """Return the files of that many years before the newest, of all years for ``None``."""
    newest = max((file.day or "" for file in files.values()), default="")
    first = "" if years is None or not newest else f"{int(newest[:4]) - years}{newest[4:]}"
    return {version: file for version, file in files.items() if (file.day or "") >= first}


class AskedNames:
    """Names as a measured file holds them, of which each module is read when it is asked for."""

    def __init__(self, head: Head, archives: Sequence[Archive | None], releases: AskedReleases) -> None:
        self.head = head
        self._opened = {at: archive for at, archive in enumerate(archives) if archive}
        self._members = {at: {member.path: member for member in each.members} for at, each in self._opened.items()}
        self._compiled = frozenset().union(*(each.compiled for each in self._opened.values()))
        self._releases = releases
        self._modules: dict[str, ModuleLines | None] = {}
        self._defining: dict[str, tuple[str, ...]] = {}

    def module(self, name: str) -> ModuleLines | None:
        """Return the lines of a module, or ``None`` where no release has it.

        ``NetworkError`` when it cannot be read, as long as the releases are open. After that nothing is known of it.
        """
        if name not in self._modules:
            try:
                lines = self._lines(name)
            except NetworkError:
                if not self._releases.is_closed:
                    raise
                everything = (1 << len(self.head.releases)) - 1
                lines = {"": everything, "* ?": everything}
            self._modules[name] = ModuleLines.of_lines(lines) if lines else None
        return self._modules[name]

    def may_bind(self, module: str, name: str) -> bool:
        """Return whether a module may bind a name.

        A source of it has the name, a star import, or what makes names when it runs. Or its compiled file may have it.
        """
        if module in self._modules:
            return True
        own, binaries = self._sources_of(module), self._binaries_of(module)
        compiled = sum(1 << at for at, archive in self._opened.items() if module in archive.compiled)
        if compiled & ~sum(binaries.values()) or not (compiled or any(own.values())):
            return True
        texts, word = self._read({member for here in own.values() for member in here}).values(), name.encode()
        return any(word in text or _MAKES_NAMES.search(text) for text in texts) or any(
            may_name(content, name) for content in binaries
        )

    def modules_defining(self, name: str) -> tuple[str, ...]:
        """Return the modules in which a release writes a class or function of that name, of a few that were opened."""
        if name not in self._defining:
            written = re.compile(rf"^(?:class|def|async def) {re.escape(name)}\b".encode(), re.MULTILINE)
            modules = {module for module, text in self._texts() if written.search(text)}
            self._defining[name] = tuple(sorted(modules, key=lambda module: (module.count("."), module)))
        return self._defining[name]

    def callables_taking(self, name: str, argument: str) -> tuple[str, ...]:
        """Return the dotted paths of the callables of that name that take an argument, in a few of the releases."""
        words = [word.encode() for word in (name, argument)]
        modules = {module for module, text in self._texts() if all(word in text for word in words)}
        return callables_in(((module, "\n".join(self._lines(module))) for module in sorted(modules)), name, argument)

    def _texts(self) -> Iterator[tuple[str, bytes]]:
        """Yield modules with each of their sources: of the newest release, the oldest and others while they are not long."""
        places = [*self._opened]
        room, members = _MAX_SEARCHED, dict[SourceMember, None]()
        for at in dict.fromkeys([*places[-1:], *places[:1], *places]):
            added = [m for m in self._opened[at].members if self._is_searched(m.path) and m not in members]
            room -= sum(member.size for member in added)
            members |= dict.fromkeys(added) if room >= 0 else {}
        contents = self._read(members)
        yield from ((module_of(member.path), contents[member]) for member in members)

    def _is_searched(self, path: str) -> bool:
        roots = tuple(f"{root.replace('.', '/')}/" for root in self.head.roots)
        return path.endswith(".py") and path.startswith(roots) and not UNMEASURED & {*path.split("/")}

    def _sources_of(self, module: str) -> dict[int, list[SourceMember]]:
        stem = module.replace(".", "/")
        paths = [f"{stem}{end}" for end in (".py", "/__init__.py", ".pyi", "/__init__.pyi")]
        return {at: [members[path] for path in paths if path in members] for at, members in self._members.items()}

    def _lines(self, name: str) -> dict[str, int]:
        stem = name.replace(".", "/")
        own = self._sources_of(name)
        sources: dict[str, dict[SourceMember, int]] = defaultdict(lambda: defaultdict(int))
        folders = compiled = no_stub = 0
        for at, archive in self._opened.items():
            here = own[at]
            for member in here:
                sources[member.path][member] |= 1 << at
            folders |= (not here and any(path.startswith(f"{stem}/") for path in self._members[at])) << at
            compiled |= (name in archive.compiled) << at
            no_stub |= (bool(archive.compiled) and not _is_inside(name, archive.compiled)) << at
        contents = self._read(member for members in sources.values() for member in members)
        lines = module_lines(
            name, sources, contents.__getitem__, no_stub=no_stub, compiled=self._compiled, memo=self._releases.memo
        )
        read = self._add_compiled(name, lines)
        if compiled & ~read:
            lines["* !"] |= compiled & ~read
        if listing := lines.pop("* /", 0):  # what the folders below list was not read
            lines["* ?"] |= listing
        lines[""] |= folders | compiled
        return {line: bits for line, bits in lines.items() if bits}

    def _read(self, members: Iterable[SourceMember]) -> Mapping[SourceMember, bytes]:
        return self._releases.read([*self._opened.values()], [*members])

    def _binaries_of(self, module: str) -> dict[bytes, int]:
        """Return the files of a compiled module, each with the bits of the releases that have it; no large ones."""
        files: dict[SourceMember, int] = defaultdict(int)
        for at, archive in self._opened.items():
            if (file := archive.binaries.get(module)) and file.size <= _MAX_COMPILED:
                files[file] |= 1 << at
        contents: Mapping[SourceMember, bytes] = {}
        with suppress(NetworkError):  # it is then as if no file told
            contents = self._read(files) if files else {}
        return {contents[file]: bits for file, bits in files.items() if file in contents}

    def _add_compiled(self, name: str, lines: dict[str, int]) -> int:
        """Add what a compiled module may bind, and return the bits of the releases whose file tells."""
        read = 0
        for content, bits in self._binaries_of(name).items():
            names = cython_names(content)
            read |= bits if names is not None else 0
            for each in names or ():
                lines[f"{each} *"] = lines.get(f"{each} *", 0) | bits
        return read


def _has(archive: Archive, member: SourceMember) -> bool:
    return member in archive.members or member in archive.binaries.values()


def _is_inside(module: str, compiled: frozenset[str]) -> bool:
    """Return whether a module is compiled, or inside of a compiled one."""
    parts = module.split(".")
    return any(".".join(parts[:depth]) in compiled for depth in range(1, len(parts) + 1))
