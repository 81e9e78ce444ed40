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
    """Both digests of the configuration, and what differs: one line a file, or key of the configuration."""

    same: bool
    first: str
    second: str
    differences: tuple[str, ...] = ()


def rebuild(directory: Path, *, engine: Engine, progress: Progress = silent) -> RebuildReport:
    """Build the lock in the cell's folder ``directory`` anew and compare it with the layout beside it.

    Without a layout the lock is first built (or taken from the engine's cache) and written to ``directory/oci``.
    Raises ``EngineError`` for an engine that makes no images, and ``EnvsmithError`` (exit code 1) when there is no
    lock.
    """
    lock = store.read(directory)
    if lock is None:
        raise EnvsmithError(f"{directory}: no lock is there", hint="build the cell first: envsmith build")
    first = _first(lock, directory, _image_engine(engine), progress)
    # In a folder of its own depth: blobs that are equal are shared on disk with the first layout.
    with scratch(directory.parent) as folder:
        return rebuild_published(lock, first.identity, lambda _: first, folder, engine=engine, progress=progress)


def rebuild_published(
    lock: Lock,
    identity: str,
    fetch: Callable[[Path], OciImage],
    scratch: Path,
    *,
    engine: Engine,
    progress: Progress = silent,
) -> RebuildReport:
    """Build the lock of a published image anew and compare the digest of its configuration with ``identity``.

    ``scratch`` is an empty folder. ``fetch`` writes the published image as a layout. It is called only when the digests
    differ, to name the files. Raises ``EngineError`` for an engine that makes no images, or when the lock's base cannot
    be had here.
    """
    images = _image_engine(engine)
    progress(Event(kind=EventKind.START, step="rebuild", text=f"{lock.cell.id} without a cache"))
    again = images.build_again(lock, scratch / LAYOUT, progress=progress)
    same = again.identity == identity
    differences = () if same else difference(fetch(scratch / "published" / LAYOUT), again)
    text = "the same digest" if same else f"{len(differences)} differences"
    progress(Event(kind=EventKind.DONE, step="rebuild", text=text))
    return RebuildReport(same=same, first=identity, second=again.identity, differences=differences)


def _image_engine(engine: Engine) -> ContainerEngine:
    if engine.images is None:
        raise EngineError(
            f"engine {engine.name} makes no images, so there is nothing to rebuild",
            hint="start a container engine, or name one with --engine docker, podman or buildah",
        )
    return engine.images


def _first(lock: Lock, directory: Path, engine: ContainerEngine, progress: Progress) -> OciImage:
    """Return the layout of this lock in its folder, or make it now."""
    layout = directory / LAYOUT
    if (layout / "index.json").is_file():
        image = open_image(layout)
        if image.labels.get("io.envsmith.lock") == lock.digest:
            return image
    engine.build(lock, directory, layout=layout, progress=progress)
    return open_image(layout)
