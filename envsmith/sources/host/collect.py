"""All of it at once, in under a second."""

# ruff: noqa: PTH112
# Plain os calls: a diagnosis looks at hundreds of paths within its second, and a Path for each is most of that.

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

from envsmith.sources.host.environment import distributions, import_what_is_there, lost_files, python_of, torch_of
from envsmith.sources.host.gpus import driver, gpus
from envsmith.sources.host.libraries import libraries_of
from envsmith.sources.host.machine import compilers, container, fabric, limits, network, programs, shm, system, toolkit
from envsmith.sources.reports.facts import Draft, Facts, Read

__all__ = ["WATCHED", "collect", "interpreter_of"]

# Environment variables that anything we judge reads.
WATCHED = re.compile(
    r"(?:NCCL|TORCH|PYTORCH|CUDA|GLOO|DS|DEEPSPEED|NVTE|UCX|OMPI_MCA|FI|TRITON|ACCELERATE|MASTER|MPI)_\w+|LD_LIBRARY_PATH|LD_PRELOAD|CPATH|LIBRARY_PATH|PATH|CUDA_HOME|CUDA_PATH|CC|CXX|NVCC_PREPEND_FLAGS|RANK|WORLD_SIZE|LOCAL_RANK|OMP_NUM_THREADS|MAX_JOBS|PYTHONPATH|CONDA_PREFIX|VIRTUAL_ENV|SLURM_\w{1,40}"
)


def interpreter_of(python: str | None) -> Path:
    """The interpreter whose environment is judged: the one named, else that of the active environment, else our own."""
    if python:
        return Path(python)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        candidate = Path(os.environ.get(name, "/nonexistent")) / "bin" / "python"
        if candidate.exists():
            return candidate
    return Path(sys.executable)


def collect(python: str | None = None, *, deep: bool = False) -> Facts:
    """The facts of this machine and of the environment of ``python``. Nothing raises: what cannot be read is not told."""
    draft = Draft()
    interpreter = interpreter_of(python)
    draft.host["environment"] = str(interpreter.parent.parent)
    notes: list[str] = []
    _variables(draft)
    site = python_of(draft, interpreter, notes)
    distributions(draft, site)
    lost_files(draft, site)
    torch_of(draft, site)
    for step in (driver, gpus, toolkit, compilers, limits, shm, network, container, fabric, system):
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            step(draft)
    programs(draft, interpreter)
    libraries_of(draft, site)
    if deep:
        import_what_is_there(draft, interpreter, notes)
    facts = draft.done()
    kinds = ("this machine", f"environment of {interpreter}")
    read = Read(source="host", kinds=kinds, lines=0, characters=0, facts=facts.count, notes=tuple(notes))
    draft.read.append(read)
    return draft.done()


def _variables(draft: Draft) -> None:
    for name, value in os.environ.items():
        if WATCHED.fullmatch(name):
            draft.variable(name, value)
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home and ":" not in home:
        draft.host["cuda_home_exists"] = "yes" if os.path.isdir(home) else "no"
