"""The CPython interpreters of this host: those that uv finds, on ``PATH``, among its own and among pyenv's.

Nothing is downloaded.

A broken shim, another implementation or architecture, a free-threaded build, a prerelease and an interpreter of conda
are passed over: conda's brings its own libraries into every environment made of it.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from packaging.version import Version

from envsmith.base.programs import execute
from envsmith.base.schema import parse_json
from envsmith.lock.index.python_files import is_python, search_path
from envsmith.lock.index.uv import find_uv, uv_environment
from envsmith.model.version import minor_of

# A shim may wait for something; uv asks every interpreter that it does not know yet.
_TIMEOUT = 60.0
_RELEASE = re.compile(r"3\.\d+\.\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """A CPython: ``path`` is its executable (never one of a virtual environment), ``version`` its full version."""

    path: str
    version: str

    @property
    def minor(self) -> str:
        """Return ``3.11``."""
        return minor_of(self.version)


def running_interpreter() -> Interpreter:
    """Return the interpreter that runs this program, or the one that its virtual environment was made with."""
    path = getattr(sys, "_base_executable", None) or sys.executable
    return Interpreter(path=path, version=platform.python_version())


def find_interpreters(environ: Mapping[str, str] | None = None) -> tuple[Interpreter, ...]:
    """Return every usable CPython of this host, one a minor version (its newest patch release), newest minor first."""
    newest: dict[str, Interpreter] = {}
    for interpreter in _every(tuple(sorted((os.environ if environ is None else environ).items()))):
        newest.setdefault(interpreter.minor, interpreter)
    return tuple(newest.values())


def find_interpreter(version: str, environ: Mapping[str, str] | None = None) -> Interpreter | None:
    """Return the interpreter of this host for ``3.11`` (any patch release) or for ``3.11.7`` exactly, or ``None``.

    The one that runs this program is taken where it fits, and then nothing is searched.
    """
    here = running_interpreter()
    if version in {here.minor, here.version} and sys.implementation.name == "cpython" and _is_usable(here):
        return here
    every = _every(tuple(sorted((os.environ if environ is None else environ).items())))
    return next((i for i in every if version in {i.minor, i.version}), None)


@lru_cache(maxsize=4)
def _every(environ: tuple[tuple[str, str], ...]) -> tuple[Interpreter, ...]:
    """List every usable interpreter, the newest release first."""
    env = uv_environment(dict(environ))
    command = [find_uv(), "python", "list", "--only-installed", "--output-format", "json", "--no-config"]
    try:
        ran = execute(command, seconds=_TIMEOUT, env={**env, "PATH": search_path(env), "UV_PYTHON_DOWNLOADS": "never"})
        ran.check_returncode()
        rows = parse_json(ran.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        rows = []
    default = {"implementation": "cpython", "variant": "default", "arch": platform.machine()}
    listed = [
        Interpreter(path=r["path"], version=r["version"]) for r in rows if r["path"] and default.items() <= r.items()
    ]
    usable = [i for i in (running_interpreter(), *listed) if _is_usable(i)]
    return tuple(sorted(usable, key=lambda i: Version(i.version), reverse=True))


def _is_usable(interpreter: Interpreter) -> bool:
    """Tell whether it is a released CPython outside of conda and of virtual environments that can be started."""
    return bool(_RELEASE.fullmatch(interpreter.version)) and is_python(Path(interpreter.path))
