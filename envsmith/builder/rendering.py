"""From a lock to the files of its folder: those of pip, of an image, of Conda."""

from __future__ import annotations

import json
from pathlib import Path

from envsmith.base.progress import Clock
from envsmith.builder.engines.bases import load_bases
from envsmith.builder.image import dockerfile
from envsmith.builder.image.companions import companions
from envsmith.builder.image.conda_dockerfile import render_conda
from envsmith.errors import EnvsmithError, UsageError
from envsmith.lock.conda import part as conda_part
from envsmith.lock.conda.model import CondaLock, CondaRequest
from envsmith.lock.pip_files import BUILD_FILE, layer_text, pylock_text, requirement_files
from envsmith.model.lock import Lock


def python_files(lock: Lock, *, pip: bool) -> dict[str, str]:
    """Return the files of the Python part by name, with those of ``pip`` or without."""
    cell = json.dumps(lock.cell.to_json(), indent=1, sort_keys=True) + "\n"
    files = {"cell.json": cell, "lock.json": lock.text(), "pylock.toml": pylock_text(lock)}
    return {**files, **requirement_files(lock)} if pip else files


def lock_files(lock: Lock) -> dict[str, str]:
    """Return every file that follows from the lock alone by name."""
    return python_files(lock, pip=True) | image_files(lock)


def image_files(lock: Lock) -> dict[str, str]:
    """Return the Dockerfile and what stands beside it by name, or nothing where the lock has no base."""
    return {**dockerfile.image_files(lock), **companions(lock)} if lock.base is not None else {}


def add_conda(
    lock: Lock, directory: Path, conda: CondaRequest, files: dict[str, str], clock: Clock, *, required: bool
) -> str | None:
    """Add the Conda lock and its Dockerfile where a channel answers. Otherwise return one note, and the build goes on.

    Where it is ``required``, its error is raised.
    """
    clock.start("conda lock")
    try:
        if archives := [source.name for source in lock.compiled if source.archive]:
            raise UsageError(
                f"Cannot write a Conda lock: {', '.join(archives)} is built from a source archive, and only the "
                "pinned builder of an image does that.",
                hint="Use --engine docker, podman or buildah.",
            )
        part = conda_part.conda_part(lock, directory, conda, progress=clock.progress)
    except EnvsmithError as error:
        if required:
            raise
        note = f"no conda-lock.yml: {error.message}" + (f" ({error.hint})" if error.hint else "")
        clock.done("conda lock", "none")
        return note
    files.update(part.texts)
    notes = [*part.notes, *add_conda_image(lock, part.lock, files)]
    clock.done(
        "conda lock", f"{', '.join(sorted(part.texts))} from {', '.join(part.lock.channels)}", cached=part.reused
    )
    return "; ".join(notes) or None


def add_conda_image(lock: Lock, conda: CondaLock, files: dict[str, str]) -> tuple[str, ...]:
    """Add ``Dockerfile.conda`` where its parts are known. A channel of this host's files is not inside a build."""
    micromamba = load_bases().tool("micromamba")
    if lock.base is None or micromamba is None:
        return ()
    if any(p.url.startswith("file:") for p in conda.on(lock.cell.platform).packages):
        return ("no Dockerfile.conda: the channel is a folder of this machine",)
    files |= {"Dockerfile.conda": render_conda(lock, conda, micromamba), **dockerfile.step_files(lock)}
    if lock.build_pins:
        files.setdefault(BUILD_FILE, layer_text(lock.build_pins))
    return ()
