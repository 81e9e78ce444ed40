"""Source archives compiled on this host for a virtual environment: the lock's build tools, the host's own compiler.

An image has a pinned builder, whose wheel is in its lock. Here the wheel is this host's. It stays beside the
environment under a key of all that it was made from, so that one torch compiles it once.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envsmith.base.files import scratch, write_whole
from envsmith.base.interpreter import python_in
from envsmith.base.os_packages import NAMES, install_command
from envsmith.base.programs import execute
from envsmith.builder.image.context import compile_jobs
from envsmith.errors import BuildError, EngineError
from envsmith.knowledge.graph.runtime import load_runtime
from envsmith.knowledge.wheels.offers import best_wheel
from envsmith.lock.index.archives import fetch_archive
from envsmith.lock.index.interpreters import Interpreter
from envsmith.lock.pip_files import layer_text
from envsmith.model.cell import RUNTIME, Cell, WheelPolicy
from envsmith.model.lock import CompiledSource, Lock, Pin

FOLDER = "wheels"
# A toolkit of the host is not in the lock: torch.utils.cpp_extension looks for it on PATH (up to torch 2.1 by starting
# `which`) and in this folder.
WITHOUT_TOOLKIT = """
import os, shutil, subprocess
exists, which, check_output = os.path.exists, shutil.which, subprocess.check_output
os.path.exists = lambda path: path != "/usr/local/cuda" and exists(path)
shutil.which = lambda name, *rest, **options: None if name == "nvcc" else which(name, *rest, **options)
def without_nvcc(command, *rest, **options):
    if command == ["which", "nvcc"]:
        raise subprocess.CalledProcessError(1, command)
    return check_output(command, *rest, **options)
subprocess.check_output = without_nvcc
"""
_COMPILER = "c++"
_ANY_WHEEL = WheelPolicy.LISTED

# Runs uv with arguments and further variables.
Run = Callable[[Sequence[str], Mapping[str, str]], None]


def sources_of(cell: Cell) -> tuple[CompiledSource, ...]:
    """Return what every lock of a cell compiles: what nobody has a ready wheel of."""
    pairs = [(source, cell.components.get(source.distribution)) for source in load_runtime().sources]
    return tuple(
        source.compiled(cell)
        for source, version in pairs
        if version and not source.optional and not best_wheel(source.distribution, version, cell, policy=_ANY_WHEEL)
    )


def refuse_uncompilable(
    sources: Sequence[CompiledSource], python: Interpreter, environ: Mapping[str, str] = os.environ
) -> None:
    """Raise ``EngineError`` where this host cannot compile these sources, before anything is downloaded.

    ``python`` is the interpreter that the environment is made of.
    """
    if toolkits := [source.name for source in sources if source.toolkit]:
        raise EngineError(
            f"Cannot install {', '.join(toolkits)}: what needs nvcc is compiled in the pinned builder of images only.",
            hint="Use a container engine (--engine docker, podman or buildah), or leave it out and build it on top "
            "of the environment.",
        )
    if missing := lacking(sources, python, environ):
        command = install_command(missing, python=python.minor)
        names = ", ".join(f"no {NAMES[need]}" for need in missing)
        raise EngineError(
            f"Cannot compile {', '.join(source.name for source in sources)}: this host has {names}.",
            hint=f"Install what is missing{f' ({command})' if command else ''}, or use a container engine "
            "(--engine docker), whose builder has it.",
        )


def lacking(
    sources: Sequence[CompiledSource], python: Interpreter, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return what this host lacks to compile sources: keys of ``os_packages.NAMES``."""
    names = {source.name for source in sources}
    rows = [row for row in load_runtime().needs if row.component in names and row.flavour == RUNTIME]
    return _absent([_COMPILER, *(need for row in rows for need in row.needs)], python, environ) if names else ()


