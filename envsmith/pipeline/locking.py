"""From a cell to its lock, and to every file of the cell's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith.engine.base import Engine, Progress, silent
from envsmith.errors import EnvsmithError, UsageError
from envsmith.model.cell import Cell
from envsmith.model.lock import Lock, folder_name
from envsmith.pipeline.choosing import last_day
from envsmith.pipeline.values import Clock, Options

if TYPE_CHECKING:
    from envsmith.lock.conda.model import CondaLock

__all__ = ["lock_and_render", "lock_cell"]


def lock_cell(cell: Cell, options: Options, *, progress: Progress = silent) -> Lock:
    """The Python part of the lock: resolved by uv under the rules' constraints, judged again by every rule."""
    from envsmith.lock.pip import lock_pip
    from envsmith.solve.api import constraints_for
    from envsmith.sources.interpreters import find_interpreter
    from envsmith.sources.runtime import toolkit_requirements
    from envsmith.sources.uv import Uv

    newest = options.request.exclude_newer or last_day()
    constraints = constraints_for(cell)
    pinned = lock_pip(
        cell,
        constraints=constraints,
        exclude_newer=newest,
        interpreter=find_interpreter(cell.components["python"]),
        progress=progress,
        uv=Uv(offline=True) if options.offline else None,
        also=toolkit_requirements(cell, options.flavour),
        told=options.compile,
    )
    return Lock(
        cell=cell,
        request=options.request_text,
        exclude_newer=newest,
        python_version=cell.components["python"],
        pins=pinned.pins,
        build_pins=pinned.build_pins,
        compiled=pinned.compiled,
        constraints=pinned.constraints,
        resolver=pinned.resolver,
        facts=pinned.facts,
        flavour=options.flavour,
    )


def lock_and_render(
    cell: Cell, options: Options, *, engine: Engine | None, clock: Clock
) -> tuple[Lock, Path, tuple[str, ...], tuple[str, ...]]:
    """Lock the cell, add the image part, write every file of the cell's folder at once."""
    from envsmith.engine.wheels import with_wheels
    from envsmith.lock import store

    directory = options.output / folder_name(cell, options.flavour)
    store.prepare(directory)
    clock.start("lock")
    kept = store.reusable(
        directory, cell=cell, request=options.request_text, exclude_newer=options.request.exclude_newer or last_day()
    )
    lock = _placed(kept, options) if kept else lock_cell(cell, options, progress=clock.progress)
    clock.done(
        "lock",
        f"{len(lock.pins)} distributions, {sum(len(p.artifacts) for p in lock.pins)} hashed files",
        cached=kept is not None,
    )
    for sentence in _told_of_sources(lock):
        clock.note(sentence)
    lock = _with_image(lock, options, engine, clock)
    lock = with_wheels(lock, engine, progress=clock.progress)
    files = dict(_python_files(lock))
    if options.conda_only:
        files = {name: text for name, text in files.items() if not name.startswith("requirements")}
    notes = []
    if options.conda or options.conda_needed:
        note = _conda(lock, directory, options, files, clock)
        notes += [note] if note else []
    if lock.base is None:
        notes.append(f"no Dockerfile: {lock.image_note}")
    elif not options.conda_only:
        from envsmith.render.companions import companions
        from envsmith.render.dockerfile import render

        files |= {"Dockerfile": render(lock), **companions(lock)}
    store.write(directory, files)
    return lock, directory, tuple(sorted(files)), tuple(notes)


def _told_of_sources(lock: Lock) -> list[str]:
    """What will be compiled, from what and how: minutes or hours of the builder."""
    told = []
    for source in lock.compiled:
        pin = lock.pin(source.name)
        words = " ".join(f"{name}={value}" for name, value in source.variables)
        archive = f" from the archive with sha256 {pin.artifacts[0].sha256[:16]}…" if source.archive and pin else ""
        every = (
            "" if lock.cell.components.get("gpu") or not source.toolkit else "; no --gpu: for all of its architectures"
        )
        told.append(
            f"{source.name} is compiled{archive}{' with nvcc' if source.toolkit else ''}{f' ({words})' if words else ''}{every}"
        )
    return told


def _placed(lock: Lock, options: Options) -> Lock:
    """A lock that is kept, with the archives where they are now: the same file may have been given by another path."""
    given = {archive.name: (archive.artifact,) for archive in options.compile.archives}
    pins = tuple(replace(pin, artifacts=given.get(pin.name, pin.artifacts)) for pin in lock.pins)
    return replace(lock, pins=pins)


def _python_files(lock: Lock) -> Mapping[str, str]:
    from envsmith.lock.pylock import pylock_text
    from envsmith.lock.requirements import requirement_files

    cell = json.dumps(lock.cell.to_json(), indent=1, sort_keys=True) + "\n"
    return {"cell.json": cell, "lock.json": lock.text(), "pylock.toml": pylock_text(lock), **requirement_files(lock)}


def _with_image(lock: Lock, options: Options, engine: Engine | None, clock: Clock) -> Lock:
    """Pin the base image and the OS packages; a lock without them still serves a virtual environment, and says why."""
    from envsmith.sources.images import pin_image

    clock.start("base image")
    pinned = pin_image(lock, base=options.base, engine=engine, progress=clock.progress)
    clock.done("base image", f"{pinned.base.name}@{pinned.base.digest[:19]}" if pinned.base else pinned.image_note)
    return pinned


def _conda(lock: Lock, directory: Path, options: Options, files: dict[str, str], clock: Clock) -> str | None:
    """Add the Conda lock and its Dockerfile where a channel answers; otherwise one note, and the build goes on.

    Where nothing can be done without it, its error is the error.
    """
    from envsmith.lock.conda import step

    clock.start("conda lock")
    try:
        _refuse_archives(lock)
        ask = options.conda_ask()
        part = step.conda_part(lock, directory, ask, progress=clock.progress)
    except EnvsmithError as error:
        if options.conda_needed:
            raise
        note = f"no conda-lock.yml: {error.message}" + (f" ({error.hint})" if error.hint else "")
        clock.done("conda lock", note)
        return note
    files.update(part.texts)
    more = _conda_image(lock, part.lock, files)
    clock.done("conda lock", f"{', '.join(sorted(part.texts))} from {', '.join(ask.channels)}", cached=part.kept)
    return "; ".join([*part.notes, *more]) or None


def _refuse_archives(lock: Lock) -> None:
    """No tool that installs a Conda lock compiles an archive that no index has."""
    if given := [source.name for source in lock.compiled if source.archive]:
        raise UsageError(
            f"{', '.join(given)}: built from a source archive, which only the pinned builder of an image does",
            hint="use --engine docker, podman or buildah",
        )


def _conda_image(lock: Lock, conda: CondaLock, files: dict[str, str]) -> tuple[str, ...]:
    """Add ``Dockerfile.conda`` where its parts are known; a channel of this host's files is not inside a build."""
    from envsmith.lock.requirements import layer_text
    from envsmith.render.conda_dockerfile import render_conda
    from envsmith.sources.images import load_bases

    micromamba = load_bases().tool("micromamba")
    if lock.base is None or micromamba is None:
        return ()
    if any(p.url.startswith("file:") for p in conda.on(lock.cell.platform).packages):
        return ("no Dockerfile.conda: the channel is a folder of this machine",)
    files["Dockerfile.conda"] = render_conda(lock, conda, micromamba)
    if lock.build_pins:
        files.setdefault("requirements-build.txt", layer_text(lock.build_pins))
    return ()
