#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.10"
# dependencies = ["envsmith"]
# [tool.uv.sources]
# envsmith = { path = "..", editable = true }
# ///
"""The tables of a campaign, from its records: what was attempted, how far it came, where run and graph did not agree and what the graph says now.

``python tools/campaign_table.py [NAME …]`` prints them as Markdown. NAME are names of campaigns (default: all records that belong to one).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from envsmith.frameworks import CORE, FRAMEWORKS
from envsmith.knowledge.graph.location import find_matrix
from envsmith.matrix.cells import agreement
from envsmith.model.record import Expected, Record, Rung, read_records
from envsmith.model.version import version_key
from envsmith.solver import check

_LEVELS = {"error": "bad", "warning": "warned"}
_RUNGS = [Rung.LOCKED, Rung.INSTALLED, Rung.IMPORTED, Rung.COLLECTIVES_CPU, Rung.FRAMEWORK_CPU]


def tables(records: Sequence[Record]) -> str:
    """Markdown."""
    return "\n".join(
        [*_totals(records), "", *_torches(records), "", *_rungs(records), "", *_disagreements(records), ""]
    )


def _totals(records: Sequence[Record]) -> list[str]:
    passed = sum(r.passed for r in records)
    lacking = sum(r.of_host for r in records)
    hours = sum(_seconds(r) for r in records) / 3600
    told = Counter((str(r.expected and r.expected.value), r.passed, r.of_host) for r in records)
    sentence = (
        f"{len(records)} cells: {passed} came to the framework's step, {len(records) - passed - lacking} failed, {lacking} could not be shown on "
        f"a host without a GPU; {sum(r.flaky for r in records)} passed only at the second attempt. {hours:.1f} hours of cells, "
        f"{min(r.started for r in records)[:16]} to {max(r.started for r in records)[:16]} UTC."
    )
    lines = [sentence, "", "| the graph said | passed | failed | not shown |", "|---|---|---|---|"]
    for word in ("good", "warned", "unknown", "bad"):
        row = [told[word, True, False], told[word, False, False], told[word, False, True]]
        lines.append(f"| {word} | " + " | ".join(map(str, row)) + " |")
    return lines


def _seconds(record: Record) -> float:
    seconds = record.seconds
    return sum(float(seconds.get(name, 0)) for name in ("lock", "install", "smoke"))


def _torches(records: Sequence[Record]) -> list[str]:
    builds = sorted({r.components["torch"] for r in records}, key=lambda t: version_key(t) or 0)
    frameworks = [name for name in FRAMEWORKS if any(_is_of(r, name) for r in records)]
    lines = [
        "Proved + failed as the graph had said or warned + failed unpredicted, by torch (default builds):",
        "",
        "| torch | " + " | ".join(frameworks) + " |",
        "|---" * (len(frameworks) + 1) + "|",
    ]
    for build in builds:
        rows = ([r for r in records if r.components["torch"] == build and _is_of(r, name)] for name in frameworks)
        lines.append(f"| {build} | " + " | ".join(map(_outcomes, rows)) + " |")
    return lines


def _is_of(record: Record, framework: str) -> bool:
    return framework in record.components and (
        framework != CORE or not set(FRAMEWORKS) - {CORE} & set(record.components)
    )


def _outcomes(records: Sequence[Record]) -> str:
    """Return three numbers. What the host could not show is in none of them."""
    failed = [r for r in records if not r.passed and not r.of_host]
    predicted = sum(r.expected in (Expected.BAD, Expected.WARNED) for r in failed)
    passed = sum(r.passed for r in records)
    return f"{passed} + {predicted} + {len(failed) - predicted}" if records else ""


def _rungs(records: Sequence[Record]) -> list[str]:
    lines = ["| rung | reached | ended here | why, most frequent first |", "|---|---|---|---|"]
    for rung in _RUNGS:
        reached = sum(rung in r.rungs for r in records)
        ended = [r for r in records if r.failure and r.failure.rung is rung]
        why = Counter(_short(r.failure.symptom) for r in ended if r.failure)
        told = "; ".join(f"{n} times `{text}`" if n > 1 else f"`{text}`" for text, n in why.most_common(6))
        lines.append(f"| {rung.value} | {reached} | {len(ended)} | {told} |")
    return lines


def _short(symptom: str) -> str:
    text = re.sub(r"^cell \S+: ", "", symptom.replace("\n", " ")).replace("|", "\\|").replace("`", "'")
    return text if len(text) <= 110 else text[:109] + "…"


def _disagreements(records: Sequence[Record]) -> list[str]:
    """Every cell whose run did not do what the graph said, with what the graph of today says."""
    found = [r for r in records if agreement(r) is False]
    unsure = [r for r in records if agreement(r) is None and not r.passed and not r.of_host]
    if not found and not unsure:
        return ["Run and graph agreed everywhere."]
    lines = [
        f"{len(found)} cells did not do what the graph had said, {len(unsure)} failed where it had not committed itself:",
        "",
        "| cell | then | run | the graph now |",
        "|---|---|---|---|",
    ]
    return [*lines, *(_line(r) for r in [*found, *unsure])]


def _line(record: Record) -> str:
    failure = record.failure
    ran = (
        "passed"
        if record.passed
        else f"{failure.rung.value}: `{_short(failure.symptom)}`"
        if failure
        else "not run to its end"
    )
    judged = check(record.components)
    rules = {level: sorted({f.rule for f in judged.findings if f.severity.value == level}) for level in _LEVELS}
    now = next((f"{word}: {', '.join(rules[level])}" for level, word in _LEVELS.items() if rules[level]), judged.status)
    then = ", ".join([str(record.expected and record.expected.value), *record.rules])
    return f"| `{record.cell}` | {then} | {ran} | {now} |"


def newest(records: Iterable[Record]) -> list[Record]:
    """Of each cell the newest run."""
    last: dict[str, Record] = {}
    for record in sorted(records, key=lambda r: (r.started, r.name)):
        last[record.cell] = record
    return [last[cell] for cell in sorted(last)]


def main(argv: Sequence[str]) -> int:
    """Print the tables."""
    records = newest(
        r for r in read_records(find_matrix() / "records") if r.campaign and (not argv or r.campaign in argv)
    )
    print(tables(records) if records else "no records of a campaign")
    return 0 if records else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
