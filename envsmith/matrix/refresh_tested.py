"""``tested/<framework>.yaml`` from a checkout: what a framework's own repository says it runs, compiles or locks, tag by tag.

No artifact of the package index holds these files, so the person who refreshes names a clone. Git is only asked to show files; nothing of the
clone is run. What is left out: a torch that the release itself excludes, and what a line says already.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from envsmith.errors import DataError, UsageError
from envsmith.matrix.tables import Table
from envsmith.model.version import Spec

__all__ = ["CHECKOUTS", "Source", "compatibility_rows", "cuda_ext_rows", "update_tested", "uv_lock_rows"]

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
