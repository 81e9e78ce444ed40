"""A Dockerfile whose steps podman and buildah can keep without taking one for another.

Their cache compares the words of a step, and not the files that it mounts (containers/buildah#4522 and #6609): the
layer with one torch would be taken for another. A stage that comes whole from the cache cannot be mounted in buildah
1.28 (containers/buildah#4375), but a stage without steps that stands on it can. Both were seen on 2026-11-22.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

_MOUNTED_FILE = re.compile(r"--mount=type=bind,source=([^,\s]+)")
_MOUNTED_STAGE = re.compile(r"(--mount=type=bind,from=)([\w-]+)")
_STAGE = re.compile(r"FROM \S+ AS (\S+)", re.IGNORECASE)
_KEPT = "-kept"


def with_keys(text: str, context: Path) -> str:
    """Return a Dockerfile in which each step names all that it depends on, as a comment of its command.

    That is every instruction before it and every file of ``context`` that was mounted so far. Order and files of a
    Dockerfile are such that cells share their first steps.
    """
    key = hashlib.sha256()
    mounted = {stage for _, stage in _MOUNTED_STAGE.findall(text)}
    lines, stage = [], ""
    for instruction in _instructions(text):
        key.update(instruction.encode())
        if instruction.startswith("FROM "):
            lines += [f"FROM {stage} AS {stage}{_KEPT}"] if stage in mounted else []
            named = _STAGE.match(instruction)
            stage = named[1] if named else ""
        for name in _MOUNTED_FILE.findall(instruction):
            _add(key, context / name)
        comment = f" # {key.hexdigest()[:16]}" if instruction.startswith("RUN ") else ""
        lines.append(_MOUNTED_STAGE.sub(rf"\1\2{_KEPT}", instruction) + comment)
    return "\n".join(lines) + "\n"


def _instructions(text: str) -> Iterator[str]:
    """Yield each instruction with its continued lines, without comments and blank lines."""
    instruction = ""
    for line in text.splitlines():
        if not instruction and (not line.strip() or line.startswith("#")):
            continue
        instruction += line
        if line.endswith("\\"):
            instruction += "\n"
        else:
            yield instruction
            instruction = ""


def _add(key: hashlib._Hash, path: Path) -> None:
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            key.update(f"{file.relative_to(path.parent)} ".encode() + hashlib.sha256(file.read_bytes()).digest())
