"""From the folder of an environment, or what a person calls it, to its interpreter."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from envsmith.base.files import expand_home
from envsmith.errors import UsageError


def python_in(folder: Path) -> Path:
    """Return the path of an environment's interpreter, whether it is there or not."""
    return folder / "bin" / "python"


def find_python(path: Path) -> Path | None:
    """Return the interpreter that a path means: itself, or that of the environment in the folder, or ``None``.

    Symbolic links stay: a venv is known by its own path.
    """
    candidates = (python_in(path), path / "bin" / "python3") if path.is_dir() else (path,)
    return next((each for each in candidates if each.is_file()), None)


def is_environment(path: Path) -> bool:
    """Return whether a path is the folder of an environment."""
    return path.is_dir() and find_python(path) is not None


def named_python(text: str) -> Path:
    """Return the interpreter that ``--python`` names: a path, the folder of an environment, or a name on PATH.

    ``UsageError`` when there is none.
    """
    program = find_python(expand_home(text)) or shutil.which(text)
    if program is None or not os.access(program, os.X_OK):
        raise UsageError(
            f"Cannot use --python {text}: it has no interpreter.",
            hint="Give the folder of an environment, or its bin/python.",
        )
    return Path(program)
