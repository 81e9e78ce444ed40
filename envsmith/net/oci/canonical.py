"""An image in its canonical form: a function of its lock, written as an OCI layout.

An engine's own image is not one: its configuration carries the hour of the build, and its layers have whatever order,
headers and packing the engine's version writes. Here the layers of a cell are written anew in one canonical form, and
those of the base are kept byte for byte. The digest of the configuration, which names every layer by what it unpacks
to, is the identity of the image on every engine and in every registry.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.base.files import HashedWriter, scratch
from envsmith.base.progress import EventKind, Progress, ProgressEvent, silent
from envsmith.errors import ContentError, DataError, UsageError, os_errors
from envsmith.net.oci.image import MAX_CONFIG, OciImage, open_image, open_layer
from envsmith.net.oci.layers import Seen, normalise
from envsmith.net.oci.layout import blob_path, finish
from envsmith.net.oci.packing import SUFFIXES, pack, packing_of, unpacked
from envsmith.net.oci.saved import Saved, unreadable
from envsmith.net.oci.spec import IMAGE_LAYER, Descriptor, canonical, image_manifest
from envsmith.net.oci.store import blob_sha256, read_blob

_STEP = "oci layout"
_PACKING = "compress"
# All that a layout consists of. A folder with anything else is not replaced.
_PARTS = frozenset({"blobs", "index.json", "oci-layout"})
# What of a configuration says how a container starts; the hostname, the build container and the like are the engine's
# own.
_STARTS = ("Env", "Entrypoint", "Cmd", "WorkingDir", "User", "Labels", "ExposedPorts", "Volumes", "StopSignal")
# Labels that an engine adds about itself.
_ENGINE_LABELS = ("io.buildah.", "io.podman.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How an image is written: how many layers are the base's, and the latest time of a file."""

    base_layers: int
    epoch: int


def to_layout(saved: Saved, directory: Path, form: Form, *, progress: Progress = silent) -> OciImage:
    """Write ``saved`` into the folder ``directory`` as an OCI layout in the canonical form, and return it.

    The files of ``saved`` are used up. Its layers of the base are taken byte for byte, the others are written anew. One
    that is empty then is left out. What was at ``directory`` is replaced at the end. Nothing half-written stays on a
    failure: ``ContentError`` for a layer that is not a tar, ``StorageError`` when the disk does not take it.
    """
    progress(ProgressEvent(kind=EventKind.START, step=_STEP, text=f"{len(saved.layers)} layers"))
    with os_errors(f"write {directory}"), _replacing(directory) as folder:
        layers = []
        for fresh, layer in _written(saved, form, folder, progress):
            _place(fresh, folder / blob_path(layer.digest), near=directory)
            layers.append(layer)
        config = canonical(
            canonical_config(
                saved.config.get("config") or {},
                architecture=str(saved.config.get("architecture")),
                diff_ids=[layer.digest for layer in layers],
                base_layers=form.base_layers,
                epoch=form.epoch,
            )
        )
        _complete(folder, config, layers)
    image = open_image(directory)
    progress(ProgressEvent(kind=EventKind.DONE, step=_STEP, text=image.identity))
    return image


def canonical_config(
    config: Mapping[str, Any], *, architecture: str, diff_ids: Sequence[str], base_layers: int, epoch: int
) -> dict[str, Any]:
    """Return a configuration without anything of the engine or the hour. ``config`` is the engine's ``config`` object.

    ``epoch`` (seconds) is the time of the image and of every line of its history, which has exactly one line a layer.
    """
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    starts = {key: config[key] for key in _STARTS if config.get(key)}
    if "Env" in starts:
        starts["Env"] = sorted(str(line) for line in starts["Env"])
    if "Labels" in starts:
        labels = {str(k): str(v) for k, v in starts["Labels"].items() if not str(k).startswith(_ENGINE_LABELS)}
        starts["Labels"] = labels
    names = [
        f"base layer {n + 1}" if n < base_layers else f"cell layer {n + 1 - base_layers}" for n in range(len(diff_ids))
    ]
    return {
        "architecture": architecture,
        "config": starts,
        "created": created,
        "history": [{"created": created, "created_by": f"envsmith {name}"} for name in names],
        "os": "linux",
        "rootfs": {"diff_ids": list(diff_ids), "type": "layers"},
    }


