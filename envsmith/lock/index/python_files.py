"""The Pythons of this host, by their files alone: no program is started."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from packaging.version import Version

from envsmith.base.files import expand_home
from envsmith.model.version import minor_of

_MINORS = range(8, 20)


def minors_here(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the minor releases of this host's CPythons, newest first."""
    env = dict(os.environ if environ is None else environ)
    data = Path(env.get("XDG_DATA_HOME") or expand_home("~/.local/share", env))
    managed = Path(env.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python").glob("cpython-3.*/bin")
    folders = [*search_path(env).split(os.pathsep), *map(str, managed)]
    programs = [(minor, f"{folder}/python3.{minor}") for minor in _MINORS for folder in folders]
    minors = {minor for minor, program in programs if os.access(program, os.X_OK) and is_python(Path(program))}
    named = {minor_of(platform.python_version()), *(f"3.{minor}" for minor in minors)}
    return tuple(sorted(named, key=Version, reverse=True))


def search_path(env: Mapping[str, str]) -> str:
    """Return where uv looks for interpreters: also where pyenv keeps them, whose shims answer for one of them only."""
    home = expand_home("~", env)
    pyenv = Path(env.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    named = map(Path, env.get("PATH", "").split(os.pathsep))
    folders = [str(folder) for folder in named if folder.is_absolute() and "shims" not in folder.parts]
    return os.pathsep.join([*folders, "/usr/local/bin", "/usr/bin", *map(str, sorted(pyenv.glob("*/bin")))])


def is_python(path: Path) -> bool:
    """Tell whether a path is a program outside of conda and of virtual environments."""
    if not os.access(path, os.X_OK):
        return False
    is_borrowed = (path.parent.parent / "pyvenv.cfg").exists() or (path.resolve().parent.parent / "conda-meta").is_dir()
    return not is_borrowed
