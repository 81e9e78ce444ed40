"""Writes an export into a folder: every file whole, what is no longer published removed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from envsmith.errors import StorageError
from envsmith.matrix.campaign.state import write_whole
from envsmith.matrix.export.files import badge_texts, cell_texts, csv_text, dumped, feed_text
from envsmith.matrix.records import read_records

__all__ = ["write_export"]

# The folders that are wholly ours: what stands there and is not written is of an older export.
_OURS = ("cells", "badges")


def write_export(output: Path, document: Mapping[str, Any], root: Path, base_url: str = "") -> int:
    """Write everything; the number of files. ``StorageError``; ``matrix.json`` is written last, so that what it names is there."""
    records = {record.name: record for record in read_records(root / "records")}
    schema = root / "matrix.schema.json"
    texts = {
        **cell_texts(document, records),
        **badge_texts(document),
        "feed.xml": feed_text(document, records.values(), base_url),
        "matrix.csv": csv_text(document["cells"]),
        **({schema.name: schema.read_text(encoding="utf-8")} if schema.is_file() else {}),
        "matrix.json": dumped(document),
    }
    for name, text in texts.items():
        path = output / name
        with suppress(OSError):
            if path.read_text(encoding="utf-8") == text:
                continue
        write_whole(path, text)
    _remove_old(output, texts)
    return len(texts)


def _remove_old(output: Path, texts: Mapping[str, str]) -> None:
    try:
        for folder in _OURS:
            for path in (output / folder).glob("*.json"):
                if f"{folder}/{path.name}" not in texts:
                    path.unlink()
    except OSError as error:
        raise StorageError(f"{output}: an old file cannot be removed: {error.strerror or error}") from None
