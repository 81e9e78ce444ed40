"""Declarations that meet what torch's own builds carry: their CUDA major and their NCCL."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envsmith.ci.case import Case, public
from envsmith.model.evidence import Evidence
from envsmith.model.rule import Release, Row, Severity
from envsmith.model.version import version_key
from envsmith.solve.words import join_words

__all__ = ["cuda_majors", "nccl_pin"]

# CUDA major in the name of a distribution that is built for one: nvidia-nccl-cu12, cupy-cuda12x, flashinfer-cu13, onnxruntime-cuda-11.
_FOR_CUDA = re.compile(r"(?:^|[-_])cu(?:da)?[-_]?(1[0-9])(?:\d|x)?(?:$|[-_])", re.IGNORECASE)


def cuda_majors(case: Case) -> None:
    """Dependencies built for one CUDA major beside a torch range whose default builds are of another."""
    platform = case.library.platform
    builds = [r for r in case.admitted("torch") if r.index == "default" and platform in r.platforms]
    for declared in case.library.declaration.requirements:
        match = _FOR_CUDA.search(declared.name)
        if not match or not builds:
            continue
        other = [r for r in builds if (cuda := _cuda_of(case, r)) and not cuda.startswith(match[1] + ".")]
        if not other:
            continue
        spans = sorted({c for r in builds if (c := _cuda_of(case, r))}, key=lambda c: version_key(c) or c)
        first, last = public("torch", other[0].version), public("torch", other[-1].version)
        newest = builds[-1] in other
        case.add(
            "ci-cuda-major",
            Severity.WARNING if newest else Severity.NOTE,
            f"{declared.name} is built for CUDA {match[1]}, but torch {case.spec('torch')} admits default builds for CUDA "
            f"{join_words(spans)}: torch {first}{' to ' + last if last != first else ''} {'is' if first == last else 'are'} of another CUDA major",
            at=declared,
            components={"torch": case.spec("torch").text, declared.name: declared.spec or "*"},
            evidence=[e for r in (other[0], other[-1]) for e in r.evidence],
            fix=f"bound torch, or take {declared.name} by the CUDA of torch (an extra per CUDA major)",
        )


def nccl_pin(case: Case) -> None:
    """A bound on NCCL of the library's own that no admitted torch carries: torch's wheels pin theirs exactly."""
    nccl = case.spec("nccl")
    declared = case.library.declared("nccl", case.table)
    if nccl.is_any or declared is None:
        return
    carried = _carried_nccl(case)
    outside = [v for v in carried if not nccl.contains(v)]
    if outside and len(outside) < len(carried):
        case.add(
            "ci-nccl-narrow",
            Severity.NOTE,
            f"nccl {nccl} excludes NCCL {join_words(outside[:4])} that admitted torch releases pin: those torch releases cannot be installed",
            at=declared,
            components={"nccl": nccl.text, "torch": case.spec("torch").text},
            evidence=[e for v in outside[:4] for e in carried[v]],
        )


def _carried_nccl(case: Case) -> dict[str, list[Evidence]]:
    """NCCL releases that admitted torch releases pin, each with what says so."""
    admitted = case.admitted("torch")
    carried: dict[str, list[Evidence]] = {}
    for row in _rows(case, "torch-bundles-nccl"):
        version = row.needs["nccl"].text.removeprefix("==")
        if version[:1].isdigit() and any(row.when["torch"].contains(r.version) for r in admitted):
            carried.setdefault(version, []).extend(row.evidence)
    return carried


def _cuda_of(case: Case, release: Release) -> str | None:
    platform = case.library.platform
    for row in _rows(case, "torch-bundles-cuda"):
        if row.when["torch"].contains(release.version) and (not row.platforms or platform in row.platforms):
            text = row.needs["cuda"].text.removeprefix("==").removesuffix(".*")
            return text if text[:1].isdigit() else None
    return None


def _rows(case: Case, rule: str) -> Iterator[Row]:
    return (row for r in case.knowledge.rules if r.id == rule for row in r.rows)
