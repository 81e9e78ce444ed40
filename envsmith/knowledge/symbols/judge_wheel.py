"""A compiled wheel held against versions: torch, Python, the GPU, glibc and libstdc++, each as a finding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from envsmith.base.files import now
from envsmith.knowledge.symbols.fit import FAILS, Fit, Missing, WheelNeeds, fits
from envsmith.knowledge.symbols.system_libraries import SETS, Host, LibraryNeed, Newest, system_libraries
from envsmith.knowledge.symbols.table import SymbolTable, TorchBuild, spec_of
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.model.version import minor_of, public
from envsmith.model.wheel import glibc_of
from envsmith.model.wheel_name import read_wheel_name

_RULE = "wheel"
_GPU = re.compile(r"sm_(\d{2,3})[af]?")


@dataclass(frozen=True, slots=True)
class WheelAnswer:
    """What speaks for and against a wheel, and what nothing is known of."""

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...] = ()

    @property
    def is_bad(self) -> bool:
        """Return whether anything speaks against it."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def judge_wheel(
    needs: WheelNeeds, versions: Mapping[str, str], platform: Platform, table: SymbolTable, host: Host | None = None
) -> WheelAnswer:
    """Judge a wheel with the versions that are stated. Without a torch, the builds that it links with are listed.

    ``host`` is the system where it is loaded, by default one of which only the stated glibc is known.
    """
    findings: list[Finding] = []
    unknown: list[str] = []
    if needs.machine not in {"none", platform.machine}:
        return WheelAnswer((_error(needs, {}, f"it was compiled for {needs.machine}, not {platform.machine}"),))
    findings += _python(needs, versions.get("python"))
    findings += _gpu(needs, versions.get("gpu"))
    findings += _system(needs, host or Host(newest=Newest(glibc=stated_version(versions.get("glibc")))))
    findings += _driver(needs, versions.get("driver"))
    if needs.uses_torch:
        linking, doubts = _torch(needs, versions.get("torch"), platform, table)
        findings += linking
        unknown += doubts
    return WheelAnswer(tuple(findings), tuple(unknown))


def _torch(
    needs: WheelNeeds, version: str | None, platform: Platform, table: SymbolTable
) -> tuple[list[Finding], list[str]]:
    every = fits(needs, table)
    if version in {None, "*"}:
        return [_builds(needs, every)], []
    build = table.find(str(version), platform.value)
    if version == "none" or build is None:
        near = table.nearest(str(version), platform.value)
        reason = f"whether {needs.file} links with torch {version}: that build was not measured"
        if near is not None:
            (fit,) = fits(needs, table, [near])
            reason += f" (with {near.version} it {'does not load' if fit.verdict == FAILS else 'links'})"
        return [], [reason]
    (fit,) = fits(needs, table, [build])
    if fit.verdict == FAILS:
        return [_failing(needs, fit, every)], []
    count = len(needs.symbols)
    symbols = "the symbol" if count == 1 else f"all {count} symbols"
    text = f"torch {build.version} exports {symbols} that it needs of torch"
    doubts = [
        f"where {library} of {needs.file} comes from: neither torch nor the wheel brings it" for library in fit.unclear
    ]
    return [_note(needs, build.version, text, build)], doubts


def _failing(needs: WheelNeeds, fit: Fit, every: Iterable[Fit]) -> Finding:
    first = fit.missing[0]
    spec = linking_spec(every)
    fix = f"Use torch {spec}, " if spec else "Use "
    finding = _error(
        needs,
        {"torch": fit.build.version},
        f"it does not load with torch {fit.build.version}: {_lack(first, fit)}",
        f"{fix}{'or ' if spec else ''}a wheel that was built for torch {minor_of(public(fit.build.version))}.",
        fit.build,
    )
    return replace(finding, needs={"torch": spec}) if spec and "||" not in spec else finding


def _lack(first: Missing, fit: Fit) -> str:
    """Return what is missing first, and how much more is."""
    symbols = {symbol for m in fit.missing for symbol in m.symbols}
    if first.symbols:
        tail = f" and {len(symbols) - 1} more that it needs are" if len(symbols) > 1 else " is"
        return f"{first.symbols[0]} (in {first.member}){tail} in no library of this build"
    return f"{first.member} needs {', '.join(first.libraries)}, which this build does not bring"


def linking_spec(every: Iterable[Fit]) -> str:
    """Return the releases whose measured builds have what a wheel needs, as a spec."""
    findings = list(every)
    return spec_of(
        (public(f.build.version) for f in findings if f.verdict != FAILS),
        (public(f.build.version) for f in findings if f.verdict == FAILS),
    )


def _builds(needs: WheelNeeds, every: list[Fit]) -> Finding:
    spec = linking_spec(every)
    last = every[-1].build if every else None
    if not spec:
        return _error(
            needs, {}, f"it links with none of the {len(every)} builds of torch that were measured", build=last
        )
    return _note(needs, spec, f"it links with torch {spec} ({len(every)} builds were measured)", last)


