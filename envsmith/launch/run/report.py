"""What is said of a launch: a block for people, an object for programs, a report in the form that CI systems read."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

from envsmith.base.json_types import JsonFields
from envsmith.base.schema import to_json
from envsmith.base.text import clean, without_secrets
from envsmith.launch.ranks.causes import Blame, Cause
from envsmith.launch.ranks.differences import different_environments
from envsmith.launch.ranks.evidence import LaunchEvidence, RankEvidence

_MOST_FACTS = 8


def block(blame: Blame | None, evidence: LaunchEvidence, folder: Path | None) -> str:
    """Return the block as lines."""
    return "\n".join(_lines(blame, evidence, folder))


def _lines(blame: Blame | None, evidence: LaunchEvidence, folder: Path | None) -> Iterator[str]:
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
    for event in evidence.events:
        if event.kind == "attempt" and event.text.partition(":")[0] != f"attempt {evidence.attempt}":
            yield f"  {event.text}"
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


def _ended(evidence: LaunchEvidence) -> str:
    count, code = len(evidence.ranks), evidence.launcher.code if evidence.launcher else None
    what = f"the launch of {count} rank{'' if count == 1 else 's'}" if count else "the command"
    if code is not None and code < 0:
        return f"a signal ended {what}"
    return f"{what} ended with exit code {code}"


def _headline(blame: Blame | None, evidence: LaunchEvidence) -> str:
    if evidence.stalled:
        still = f"no rank of {len(evidence.ranks)} has called a collective for {evidence.stalled:.0f} s"
        if blame is None or not any(one.calls for one in evidence.ranks):
            return f"note: {still}"
        return f"{'hang' if blame.is_hang else 'waiting'}: {still}"
    if blame and blame.cause is Cause.SLOW:
        return "note: one rank is slow"
    if evidence.launcher and evidence.launcher.code is None:
        return f"attempt {evidence.attempt} of {len(evidence.ranks)} ranks failed, and the launcher starts them again"
    ending_text = _ended(evidence)
    if blame and blame.is_hang:
        return f"{ending_text}, after it stood still"
    if evidence.is_interrupted:
        return f"{ending_text}, after it was interrupted"
    if not evidence.ranks:
        return f"{ending_text}, and no rank was seen"
    return ending_text if blame else f"{ending_text}, and the evidence does not say which rank was first"


def launch_json(status: int, blame: Blame | None, evidence: LaunchEvidence, folder: Path | None) -> JsonFields:
    """Return what ``run --json`` prints: the launcher's end, the verdict, and how each rank ended."""
    return {
        "status": "failed" if status else "ok",
        "exit_code": 128 - status if status < 0 else status,
        "verdict": to_json(blame) if blame else None,
        "ranks": [
            {
                "rank": one.rank,
                "host": one.host,
                "exit_code": one.exit.code if one.exit else None,
                "error": one.error.error if one.error else None,
                "place": one.error.place if one.error else None,
            }
            for one in evidence.ranks
        ],
        "evidence": str(folder) if folder else None,
    }


def junit(status: int, blame: Blame | None, evidence: LaunchEvidence) -> str:
    """Return JUnit XML: a case for the launch and one for each rank.

    The ranks that are blamed fail. Others that ended badly are skipped: their end follows from that.
    """
    suite = ET.Element("testsuite", name="envsmith run", errors="0")
    launch = ET.SubElement(suite, "testcase", classname="envsmith run", name="launch")
    if status:
        text = blame.message if blame else "The evidence does not say which rank was first."
        _failure(launch, blame, f"exit code {status}: {text}")
    for one in evidence.ranks:
        case = ET.SubElement(suite, "testcase", classname=one.host or "envsmith run", name=f"rank {one.rank}")
        if blame and one.rank in blame.ranks:
            _failure(case, blame, blame.message)
        elif status and _ended_badly(one):
            ET.SubElement(case, "skipped", message="its end follows from that of another rank")
    counts = {kind: str(sum(1 for _ in suite.iter(kind))) for kind in ("testcase", "failure", "skipped")}
    suite.attrib.update(tests=counts["testcase"], failures=counts["failure"], skipped=counts["skipped"])
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + clean(ET.tostring(suite, encoding="unicode")) + "\n"


def _failure(case: ET.Element, blame: Blame | None, message: str) -> None:
    failure = ET.SubElement(case, "failure", message=without_secrets(message), type=blame.kind if blame else "unknown")
    if blame:
        place = [f"place: {blame.place}"] if blame.place else []
        failure.text = without_secrets("\n".join([*blame.evidence, *place, f"next: {blame.fix}"]))


def _ended_badly(one: RankEvidence) -> bool:
    return one.error is not None or bool(one.exit and one.exit.code)
