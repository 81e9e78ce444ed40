"""The difference between two ``matrix.json``: cells that are new, gone, or of another status; releases that appeared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.errors import DataError
from envsmith.matrix.document import SCHEMA

_MAX_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """``what`` is cell, torch or a framework's name; ``before`` and ``after`` are ``None`` where it was not, or is not, there."""

    what: str
    name: str
    before: str | None
    after: str | None

    def to_json(self) -> dict[str, str | None]:
        """As ``matrix diff --json`` prints it."""
        return {"what": self.what, "name": self.name, "before": self.before, "after": self.after}


def read_document(path: Path) -> dict[str, Any]:
    """A ``matrix.json`` that somebody else may have written. ``DataError``."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: larger than {_MAX_BYTES >> 20} MiB")
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: no matrix.json: {error}", hint="envsmith matrix export writes one") from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise DataError(f"{path}: no matrix.json of schema {SCHEMA}", hint="envsmith matrix export writes one")
    for key, kind in (("cells", list), ("torch", list), ("frameworks", list)):
        if not isinstance(value.get(key), kind) or not all(isinstance(x, dict) for x in value[key]):
            raise DataError(f"{path}: {key}: a list of objects belongs here")
    for number, framework in enumerate(value["frameworks"]):
        releases = framework.get("releases", [])
        if not isinstance(releases, list) or not all(isinstance(x, dict) for x in releases):
            raise DataError(f"{path}: frameworks[{number}].releases: a list of objects belongs here")
    return value


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Cells first, by id; then releases."""
    found = _compare("cell", _cells(before), _cells(after))
    found += _compare("torch", _torches(before), _torches(after))
    old, new = (
        {
            str(f.get("name")): {str(r.get("version")): str(r.get("date") or "") for r in f.get("releases", [])}
            for f in d["frameworks"]
        }
        for d in (before, after)
    )
    for name in new:
        found += _compare(name, old.get(name, {}), new[name])
    return found


def _cells(document: Mapping[str, Any]) -> dict[str, str]:
    return {str(c.get("id")): _state(c) for c in document["cells"]}


def _torches(document: Mapping[str, Any]) -> dict[str, str]:
    return {f"{t.get('version')} {t.get('platform')}": str(t.get("index")) for t in document["torch"]}


def _state(cell: Mapping[str, Any]) -> str:
    marks = [word for word in ("stale", "flaky") if cell.get(word)]
    rung = f" up to {cell.get('counts_as')}" if cell.get("status") != "failed" else f" at {cell.get('failed_at')}"
    return f"{cell.get('status')}{rung}" + (f" ({', '.join(marks)})" if marks else "")


def _compare(what: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
    names = sorted({*old, *new})
    return [Change(what=what, name=n, before=old.get(n), after=new.get(n)) for n in names if old.get(n) != new.get(n)]