def _python(needs: WheelNeeds, version: str | None) -> Iterator[Finding]:
    if version in {None, "*", "none"} or not needs.file.endswith(".whl"):
        return
    tags = {(tag.interpreter, tag.abi) for tag in read_wheel_name(needs.file).tags}
    number = minor_of(str(version)).replace(".", "")
    minor = int(minor_of(str(version)).partition(".")[2] or 0)
    for interpreter, abi in tags:
        stable = re.fullmatch(r"cp3(\d+)", interpreter)
        if interpreter in {"py3", f"py{number}", f"cp{number}"} or (
            abi == "abi3" and stable and int(stable[1]) <= minor
        ):
            return
    names = ", ".join(sorted(f"{interpreter}-{abi}" for interpreter, abi in tags))
    fix = f"Use the wheel of the same release for cp{number}."
    yield _error(needs, {"python": str(version)}, f"Python {version} cannot install it: it is for {names}", fix)


def _gpu(needs: WheelNeeds, gpu: str | None) -> Iterator[Finding]:
    match = _GPU.fullmatch(gpu or "")
    if not match or not (needs.sass or needs.ptx):
        return
    wish = int(match[1])
    if any(s // 10 == wish // 10 and s <= wish for s in needs.sass) or any(p <= wish for p in needs.ptx):
        return
    built = ", ".join(f"sm_{s}" for s in needs.sass)
    fix = f"Use a wheel that was built for sm_{wish}, or compile it on this machine."
    yield _error(needs, {"gpu": str(gpu)}, f"it has no code for {gpu}: it was built for {built}", fix)


def stated_version(text: str | None) -> str | None:
    """Return a version, and ``None`` for what stands for any or for none."""
    return None if text in {None, "*", "none"} else text


def _system(needs: WheelNeeds, host: Host) -> Iterator[Finding]:
    """Give what the C library and libstdc++ of a host lack, and what the tag of the wheel does not promise."""
    table = system_libraries()
    demands = [LibraryNeed(name, needs.versions[name]) for name in SETS if name in needs.versions]
    lacking = {need.library: need for need in demands if not host.newest.defines(need)}
    for need in lacking.values():
        finding = _error(
            needs,
            {"glibc": str(host.newest.glibc)} if need.set_name == "GLIBC" else {},
            f"it needs {need}{table.origin(need)}, and {host.has(need)}",
            f"{table.remedy(need)}, or use a wheel with a lower manylinux tag.",
        )
        yield replace(finding, evidence=(*finding.evidence, *table.sources_of(need)))
    promised = table.tags.releases.get(glibc_of(needs.file) or "") if needs.file.endswith(".whl") else None
    if beyond := [need for need in demands if promised and not promised.defines(need)]:
        finding = _note(needs, None, f"its tag promises less than it needs: {', '.join(map(str, beyond))}")
        yield replace(finding, evidence=(*finding.evidence, *table.tags.evidence))
    if demands and host.is_unknown:
        systems = ", ".join(table.systems_with(*demands)) or "no system that is known"
        text = f"it needs {', '.join(map(str, demands))}. The oldest systems that have all of it: {systems}"
        yield _note(needs, None, text)


def _driver(needs: WheelNeeds, driver: str | None) -> Iterator[Finding]:
    if needs.uses_driver and driver == "none":
        reason = "it is linked with the NVIDIA driver (libcuda.so.1), which is not installed"
        yield _error(needs, {"driver": "none"}, reason, "Load it on a machine with a driver.")


def _error(
    needs: WheelNeeds, parts: Mapping[str, str], reason: str, fix: str | None = None, build: TorchBuild | None = None
) -> Finding:
    return Finding(
        rule=_RULE,
        severity=Severity.ERROR,
        components=parts,
        message=f"{needs.file}: {reason}.",
        fix=fix,
        evidence=_measured(needs, build),
    )


def _note(needs: WheelNeeds, torch: str | None, text: str, build: TorchBuild | None = None) -> Finding:
    return Finding(
        rule=_RULE,
        severity=Severity.NOTE,
        components={"torch": torch} if torch else {},
        message=f"{needs.file}: {text}.",
        evidence=_measured(needs, build),
    )


def _measured(needs: WheelNeeds, build: TorchBuild | None) -> tuple[Evidence, ...]:
    kind, own = EvidenceKind.MEASURED, f"the compiled files of {needs.file}"
    evidence = (Evidence(kind=kind, source=own, date=now().date().isoformat(), sha256=needs.sha256),)
    if build is None:
        return evidence
    return (
        Evidence(kind=kind, source=f"the libraries of {build.file}", date=build.date, sha256=build.sha256),
        *evidence,
    )
