"""From every rank's facts to findings: pure, the same on every rank, so that all of them stop with the same sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envsmith.preflight.finding import ERROR, NOTE, WARNING, Facts, Finding
from envsmith.preflight.gpus import gpus
from envsmith.preflight.known import Known, known
from envsmith.preflight.machine import limits, memory
from envsmith.preflight.variables import variables
from envsmith.preflight.versions import drivers, expected, nccl, versions

__all__ = ["findings_of"]


def findings_of(
    facts: Sequence[Facts],
    *,
    expect: Mapping[str, str] | None = None,
    min_gpu_free: int = 0,
    knowledge: Known | None = None,
) -> list[Finding]:
    """Every finding, errors first. ``expect`` maps a component (torch, nccl, a package) to the version that must be loaded."""
    data = knowledge or known()
    found = [
        *versions(facts),
        *expected(facts, expect or {}),
        *nccl(facts),
        *drivers(facts, data),
        *gpus(facts, min_gpu_free),
        *memory(facts),
        *limits(facts),
        *variables(facts, data),
    ]
    return sorted(found, key=lambda f: (ERROR, WARNING, NOTE).index(f.severity))
