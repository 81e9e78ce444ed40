"""A folder of logs: one text for what the ranks wrote, each line with its rank, and one for each other file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from envsmith.doctor.read.pasted import read_bounded
from envsmith.doctor.read.remains import rank_of_file
from envsmith.errors import UsageError
from envsmith.files import open_input

# Files of a folder that are read, and how deep it may be.
_MOST_FILES, _DEEPEST = 2000, 6
# Of each file of a rank the end is what matters.
_KEPT_LINES = 20_000
_MOST_REMARKS = 20
_TEXT = re.compile(
    r"\.(?:log|out|err|txt|jsonl?|ya?ml|lock|toml|pickle|pkl|dump)$|rank[_-]?\d+$"
    r"|(?:^|/)(?:stdout|stderr|dmesg|nvidia-smi|ncclras|py-spy|pyspy|faulthandler|flight|nccl)[^/]*$"
)


def read_folder(folder: Path) -> list[tuple[str, str, list[str]]]:
    """Return ``(source, text, notes)`` of a folder. ``UsageError`` where it holds no file of text.

    What several ranks wrote into files of their own becomes one text, each line marked with its rank, the file first
    that was written to last the longest ago: the rank that ended first stands first.
    """
    ranks: list[tuple[float, int, str]] = []
    texts: list[tuple[str, str, list[str]]] = []
    remarks: list[str] = []
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        with open_input(path, UsageError) as file:
            text, notes = read_bounded(file)
        if (rank := rank_of_file(name)) is None:
            texts.append((name, text, notes))
        else:
            ranks.append((path.stat().st_mtime, rank, text))
            remarks += [f"{name}: {note}" for note in notes][: _MOST_REMARKS - len(remarks)]
    if ranks:
        lines = [f"[rank{rank}]: {line}" for _, rank, text in sorted(ranks) for line in _end(text)]
        note = f"{len(ranks)} files of {len({rank for _, rank, _ in ranks})} ranks"
        texts.insert(0, (f"{folder.name}: ranks", "\n".join(lines) + "\n", [note, *remarks]))
    if not texts:
        raise UsageError(
            f"Cannot read {folder}: no file in it is a text.",
            hint="Give a folder of logs, such as torchrun's --log-dir.",
        )
    return texts


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that are texts, in the order of their names."""
    count = 0
    for place, folders, names in os.walk(folder):
        folders.sort()
        if len(Path(place).relative_to(folder).parts) >= _DEEPEST:
            folders.clear()
        for name in sorted(names):
            path = Path(place, name)
            if count < _MOST_FILES and _TEXT.search(path.as_posix()) and path.is_file() and not path.is_symlink():
                count += 1
                yield path


def _end(text: str) -> list[str]:
    return text.splitlines()[-_KEPT_LINES:]