def lacking_later(
    lock: Lock, python: Interpreter, environ: Mapping[str, str] = os.environ
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which components compile when training first uses them, and what this host lacks for that.

    Both are empty where it lacks nothing.
    """
    versions = {pin.name: pin.version for pin in lock.pins}
    rows = [
        row
        for row in load_runtime().needs
        if row.flavour == RUNTIME and row.component in versions and row.holds(versions[row.component])
    ]
    missing = _absent((need for row in rows for need in row.needs), python, environ)
    return (tuple(row.component for row in rows), missing) if missing else ((), ())


def _absent(needs: Iterable[str], python: Interpreter, environ: Mapping[str, str]) -> tuple[str, ...]:
    path = environ.get("PATH")
    return tuple(
        need
        for need in dict.fromkeys(needs)
        if (not _has_headers(python) if need == "headers" else need in NAMES and not shutil.which(need, path=path))
    )


def _has_headers(python: Interpreter) -> bool:
    """Return whether this interpreter has its headers. Debian's has them in a package of their own."""
    script = "import os, sysconfig; print(os.path.exists(os.path.join(sysconfig.get_paths()['include'], 'Python.h')))"
    try:
        return execute([python.path, "-I", "-c", script], seconds=60).stdout.strip() != "False"
    except (OSError, subprocess.SubprocessError):
        return True  # what that means is said when it is used


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """Compiles for one environment. ``folder`` is the cell's own, ``python`` the environment's interpreter."""

    lock: Lock
    folder: Path
    python: Path
    environ: Mapping[str, str]
    run: Run

    def wheels(self, pins: Sequence[Pin]) -> list[Path]:
        """Return the wheel of each of these source distributions, compiled now or by an earlier build."""
        sources = {source.name: source for source in self.lock.compiled}
        return [self._wheel(sources[pin.name], pin) for pin in pins]

    def _wheel(self, source: CompiledSource, pin: Pin) -> Path:
        place = self.folder / FOLDER / self._key(source, pin)
        if not list(place.glob("*.whl")):
            # Inside the cell's folder: a cache of compilers knows paths below one folder again.
            with scratch(self.folder) as folder:
                self._compile(source, pin, folder)
                compiled = list((folder / "out").glob("*.whl"))
                if len(compiled) != 1:
                    raise BuildError(f"Cannot compile {source.name}: its setup made {len(compiled)} wheels.")
                write_whole(place / compiled[0].name, compiled[0].read_bytes())
        return next(place.glob("*.whl"))

    def _key(self, source: CompiledSource, pin: Pin) -> str:
        try:
            program = shutil.which(_COMPILER, path=self.environ.get("PATH")) or _COMPILER
            compiler = execute([program, "--version"], seconds=60).stdout.partition("\n")[0]
        except (OSError, subprocess.SubprocessError) as error:
            raise EngineError(f"Cannot start the C++ compiler: {error}.", hint="Install g++ again.") from None
        torch = layer_text(p for p in self.lock.pins if p.layer == "torch")
        parts = [source.to_json(), layer_text([pin]), layer_text(self.lock.build_pins), torch, compiler]
        return hashlib.sha256(json.dumps([*parts, self.lock.python_version], sort_keys=True).encode()).hexdigest()[:32]

    def _compile(self, source: CompiledSource, pin: Pin, folder: Path) -> None:
        """Compile in an environment of the build tools that sees the cell's own packages, torch among them."""
        builder, archive = folder / "builder", folder / pin.artifacts[0].filename
        archive.write_bytes(fetch_archive(pin.name, pin.artifacts[0]))
        self.run(["venv", "--quiet", "--no-project", "--python", str(self.python), str(builder)], {})
        present = {p.name: p.version for p in self.lock.pins}
        tools = [p for p in self.lock.build_pins if present.get(p.name) != p.version]
        (folder / "build.txt").write_text(layer_text(tools), encoding="utf-8")
        install = ["pip", "install", "--python", str(python_in(builder)), "--no-deps", "--require-hashes"]
        self.run([*install, "--only-binary", ":all:", "--requirements", str(folder / "build.txt")], {})
        packages = next(builder.glob("lib/python3*/site-packages"))
        (packages / "cell.pth").write_text(str(next(self.python.parent.parent.glob("lib/python3*/site-packages"))))
        (packages / "sitecustomize.py").write_text(WITHOUT_TOOLKIT)
        command = ["build", "--wheel", "--no-build-isolation", "--no-config", "--offline", "--out-dir"]
        command += [str(folder / "out"), "--python", str(python_in(builder)), str(archive)]
        self.run(command, {**source.variables, **self._surroundings(builder)})

    def _surroundings(self, builder: Path) -> dict[str, str]:
        jobs = compile_jobs()
        path = os.pathsep.join([str(builder / "bin"), self.environ.get("PATH", os.defpath)])
        return {"PATH": path, "MAX_JOBS": str(jobs), "MAKEFLAGS": f"-j{jobs}"}
