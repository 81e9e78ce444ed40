"""A dump of torch's flight recorder, a pickle or JSON of any size, as one line of text that holds what is compared."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

from envsmith.doctor.read.pickled import is_pickle, read_plain
from envsmith.ranks.recorder import MOST_CALLS
from envsmith.schema import parse_json

# A recorder of 20,000 entries with stacks is a tenth of this.
MOST_BYTES = 64 << 20
_KEYS = (
    "process_group", "collective_seq_id", "p2p_seq_id", "seq_id", "profiling_name", "time_created_ns", "input_sizes",
    "input_dtypes", "state", "retired", "is_p2p",
)  # fmt: skip
_MOST_FRAMES, _MOST_VALUES, _MOST_GROUPS = 40, 64, 4096


def is_dump(head: bytes) -> bool:
    """Tell whether a file may be a dump, by its beginning."""
    start = head[: 1 << 16].lstrip()
    return is_pickle(head) or (start.startswith(b"{") and b'"profiling_name"' in head and b'"entries"' in head)


def dump_line(data: bytes) -> str:
    """Return a dump as one line of JSON. ``ValueError`` says why it is none."""
    value = read_plain(data) if is_pickle(data) else parse_json(data)
    entries = value.get("entries") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it is not a dump of torch's flight recorder")  # noqa: TRY004 - the file's fault
    rows = [_entry(entry) for entry in entries[-MOST_CALLS:] if isinstance(entry, dict)]
    document = {"entries": rows, "pg_config": _groups(value.get("pg_config")), "version": _plain(value.get("version"))}
    return json.dumps(document)


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    row = {key: _plain(entry[key]) for key in _KEYS if key in entry}
    frames = entry.get("frames")
    if isinstance(frames, list) and frames:
        row["frames"] = [_frame(frame) for frame in frames[:_MOST_FRAMES] if isinstance(frame, dict)]
    return row


def _frame(frame: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _plain(frame[key]) for key in ("name", "filename", "line") if key in frame}


def _groups(config: object) -> dict[str, Any]:
    rows = config.items() if isinstance(config, dict) else ()
    return {
        str(name)[:200]: {key: _plain(row[key], 1 << 16) for key in ("name", "desc", "ranks") if key in row}
        for name, row in islice(rows, _MOST_GROUPS)
        if isinstance(row, dict)
    }


def _plain(value: object, most: int = 400, depth: int = 2) -> Any:
    """Return a value without what is too long or too deep."""
    if isinstance(value, str):
        return value[:most]
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    if isinstance(value, list | tuple) and depth:
        return [_plain(each, most, depth - 1) for each in value[: max(_MOST_VALUES, most >> 4)]]
    return None
