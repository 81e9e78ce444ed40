"""The same lock built a second time, without a cache: the same image, or the files that differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from envsmith.engines.base import Engine
from envsmith.engines.container import ContainerEngine
from envsmith.errors import EngineError, EnvsmithError
from envsmith.files import scratch
from envsmith.lock import store
from envsmith.model.lock import Lock
from envsmith.oci.diff import difference
from envsmith.oci.layout import OciImage, open_image
from envsmith.progress import Event, EventKind, Progress, silent
from envsmith.schema import AsJson

# The OCI layout of a cell, in its own folder.
LAYOUT = "oci"


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuildReport(AsJson):
    """Both manifest digests, and what differs: one line a file (path and what differs) or key of the configuration."""

    same: bool
    first: str
    second: str
    differences: tuple[str, ...] = ()


def rebuild(directory: Path, *, engine: Engine, progress: Progress = silent) -> RebuildReport:
    """Build the lock in the cell's folder ``directory`` anew and compare it with the layout beside it.

    Without a layout the lock is first built (or taken from the engine's cache) and exported to ``directory/oci``.
    Raises ``EngineError`` for an engine that makes no images, and ``EnvsmithError`` (exit code 1) when there is no
    lock.
    """
    images = _image_engine(engine)
    lock = store.read(directory)
    if lock is None:
        raise EnvsmithError(f"{directory}: no lock is there", hint="build the cell first: envsmith build")
    _need_base(lock, images)
    first = _first(lock, directory, images, progress)
    progress(Event(kind=EventKind.START, step="rebuild", text=f"{lock.cell.id} without a cache"))
    built = images.build(lock, directory, progress=progress, cache=False)
    if first.source and built.digest == first.source:
        # An image's id is the sha256 of its configuration, which holds that of every layer: nothing can differ.
        progress(Event(kind=EventKind.DONE, step="rebuild", text="the same digest"))
        return RebuildReport(same=True, first=first.digest, second=first.digest)
    try:
        # In a folder of its own depth: blobs that are equal are shared on disk with the first layout.
        with scratch(directory.parent) as folder:
            compress = any(layer.media_type.endswith("+gzip") for layer in first.manifest.layers)
            second = images.export(built, folder / LAYOUT, compress=compress, progress=progress)
            differences = difference(first, second)
            same, digest = first.digest == second.digest, second.digest
    finally:
        images.discard(built)
    text = "the same digest" if same else f"{len(differences)} differences"
    progress(Event(kind=EventKind.DONE, step="rebuild", text=text))
    return RebuildReport(same=same, first=first.digest, second=digest, differences=differences)


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
    """Build the lock of a published image anew and compare the manifest digest with ``digest``.

    ``scratch`` is an empty folder. ``fetch`` writes the published image as a layout. It is called only when the digests
    differ, to name the files. Raises ``EngineError`` for an engine that makes no images, or when the lock's base cannot
    be had here.
    """
    images = _image_engine(engine)
    _need_base(lock, images)
    progress(Event(kind=EventKind.START, step="rebuild", text=f"{lock.cell.id} without a cache"))
    built = images.build(lock, scratch, progress=progress, cache=False)
    try:
        second = images.manifest_digest(built, scratch, compress=compress, progress=progress)
        differences: tuple[str, ...] = ()
        if second != digest:
            first = fetch(scratch / "published" / LAYOUT)
            again = images.export(built, scratch / "again" / LAYOUT, compress=compress, progress=progress)
            differences = difference(first, again)
    finally:
        images.discard(built)
    text = f"{len(differences)} differences" if differences else "the same digest"
    progress(Event(kind=EventKind.DONE, step="rebuild", text=text))
    return RebuildReport(same=second == digest, first=digest, second=second, differences=differences)


def _image_engine(engine: Engine) -> ContainerEngine:
    if engine.images is None:
        raise EngineError(
            f"engine {engine.name} makes no images, so there is nothing to rebuild",
            hint="start a container engine, or name one with --engine docker, podman or buildah",
        )
    return engine.images


def _need_base(lock: Lock, engine: ContainerEngine) -> None:
    """Refuse a lock whose base no registry has and this engine does not hold, before anything is built."""
    if lock.base is not None and lock.base.origin != "registry" and not engine.has_base(lock.base):
        raise EngineError(
            f"the base of the lock, {lock.base.name} ({lock.base.digest[:19]}), is not in the engine",
            hint="load it from where the image was built (docker save and docker load), or make it with "
            "tools/base_image.py, then run again",
        )


def _first(lock: Lock, directory: Path, engine: ContainerEngine, progress: Progress) -> OciImage:
    """Return the layout of this lock in its folder, or make it now."""
    layout = directory / LAYOUT
    if (layout / "index.json").is_file():
        image = open_image(layout)
        if image.labels.get("io.envsmith.lock") == lock.digest:
            return image
    return engine.export(engine.build(lock, directory, progress=progress), layout, progress=progress)
