"""Which compiler and which systems have a version of glibc or libstdc++ that the loader does not find."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from envsmith.doctor.diagnosis import Diagnosed
from envsmith.doctor.facts import Facts
from envsmith.doctor.signatures import Hit
from envsmith.doctor.symbols import package_of
from envsmith.symbols.system_libraries import Host, Need, SystemLibraries, system_libraries

# /lib64/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /…/libtorch_python.so)
_NOT_FOUND = re.compile(
    r"(?:(?P<loaded>\S{0,300}lib(?:stdc\+\+|c|m|pthread)\.so[.\d]{0,8}): )?version [`'\"?]{0,3}"
    r"(?P<set>GLIBCXX|CXXABI|GLIBC)_(?P<version>\d{1,3}(?:\.\d{1,3}){1,2})[`'\"?]{0,3} not found"
    r"(?: \(required by (?P<by>[^)\n]{1,300})\))?"
)
_CONDA = re.compile(r"(?:mini|ana|mamba|micromamba|miniforge)\w*/|conda|/envs/[^/]+/", re.IGNORECASE)
_SYSTEM = re.compile(r"/(?:usr/)?lib(?:64)?/")
# What torch compiles itself on the machine that loads it.
_COMPILED = re.compile(r"torch_extensions|/build/|JIT")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Refusal:
    """What the loader refused: the version, the library that ends earlier, and the file that asks for it."""

    need: Need
    loaded: str
    by: str

    @property
    def is_conda(self) -> bool:
        """Return whether the environment or the library is conda's."""
        return bool(_CONDA.search(self.loaded) or _CONDA.search(self.by))


def with_systems(diagnosed: Diagnosed, hit: Hit, facts: Facts) -> Diagnosed:
    """Return a finding about a version of glibc or libstdc++ with what has it. Any other is returned as it is."""
    match = _NOT_FOUND.search(hit.text)
    if match is None:
        return diagnosed
    need = Need(match["set"], match["version"])
    refusal = _Refusal(need=need, loaded=match["loaded"] or "", by=match["by"] or "")
    table = system_libraries()
    finding = dataclasses.replace(
        diagnosed.finding,
        message=" ".join([diagnosed.finding.message, *_sentences(refusal, facts, table)]),
        fix=_fix(refusal, facts, table),
        needs={"glibc": f">={need.version}"} if need.library == "glibc" else {},
        evidence=(*diagnosed.finding.evidence, *table.sources_of(need)),
    )
    return dataclasses.replace(diagnosed, finding=finding, lines=_lines(refusal, table))


def _sentences(refusal: _Refusal, facts: Facts, table: SystemLibraries) -> list[str]:
    need = refusal.need
    sentences = [f"{need} comes with GCC {compiler}."] if (compiler := table.compiler_of(need)) else []
    host = _host(facts, table)
    is_its_own = not refusal.loaded or bool(_SYSTEM.match(refusal.loaded)) or "glibcxx" in facts.host
    if is_its_own and not host.newest.defines(need):
        sentences.append(f"{_capital(host.has(need))}.")
    return sentences


def _host(facts: Facts, table: SystemLibraries) -> Host:
    system, glibcxx = facts.host.get("os", ""), facts.host.get("glibcxx")
    return table.host(system, glibc=facts.version("glibc"), glibcxx=glibcxx)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _fix(refusal: _Refusal, facts: Facts, table: SystemLibraries) -> str:
    need = refusal.need
    systems = table.systems_with(need)
    newer = f"use a system or image that has {need}" + (f" ({', '.join(systems)})" if systems else "")
    package = package_of(refusal.by)
    rebuild = f"compile {package or 'the extension'} on this system with its own compiler"
    older = f"take an older wheel of {package}" if package else "take an older wheel of the package"
    if need.library == "glibc":
        return f"{_capital(newer)}, {older}, or {rebuild}. glibc is the system's: conda does not bring one."
    if _COMPILED.search(refusal.by):
        rebuild = "compile it again with the GCC whose libstdc++ is loaded, after removing ~/.cache/torch_extensions"
    floor = f">={table.compiler_of(need)}" if table.compiler_of(need) else ""
    conda = f"conda install -c conda-forge 'libstdcxx-ng{floor}', with $CONDA_PREFIX/lib first on LD_LIBRARY_PATH"
    named = table.named_in(facts.host.get("os", ""))
    system_has_it = bool(named and named[1].defines(need))
    if refusal.is_conda and system_has_it and not _SYSTEM.match(refusal.loaded):
        return f"Load the system's libstdc++ with LD_PRELOAD, or update that of the environment: {conda}; or {rebuild}."
    return f"Install a newer libstdc++ into the environment: {conda}. Or {newer}, {older}, or {rebuild}."


def _lines(refusal: _Refusal, table: SystemLibraries) -> tuple[str, ...]:
    """Return the lines to type. No command mends a glibc."""
    if refusal.need.library == "glibc":
        return ("ldd --version",)
    compiler = table.compiler_of(refusal.need)
    return (
        f"conda install -c conda-forge 'libstdcxx-ng{f'>={compiler}' if compiler else ''}'",
        "export LD_LIBRARY_PATH=$CONDA_PREFIX/lib:$LD_LIBRARY_PATH",
    )
