"""Environment variables: set here and not there, or set and read by nobody."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from envsmith.preflight.finding import NOTE, WARNING, Facts, Finding, has, name_of, odd_ones
from envsmith.preflight.known import Known, version_key

__all__ = ["variables"]

# Variables that may differ between ranks or nodes of a healthy job.
_PER_RANK = re.compile(
    r"NCCL_HOSTID|CUDA_VISIBLE_DEVICES|\w*_FILE|\w*_DIR|CUDA_(HOME|PATH)\w*|CUDA_MPS\w*|TORCH_\w*_PORT|TORCH_HOME"
)


def variables(facts: Sequence[Facts], data: Known) -> list[Finding]:
    """Variables that no release here reads, and those that are not the same on all ranks."""
    by_text: dict[tuple[str, str], list[int]] = {}
    for f in facts:
        for name in f.get("env", {}):
            text = _not_read(name, f, data)
            if text:
                by_text.setdefault(text, []).append(int(f["rank"]))
    found = [
        Finding(
            check="variables",
            severity=severity,
            ranks=tuple(ranks),
            message=f"{name_of(facts, ranks)} {'sets' if len(ranks) == 1 else 'set'} {text}",
        )
        for (severity, text), ranks in by_text.items()
    ]
    names = sorted({n for f in facts for n in f.get("env", {}) if not _PER_RANK.fullmatch(n)})
    for name in names:
        for ranks, theirs, common in odd_ones(facts, lambda f, n=name: f["env"].get(n)):  # type: ignore[misc]
            have = f"{name}={_short(theirs)}" if theirs is not None else f"no {name}"
            rest = _short(common) if common is not None else "do not set it"
            found.append(
                Finding(
                    check="variables",
                    severity=WARNING,
                    ranks=tuple(ranks),
                    message=f"{name_of(facts, ranks)} {has(ranks)} {have}, the others {rest}",
                    fix="export it on every node (or on none)",
                )
            )
    return found


def _short(value: object) -> str:
    text = re.sub(r"[\x00-\x1f\x7f]", "?", str(value))
    return text if len(text) <= 60 else text[:57] + "..."


def _not_read(name: str, f: Facts, data: Known) -> tuple[str, str] | None:
    """A variable that is set and that nothing here reads: it says what was meant, and does nothing."""
    line = data.variables.get(name)
    if line is None:
        close = difflib.get_close_matches(name, data.variables, 1, 0.9) if name.startswith("NCCL_") else []
        return (NOTE, f"{name}, which no NCCL that we know reads; {close[0]} was meant?") if close else None
    reads, since, until, renamed = line
    have = (f.get("nccl_runtime") or f.get("nccl")) if reads == "nccl" else f.get(str(reads))
    have = have or f.get("installed", {}).get(reads)
    if not have:
        return None
    instead = f"; {renamed} counts now" if renamed else ""
    if until and version_key(have) >= version_key(until):
        return WARNING, f"{name}, which {reads} no longer reads from {until} on (here is {have}){instead}"
    if since and version_key(have) < version_key(since):
        return WARNING, f"{name}, which {reads} reads only from {since} on (here is {have}){instead}"
    return None
