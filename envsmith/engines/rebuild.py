"""The same lock built a second time, without a cache: the same image, or the files that differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from envsmith.engines.base import Engine
from envsmith.errors import EngineError
from envsmith.model.lock import Lock
from envsmith.oci.diff import difference
from envsmith.oci.layout import OciImage
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


def rebuild(
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
    if engine.images is None:
        raise EngineError(
            f"Cannot rebuild with the engine {engine.name}: it makes no images.",
            hint="Start a container engine, or name one with --engine docker, podman or buildah.",
        )
    progress(Event(kind=EventKind.START, step="rebuild", text=f"{lock.cell.id} without a cache"))
    again = engine.images.build_again(lock, scratch / LAYOUT, progress=progress)
    same = again.identity == identity
    differences = () if same else difference(fetch(scratch / "published" / LAYOUT), again)
    text = "the same digest" if same else f"{len(differences)} differences"
    progress(Event(kind=EventKind.DONE, step="rebuild", text=text))
    return RebuildReport(same=same, first=identity, second=again.identity, differences=differences)
