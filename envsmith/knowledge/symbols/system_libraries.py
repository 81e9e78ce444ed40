"""What the C library and the libstdc++ of a system define, and which systems define what a compiled file needs.

The table is ``matrix/system_libraries.yaml``. A compiled file needs ``GLIBCXX_3.4.32``. The loader refuses it where
libstdc++ ends earlier.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from packaging.version import Version

from envsmith.base.schema import Text, strict
from envsmith.knowledge.graph.data import file_table, read_table
from envsmith.knowledge.graph.fields import Sources
from envsmith.model.rule import Evidence

_FILE = "system_libraries.yaml"
# The sets of versions, those of libstdc++ last.
SETS = ("GLIBC", "CXXABI", "GLIBCXX")


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Newest:
    """The newest version of each set that is defined, ``None`` where it is not known."""

    glibc: Text | None = None
    glibcxx: Text | None = None
    cxxabi: Text | None = None

    def defines(self, need: LibraryNeed) -> bool:
        """Return whether a version is defined. Of a set that nothing is known of it is."""
        newest = self.of(need.set_name)
        return newest is None or Version(need.version) <= Version(newest)

    def of(self, set_name: str) -> str | None:
        """Return the newest version of ``GLIBC``, ``GLIBCXX`` or ``CXXABI``."""
        return {"GLIBC": self.glibc, "GLIBCXX": self.glibcxx, "CXXABI": self.cxxabi}.get(set_name)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _Releases:
    evidence: Sources
    releases: Mapping[Text, Newest]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class System:
    """A distribution. ``words`` are what reports call it and what has the same libraries."""

    name: Text
    words: tuple[Text, ...]
    evidence: Sources
    releases: Mapping[Text, Newest]


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """Where a compiled file is loaded, as far as it is stated: ``Ubuntu 20.04``, or no name."""

    name: str = ""
    newest: Newest = field(default_factory=Newest)

    @property
    def is_unknown(self) -> bool:
        """Return whether nothing is known of it."""
        return self.newest == Newest()

    def has(self, need: LibraryNeed) -> str:
        """Return what stands in a message about a version that is not defined here."""
        newest = self.newest.of(need.set_name)
        return f"{self.name} has {newest}" if self.name else f"{newest} is installed"


@dataclass(frozen=True, slots=True)
class LibraryNeed:
    """One version of a set that a compiled file needs: ``GLIBCXX`` and ``3.4.32``."""

    set_name: str
    version: str

    @property
    def library(self) -> str:
        """Return whose versions the set has."""
        return "glibc" if self.set_name == "GLIBC" else "libstdc++"

    def __str__(self) -> str:
        return f"glibc {self.version}" if self.set_name == "GLIBC" else f"{self.set_name}_{self.version}"


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class SystemLibraries:
    """The file."""

    evidence: Mapping[Text, Any]
    gcc: _Releases
    systems: tuple[System, ...]
    tags: _Releases

    def compiler_of(self, need: LibraryNeed) -> str | None:
        """Return the first GCC whose libstdc++ defines a version, or ``None`` for glibc and what is newer."""
        if need.library == "glibc":
            return None
        return next((release for release, newest in self.gcc.releases.items() if newest.defines(need)), None)

    def systems_with(self, *needs: LibraryNeed) -> tuple[str, ...]:
        """Return of every distribution the first release that defines versions: ``Ubuntu 24.04``."""
        first = (
            (system.name, next((r for r, newest in system.releases.items() if all(map(newest.defines, needs))), None))
            for system in self.systems
        )
        return tuple(f"{name} {release}" for name, release in first if release)

    def origin(self, need: LibraryNeed) -> str:
        """Return what to add to a version of libstdc++: `` of GCC 13.2``. Nothing for glibc."""
        compiler = self.compiler_of(need)
        return f" of GCC {compiler}" if compiler else ""

    def remedy(self, need: LibraryNeed) -> str:
        """Return where a version is to be had, as the beginning of a sentence."""
        systems = self.systems_with(need)
        listed = f"a system that has {need} ({', '.join(systems)})" if systems else f"a system that has {need}"
        compiler = self.compiler_of(need)
        if compiler is None:
            return f"Use {listed}"
        return (
            f"Install conda-forge's libstdcxx-ng>={compiler} and put its lib folder first on LD_LIBRARY_PATH, or use"
            f" {listed}"
        )

    def named_in(self, text: str) -> tuple[str, Newest] | None:
        """Return the release that a text names, such as ``Ubuntu 20.04.6 LTS (x86_64)``, and what it has."""
        match = _names(self).search(text[:200])
        if match is None:
            return None
        system = next(s for s in self.systems if match[1].lower() in s.words)
        release = next((r for r in (match[2], match[2].split(".")[0]) if r in system.releases), None)
        return None if release is None else (f"{system.name} {release}", system.releases[release])

    def host(self, system: str = "", *, glibc: str | None = None, glibcxx: str | None = None) -> Host:
        """Return a host of the name of its system and of what is stated beside it, which counts more."""
        name, newest = self.named_in(system) or ("", Newest())
        if glibcxx and glibcxx != newest.glibcxx:  # another libstdc++ than the system's is loaded
            name, newest = "", Newest(glibc=newest.glibc, glibcxx=glibcxx, cxxabi=self._abi_of(glibcxx))
        return Host(name=name, newest=replace(newest, glibc=glibc or newest.glibc))

    def _abi_of(self, glibcxx: str) -> str | None:
        """Return the CXXABI of the newest libstdc++ that ends at a GLIBCXX."""
        return next((n.cxxabi for n in self.gcc.releases.values() if n.glibcxx == glibcxx), None)

    def sources_of(self, need: LibraryNeed) -> tuple[Evidence, ...]:
        """Return where it stands which compilers and systems have a version."""
        systems = self.systems[0].evidence
        return (*self.gcc.evidence, *systems) if need.library == "libstdc++" else systems


@lru_cache(maxsize=2)
def _pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    frills = r"(?: (?:enterprise|gnu/linux|linux|server|stream|release|lts|version))*[ :/-]*v?"
    return re.compile(rf"\b({'|'.join(words)})\b{frills}(\d+(?:\.\d+)?)", re.IGNORECASE)


def _names(libraries: SystemLibraries) -> re.Pattern[str]:
    return _pattern(tuple(word for system in libraries.systems for word in system.words))


@lru_cache(maxsize=1)
def system_libraries() -> SystemLibraries:
    """Return the installed table. ``DataError`` lists every problem of the file with its key path."""
    return LIBRARIES.load()


LIBRARIES = file_table("libraries", _FILE, SystemLibraries, lambda content: read_table(SystemLibraries, _FILE, content))
