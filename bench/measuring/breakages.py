"""Sets that a source says break, each with the nearest set that it says works, through ``check`` as the command line asks it.

A record is `bad` (requirements that do not work together), `good` (those that do), or both. A bad set is caught by an error or a warning that names every
one of its packages (or those of `culprit`). It is *elsewhere* when only findings about others speak, *unknown* when ``check`` says so, *missed*
when it says that nothing speaks against it. Any error on a good set is a false alarm.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envsmith.cli.values import parse_extras, parse_pairs, parse_platform
from envsmith.doctor.read.lines import component_of
from envsmith.knowledge.graph.load import components
from envsmith.model.finding import Finding, Judgement
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Severity
from envsmith.project.published.judge_published import judge_published
from envsmith.solver import check
from measuring.judging import grave, names_culprit
from measuring.telling import rate

__all__ = ["Breakage", "judge_breakage", "show_breakages", "summarize"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Breakage:
    """One record judged: `outcome` of its bad set, errors on its good one."""

    record: Mapping[str, Any]
    bad: Judgement | None
    good: Judgement | None
    outcome: str

    @property
    def alarms(self) -> list[Finding]:
        return grave([self.good], worst=True) if self.good else []


def judge_breakage(record: Mapping[str, Any], *, index: bool = False) -> Breakage:
    """Judge a record's sets. With ``index`` the package index is asked as ``check --index`` does."""
    bad, good = (_judged(record.get(side), record, index=index) for side in ("bad", "good"))
    wanted = record.get("culprit") or [r.partition("==")[0].partition("[")[0] for r in record.get("bad") or ()]
    names = frozenset(component_of(name) or normal_name(name) for name in wanted)
    return Breakage(record=record, bad=bad, good=good, outcome=_outcome(bad, names) if bad else "")


def _judged(requirements: Sequence[str] | None, record: Mapping[str, Any], *, index: bool) -> Judgement | None:
    if not requirements:
        return None
    versions, platform = parse_pairs(requirements, components()), parse_platform(record.get("platform", "linux-64"))
    judgement = check(versions, platform=platform)
    if not index:
        return judgement
    extras = parse_extras(requirements, components())
    return judge_published(versions, judgement, platform, reads_measured=True, extras=extras)


def _outcome(judgement: Judgement, wanted: frozenset[str]) -> str:
    for severity in (Severity.ERROR, Severity.WARNING):
        if names_culprit([f for f in judgement.findings if f.severity is severity], wanted):
            return str(severity.value)
    if grave([judgement]):
        return "elsewhere"
    return "unknown" if judgement.status == "unknown" else "missed"


def summarize(rows: Sequence[Breakage]) -> dict[str, str]:
    """Count outcomes and false alarms, over all and by kind."""
    bad = [row for row in rows if row.bad]
    neighbours, healthy = ([row for row in rows if row.good and bool(row.bad) is is_bad] for is_bad in (True, False))
    counted = Counter(row.outcome for row in bad)
    summary = {"bad sets caught": rate(counted["error"] + counted["warning"], len(bad))}
    summary |= {f"  {o}": str(counted[o]) for o in ("error", "warning", "elsewhere", "unknown", "missed")}
    for what, some in (("good neighbours", neighbours), ("healthy sets", healthy)):
        summary[f"{what} with an error"] = rate(sum(1 for row in some if row.alarms), len(some))
        warned = [row for row in some if row.good and not row.alarms and grave([row.good])]
        summary[f"  {what} with a warning only"] = rate(len(warned), len(some))
    kinds: defaultdict[str, list[Breakage]] = defaultdict(list)
    for row in bad:
        kinds[row.record["kind"]].append(row)
    for kind, some in sorted(kinds.items(), key=lambda item: -len(item[1])):
        summary[f"caught, {kind}"] = rate(sum(1 for row in some if row.outcome in {"error", "warning"}), len(some))
    return summary


def show_breakages(rows: Iterable[Breakage]) -> None:
    """Print every record, with what was found."""
    for row in rows:
        print(
            f"\n{row.outcome or 'healthy':9} {row.record['kind']:9} {' '.join(row.record['bad'] or row.record['good'])}"
        )
        for side, judgement in (("bad", row.bad), ("good", row.good)):
            for finding in judgement.findings if judgement else ():
                print(f"    {side}: {finding.severity.value} {finding.rule}: {finding.message[:150]}")
            for note in judgement.unknown if judgement else ():
                print(f"    {side}: not known: {note}")
