"""``tested/<framework>.yaml`` from a checkout: what a framework's own repository says it runs, compiles or locks, tag by tag.

No artifact of the package index holds these files, so the person who refreshes names a clone. Git is only asked to show files; nothing of the
clone is run. What is left out: a torch that the release itself excludes, and what a line says already.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from envsmith.errors import DataError, UsageError
from envsmith.matrix.refresh.tables import Table, flow, parse_record
from envsmith.model.version import Spec
from envsmith.python.releases import ReleaseFacts

_MAX_FILE = 16 << 20
_MAX_TAGS = 5000
_Row = dict[str, Any]


def compatibility_rows(text: str) -> list[_Row]:
    """``.compatibility`` of Colossal-AI: ``2.5.1-12.4.1`` a line, torch and the CUDA of the image that its CI uses."""
    pairs = (re.fullmatch(r"\s*(\d+(?:\.\d+){1,3})-(\d+\.\d+)(?:\.\d+)?\s*", line) for line in text.splitlines()[:200])
    return [{"torch": m[1], "cuda": m[2], "kind": "ci"} for m in pairs if m]


def cuda_ext_rows(text: str) -> list[_Row]:
    """``.cuda_ext.json`` of Colossal-AI: the torch that is installed and the CUDA of the image in which extensions are compiled."""
    try:
        listed = json.loads(text)["build"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    rows = []
    for item in listed[:200] if isinstance(listed, list) else []:
        said = item if isinstance(item, dict) else {}
        torch = re.search(r"\btorch==(\d+(?:\.\d+)+)", str(said.get("torch_command", "")))
        cuda = re.search(r":(\d+\.\d+)\b", str(said.get("cuda_image", "")))
        if torch and cuda:
            rows.append({"torch": torch[1], "cuda": cuda[1], "kind": "build"})
    return rows


def uv_lock_rows(text: str) -> list[_Row]:
    """``uv.lock``: the torch of the index that it holds (a lock with a pre-release of an image's own is left out)."""
    versions = re.findall(r'^name = "torch"\nversion = "(\d+(?:\.\d+){1,2})"$', text, re.MULTILINE)
    return [{"torch": v, "kind": "lock"} for v in dict.fromkeys(versions)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One file of a repository that says what was tested. ``key`` ends the name of its evidence."""

    path: str
    key: str
    note: str
    rows: Callable[[str], list[_Row]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """A repository: its name in evidence, how a tag names a release, and the files that are read."""

    repository: str
    tag: str
    sources: tuple[Source, ...]


_LOCK_NOTE = "what their lock file holds; their CI images bring a torch of their own"
CHECKOUTS: Mapping[str, Checkout] = {
    "colossalai": Checkout(
        repository="hpcaitech/ColossalAI",
        tag=r"v(\d+(?:\.\d+)+)",
        sources=(
            Source(path=".compatibility", key="compatibility", note="what their CI runs", rows=compatibility_rows),
            Source(path=".cuda_ext.json", key="cuda_ext", note="what their CI compiles", rows=cuda_ext_rows),
        ),
    ),
    "megatron-core": Checkout(
        repository="NVIDIA/Megatron-LM",
        tag=r"core_v(\d+(?:\.\d+)+)",
        sources=(Source(path="uv.lock", key="uv", note=_LOCK_NOTE, rows=uv_lock_rows),),
    ),
}


def _git(folder: Path, *words: str) -> str | None:
    """What git prints, or ``None`` when it says no. ``UsageError`` when the folder is no repository."""
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"git cannot be run in {folder}: {error}", hint="install git") from None
    if done.returncode == 128 and b"not a git repository" in done.stderr:
        raise UsageError(f"{folder} is not a git repository", hint="--checkout NAME=FOLDER wants a clone with its tags")
    if done.returncode != 0 or len(done.stdout) > _MAX_FILE:
        return None
    return done.stdout.decode("utf-8", "replace")


def _tags(folder: Path, pattern: str) -> dict[str, str]:
    """Release -> tag, for the tags that name one."""
    listed = (_git(folder, "tag", "--list") or "").splitlines()[:_MAX_TAGS]
    found = {m[1]: tag for tag in listed if (m := re.fullmatch(pattern, tag))}
    return dict(sorted(found.items(), key=lambda pair: Version(pair[0])))


def _sort_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Oldest release first, then torch, CUDA, kind; a spec sorts by the first version in it."""

    def version(text: object) -> Version:
        match = re.search(r"\d+(\.\d+)*", str(text))
        try:
            return Version(match[0]) if match else Version("0")
        except InvalidVersion:
            return Version("0")

    return version(row["version"]), version(row["torch"]), version(row.get("cuda", "0")), str(row.get("kind", "ci"))


def _covered(table: Table, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The line that says the same already."""
    for line in table.records:
        if line.get("kind", "ci") != row["kind"] or line.get("cuda") != row.get("cuda") or "python" in line:
            continue
        if Spec.parse(str(line["version"])).contains(row["version"]) and Spec.parse(str(line["torch"])).contains(
            row["torch"]
        ):
            return line
    return None


def _admitted(requires: Mapping[str, Spec], row: Mapping[str, Any]) -> bool:
    """Whether the release itself allows that torch: pip replaces another one while installing, so it was not what was tested."""
    bound = requires.get(row["version"])
    return bound is None or bound.contains(row["torch"])


def _bounds(releases: Iterable[Mapping[str, Any]]) -> dict[str, Spec]:
    found = {str(r["version"]): (r.get("requires") or {}).get("torch") for r in releases}
    return {v: Spec.parse(str(text)) for v, text in found.items() if text}


def update_tested(table: Table, releases: Table, framework: str, folder: Path, day: str) -> list[str]:
    """Add what the tags of a clone say and the table does not; ``releases`` are those of the framework.

    Only releases that the package index or the table has are looked at. Raises ``UsageError`` for what is no clone, ``DataError`` when it has no such tag.
    """
    checkout = CHECKOUTS[framework]
    tags = _tags(folder, checkout.tag)
    if not tags:
        raise DataError(f"{folder} has no tag like {checkout.tag}", hint=f"fetch the tags of {checkout.repository}")
    bounds = _bounds(releases.records)
    known = {str(r["version"]) for r in (*releases.records, *table.records)}
    summary = []
    for version, tag in tags.items():
        for source in checkout.sources:
            key = f"v{version.replace('.', '_')}_{source.key}"
            if version not in known:
                continue
            text = _git(folder, "show", f"{tag}:{source.path}")
            rows = [{"version": version, **row} for row in source.rows(text or "")]
            new = [r for r in rows if _admitted(bounds, r) and _covered(table, r) is None]
            if new and key not in table.named:
                commit = (_git(folder, "rev-parse", "--short=12", f"{tag}^{{commit}}") or "").strip()
                said = f"{checkout.repository} {source.path} @{tag} ({commit})"
                table.named[key] = {"kind": "documented", "source": said, "date": day, "note": source.note}
                table.add_evidence(key)
            for row in new:
                table.insert({**row, "evidence": key}, _sort_key)
                summary.append(f"{framework} {version} with torch {row['torch']}: new, from {source.path}")
    return summary


# The rows of ``deepspeed-toolkit-cuda``: which toolkits DeepSpeed's op builder takes for which CUDA, release by release.
#
# The rule is written by people; here only its rows follow the table ``cuda_minor_mismatch_ok`` of releases that were read. A release whose table
# says what the rows say already changes nothing. Otherwise the rows of that CUDA major end before it, and new ones begin with it.


RULE = "deepspeed-toolkit-cuda"


@dataclass(frozen=True, slots=True)
class _BuilderRow:
    text: str
    data: Mapping[str, Any]

    def speaks_of(self, release: str, cuda: str) -> bool:
        when = self.data["when"]
        return Spec.parse(when["deepspeed"]).contains(release) and Spec.parse(when["cuda"]).contains(cuda)


def rule_rows(lines: Sequence[str]) -> list[tuple[int, _BuilderRow]]:
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
            found.append((i, _BuilderRow(lines[i], data)))
    return found


def accepts(rows: Iterable[_BuilderRow], release: str, cuda: str, toolkit: str) -> bool:
    """What the rows say of an op that ``release`` compiles with ``toolkit`` for a torch of ``cuda``."""
    wanted = [row.data["needs"]["toolkit"] for row in rows if row.speaks_of(release, cuda)]
    return all(Spec.parse(spec).contains(toolkit) for spec in wanted)


def _builder_accepts(table: Mapping[str, Sequence[str]], cuda: str, toolkit: str) -> bool:
    """What ``assert_no_cuda_mismatch`` says: the same minor, or both in the table of their major."""
    minors = table.get(cuda.partition(".")[0], ())
    return cuda == toolkit or (cuda in minors and toolkit in minors)


def _differing(
    rows: Sequence[_BuilderRow], release: str, table: Mapping[str, Sequence[str]], minors: Sequence[str]
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


def _ended(row: _BuilderRow, release: str) -> str:
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
