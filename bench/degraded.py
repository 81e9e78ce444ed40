"""How much of a report may be lost or dressed up before the doctor reads another fault in it, or none.

    python bench/degraded.py CORPUS.jsonl... [--most N] [--only NAME] [--samples N]

Takes the reports that :mod:`bench.doctor` answers rightly, changes their lines as people do who cut, quote and retell them, and counts how many keep
their first rule. A loss is *right* where the line of the message itself is gone: then the text no longer tells the fault.
"""

from __future__ import annotations

import argparse
import html
import json
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import doctor

Lines = list[str]
# Lines and the number of that with the message -> what is left of them.
Degradation = Callable[[Lines, int], Lines]

_KIND = re.compile(r"^\s*(?:E\s+)?(?:[\w.]+\.)?\w*(?:Error|Exception|Warning): ")


def each_line(change: Callable[[str], str]) -> Degradation:
    """Return a degradation that changes every line by itself."""
    return lambda lines, _at: [change(line) for line in lines]


def written_by(writer: str) -> Degradation:
    """Return a degradation that puts the same before every line."""
    return each_line(lambda line: writer + line)


DEGRADATIONS: Mapping[str, Degradation] = {
    "last line dropped": lambda lines, _at: lines[:-1],
    "last three lines dropped": lambda lines, _at: lines[:-3],
    "error line alone": lambda lines, at: [lines[at]],
    "error without its type": lambda lines, at: [_KIND.sub("", lines[at]).strip()],
    "nothing before the error": lambda lines, at: lines[at:],
    "error line first": lambda lines, at: [lines[at], *lines[:at], *lines[at + 1 :]],
    "one line": lambda lines, _at: [" ".join(line.strip() for line in lines)],
    "joined by /": lambda lines, _at: [" / ".join(line.strip() for line in lines)],
    "escaped newlines": lambda lines, _at: ["\\n".join(lines)],
    "200 characters of a line": each_line(lambda line: line[:200]),
    "quoted": written_by("> "),
    "[rank0]:": written_by("[rank0]: "),
    "stderr:": written_by("stderr: "),
    "time of a log": written_by("2026-11-28 10:15:02,123 - ERROR - "),
    "time in brackets": written_by("[2026-11-28 10:15:02] "),
    "pytest": written_by("E       "),
    "row of a table": each_line(lambda line: f"| {line} |"),
    "curly quotes": each_line(
        lambda line: re.sub(r"'([^']*)'", "\u2018\\1\u2019", re.sub(r'"([^"]*)"', "\u201c\\1\u201d", line))
    ),
    "grave accents": each_line(lambda line: line.replace("'", "`")),
    "entities": each_line(html.escape),
    "no quotes": each_line(lambda line: re.sub(r"['\"`]", "", line)),
}


@dataclass(slots=True)
class Count:
    """How many reports kept their first rule, lost it though the message stands there, or lost the message."""

    kept: int = 0
    lost: list[str] = field(default_factory=list)
    gone: int = 0

    @property
    def share(self) -> float:
        """Return the share of the reports whose message stands there that kept their rule."""
        return self.kept / max(1, self.kept + len(self.lost))


@dataclass(frozen=True, slots=True)
class Report:
    """A record that is answered rightly: its lines, the number of the line of the message, and its first rule."""

    record: dict[str, Any]
    lines: Lines
    at: int
    rule: str

    @classmethod
    def of(cls, record: dict[str, Any]) -> Report | None:
        """Return the report of a record, or ``None`` where it is not answered rightly from one of its lines."""
        if record.get("negative") or not record.get("evaluable", True) or not record.get("error_lines"):
            return None
        first = doctor.first_of(doctor.judge(record))
        if first is None or not first.quote or not doctor.same_cause(first, record):
            return None
        lines = [line for each in record["error_lines"] for line in each.split("\n")]
        at = next((number for number, line in enumerate(lines) if first.quote in line), None)
        return None if at is None else cls(record, lines, at, first.finding.rule)

    def judge(self, degradation: Degradation) -> tuple[str | None, str]:
        """Return the first rule of the degraded report, and its text."""
        lines = degradation(self.lines, self.at)
        first = doctor.first_of(doctor.judge({**self.record, "error_lines": lines}))
        return first.finding.rule if first else None, "\n".join(lines)


def count(reports: Sequence[Report], degradation: Degradation) -> Count:
    """Judge every report in one degraded form."""
    counts = Count()
    for report in reports:
        rule, text = report.judge(degradation)
        if rule == report.rule:
            counts.kept += 1
        elif degradation(["" if number == report.at else "x" for number in range(len(report.lines))], report.at).count(
            "x"
        ) == len(degradation(["x"] * len(report.lines), report.at)):
            counts.gone += 1
        else:
            counts.lost.append(f"{report.record['id']}: {report.rule} -> {rule}: {text[-300:]!r}")
    return counts


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpora", type=Path, nargs="+")
    parser.add_argument("--most", type=int, default=250, help="how many reports are drawn")
    parser.add_argument("--only", choices=DEGRADATIONS, help="one degradation")
    parser.add_argument("--samples", type=int, default=0, help="how many losses of each are shown")
    options = parser.parse_args(argv)
    records = [
        json.loads(line) for corpus in options.corpora for line in corpus.read_text().splitlines() if line.strip()
    ]
    random.Random(1).shuffle(records)
    reports = [report for record in records[: options.most] if (report := Report.of(record))]
    print(f"{len(reports)} reports\n{'':<26} kept lost gone share")
    for name, degradation in DEGRADATIONS.items():
        if options.only in {None, name}:
            counts = count(reports, degradation)
            print(f"{name:<26} {counts.kept:>4} {len(counts.lost):>4} {counts.gone:>4} {counts.share:>5.0%}")
            print("".join(f"  {loss}\n" for loss in counts.lost[: options.samples]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
