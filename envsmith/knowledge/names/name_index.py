"""Which releases of a package have a name: answers from the files of ``matrix/names``, without a network."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from packaging.version import Version

from envsmith.base.files import read_text
from envsmith.errors import DataError
from envsmith.knowledge.graph.location import find_matrix
from envsmith.knowledge.graph.refused_names import refused_names
from envsmith.knowledge.names.changed_arguments import changed
from envsmith.knowledge.names.names_file import SUFFIX, NamesFile
from envsmith.knowledge.names.presence import Presence, short_spec_of
from envsmith.knowledge.names.takes import SUFFIX as TAKES
from envsmith.knowledge.names.walk import Availability, NamePlace, Names, Walk
from envsmith.knowledge.names.whole_calls import MARK, WholeCall
from envsmith.model.rule import Evidence, EvidenceKind

SUMMARY = "summary.tsv"
_MAX_SUMMARY = 1 << 20


class NameIndex:
    """The index of a folder. Files are opened when a question needs them."""

    def __init__(self, folder: Path, added: Sequence[Names] = ()) -> None:
        self._folder = folder
        self._added = {names.head.distribution: names for names in added}
        self._walks: dict[str, Walk] = {}

    @classmethod
    def installed(cls) -> NameIndex:
        """Return the index of the knowledge in use. Nothing is opened yet."""
        return cls(find_matrix() / "names")

    def with_names(self, names: Names) -> NameIndex:
        """Return an index that has these names of a distribution, whether or not its folder has others."""
        return NameIndex(self._folder, (*self._added.values(), names))

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the distributions whose names were added."""
        return tuple(self._added)

    @cached_property
    def roots(self) -> dict[str, str]:
        """Import roots (``megatron.core``) with the distribution that is asked for each."""
        path = self._folder / SUMMARY
        added = {root: name for name, names in self._added.items() for root in names.head.roots}
        if not path.is_file():
            return added
        rows = [line.split("\t") for line in read_text(path, _MAX_SUMMARY).splitlines()[1:]]
        if any(len(row) < 2 for row in rows):
            raise DataError(
                f"Cannot read {SUMMARY}: a row has no columns.", hint="Write it again: envsmith matrix refresh --names."
            )
        return {root: row[0] for row in rows for root in row[1].split(",") if root} | added

    def distributions(self) -> tuple[str, ...]:
        """Return the distributions that have an index."""
        return tuple(sorted(set(self.roots.values())))

    def distribution_of(self, module: str) -> str | None:
        """Return ``megatron-core`` for ``megatron.core.x``, and ``None`` for a module without an index."""
        root = self._root_of(module)
        return self.roots[root] if root else None

    def _root_of(self, path: str) -> str:
        parts = path.split(".")
        names = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
        return next((name for name in names if name in self.roots), "")

    def ask(self, path: str, argument: str | None = None, *, distribution: str | None = None) -> Presence | None:
        """Return which releases have a module, a name, a member, or an argument of it. ``None`` without an index."""
        name = distribution or self.distribution_of(path)
        walk = self._walk(name) if name else None
        if name is None or walk is None:
            return None
        reached = walk.follow(path)
        if argument is not None and argument.startswith(MARK):
            answer, bits = walk.completes(reached, WholeCall.of(argument))
            presence = _presence(walk, name, path, answer, argument=argument)
            return replace(presence, wanting=tuple((each, walk.versions(having)) for each, having in bits.items()))
        answer = walk.accepts(reached, argument) if argument is not None else walk.summed(reached)
        successor = walk.successor(path, argument, reached, answer)
        return _presence(walk, name, path, answer, argument=argument, successor=successor)

    def ask_module(self, path: str) -> Presence | None:
        """Return which releases have a module that can be imported. What a package answers for is not one."""
        name = self.distribution_of(path)
        walk = self._walk(name) if name else None
        return _presence(walk, name, path, walk.as_module(path)) if name and walk else None

    def definition(self, path: str) -> str:
        """Return the path of a name, or of a member of a class, where most releases write the name or the class."""
        name = self.distribution_of(path)
        walk = self._walk(name) if name else None
        parent, _, last = path.rpartition(".")
        places = walk.follow(parent).places if walk else ()
        if any(place.kind == "class" for place in places):
            return f"{_widest(places).path}.{last}"
        places = walk.follow(path).places if walk else ()
        return _widest(places).path if any(place.kind in {"class", "function"} for place in places) else path

    def is_compiled(self, path: str) -> bool:
        """Return whether a name comes from a compiled module. The stub of a release may leave out what it has."""
        name = self.distribution_of(path)
        walk = self._walk(name) if name else None
        return walk is not None and walk.is_compiled(path)

    def is_compiled_module(self, path: str) -> bool:
        """Return whether a path is a compiled module in some release."""
        name = self.distribution_of(path)
        facts = walk.module(path) if name and (walk := self._walk(name)) else None
        return facts is not None and bool(facts.of("*")) and facts.of("*")[0][0] == "!"

    def is_set_later(self, path: str) -> bool:
        """Return whether a member is one that methods set on an instance: before they run, no release has it."""
        presence = self.ask(path)
        return presence is not None and bool(presence.present) and presence.present <= self.set_later(path)

    def set_later(self, path: str) -> frozenset[str]:
        """Return the releases in which methods alone set a member, on an instance: the class itself has it not."""
        name = self.distribution_of(path)
        walk = self._walk(name) if name else None
        if walk is None:
            return frozenset()
        later = written = 0
        for place in walk.follow(path).places:
            later, written = (later | place.bits, written) if place.body == "." else (later, written | place.bits)
        return walk.versions(later & ~written)

    def has_release(self, distribution: str, version: str) -> bool:
        """Return whether the files of a release were read."""
        walk = self._walk(distribution)
        return walk is not None and any(Version(file.version) == Version(version) for file in walk.files)

    def evidence(self, distribution: str, version: str) -> tuple[Evidence, ...]:
        """Return the file that was read of a release. Where it was not read, those of its neighbours."""
        walk = self._walk(distribution)
        files = walk.files if walk else ()
        after = bisect_right([Version(file.version) for file in files], Version(version))
        before = files[after - 1 : after] if after else ()
        if not (before and Version(before[0].version) == Version(version)):
            before = (*before, *files[after : after + 1])
        return tuple(
            Evidence(
                kind=EvidenceKind.MEASURED,
                source=file.filename,
                date=file.date,
                sha256=file.sha256,
                note="names read from this file. The day is that of its release",
            )
            for file in before
        )

    def is_hidden(self, path: str, argument: str, version: str) -> bool:
        """Return whether a decorator, of which nothing is known, keeps from telling whether a release takes an argument."""
        presence, name = self.ask(path, argument), self.distribution_of(path)
        walk = self._walk(name) if name else None
        if walk is None or presence is None or version not in presence.unknown:
            return False
        places = (*walk.follow(path).places, *walk.follow(f"{path}.__init__").places)
        bodies = [place.body for place in places if version in walk.versions(place.bits)]
        return any(body.startswith("~(") and not body.endswith("**") for body in bodies)

    def optional(self, path: str, argument: str) -> frozenset[str]:
        """Return the releases in which an argument may be left out. The file writes a default as ``name=``."""
        presence = self.ask(path, f"{argument}=")
        return presence.present if presence else frozenset()

    def arguments(self, path: str) -> tuple[str, ...]:
        """Return the names of the arguments that a function or method has in any release."""
        name = self.distribution_of(path)
        walk = self._walk(name) if name else None
        return walk.arguments(path) if walk else ()

    def definitions(self, name: str, distribution: str) -> tuple[str, ...]:
        """Return the dotted paths of the classes and functions of that name. It reads the whole file of a package."""
        walk = self._walk(distribution)
        return tuple(f"{module}.{name}" for module in walk.modules_defining(name)) if walk else ()

    def callables_taking(self, name: str, argument: str, distribution: str) -> tuple[str, ...]:
        """Return the dotted paths of the callables of that name that take an argument, in any release.

        A class is called by its own name and by ``__init__``. Without an argument it is every callable of that name.
        """
        walk = self._walk(distribution)
        return walk.callables_taking(name, argument) if walk else ()

    def not_taking(self, path: str, distribution: str, version: str) -> str | None:
        """Return the releases of a package whose import takes no such name, where that of ``version`` takes it."""
        file = self._folder / f"{distribution}{TAKES}"
        if not file.is_file():
            return None
        takes = NamesFile(file)
        releases = tuple(release.version for release in takes.head.releases)
        parts = (part for module, _ in takes.texts() if (part := takes.module(module)))
        lines = [line for part in parts for line in part.of(path) if " @" not in line[0]]
        taking = {v for at, v in enumerate(releases) if any(bits >> at & 1 for _, bits in lines)}
        lacking = set(releases) - taking
        return (short_spec_of(releases, lacking) if lacking else "") if version in taking else None

    def taken(self, name: str, distributions: Iterable[str]) -> tuple[str, ...]:
        """Return the dotted paths with that last name which packages import from others, in any release."""
        files = [file for each in distributions if (file := self._folder / f"{each}{TAKES}").is_file()]
        line = re.compile(rf"^(\S+\.{re.escape(name)}) ", re.MULTILINE)
        return tuple(
            {path: None for file in files for _, text in NamesFile(file).texts() for path in line.findall(text)}
        )

    def changed(self, name: str, what: str) -> tuple[str, ...]:
        """Return the packages in which an argument of a callable of that name came or went."""
        return changed(self._folder, name, what)

    def names_of(self, module: str) -> frozenset[str]:
        """Return the names that a module binds itself, in any release."""
        name = self.distribution_of(module)
        walk = self._walk(name) if name else None
        facts = walk.module(module) if walk else None
        return facts.names if facts else frozenset()

    def classes_with(self, module: str, member: str) -> tuple[str, ...]:
        """Return the dotted paths of the classes of a module whose body has that member, in any release."""
        name = self.distribution_of(module)
        walk = self._walk(name) if name else None
        facts = walk.module(module) if walk else None
        return tuple(f"{module}.{owner}" for owner in facts.classes_with(member)) if facts else ()

    def _walk(self, distribution: str) -> Walk | None:
        if distribution not in self._walks:
            path = self._folder / f"{distribution}{SUFFIX}"
            if distribution not in self._added and not path.is_file():
                return None
            self._walks[distribution] = Walk(self._added.get(distribution) or NamesFile(path), self._beyond)
        return self._walks[distribution]

    def _beyond(self, place: NamePlace, name: str | None, argument: str | None) -> bool | None:
        """Answer for a class of another package, whatever its release: ``None`` where releases differ."""
        path = place.path if name is None else f"{place.path}.{name}"
        presence = self.ask(path, argument)
        if presence is None or presence.unknown or not presence.releases:
            return None
        return None if presence.present and presence.absent else bool(presence.present)


def _widest(places: Sequence[NamePlace]) -> NamePlace:
    return max(places, key=lambda place: (place.kind in {"class", "function"}, place.bits.bit_count()))


def _refusing(walk: Walk, path: str) -> int:
    """Return the bits of the releases that refuse a name which their sources seem to bind."""
    row = refused_names().get(path)
    return sum(1 << at for at, v in enumerate(walk.releases) if row.releases.contains(v)) if row else 0


def _presence(
    walk: Walk, name: str, path: str, answer: Availability, *, argument: str | None = None, successor: str | None = None
) -> Presence:
    everything = (1 << len(walk.releases)) - 1
    releases_read = everything & ~_refusing(walk, path) & ~walk.unread
    present, unknown = answer.present & releases_read, (answer.unknown & ~answer.present & releases_read) | walk.unread
    return Presence(
        distribution=name,
        path=path,
        argument=argument,
        releases=walk.releases,
        date=walk.date,
        root=walk.root_of(path),
        present=walk.versions(present),
        unknown=walk.versions(unknown),
        absent=walk.versions(everything & ~present & ~unknown),
        successor=successor,
        is_sample=walk.is_sample,
    )
