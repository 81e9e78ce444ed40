"""A symbol of torch that the loader does not find: which builds of torch export it."""

from __future__ import annotations

import dataclasses

from envsmith.doctor.facts import Facts
from envsmith.doctor.parties import symbol_in
from envsmith.graph.location import find_matrix
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding
from envsmith.model.version import public
from envsmith.symbols.table import FILE, Builds, SymbolTable


def with_builds(finding: Finding, text: str, facts: Facts, platform: Platform) -> Finding:
    """Return a finding about an undefined symbol of torch with the releases that export it, or as it is."""
    symbol = symbol_in(text)
    folder = find_matrix() / "symbols"
    if symbol is None or symbol.component != "torch" or not (folder / FILE).is_file():
        return finding
    builds = SymbolTable(folder).builds_exporting(symbol.name)
    if builds is None:
        return finding
    builds = builds.of(platform.value)
    spec = builds.spec()
    fix = f"{finding.fix} Or use torch {spec}, whose builds export the symbol." if spec and finding.fix else finding.fix
    return dataclasses.replace(
        finding,
        message=f"{finding.message} {_exporting(builds, spec, facts.version('torch'))}",
        fix=finding.fix if _is_exported(builds, facts.version("torch")) else fix,
        needs={"torch": spec} if spec and "||" not in spec and spec != "*" else finding.needs,
    )


def _is_exported(builds: Builds, torch: str | None) -> bool:
    return any(public(build.version) == public(torch) for build in builds.present)


def _exporting(builds: Builds, spec: str, torch: str | None) -> str:
    """Return the sentence that says which measured builds have the symbol."""
    measured = f"{len(builds.present) + len(builds.absent)} measured builds"
    if not spec:
        return f"None of the {measured} of torch exports it: the extension was built for a newer torch, or another one."
    if torch and _is_exported(builds, torch):
        return f"torch {torch} exports it: another torch is loaded, or a library of it is from another release."
    absent = torch and any(public(build.version) == public(torch) for build in builds.absent)
    return f"Of {measured} torch {spec} exports it{f', and torch {torch} does not' if absent else ''}."
