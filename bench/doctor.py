"""How well the doctor judges a corpus of real bug reports: right root cause first, right fix, no false alarm; per cause.

    python bench/doctor.py CORPUS.jsonl [--split learn|sealed|fresh|again] [--index] [--json] [--show] [--misses]

Reads of each record what a user could paste (``env``, ``error_lines``, ``env_report``), never its title or its answer; then compares the first
finding with ``cause_key``, ``cause_group``, ``culprit``, ``accepted_fix`` and ``fix_pattern``. Two counts of a right cause: *exact* (the key of the study)
and *equivalent* (the same group of causes and a component of the culprit). *Specific* is a right cause whose ``needs`` (or fix) takes a release of the culprit
that works and none that fails, where the record names them (``releases``). ``also`` of a record holds keys that are as right; ``split`` keeps a part aside until the work is done.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from envsmith.cli.doctor_sources import read_published
from envsmith.doctor.case import PublishedPackages
from envsmith.doctor.diagnosis import Diagnosed, Diagnosis
from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.read import read_texts
from envsmith.doctor.read.pasted import clean
from envsmith.model.rule import Severity
from envsmith.model.version import Spec

WORDS = {
    "the",
    "a",
    "an",
    "or",
    "and",
    "of",
    "in",
    "to",
    "with",
    "for",
    "not",
    "is",
    "on",
    "use",
    "set",
    "same",
    "that",
    "from",
    "it",
    "at",
    "be",
    "by",
    "as",
    "fix",
    "version",
    "install",
    "newer",
    "older",
    "after",
    "before",
    "pip",
}
# The study's key, for the name of a finding since names are measured.
SAME_CLASS = {"name-not-in-release": "package-version-pair"}
ALIAS = {
    "nvcc": "toolkit",
    "cuda toolkit": "toolkit",
    "cuda": "toolkit",
    "cuda_toolkit": "toolkit",
    "flash_attn": "flash-attn",
    "transformer_engine": "transformer-engine",
    "te": "transformer-engine",
    "megatron": "megatron-core",
    "g++": "gcc",
    "gxx": "gcc",
    "pytorch": "torch",
}


def text_of(record: dict[str, Any]) -> str:
    """What the reporter could paste: stated facts as lines, the report, the lines of the log."""
    env = dict(record.get("env") or {})
    name, version = env.pop("framework", None), env.pop("framework_version", None)
    lines = [f"{key}: {value}" for key, value in env.items()]
    if name:
        lines.append(f"{name} version: {version}" if version else f"framework: {name}")
    return "\n".join([*lines, record.get("env_report") or "", *(record.get("error_lines") or [])])


def judge(record: dict[str, Any], published: Callable[[], PublishedPackages] | None = None) -> Diagnosis:
    text = clean(text_of(record))
    return diagnose(read_texts([("report", text)]), [("report", text)], published=published)


def first_of(diagnosis: Diagnosis) -> Diagnosed | None:
    """What a reader sees first: the root, else the first note that the text itself gives."""
    return diagnosis.root or next(iter(diagnosis.diagnosed), None)


def components_of(record: dict[str, Any]) -> set[str]:
    culprit = record.get("culprit") or {}
    words = {ALIAS.get(k, k) for k in culprit if k not in {"component", "range"}}
    return words | set(re.findall(r"[A-Za-z_][\w-]{2,}", str(culprit.get("component", ""))))


def same_cause(first: Diagnosed | None, record: dict[str, Any]) -> str | None:
    if first is None:
        return None
    keys = {record["cause_key"], *record.get("also", ())}
    if first.taxonomy.cause in keys or SAME_CLASS.get(first.taxonomy.cause) in keys:
        return "exact"
    named = {ALIAS.get(w, w) for w in components_of(record)}
    ours = set(first.finding.components) | set(re.findall(r"[A-Za-z_][\w-]{2,}", first.finding.message))
    same_group = first.taxonomy.group == record.get("cause_group")
    strong = named & set(first.finding.components)
    if same_group and (strong or len({w.lower() for w in named} & {w.lower() for w in ours}) >= 2):
        return "equivalent"
    return None


def specs_in(text: str) -> list[tuple[str, Spec]]:
    found = []
    for name, spec in re.findall(r"([A-Za-z][\w.+-]*?(?:\[\w+\])?)\s*((?:(?:[<>=!~]=?|==)\s*\d[\w.]*,?)+)", text):
        try:
            found.append(
                (
                    ALIAS.get(name.lower(), re.sub(r"\[\w+\]", "", name.lower())),
                    Spec.parse(spec.strip(",").replace(" ", "")),
                )
            )
        except ValueError:  # noqa: PERF203 - a handful of texts
            continue
    for name, version in re.findall(r"\b([A-Za-z][\w-]*(?:\+\+)?) (\d+(?:\.\d+){0,2})(?=[\s,;.)]|$)", text):
        try:
            found.append((ALIAS.get(name.lower(), name.lower()), Spec.parse(version)))
        except ValueError:  # noqa: PERF203 - a handful of texts
            continue
    return found


def specific(first: Diagnosed | None, record: dict[str, Any]) -> bool:
    """Whether the finding names releases of a culprit: those that work are in, those that fail are out."""
    good, bad = (record.get("releases", {}).get(side, {}) for side in ("good", "bad"))
    if not good and not bad:
        return True
    if first is None:
        return False
    needs = [(name, Spec.parse(spec)) for name, spec in first.finding.needs.items()]
    return any(
        name in {*good, *bad}
        and (name not in good or spec.contains(good[name]))
        and (name not in bad or not spec.contains(bad[name]))
        for name, spec in needs or specs_in(first.finding.fix or "")
    )


def sample(spec: Spec) -> list[str]:
    numbers = re.findall(r"\d+(?:\.\d+)*", str(spec))
    points = []
    for n in numbers:
        head, _, last = n.rpartition(".")
        nearby = [
            n,
            f"{n}.1",
            f"{head}.{int(last) + 1}" if head else f"{int(last) + 1}.0",
            f"{head}.{max(0, int(last) - 1)}" if head else f"{max(0, int(last) - 1)}.0",
        ]
        points += nearby
    return [*points, "0.1", "1000.0"]


def overlap(a: Spec, b: Spec) -> bool:
    return any(a.contains(v) and b.contains(v) for v in {*sample(a), *sample(b)})


def same_fix(first: Diagnosed | None, diagnosis: Diagnosis, record: dict[str, Any]) -> bool:
    if first is None or "accepted_fix" not in record:
        return False
    ours = " ".join([first.finding.fix or "", *first.lines])
    if diagnosis.repair and first.taxonomy.pattern == "version-and-dependency-management":
        ours += " " + " ".join(f"{c.component}=={c.new}" for c in diagnosis.repair.changes if c.new)
    # An accepted fix names alternatives; one of them is enough.
    return any(
        _same(accepted, ours)
        for accepted in [record["accepted_fix"], *re.split(r"[;,(]?\s*\bor\b|\(|;", record["accepted_fix"])]
        if accepted.strip(" ()")
    )


def _same(accepted: str, ours: str) -> bool:
    wanted, given = specs_in(accepted), specs_in(ours)
    for name, spec in wanted:
        if any(name == other and overlap(spec, mine) for other, mine in given):
            return True
    variables = re.findall(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+", accepted)
    if any(v in ours for v in variables):
        return True
    content = set(re.findall(r"[a-z0-9_./+-]{2,}", accepted.lower())) - WORDS
    mine = set(re.findall(r"[a-z0-9_./+-]{2,}", ours.lower()))
    common = {w for w in content if w in mine or any(len(w) > 3 and (w in m or m in w) for m in mine if len(m) > 3)}
    return bool(content) and len(common) / len(content) >= 0.5


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--split", help="only the records of this part")
    parser.add_argument("--index", action="store_true", help="ask the package index for what was not measured")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--show", action="store_true", help="every record")
    parser.add_argument("--misses", action="store_true", help="records that miss cause or fix")
    options = parser.parse_args(argv)
    records = [json.loads(line) for line in options.corpus.read_text().splitlines() if line.strip()]
    if options.split:
        records = [r for r in records if r.get("split") == options.split]
    started = time.process_time()
    rows = []
    for record in records:
        diagnosis = judge(record, read_published if options.index else None)
        first = first_of(diagnosis)
        rows.append((record, diagnosis, first, same_cause(first, record), same_fix(first, diagnosis, record)))
    seconds = time.process_time() - started
    summary, by_group, by_cause = summary_of(rows, seconds)
    if options.json:
        print(json.dumps({"summary": summary, "groups": by_group, "causes": by_cause}, indent=1, default=dict))
        return 0
    for key, value in summary.items():
        print(f"{key}: {value}")
    for title, table in (("by group of causes", by_group), ("by cause", by_cause)):
        print(f"\n{title:<44} n cause fix")
        for key, counts in sorted(table.items()):
            print(f"  {key:<42} {counts['n']:>2} {counts['cause']:>4} {counts['fix']:>4}")
    if options.show or options.misses:
        for row in rows:
            show(row, always=options.show)
    return 0


def summary_of(
    rows: list[Any], seconds: float
) -> tuple[dict[str, Any], dict[str, Counter[str]], dict[str, Counter[str]]]:
    """The figures of all records together, and counts by group of causes and by cause."""
    evaluable = [r for r in rows if r[0].get("evaluable", True) and not r[0].get("negative")]
    revealed = [r for r in evaluable if r[0].get("detectable_from") != "neither" and text_of(r[0]).strip()]
    told = [r for r in revealed if r[0].get("error_lines") or len(r[0].get("env") or {}) > 1 or r[0].get("env_report")]
    negatives = [r for r in rows if r[0].get("negative")]
    alarms = [r for r in negatives if r[1].worst() is Severity.ERROR]

    def rate(part: list[Any], test: Any) -> str:
        good = sum(1 for r in part if test(r))
        return f"{good}/{len(part)} = {100 * good / max(1, len(part)):.1f} %"

    summary = {
        "records": len(rows),
        "evaluable": len(evaluable),
        "cause exact (evaluable, a text or environment reveals it)": rate(revealed, lambda r: r[3] == "exact"),
        "cause exact or equivalent (the same)": rate(revealed, lambda r: r[3]),
        "fix (the same)": rate(revealed, lambda r: r[4]),
        "cause exact or equivalent (all evaluable)": rate(evaluable, lambda r: r[3]),
        "cause right and specific (all evaluable)": rate(evaluable, lambda r: r[3] and specific(r[2], r[0])),
        "fix (all evaluable)": rate(evaluable, lambda r: r[4]),
        "cause, fix of those with a log line or two facts": rate(told, lambda r: r[3])
        + ", "
        + rate(told, lambda r: r[4]),
        "cause where the resolution was only inferred": rate(
            [r for r in revealed if r[0].get("resolution_source") == "inferred"], lambda r: r[3]
        ),
        "negatives with an error-level finding": f"{len(alarms)}/{len(negatives)}",
        "CPU seconds a record": round(seconds / max(1, len(rows)), 4),
    }
    by_group: dict[str, Counter[str]] = defaultdict(Counter)
    by_cause: dict[str, Counter[str]] = defaultdict(Counter)
    for record, _, _, cause, fix in revealed:
        for table, key in ((by_group, record.get("cause_group", "(no group given)")), (by_cause, record["cause_key"])):
            table[key].update({"n": 1, "cause": bool(cause), "fix": fix})
    return summary, by_group, by_cause


def show(row: Any, *, always: bool) -> None:
    """A record and the first findings on it, when it misses cause or fix or is a false alarm, or ``always``."""
    record, diagnosis, _, cause, fix = row
    bad = record.get("negative") and diagnosis.worst() is Severity.ERROR
    missed = not record.get("negative") and record.get("evaluable", True) and not (cause and fix)
    if not (always or bad or missed):
        return
    print(f"\n{record['id']} [{record['cause_key']}] cause={cause} fix={fix}{' FALSE ALARM' if bad else ''}")
    print(f"  text: {text_of(record)[:300]!r}\n  accepted: {record.get('accepted_fix')}")
    for d in diagnosis.diagnosed[:3]:
        told = f"{d.role:<11} {d.score:>3} {d.finding.severity.value:<7} {d.finding.rule} ({d.taxonomy.cause})"
        print(f"    {told} fix: {(d.finding.fix or '')[:140]}")


if __name__ == "__main__":
    sys.exit(main())
