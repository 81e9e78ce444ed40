"""From what an engine saves to a canonical layout, and from there back into an engine.

An engine's own image is not a function of its lock: its configuration carries the hour of the build, and its layers have
whatever order, headers and packing the engine's version writes. Here the layers of a cell are written anew in one
canonical form, and those of the base are kept byte for byte. The digest of the configuration, which names every layer
by what it unpacks to, is the identity of the image on every engine and in every registry.
"""

from __future__ import annotations

import io
import os
import posixpath
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from envsmith.base.files import read_bounded, scratch
from envsmith.base.progress import Event, EventKind, Progress, silent
from envsmith.base.schema import UnreadableError, parse_json
from envsmith.errors import ContentError, DataError, UsageError, os_errors
from envsmith.net.oci.layers import CHUNK, LayerWriter, Seen, normalise, stream
from envsmith.net.oci.layout import (
    MAX_CONFIG,
    OciImage,
    blob_path,
    blob_sha256,
    finish,
    open_image,
    open_layer,
    read_blob,
)
from envsmith.net.oci.packing import SUFFIXES, pack, packing_of, packing_seen, unpacked
from envsmith.net.oci.spec import IMAGE_LAYER, Descriptor, canonical, canonical_config, image_manifest, index_bytes

if TYPE_CHECKING:
    from io import BufferedReader

_STEP = "oci layout"
_PACKING = "compress"
# All that a layout consists of, "source" in those of earlier releases. A folder with anything else is not replaced.
_PARTS = frozenset({"blobs", "index.json", "oci-layout", "source"})
_MAX_LINKS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How an image is written: how many layers are the base's, and the latest time of a file."""

    base_layers: int
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """An image as an engine saved it: its configuration, and each layer as the file of an uncompressed tar."""

    config: Mapping[str, Any]
    layers: tuple[Path, ...]


