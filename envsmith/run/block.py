"""What is printed when a launch fails or stands still: one block, with the rank, the place, the cause and the proof."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from envsmith.ranks.blame import Blame, Cause
from envsmith.ranks.differences import different_environments
from envsmith.ranks.evidence import Evidence

_MOST_FACTS = 8
_MOST_EVENTS = 6


def block(blame: Blame | None, evidence: Evidence, folder: Path | None) -> str:
    """Return the block as lines."""
    return "\n".join(_lines(blame, evidence, folder))


def ending(evidence: Evidence) -> str:
    """Return the line that ends a launch of which a block has said why it stands still."""
    return f"envsmith run: {_ended(evidence)}, after it stood still: see above"


def _lines(blame: Blame | None, evidence: Evidence, folder: Path | None) -> Iterator[str]:
    yield f"envsmith run: {_headline(blame, evidence)}"
    if blame:
        yield f"  {blame.message}"
        if blame.place:
            yield f"  place: {blame.place}"
        yield f"  cause: {blame.cause.value}" + (
            "" if blame.confidence == "high" else f" (confidence {blame.confidence})"
        )
        for fact in blame.evidence[:_MOST_FACTS]:
            yield f"  evidence: {fact}"
    for line in different_environments(evidence.ranks):
        yield f"  differs: {line}"
    for machine in evidence.machines:
        for line in machine.kernel[-3:] if blame and blame.cause.kind == "rank-died" else ():
            yield f"  kernel: {line}"
    if blame:
        yield f"  next: {blame.fix}"
    elif not evidence.ranks:
        yield "  next: Read what the launcher printed. If ranks did start, give them RANK, and a Python that reads PYTHONPATH."
    for line in evidence.unread:
        yield f"  not read: {line}"
    if folder:
        yield f"  all evidence: {folder}"


def _ended(evidence: Evidence) -> str:
    count, code = len(evidence.ranks), evidence.launcher.code if evidence.launcher else None
    ranks = f"{count} rank{'' if count == 1 else 's'}"
    if code is not None and code < 0:
        return f"a signal ended the launch of {ranks}"
    return f"the launch of {ranks} ended with exit code {code}"


def _headline(blame: Blame | None, evidence: Evidence) -> str:
    if evidence.stalled:
        still = f"no rank of {len(evidence.ranks)} has called a collective for {evidence.stalled:.0f} s"
        if blame is None or not any(one.calls for one in evidence.ranks):
            return f"note: {still}"
        return f"{'hang' if blame.is_hang else 'waiting'}: {still}"
    if blame and blame.cause is Cause.SLOW:
        return "note: one rank is slow"
    ending_text = _ended(evidence)
    if evidence.is_interrupted:
        return f"{ending_text}, after it was interrupted"
    if not evidence.ranks:
        return f"{ending_text}, and no rank loaded the hook"
    return ending_text if blame else f"{ending_text}, and the evidence does not say which rank was first"
