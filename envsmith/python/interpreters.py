"""The CPython interpreters of this host, by minor version; nothing is downloaded, nothing of an interpreter's site is run.

Every candidate is started once with ``-I -c`` and asked what it is: a broken shim, another implementation or another
architecture is passed over in silence.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from packaging.version import Version

# An interpreter answers in 20 to 60 ms; a shim that waits for something is not one.
_TIMEOUT = 10.0
_MAX_CANDIDATES = 60
_ASK = (
    "import sys,platform,json,sysconfig,importlib.util as u;"
    "print(json.dumps([sys.implementation.name,platform.python_version(),platform.machine(),sys.maxsize>2**32,"
    "u.find_spec('venv') is not None,bool(sysconfig.get_config_var('Py_GIL_DISABLED')),"
    "getattr(sys,'_base_executable',None) or sys.executable]))"
)
_NAME = re.compile(r"python(?:3(?:\.\d{1,2})?)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """``path`` is the base interpreter's executable (never one of a virtual environment), ``version`` its full version."""

    path: str
    version: str
    has_venv: bool = True

    @property
    def minor(self) -> str:
        """``3.11``."""
        return ".".join(self.version.split(".")[:2])


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    """Executables that may be a CPython, likely ones first; files that exist, each once by its real path."""
    home = Path(environ.get("HOME") or Path.home())
    yield Path(getattr(sys, "_base_executable", None) or sys.executable)
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    managed = Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    roots = [Path(environ.get("PYENV_ROOT") or home / ".pyenv") / "versions", managed]
    folders = [
        Path(d)
        for d in environ.get("PATH", "").split(os.pathsep)
        if d and Path(d).is_absolute() and "shims" not in Path(d).parts
    ]
    for folder in [*folders, Path("/usr/local/bin"), Path("/usr/bin")]:
        yield from _named(folder)
    for root in roots:
        try:
            versions = sorted((p for p in root.iterdir() if p.is_dir()), reverse=True)
        except OSError:
            continue
        for version in versions:
            yield version / "bin" / "python3"


def _named(folder: Path) -> list[Path]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if _NAME.fullmatch(entry.name))
    except OSError:
        return []
    return [folder / name for name in sorted(names, key=lambda n: (n.count("."), n))]


def _usable(path: Path) -> bool:
    """An executable file outside of conda: a conda interpreter brings its own libraries into every environment made of it."""
    try:
        return (
            path.is_file() and os.access(path, os.X_OK) and not (path.resolve().parent.parent / "conda-meta").is_dir()
        )
    except OSError:
        return False


def _ask(path: str) -> Interpreter | None:
    # The user's variables for Python (PYTHONHOME and the like) are left to -I.
    try:
        done = subprocess.run(
            [path, "-I", "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        told = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 and done.stdout else None
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    match told:
        case ["cpython", str(version), str(machine), True, bool(has_venv), False, str(base)] if (
            machine == platform.machine()
        ):
            found = base if os.access(base, os.X_OK) else path
            # Beta and release candidates (3.15.0rc1) are not what a cell names.
            return (
                Interpreter(path=found, version=version, has_venv=has_venv)
                if re.fullmatch(r"3\.\d+\.\d+", version)
                else None
            )
    return None


def find_interpreters(environ: Mapping[str, str] | None = None) -> tuple[Interpreter, ...]:
    """Every usable CPython of this host, one a minor version (its newest patch release), newest minor first."""
    env = os.environ if environ is None else environ
    key = tuple(env.get(name, "") for name in ("PATH", "HOME", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME"))
    return _found(key, tuple(sorted(env.items())))


@lru_cache(maxsize=4)
def _found(_key: tuple[str, ...], environ: tuple[tuple[str, str], ...]) -> tuple[Interpreter, ...]:
    seen: set[str] = set()
    best: dict[str, Interpreter] = {}
    for path in _candidates(dict(environ)):
        if len(seen) >= _MAX_CANDIDATES or not _usable(path):
            continue
        real = str(path.resolve())
        if real in seen:
            continue
        seen.add(real)
        interpreter = _ask(str(path))
        if interpreter is None:
            continue
        known = best.get(interpreter.minor)
        if known is None or Version(interpreter.version) > Version(known.version):
            best[interpreter.minor] = interpreter
    return tuple(sorted(best.values(), key=lambda i: Version(i.version), reverse=True))


def running_interpreter() -> Interpreter:
    """The interpreter that runs this program; of a virtual environment, the one it was made with."""
    path = getattr(sys, "_base_executable", None) or sys.executable
    return Interpreter(path=path, version=platform.python_version())


def find_interpreter(version: str, environ: Mapping[str, str] | None = None) -> Interpreter | None:
    """The interpreter of this host for ``3.11`` (any patch release) or for ``3.11.7`` exactly; ``None`` when there is none.

    The one that runs this program is taken where it fits, and then nothing is searched.
    """
    minor = ".".join(version.split(".")[:2])
    here = running_interpreter()
    first = [here] if version in {here.minor, here.version} and _plain(here) else []
    for interpreter in first or find_interpreters(environ):
        if interpreter.minor == minor and version in {minor, interpreter.version}:
            return interpreter
    return None


def _plain(interpreter: Interpreter) -> bool:
    """A released CPython outside of conda that can be started by its path."""
    released = sys.implementation.name == "cpython" and re.fullmatch(r"3\.\d+\.\d+", interpreter.version)
    return bool(released) and _usable(Path(interpreter.path))