class _Pieces(io.RawIOBase):
    """Pieces that come one after the other, as a file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = piece
        part, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


def read_saved(pieces: Iterable[bytes], folder: Path) -> Saved:
    """Unpack the archive of ``docker save``, which comes in ``pieces``, into the empty folder ``folder``.

    Every engine writes ``manifest.json``, whatever stands beside it. Layers are folders up to version 24, blobs since
    25, and packed where the engine keeps its images in containerd. Raises ``ContentError`` for what is not an archive of
    exactly one image.
    """
    files: dict[str, Path] = {}
    links: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BufferedReader(_Pieces(pieces), CHUNK), mode="r|", bufsize=CHUNK) as archive:
            for member in archive:
                if member.isreg():
                    files[member.name] = folder / str(archive.offset)
                    file = cast("BufferedReader", archive.extractfile(member))
                    with unpacked(file, packing_seen(file)) as content, files[member.name].open("xb") as out:
                        shutil.copyfileobj(content, out, CHUNK)
                elif member.issym() or member.islnk():
                    within = "" if member.islnk() else posixpath.dirname(member.name)
                    target = posixpath.join("/", within, member.linkname)
                    links[member.name] = posixpath.normpath(target).lstrip("/")
    except tarfile.TarError as error:
        raise _unreadable(str(error)) from None
    rows = _document(_file("manifest.json", files, links), "manifest.json")
    if not isinstance(rows, list) or len(rows) != 1 or not isinstance(rows[0], dict):
        raise _unreadable("manifest.json does not name exactly one image")
    config = _document(_file(str(rows[0].get("Config")), files, links), "its configuration")
    if not isinstance(config, dict):
        raise _unreadable("its configuration is not a mapping")
    names = [str(name) for name in rows[0].get("Layers") or []]
    return Saved(config=config, layers=tuple(_file(name, files, links) for name in names))


def _file(name: str, files: Mapping[str, Path], links: Mapping[str, str]) -> Path:
    """Return a file of the archive. Up to version 24 a layer that occurs twice is a link to the other."""
    for _ in range(_MAX_LINKS):
        if name in files:
            return files[name]
        name = links.get(name, name)
    raise _unreadable(f"the archive does not hold {name[:120]}")


def _document(path: Path, name: str) -> Any:
    try:
        return parse_json(read_bounded(path, MAX_CONFIG))
    except UnreadableError as error:
        raise _unreadable(f"{name}: {str(error)[:120]}") from None


def _unreadable(reason: str) -> ContentError:
    return ContentError(
        f"Cannot read the image that the engine saved: {reason}.",
        hint="Check that the engine is still running (docker info), then run the same command again.",
    )


# -- a canonical layout ------------------------------------------------------------------------------------------------


def to_layout(saved: Saved, directory: Path, form: Form, *, progress: Progress = silent) -> OciImage:
    """Write ``saved`` into the folder ``directory`` as an OCI layout in the canonical form, and return it.

    The files of ``saved`` are used up. Its layers of the base are taken byte for byte, the others are written anew. One
    that is empty then is left out. What was at ``directory`` is replaced at the end. Nothing half-written stays on a
    failure: ``ContentError`` for a layer that is not a tar, ``StorageError`` when the disk does not take it.
    """
    progress(Event(kind=EventKind.START, step=_STEP, text=f"{len(saved.layers)} layers"))
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
    progress(Event(kind=EventKind.DONE, step=_STEP, text=image.identity))
    return image


def repack(image: OciImage, directory: Path, packing: str, *, progress: Progress = silent) -> OciImage:
    """Write ``image`` to ``directory`` with its layers packed by ``packing``, and return it: another manifest, one identity."""
    progress(Event(kind=EventKind.START, step=_PACKING, text=packing))
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
            progress(Event(kind=EventKind.LINE, step=_PACKING, text=text))
        _complete(folder, read_blob(image.store, image.manifest.config, "config", limit=MAX_CONFIG), layers)
    before, after = (sum(layer.size for layer in each) / 1e6 for each in (image.manifest.layers, layers))
    progress(Event(kind=EventKind.DONE, step=_PACKING, text=f"{before:.1f} MB, {after:.1f} MB by {packing}"))
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
                    written = Descriptor(media_type=IMAGE_LAYER, digest=digest, size=size)
                else:
                    fresh = folder.with_name("layer")
                    with closing(LayerWriter(fresh)) as out:
                        members = normalise(layer, out, entries, epoch=form.epoch)
                    written = out.descriptor
                    if is_last_use:  # gigabytes that are there twice by now
                        path.unlink()
                    if not members:
                        continue
        except tarfile.TarError as error:
            raise _unreadable(f"layer {number + 1}: {error}") from error
        progress(Event(kind=EventKind.LINE, step=_STEP, text=f"{written.size} bytes {written.digest[:19]}"))
        yield fresh, written


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


# -- back into an engine -----------------------------------------------------------------------------------------------


def loadable(image: OciImage, *, without: int = 0) -> Iterator[bytes]:
    """Yield the archive that every engine loads ``image`` from: an OCI layout and ``manifest.json`` in one tar.

    The first ``without`` layers are left out: an engine that has them takes its own.
    """
    manifest = image.manifest
    documents = {
        "oci-layout": canonical({"imageLayoutVersion": "1.0.0"}),
        "index.json": index_bytes([manifest.descriptor]),
        "manifest.json": canonical(
            [
                {
                    "Config": blob_path(manifest.config.digest),
                    "RepoTags": None,
                    "Layers": [blob_path(layer.digest) for layer in manifest.layers],
                }
            ]
        ),
        blob_path(image.digest): manifest.raw,
        blob_path(image.identity): read_blob(image.store, manifest.config, "config", limit=MAX_CONFIG),
    }
    for name, data in documents.items():
        yield from _member(name, len(data), io.BytesIO(data))
    for layer in {layer.digest: layer for layer in manifest.layers[without:]}.values():
        opened = image.store.blob(layer.digest)
        if opened is None:
            raise ContentError(f"Cannot read {image.store.name}: {layer.digest} is missing.")
        with closing(opened) as file:
            yield from _member(blob_path(layer.digest), layer.size, file)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, size: int, file: IO[bytes]) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    yield info.tobuf(tarfile.PAX_FORMAT)
    yield from stream(file)
    yield bytes(-size % tarfile.BLOCKSIZE)
