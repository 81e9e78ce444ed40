"""Records as files: named by what they say, so that two campaigns never write the same name for different records."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from envsmith.model.record import Record

__all__ = ["record_name", "record_text"]


def record_text(record: Record) -> str:
    """A record as it is written: JSON that people can read in a diff."""
    return json.dumps(record.to_json(), indent=1, ensure_ascii=False) + "\n"


def record_name(record: Record, text: str) -> str:
    """``<cell>.<engine>-<12 hex digits of the text's sha256>.json``."""
    return f"{record.cell_id}.{record.engine}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def put_record(folder: Path, record: Record) -> Path:
    """Write a record into ``folder``, complete or not at all. ``StorageError``."""
    from envsmith.matrix.campaign.state import write_whole

    text = record_text(record)
    path = folder / record_name(record, text)
    write_whole(path, text)
    return path
