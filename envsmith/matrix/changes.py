"""What differs between two documents: cells that are new, gone, or of another status, and releases that appeared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.base.files import read_bounded
from envsmith.base.schema import AsJson, UnreadableError, parse_json
from envsmith.errors import DataError
from envsmith.matrix.document import SCHEMA

_MAX_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixChange(AsJson):
    """``what`` is cell, torch or a framework's name. ``before`` and ``after`` are ``None`` where it is missing."""

    what: str
    name: str
    before: str | None
    after: str | None


def read_document(path: Path) -> dict[str, Any]:
    """Read a ``matrix.json`` that another program may have written. ``DataError``."""
    hint = "Write one with envsmith matrix export."
    try:
        value = parse_json(read_bounded(path, _MAX_BYTES))
    except DataError as error:
        raise DataError(error.message, hint=hint) from None
    except UnreadableError as error:
        raise DataError(f"Cannot read {path}: it is not a matrix.json ({error}).", hint=hint) from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise DataError(f"Cannot read {path}: it is not a matrix.json of schema {SCHEMA}.", hint=hint)
    for key, kind in (("cells", list), ("torch", list), ("frameworks", list)):
        if not isinstance(value.get(key), kind) or not all(isinstance(x, dict) for x in value[key]):
            raise DataError(f"Cannot read {key} of {path}: it is not a list of objects.")
    for number, framework in enumerate(value["frameworks"]):
        releases = framework.get("releases", [])
        if not isinstance(releases, list) or not all(isinstance(x, dict) for x in releases):
            raise DataError(f"Cannot read frameworks[{number}].releases of {path}: it is not a list of objects.")
    return value


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[MatrixChange]:
    """Return what differs: cells first, by id, then releases."""
    old, new = _facts(before), _facts(after)
    return [change for what in new for change in _compare(what, old.get(what, {}), new[what])]


def _facts(document: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return what is compared, by kind: the state of each cell, the index of each torch, the day of each release."""
    facts = {
        "cell": {str(cell.get("id")): _state_words(cell) for cell in document["cells"]},
        "torch": {f"{t.get('version')} {t.get('platform')}": str(t.get("index")) for t in document["torch"]},
    }
    for framework in document["frameworks"]:
        releases = framework.get("releases", [])
        facts[str(framework.get("name"))] = {str(r.get("version")): str(r.get("date") or "") for r in releases}
    return facts


def _state_words(cell: Mapping[str, Any]) -> str:
    marks = [word for word in ("stale", "flaky") if cell.get(word)]
    rung = f" up to {cell.get('counts_as')}" if cell.get("status") != "failed" else f" at {cell.get('failed_at')}"
    return f"{cell.get('status')}{rung}" + (f" ({', '.join(marks)})" if marks else "")


def _compare(what: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[MatrixChange]:
    names = sorted({*old, *new})
    return [
        MatrixChange(what=what, name=n, before=old.get(n), after=new.get(n)) for n in names if old.get(n) != new.get(n)
    ]
