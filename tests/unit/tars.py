"""Tar archives for tests: files by name, and members of any kind."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def tar_bytes(files: Iterable[tuple[str, bytes]], *more: tarfile.TarInfo) -> bytes:
    """A tar of files, and after them members without content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files:
            archive.addfile(member(name, size=len(data)), io.BytesIO(data))
        for info in more:
            archive.addfile(info)
    return out.getvalue()


def write_tar(path: Path, files: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    """The same in a file."""
    path.write_bytes(tar_bytes(files.items(), *more))
    return path


def member(name: str, **fields: Any) -> tarfile.TarInfo:
    """A member with the fields that are named: ``type``, ``linkname``, ``mode`` …"""
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    return info
