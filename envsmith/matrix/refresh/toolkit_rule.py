"""The rows of the rule about the toolkits that a framework compiles with (``rules/toolkit.yaml``), release by release.

The rule is written by people; here only its rows follow the table in the sources of releases that were read. A release
whose table says what the rows say already changes nothing. Otherwise the rows of that CUDA major end before it, and new
ones begin with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from envsmith.errors import DataError
from envsmith.frameworks.framework import ToolkitTable
from envsmith.lock.index.distribution import ReleaseFacts
from envsmith.matrix.refresh.line_table import flow, parse_record
from envsmith.model.version import Spec


@dataclass(frozen=True, slots=True)
class _Row:
    framework: str
    text: str
    data: Mapping[str, Any]

    def speaks_of(self, release: str, cuda: str) -> bool:
        when = self.data["when"]
        return Spec.parse(when[self.framework]).contains(release) and Spec.parse(when["cuda"]).contains(cuda)

    def ended_before(self, release: str) -> str:
        name, old = self.framework, self.data["when"][self.framework]
        text = self.text.replace(f'{{when: {{{name}: "{old}"', f'{{when: {{{name}: "{old},<{release}"', 1)
        if text == self.text:
            raise DataError(
                f"Cannot edit rules/toolkit.yaml: {flow(self.data)[:80]} has another form.",
                hint=f'Write it as {{when: {{{name}: ">=…", cuda: …}}.',
            )
        return text


def accepts(rows: Iterable[_Row], release: str, cuda: str, toolkit: str) -> bool:
    """Return whether the rows allow an op that ``release`` compiles with ``toolkit`` for a torch of ``cuda``."""
    needs = [row.data["needs"]["toolkit"] for row in rows if row.speaks_of(release, cuda)]
    return all(Spec.parse(spec).contains(toolkit) for spec in needs)


def _table_accepts(minors_of: Mapping[str, Sequence[str]], cuda: str, toolkit: str) -> bool:
    """Return what the framework's own check says: the same minor, or both in the table of their major."""
    minors = minors_of.get(cuda.partition(".")[0], ())
    return cuda == toolkit or (cuda in minors and toolkit in minors)


def _differing(
    rows: Sequence[_Row], release: str, minors_of: Mapping[str, Sequence[str]], minors: Sequence[str]
) -> list[str]:
    """Return the CUDA majors of which rows and table do not say the same."""
    majors = dict.fromkeys(m.partition(".")[0] for m in minors)
    return [
        major
        for major in majors
        if any(
            accepts(rows, release, cuda, toolkit) != _table_accepts(minors_of, cuda, toolkit)
            for cuda in minors
            if cuda.startswith(major + ".")
            for toolkit in minors
        )
    ]


@dataclass(frozen=True, slots=True)
class ToolkitRule:
    """The rule about the toolkits of ``framework`` in ``rules/toolkit.yaml``, which follows ``table``."""

    framework: str
    table: ToolkitTable

    def rows(self, lines: Sequence[str]) -> list[tuple[int, _Row]]:
        """Return line number and row of each row. ``DataError`` when the rule is missing or a row is not one line."""
        start = next((i for i, line in enumerate(lines) if line.strip() == f"- id: {self.table.rule}"), None)
        if start is None:
            raise DataError(
                f"Cannot edit rules/toolkit.yaml: it has no rule {self.table.rule}.",
                hint="Put it back, or take the builder out of the refresh.",
            )
        rows = []
        for i in range(start + 1, len(lines)):
            if lines[i].startswith("- id: "):
                break
            if lines[i].startswith("  - {when:"):
                data = parse_record(lines[i][4:], f"rules/toolkit.yaml:{i + 1}")
                rows.append((i, _Row(self.framework, lines[i], data)))
        return rows

    def update(
        self, text: str, read: Mapping[str, ReleaseFacts], releases: Iterable[str], minors: Iterable[str], day: str
    ) -> tuple[str, list[str], list[str]]:
        """Return the text of ``rules/toolkit.yaml`` after the tables in ``read``, what changed, what could not be done.

        ``releases`` are all that the matrix lists, ``minors`` the CUDA minors (``12.8``). A row that ends before a
        release ends for all later ones too, so a table is only followed when every later release was read as well.
        Releases without a table say nothing. A minor that no row speaks of is newer than every table that was read: it
        goes with itself alone.
        """
        rule, name = self.table.rule, self.framework
        all_minors = sorted({m for m in minors if re.fullmatch(r"\d+\.\d+", m)}, key=Version)
        text, summary = self._with_new_minors(text, all_minors)
        newest_unread = max((Version(v) for v in releases if v not in read), default=Version("0"))
        doubts: list[str] = []
        for release in sorted((v for v, f in read.items() if f.cuda_minors), key=Version):
            minors_of = read[release].cuda_minors
            listed = sorted({*all_minors, *(m for ms in minors_of.values() for m in ms)}, key=Version)
            rows = [row for _, row in self.rows(text.split("\n"))]
            for major in _differing(rows, release, minors_of, listed):
                if Version(release) < newest_unread:
                    doubts.append(
                        f"{rule}: {name} {release} has another table for CUDA {major} than the rows say; edit them by hand"
                    )
                    continue
                of_major = [m for m in listed if m.startswith(major + ".")]
                text = self._followed(text, release, read[release], of_major, day)
                summary.append(f"{rule}: from {name} {release} on another table for CUDA {major}")
        return text, summary, doubts

    def _with_new_minors(self, text: str, minors: Sequence[str]) -> tuple[str, list[str]]:
        lines = text.split("\n")
        numbered = self.rows(lines)
        specs = [Spec.parse(row.data["when"]["cuda"]) for _, row in numbered]
        new = [m for m in minors if not any(spec.contains(m) for spec in specs)]
        last = max((i for i, _ in numbered), default=len(lines) - 1)
        lines[last + 1 : last + 1] = [self._row_text(self.table.since, m, "") for m in new]
        return "\n".join(lines), [f"{self.table.rule}: CUDA {m} is new and goes with its own toolkit" for m in new]

    def _followed(self, text: str, release: str, facts: ReleaseFacts, minors: Sequence[str], day: str) -> str:
        """Return the text in which the rows for ``minors`` of one major end before ``release`` and new ones begin."""
        lines = text.split("\n")
        numbered = self.rows(lines)
        for i, row in numbered:
            if any(row.speaks_of(release, cuda) for cuda in minors):
                lines[i] = row.ended_before(release)
        last = max((i for i, _ in numbered), default=len(lines) - 1)
        lines[last + 1 : last + 1] = self._new_rows(release, facts, minors, day)
        return "\n".join(lines)

    def _new_rows(self, release: str, facts: ReleaseFacts, minors: Sequence[str], day: str) -> list[str]:
        major = minors[0].partition(".")[0]
        source = f"{self.table.file} in {facts.filename}: {self.table.variable}"
        alike = [m for m in facts.cuda_minors.get(major, ()) if m.startswith(major + ".")]
        groups = [" || ".join(alike)] if alike else []
        groups += [m for m in minors if m not in alike]
        evidence = f', evidence: [{{kind: measured, source: "{source}", date: {day}, sha256: "{facts.sha256}"}}]'
        return [self._row_text(release, group, evidence) for group in groups]

    def _row_text(self, release: str, cuda: str, evidence: str) -> str:
        return (
            f'  - {{when: {{{self.framework}: ">={release}", cuda: "{cuda}"}}, needs: {{toolkit: "{cuda}"}}{evidence}}}'
        )
