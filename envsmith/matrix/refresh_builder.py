"""The rows of ``deepspeed-toolkit-cuda``: which toolkits DeepSpeed's op builder takes for which CUDA, release by release.

The rule is written by people; here only its rows follow the table ``cuda_minor_mismatch_ok`` of releases that were read. A release whose table
says what the rows say already changes nothing. Otherwise the rows of that CUDA major end before it, and new ones begin with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from envsmith.errors import DataError
from envsmith.matrix.tables import flow, parse_record
from envsmith.model.version import Spec
from envsmith.sources.distributions import ReleaseFacts

__all__ = ["RULE", "accepts", "rule_rows", "update_builder"]

RULE = "deepspeed-toolkit-cuda"


@dataclass(frozen=True, slots=True)
class _Row:
    text: str
    data: Mapping[str, Any]

    def speaks_of(self, release: str, cuda: str) -> bool:
        when = self.data["when"]
        return Spec.parse(when["deepspeed"]).contains(release) and Spec.parse(when["cuda"]).contains(cuda)


def rule_rows(lines: Sequence[str]) -> list[tuple[int, _Row]]:
    """Line number and row of each row of the rule; ``DataError`` when the rule is not there or a row is not one line."""
    start = next((i for i, line in enumerate(lines) if line.strip() == f"- id: {RULE}"), None)
    if start is None:
        raise DataError(
            f"rules/toolkit.yaml has no rule {RULE}", hint="restore it, or take the builder out of the refresh"
        )
    found = []
    for i in range(start + 1, len(lines)):
        if lines[i].startswith("- id: "):
            break
        if lines[i].startswith("  - {when:"):
            data = parse_record(lines[i][4:], f"rules/toolkit.yaml:{i + 1}")
            found.append((i, _Row(lines[i], data)))
    return found


def accepts(rows: Iterable[_Row], release: str, cuda: str, toolkit: str) -> bool:
    """What the rows say of an op that ``release`` compiles with ``toolkit`` for a torch of ``cuda``."""
    wanted = [row.data["needs"]["toolkit"] for row in rows if row.speaks_of(release, cuda)]
    return all(Spec.parse(spec).contains(toolkit) for spec in wanted)


def _builder_accepts(table: Mapping[str, Sequence[str]], cuda: str, toolkit: str) -> bool:
    """What ``assert_no_cuda_mismatch`` says: the same minor, or both in the table of their major."""
    minors = table.get(cuda.partition(".")[0], ())
    return cuda == toolkit or (cuda in minors and toolkit in minors)


def _differing(
    rows: Sequence[_Row], release: str, table: Mapping[str, Sequence[str]], minors: Sequence[str]
) -> list[str]:
    """The CUDA majors of which rows and table do not say the same."""
    majors = dict.fromkeys(m.partition(".")[0] for m in minors)
    return [
        major
        for major in majors
        if any(
            accepts(rows, release, cuda, toolkit) != _builder_accepts(table, cuda, toolkit)
            for cuda in minors
            if cuda.startswith(major + ".")
            for toolkit in minors
        )
    ]


def _new_rows(release: str, facts: ReleaseFacts, major: str, minors: Sequence[str], day: str) -> list[str]:
    source = f"op_builder/builder.py in {facts.filename}: cuda_minor_mismatch_ok"
    alike = [m for m in facts.cuda_minors.get(major, ()) if m.startswith(major + ".")]
    groups = [" || ".join(alike)] if alike else []
    groups += [m for m in minors if m.startswith(major + ".") and m not in alike]
    said = f'{{kind: measured, source: "{source}", date: {day}, sha256: "{facts.sha256}"}}'
    return [
        f'  - {{when: {{deepspeed: ">={release}", cuda: "{group}"}}, needs: {{toolkit: "{group}"}}, evidence: [{said}]}}'
        for group in groups
    ]


def _ended(row: _Row, release: str) -> str:
    """The row, ending before ``release``."""
    old = row.data["when"]["deepspeed"]
    text = row.text.replace(f'{{when: {{deepspeed: "{old}"', f'{{when: {{deepspeed: "{old},<{release}"', 1)
    if text == row.text:
        raise DataError(
            f"rules/toolkit.yaml: cannot edit {flow(row.data)[:80]}",
            hint='write it as {when: {deepspeed: ">=…", cuda: …}',
        )
    return text


def update_builder(
    text: str, read: Mapping[str, ReleaseFacts], releases: Iterable[str], minors: Iterable[str], day: str
) -> tuple[str, list[str], list[str]]:
    """The text of ``rules/toolkit.yaml`` after the tables of the releases in ``read``, what changed in words, and what could not be done.

    ``releases`` are all that are known, ``minors`` the CUDA minors (``12.8``). A row that ends before a release ends for all later ones too,
    so a table is only followed when every later release was read as well. Releases without a table (before 0.4.0) say nothing. A minor that
    no row speaks of is newer than every table that was read: it goes with itself alone.
    """
    known = sorted({m for m in minors if re.fullmatch(r"\d+\.\d+", m)}, key=Version)
    text, summary = _spoken_of(text, known)
    newest_unread = max((Version(v) for v in releases if v not in read), default=Version("0"))
    doubts: list[str] = []
    for release in sorted((v for v, f in read.items() if f.cuda_minors), key=Version):
        listed = sorted({*known, *(m for ms in read[release].cuda_minors.values() for m in ms)}, key=Version)
        rows = [row for _, row in rule_rows(text.split("\n"))]
        for major in _differing(rows, release, read[release].cuda_minors, listed):
            if Version(release) < newest_unread:
                doubts.append(
                    f"{RULE}: deepspeed {release} has another table for CUDA {major} than the rows say; edit them by hand"
                )
                continue
            there = [m for m in listed if m.startswith(major + ".")]
            text = _followed(text, release, read[release], there, day)
            summary.append(f"{RULE}: from deepspeed {release} on another table for CUDA {major}")
    return text, summary, doubts


def _spoken_of(text: str, minors: Sequence[str]) -> tuple[str, list[str]]:
    """The text with a row for each minor that no row names."""
    lines = text.split("\n")
    numbered = rule_rows(lines)
    specs = [Spec.parse(row.data["when"]["cuda"]) for _, row in numbered]
    new = [m for m in minors if not any(spec.contains(m) for spec in specs)]
    last = max((i for i, _ in numbered), default=len(lines) - 1)
    lines[last + 1 : last + 1] = [
        f'  - {{when: {{deepspeed: ">=0.4.0", cuda: "{m}"}}, needs: {{toolkit: "{m}"}}}}' for m in new
    ]
    return "\n".join(lines), [f"{RULE}: CUDA {m} is new and goes with its own toolkit" for m in new]


def _followed(text: str, release: str, facts: ReleaseFacts, minors: Sequence[str], day: str) -> str:
    """The text in which the rows for ``minors`` (of one major) end before ``release`` and new ones begin with it."""
    lines = text.split("\n")
    numbered = rule_rows(lines)
    for i, row in numbered:
        if any(row.speaks_of(release, cuda) for cuda in minors):
            lines[i] = _ended(row, release)
    last = max((i for i, _ in numbered), default=len(lines) - 1)
    lines[last + 1 : last + 1] = _new_rows(release, facts, minors[0].partition(".")[0], minors, day)
    return "\n".join(lines)