def repack(image: OciImage, directory: Path, packing: str, *, progress: Progress = silent) -> OciImage:
    """Write ``image`` to ``directory`` with its layers packed by ``packing``, and return it: another manifest, one identity."""
    progress(ProgressEvent(kind=EventKind.START, step=_PACKING, text=packing))
    with os_errors(f"write {directory}"), _replacing(directory) as folder:
        layers = []
        for number, layer in enumerate(image.manifest.layers):
            fresh = folder.with_name("layer")
            if not _link_packed(fresh, image.diff_ids[number], packing, near=directory):
                with open_layer(image, number) as plain, fresh.open("wb") as out:
                    pack(plain, out, packing)
            with fresh.open("rb") as file:
                digest, size = blob_sha256(file)
            _place(fresh, folder / blob_path(digest), near=directory)
            layers.append(Descriptor(media_type=IMAGE_LAYER + SUFFIXES[packing], digest=digest, size=size))
            text = f"{layer.size / 1e6:.1f} MB, {size / 1e6:.1f} MB by {packing}"
            progress(ProgressEvent(kind=EventKind.LINE, step=_PACKING, text=text))
        _complete(folder, read_blob(image.store, image.manifest.config, "config", limit=MAX_CONFIG), layers)
    before, after = (sum(layer.size for layer in each) / 1e6 for each in (image.manifest.layers, layers))
    progress(ProgressEvent(kind=EventKind.DONE, step=_PACKING, text=f"{before:.1f} MB, {after:.1f} MB by {packing}"))
    return open_image(directory)


def _link_packed(fresh: Path, diff_id: str, packing: str, *, near: Path) -> bool:
    """Link ``fresh`` to the layer as the layout of a neighbouring cell has it packed. Return whether one has it.

    To unpack the layer with torch, and so to prove that it is the same, takes a tenth of the time that packing takes.
    """
    for path in sorted(near.parent.parent.glob(f"*/{near.name}")):
        with suppress(ContentError, DataError, OSError):
            neighbour = open_image(path)
            layers = dict(zip(neighbour.diff_ids, neighbour.manifest.layers, strict=True))
            if diff_id not in layers or packing_of(layers[diff_id].media_type) != packing:
                continue
            os.link(path / blob_path(layers[diff_id].digest), fresh)
            with fresh.open("rb") as file, unpacked(file, packing) as content:
                if blob_sha256(content)[0] == diff_id:
                    return True
        fresh.unlink(missing_ok=True)
    return False


@contextmanager
def _replacing(directory: Path) -> Iterator[Path]:
    """Yield the folder of a new layout, which takes the place of ``directory`` at the end."""
    if foreign := sorted(path.name for path in directory.glob("*") if path.name not in _PARTS):
        raise UsageError(
            f"Cannot replace {directory}: {foreign[0]} is not a part of an OCI layout.", hint="Move it elsewhere."
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    with scratch(directory.parent) as staging:
        folder = staging / directory.name
        (folder / "blobs" / "sha256").mkdir(parents=True)
        yield folder
        if directory.exists():
            directory.replace(staging / "before")
        folder.replace(directory)


def _written(saved: Saved, form: Form, folder: Path, progress: Progress) -> Iterator[tuple[Path, Descriptor]]:
    """Yield each layer that is not empty, with the file that holds it."""
    entries = Seen()
    for number, path in enumerate(saved.layers):
        is_last_use = path not in saved.layers[number + 1 :]
        try:
            with tarfile.open(path, "r:") as layer:
                if number < form.base_layers:
                    entries.take_base(layer)
                    fresh = path if is_last_use else Path(shutil.copyfile(path, folder.with_name("layer")))
                    with fresh.open("rb") as file:
                        digest, size = blob_sha256(file)
                else:
                    fresh = folder.with_name("layer")
                    with fresh.open("wb") as file:
                        out = HashedWriter(file)
                        members = normalise(layer, out, entries, epoch=form.epoch)
                    digest, size = f"sha256:{out.sha256}", out.size
                    if is_last_use:  # gigabytes that are there twice by now
                        path.unlink()
                    if not members:
                        continue
        except tarfile.TarError as error:
            raise unreadable(f"layer {number + 1}: {error}") from error
        progress(ProgressEvent(kind=EventKind.LINE, step=_STEP, text=f"{size} bytes {digest[:19]}"))
        yield fresh, Descriptor(media_type=IMAGE_LAYER, digest=digest, size=size)


def _complete(folder: Path, config: bytes, layers: Sequence[Descriptor]) -> None:
    manifest = image_manifest(config, layers)
    (folder / blob_path(manifest.config.digest)).write_bytes(config)
    finish(folder, manifest)


def _place(fresh: Path, path: Path, *, near: Path) -> None:
    """Give the finished file ``fresh`` its name as a blob.

    Where the layout of a neighbouring cell (beside ``near``, the layout's final place) has the same blob, both share
    these bytes on disk: the layer with torch is gigabytes, and the same in all of them. It is the fresh file that is
    shared, because its digest was taken.
    """
    fresh.replace(path)
    for twin in near.parent.parent.glob(f"*/{near.name}/blobs/sha256/{path.name}"):
        shared = twin.with_name(f".{twin.name}.shared")
        with suppress(OSError):
            if twin.samefile(path):
                continue
            shared.unlink(missing_ok=True)
            os.link(path, shared)
            shared.replace(twin)
