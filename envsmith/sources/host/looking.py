"""How this machine is looked at: short commands and small files; what cannot be had is an empty text."""

# ruff: noqa: PTH123
# Plain os calls: a diagnosis looks at hundreds of paths within its second, and a Path for each is most of that.

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["output_of", "text_of"]

_SECONDS = 2.0


def output_of(command: list[str], seconds: float = _SECONDS) -> str:
    """Standard output and error of a command, or nothing when it is absent, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout[:200_000] + done.stderr[:20_000]).decode(errors="replace")


def text_of(path: str | Path, most: int = 100_000) -> str:
    """The first ``most`` bytes of a file as text, or nothing when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(most).decode(errors="replace")
    except OSError:
        return ""
