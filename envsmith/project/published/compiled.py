"""What a compiled wheel of a published release was built for: a numpy, and the libraries of a torch."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from envsmith.errors import NetworkError
from envsmith.knowledge.graph.location import find_matrix
from envsmith.knowledge.symbols.fit import fits, needs_of
from envsmith.knowledge.symbols.judge_wheel import linking_spec
from envsmith.knowledge.symbols.table import SymbolTable
from envsmith.lock.index.array_abi import built_for
from envsmith.lock.index.asked_names import twice
from envsmith.lock.index.compiled import library_names, read_compiled
from envsmith.lock.index.index import IndexFile
from envsmith.lock.index.remote_wheel import RemoteWheel
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, Severity
from envsmith.net.http import Fetcher

# A person waits: how many bytes of a wheel are worth reading.
_MAX_READ = 24 << 20
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledRelease:
    """A wheel of a release, and the day and hash of it as evidence."""

    name: str
    version: str
    file: IndexFile
    fetcher: Fetcher
    evidence: Evidence

    def built_for_numpy_1(self, component: str, present: str) -> list[Finding]:
        """Return that it was built for numpy 1, beside a numpy 2 that is ``present``."""
        built = ""
        with suppress(NetworkError):
            built = twice(lambda url: built_for(url, self.fetcher, budget=_MAX_READ), self.file.url)
        if built != "one":
            return []
        return [
            Finding(
                rule="release-arrays",
                severity=Severity.ERROR,
                components={self.name: self.version, component: present},
                needs={component: "<2"},
                message=f"{self.name} {self.version} cannot be imported: {self.file.filename} was built for numpy 1; "
                f"{component} {present} is there",
                evidence=(self.evidence,),
                fix=f"Install {component}<2, or another release of {self.name}.",
                stage="import",
            )
        ]

    def not_linking(self, torch: str, platform: str) -> list[Finding]:
        """Return that one of its files needs symbols of torch which the stated one does not export.

        Of a large wheel its smaller files are read. Files whose names differ in numbers alone are one file for several
        releases of something: one of them may load.
        """
        table = SymbolTable(find_matrix() / "symbols")
        build = table.nearest(torch, platform)
        if build is None:
            return []
        with RemoteWheel(self.fetcher, self.file.url, budget=2 * _MAX_READ) as wheel:
            libraries = library_names(wheel)
            members = wheel.smallest(libraries, _MAX_READ)
            needs = needs_of(self.file.filename, self.file.sha256, read_compiled(wheel, select=members.__contains__))
        unread = {name.rpartition("/")[2] for name in libraries if name not in members}
        candidates = {member.name for member in needs.members if unread.isdisjoint(member.libraries)}
        (fit,) = fits(needs, table, [build])
        symbols = {each.member: each.symbols[0] for each in fit.missing if each.symbols and each.member in candidates}
        loading = {_DIGITS.sub("", member.name) for member in needs.members if member.name not in symbols}
        member = next((name for name in symbols if _DIGITS.sub("", name) not in loading), None)
        if member is None:
            return []
        spec = linking_spec(fits(needs, table))
        return [
            Finding(
                rule="release-linking",
                severity=Severity.WARNING,
                components={self.name: self.version, "torch": torch},
                needs={"torch": spec} if spec else {},
                message=f"{self.name} {self.version} fails where its compiled files are loaded: {member} needs "
                f"{symbols[member]}, which torch {build.version} does not export",
                evidence=(self.evidence,),
                fix=f"Install {f'torch {spec}, or ' if spec else ''}a release of {self.name} that was built for torch {torch}.",
                stage="import",
            )
        ]
