"""The same lock built a second time, without a cache: the same image, or the files that differ."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from envsmith.engines.base import Built, Engine
from envsmith.engines.bases import ImageProvider
from envsmith.errors import EngineError, EnvsmithError
from envsmith.lock import store
from envsmith.model.lock import Lock
from envsmith.oci.diff import difference
from envsmith.oci.spec import OciImage, read_layout
from envsmith.progress import Event, EventKind, Progress, silent

# The OCI layout of a cell, in its own folder.
LAYOUT = "oci"


@runtime_checkable
class ImageEngine(Protocol):
    """What building images adds to :class:`envsmith.engines.base.Engine`."""

    @property
    def name(self) -> str:
        """The word of ``--engine``."""
        ...

    def build(self, lock: Lock, directory: Path, *, progress: Progress = silent, cache: bool = True) -> Built:
        """See :class:`envsmith.engines.base.Engine`; without ``cache`` every step is run again, and the result takes no name."""
        ...

    def export(self, built: Built, directory: Path, *, compress: bool = False, progress: Progress = silent) -> OciImage:
        """Write what was built to the folder ``directory`` as an OCI layout in the canonical form."""
        ...

    def manifest_digest(
        self, built: Built, scratch: Path, *, compress: bool = False, progress: Progress = silent
    ) -> str:
        """The manifest digest that :meth:`export` would give, without writing a layout; ``scratch`` is a folder for files on the way."""
        ...

    def discard(self, built: Built) -> None:
        """Remove an image that has no name."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuildReport:
    """Both manifest digests, and what differs: one line a file (path and what differs) or key of the configuration."""

    same: bool
    first: str
    second: str
    differences: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """For ``--json``."""
        return {"same": self.same, "first": self.first, "second": self.second, "differences": list(self.differences)}


def rebuild(directory: Path, *, engine: Engine, progress: Progress = silent) -> RebuildReport:
    """Build the lock in the cell's folder ``directory`` anew and compare it with the layout that is there.

    Without a layout the lock is first built (or taken from the engine's cache) and exported to ``directory/oci``. ``EngineError`` for an
    engine that makes no images, ``EnvsmithError`` (exit code 1) when there is no lock.
    """
    if not isinstance(engine, ImageEngine):
        raise EngineError(
            f"engine {engine.name} makes no images, so there is nothing to rebuild",
            hint="start a container engine, or name one with --engine docker, podman or buildah",
        )
    lock = store.read(directory)
    if lock is None:
        raise EnvsmithError(f"{directory}: no lock is there", hint="build the cell first: envsmith build")
    _need_base(lock, engine, progress)
    first = _first(lock, directory, engine, progress)
    progress(Event(kind=EventKind.START, step="rebuild", text=f"{lock.cell.id} without a cache"))
    built = engine.build(lock, directory, progress=progress, cache=False)
    if first.source and built.digest == first.source:
        # An image's id is the sha256 of its configuration, which holds that of every layer: nothing is left that could differ.
        progress(Event(kind=EventKind.DONE, step="rebuild", text="the same digest"))
        digest = first.manifest_digest
        return RebuildReport(same=True, first=digest, second=digest)
    try:
        # In a folder of its own depth: blobs that are equal are shared on disk with the first layout.
        with tempfile.TemporaryDirectory(prefix=".rebuild-", dir=directory.parent) as scratch:
            compress = any(layer.media_type.endswith("+gzip") for layer in first.layers)
            second = engine.export(built, Path(scratch) / LAYOUT, compress=compress, progress=progress)
            told = difference(first, second)
            same, digest = first.manifest_digest == second.manifest_digest, second.manifest_digest
    finally:
        engine.discard(built)
    progress(Event(kind=EventKind.DONE, step="rebuild", text="the same digest" if same else f"{len(told)} differences"))
    return RebuildReport(same=same, first=first.manifest_digest, second=digest, differences=told)


def rebuild_published(
    lock: Lock,
    digest: str,
    fetch: Callable[[Path], OciImage],
    scratch: Path,
    *,
    engine: Engine,
    compress: bool = False,
    progress: Progress = silent,
) -> RebuildReport:
    """Build the lock of a published image anew and compare the manifest digest with ``digest``; ``scratch`` is an empty folder.

    ``fetch`` writes the published image as a layout; it is called only when the digests differ, to name the files. ``EngineError`` for an
    engine that makes no images, or when the lock's base cannot be had here any more.
    """
    if not isinstance(engine, ImageEngine):
        raise EngineError(
            f"engine {engine.name} makes no images, so there is nothing to rebuild",
            hint="start a container engine (docker, podman)",
        )
    _need_base(lock, engine, progress)
    progress(Event(kind=EventKind.START, step="rebuild", text=f"{lock.cell.id} without a cache"))
    built = engine.build(lock, scratch, progress=progress, cache=False)
    try:
        second = engine.manifest_digest(built, scratch, compress=compress, progress=progress)
        told: tuple[str, ...] = ()
        if second != digest:
            first = fetch(scratch / "published" / LAYOUT)
            again = engine.export(built, scratch / "again" / LAYOUT, compress=compress, progress=progress)
            told = difference(first, again)
    finally:
        engine.discard(built)
    progress(
        Event(kind=EventKind.DONE, step="rebuild", text="the same digest" if not told else f"{len(told)} differences")
    )
    return RebuildReport(same=second == digest, first=digest, second=second, differences=told)


def _need_base(lock: Lock, engine: Engine, progress: Progress) -> None:
    """A base that was made of the distribution's packages is made again where it is missing; it is the lock's, or the rebuild ends here."""
    if lock.base is None or lock.base.origin != "bootstrapped" or not isinstance(engine, ImageProvider):
        return
    if engine.has_base(lock.base):
        return
    made = engine.base_for(".".join(lock.python_version.split(".")[:2]), None, progress=progress)
    if made.digest != lock.base.digest:
        raise EngineError(
            f"the base of the lock, {lock.base.name}, cannot be made any more: the distribution's mirror gives {made.digest[:19]} today, the lock says {lock.base.digest[:19]}",
            hint="load the base from where the image was built (docker save and docker load), then run again",
        )


def _first(lock: Lock, directory: Path, engine: ImageEngine, progress: Progress) -> OciImage:
    """The layout of this lock that is there, or one that is made now."""
    layout = directory / LAYOUT
    if (layout / "index.json").is_file():
        image = read_layout(layout)
        if image.labels.get("io.envsmith.lock") == lock.digest:
            return image
    return engine.export(engine.build(lock, directory, progress=progress), layout, progress=progress)
