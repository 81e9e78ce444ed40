"""``tested/<framework>.yaml`` from a checkout: what a framework's repository runs, compiles or locks, tag by tag.

No artifact of the package index holds these files, so the person who refreshes names a clone. Git is only asked to show
files; nothing of the clone is run. What is left out: a torch that the release itself excludes, and what a line says
already.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from envsmith.base.git import git
from envsmith.errors import DataError, UsageError
from envsmith.frameworks import FRAMEWORKS
from envsmith.frameworks.framework import Checkout, ToolkitTable
from envsmith.lock.index.distribution import ReleaseFacts
from envsmith.matrix.refresh.line_table import LineTable, flow, parse_record
from envsmith.model.version import Spec

_MAX_FILE = 16 << 20
_MAX_TAGS = 5000


def checkouts() -> dict[str, Checkout]:
    """Return the repositories that are read, by framework."""
    return {name: f.checkout for name, f in FRAMEWORKS.items() if f.checkout is not None}


def _git(folder: Path, command: str, *words: str) -> str | None:
    """Return what git prints, or ``None`` when it says no. ``UsageError`` when the folder is not a repository."""
    try:
        answer = git(folder, command, *words)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"Cannot run git in {folder}: {error}.", hint="Install git.") from None
    if answer.returncode == 128 and "not a git repository" in answer.stderr:
        raise UsageError(
            f"Cannot read {folder}: it is not a git repository.",
            hint="Give --checkout NAME=FOLDER a clone with its tags.",
        )
    if answer.returncode != 0 or len(answer.stdout) > _MAX_FILE:
        return None
    return answer.stdout


def _tags(folder: Path, pattern: str) -> dict[str, str]:
    """Release -> tag, for the tags that name one."""
    listed = (_git(folder, "tag", "--list") or "").splitlines()[:_MAX_TAGS]
    tags = {m[1]: tag for tag in listed if (m := re.fullmatch(pattern, tag))}
    return dict(sorted(tags.items(), key=lambda pair: Version(pair[0])))


def _sort_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sort the oldest release first, then by torch, CUDA, kind. A spec sorts by the first version in it."""

    def version(text: object) -> Version:
        match = re.search(r"\d+(\.\d+)*", str(text))
        try:
            return Version(match[0]) if match else Version("0")
        except InvalidVersion:
            return Version("0")

    return version(row["version"]), version(row["torch"]), version(row.get("cuda", "0")), str(row.get("kind", "ci"))


def _covered(table: LineTable, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the line that says the same already."""
    for line in table.records:
        if line.get("kind", "ci") != row["kind"] or line.get("cuda") != row.get("cuda") or "python" in line:
            continue
        if Spec.parse(str(line["version"])).contains(row["version"]) and Spec.parse(str(line["torch"])).contains(
            row["torch"]
        ):
            return line
    return None


def _admitted(requires: Mapping[str, Spec], row: Mapping[str, Any]) -> bool:
    """Return whether the release itself allows that torch: otherwise pip replaces it while installing."""
    bound = requires.get(row["version"])
    return bound is None or bound.contains(row["torch"])


def _bounds(releases: Iterable[Mapping[str, Any]]) -> dict[str, Spec]:
    bounds = {str(r["version"]): (r.get("requires") or {}).get("torch") for r in releases}
    return {v: Spec.parse(str(text)) for v, text in bounds.items() if text}


def update_tested(table: LineTable, releases: LineTable, framework: str, folder: Path, day: str) -> list[str]:
    """Add what the tags of a clone say and the table does not. ``releases`` are those of the framework.

    Only releases that the package index or the table has are looked at. Raises ``UsageError`` for what is not a clone,
    ``DataError`` when it has no such tag.
    """
    checkout = checkouts()[framework]
    tags = _tags(folder, checkout.tag)
    if not tags:
        raise DataError(
            f"Cannot read {folder}: it has no tag like {checkout.tag}.",
            hint=f"Fetch the tags of {checkout.repository}.",
        )
    bounds = _bounds(releases.records)
    versions = {str(r["version"]) for r in (*releases.records, *table.records)}
    summary = []
    for version, tag in tags.items():
        for source in checkout.files:
            key = f"v{version.replace('.', '_')}_{source.key}"
            if version not in versions:
                continue
            text = _git(folder, "show", f"{tag}:{source.path}")
            rows = [{"version": version, **row} for row in source.rows(text or "")]
            new = [r for r in rows if _admitted(bounds, r) and _covered(table, r) is None]
            if new and key not in table.named:
                commit = (_git(folder, "rev-parse", "--short=12", f"{tag}^{{commit}}") or "").strip()
                commit_source = f"{checkout.repository} {source.path} @{tag} ({commit})"
                table.named[key] = {"kind": "documented", "source": commit_source, "date": day, "note": source.note}
                table.add_evidence(key)
            for row in new:
                table.insert({**row, "evidence": key}, _sort_key)
                summary.append(f"{framework} {version} with torch {row['torch']}: new, from {source.path}")
    return summary


# The rows of the rule about the toolkits that a framework compiles with, release by release.
#
# The rule is written by people; here only its rows follow the table in the sources of releases that were read. A
# release whose table says what the rows say already changes nothing. Otherwise the rows of that CUDA major end before
# it, and new ones begin with it.


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
