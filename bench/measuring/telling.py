"""The rows of a run as a summary, a table by cause, and lists of what was missed and what was a false alarm."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envsmith.model.finding import Finding
from envsmith.model.rule import Severity
from measuring.healthy import HealthyCell
from measuring.judging import Row, grave


def rate(good: int, of: int) -> str:
    return f"{good}/{of} = {100 * good / max(1, of):.1f} %"


def alarms_of(row: Row, *, worst: bool = False) -> list[Finding]:
    """Findings on a negative record, from what its environment and its culprit's place say."""
    wanted = {Severity.ERROR} if worst else {Severity.ERROR, Severity.WARNING}
    return [f for f in row.findings if f.severity in wanted]


def _rounds(rows: Sequence[Row]) -> dict[str, str]:
    return {
        "env alone": rate(sum(1 for r in rows if r.env), len(rows)),
        "env + pasted report": rate(sum(1 for r in rows if r.report), len(rows)),
        "env + culprit's range": rate(sum(1 for r in rows if r.filled), len(rows)),
    }


def summary(rows: Sequence[Row], negatives: Sequence[Row], cells: Sequence[HealthyCell]) -> dict[str, str]:
    versioned = [r for r in rows if r.versioned]
    other = [r for r in rows if not r.versioned]
    settled = [r for r in rows if r.record.get("resolution_source") != "inferred"]
    allowed = [c for c in cells if c.declared]
    bad = [c for c in allowed if c.alarms]
    warned = [c for c in allowed if not c.alarms and grave([c.judgement])]
    alarms = [r for r in negatives if alarms_of(r, worst=True)]
    mild = [r for r in negatives if not alarms_of(r, worst=True) and alarms_of(r)]
    found = {"records that the environment can reveal (env or both, evaluable)": str(len(rows))}
    for what, some in (
        ("all records", rows),
        (f"matters of versions ({len(versioned)})", versioned),
        (f"other facts ({len(other)})", other),
        (f"all but inferred resolutions ({len(settled)})", settled),
    ):
        found |= {f"caught, {what}, {column}": value for column, value in _rounds(some).items()}
    hows = Counter(r.how.split(" (")[0].split(" of ")[0] if r.how != "culprit" else r.how for r in rows if r.filled)
    return found | {
        "  of the third round: with what the culprit names": str(hows["culprit"]),
        "  of the third round: with the newest release of the report's day": str(hows["newest release"]),
        "  of the third round: with some release in the range": str(hows["some release"]),
        "  with an error, not only a warning": rate(sum(1 for r in rows if r.error), len(rows)),
        "  by a rule that the taxonomy gives this very cause": rate(sum(1 for r in rows if r.exact), len(rows)),
        "false alarms on negatives (errors)": rate(len(alarms), len(negatives)),
        "  negatives with a warning only": rate(len(mild), len(negatives)),
        "false alarms on healthy cells (errors)": rate(len(bad), len(allowed)),
        "  healthy cells with a warning only": rate(len(warned), len(allowed)),
        "  cells left out, for the metadata of the release itself forbids their torch": str(len(cells) - len(allowed)),
    }


def per_cause(rows: Sequence[Row]) -> dict[str, Counter[str]]:
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        table[row.record["cause_key"]].update(
            {
                "n": 1,
                "env": bool(row.env),
                "report": bool(row.report),
                "caught": bool(row.filled),
                "missed": not row.filled,
            }
        )
    return dict(sorted(table.items()))


def tell(rows: Sequence[Row], negatives: Sequence[Row], cells: Sequence[HealthyCell], said: Mapping[str, Any]) -> None:
    for key, value in summary(rows, negatives, cells).items():
        print(f"{key}: {value}")
    print(f"\n{'cause':<42}  n  env  report  culprit  missed")
    for cause, c in per_cause(rows).items():
        print(f"{cause:<42} {c['n']:>2} {c['env']:>4} {c['report']:>7} {c['caught']:>8} {c['missed']:>7}")
    print("\nmissed (env + culprit's range):")
    for row in rows:
        if not row.filled:
            print(f"  {row.record['id']} [{row.record['cause_key']}] {sorted(row.wanted)} {row.reason}")
    print("\nfalse alarms:")
    for row in negatives:
        for f in alarms_of(row):
            print(f"  {row.record['id']} {f.severity.value} {f.rule} {dict(f.components)}")
    for cell in cells:
        for f in cell.alarms if cell.declared else ():
            print(f"  {dict(cell.given)} {cell.kind} {f.rule}: {f.message[:160]}")
    print("\nwarnings on healthy cells, by rule:")
    warned = Counter(f.rule for c in cells for f in c.judgement.findings if f.severity is Severity.WARNING)
    for rule, n in warned.most_common():
        print(f"  {n:>4} {rule}")
    for peer, counts in said.items():
        print(
            f"\n{peer} on the same sets (refused: no versions fit; failed: another error, mostly a source that does not build):"
        )
        for verdict, n in sorted(counts.items()):
            print(f"  {n:>4} {verdict}")


def show(rows: Iterable[Row]) -> None:
    """Every record with its set and findings."""
    for row in rows:
        print(f"\n{row.record['id']} [{row.record['cause_key']}] culprit {sorted(row.wanted)}")
        print(
            f"  sets {list(map(dict, row.sets))}\n  env={row.env} report={row.report} filled={row.filled} by {row.how} {row.reason}"
        )
        for f in row.findings:
            print(f"    {f.severity.value:<7} {f.rule} {dict(f.components)} {f.message[:110]}")
