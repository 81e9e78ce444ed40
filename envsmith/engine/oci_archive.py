"""What engines write when they are asked for an image, and how it becomes an OCI layout of ours.

``docker save`` writes a tar with ``manifest.json`` in two styles (a folder a layer up to 24, blobs since 25), podman and buildah write an OCI
layout folder. Both are read as they are: configuration, then each layer as a seekable tar.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from envsmith.engine import oci
from envsmith.engine.base import Event, EventKind, Progress, silent
from envsmith.engine.oci import OciImage, OciLayer, canonical_config
from envsmith.engine.oci_layers import LayerWriter, Seen, copy_verbatim, normalise
from envsmith.errors import ContentError, DataError, StorageError

__all__ = ["DockerArchive", "LayoutFolder", "Saved", "layout_digest", "to_layout"]

_STEP = "oci layout"
_MAX_JSON = 8 << 20


class Saved(Protocol):
    """An image as an engine wrote it."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The image's configuration."""
        ...

    @property
    def count(self) -> int:
        """How many layers it has, the base's first."""
        ...

    def layer(self, number: int) -> Any:
        """A context manager that opens a layer's uncompressed tar, seekable."""
        ...


def _mapping(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {str(error)[:120]}") from None


class DockerArchive:
    """The tar of ``docker save`` or ``podman save --format docker-archive``; it stays open until :meth:`close`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._tar = tarfile.open(path, "r:")  # noqa: SIM115 - closed by close()
        except (OSError, tarfile.TarError) as error:
            raise ContentError(f"{path}: not an image archive: {error}") from None
        try:
            self._members = {member.name: member for member in self._tar}
            self._layers, self.config = self._described()
        except BaseException:
            self._tar.close()
            raise
        self.count = len(self._layers)

    def _described(self) -> tuple[list[str], Mapping[str, Any]]:
        rows = self._read("manifest.json")
        if not isinstance(rows, list) or len(rows) != 1 or not isinstance(rows[0], dict):
            raise ContentError(f"{self.path}: manifest.json does not name exactly one image")
        config = self._read(str(rows[0].get("Config")))
        if not isinstance(config, dict):
            raise ContentError(f"{self.path}: the image's configuration is not a mapping")
        return [str(name) for name in rows[0].get("Layers") or []], config

    def _member(self, name: str) -> tarfile.TarInfo:
        """A member by name; up to version 24 a layer that occurs twice is a link to the other."""
        for _ in range(8):
            member = self._members.get(name)
            if member is None:
                break
            if not (member.issym() or member.islnk()):
                return member
            folder = "" if member.islnk() else str(Path(name).parent)
            name = _joined(folder, member.linkname)
        raise ContentError(f"{self.path}: the archive does not hold {name[:120]}")

    def _read(self, name: str) -> Any:
        member = self._member(name)
        file = self._tar.extractfile(member) if member.size <= _MAX_JSON else None
        if file is None:
            raise ContentError(f"{self.path}: {name[:120]} is not a small file")
        return _mapping(file.read(), f"{self.path}: {name}")

    @contextmanager
    def layer(self, number: int) -> Iterator[IO[bytes]]:
        """See :class:`Saved`."""
        file = self._tar.extractfile(self._member(self._layers[number]))
        if file is None:
            raise ContentError(f"{self.path}: layer {number} is not a file")
        with file:
            yield file

    def close(self) -> None:
        """Close the archive."""
        self._tar.close()


def _joined(folder: str, link: str) -> str:
    parts: list[str] = [p for p in folder.split("/") if p not in {"", "."}]
    for part in link.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in {"", ".", ".."}:
            parts.append(part)
    return "/".join(parts)


@dataclass(frozen=True, slots=True)
class LayoutFolder:
    """An OCI layout that ``buildah push IMAGE oci:DIR`` or ``podman push`` wrote."""

    image: OciImage

    @property
    def config(self) -> Mapping[str, Any]:
        """See :class:`Saved`."""
        return self.image.config

    @property
    def count(self) -> int:
        """See :class:`Saved`."""
        return len(self.image.layers)

    @contextmanager
    def layer(self, number: int) -> Iterator[IO[bytes]]:
        """See :class:`Saved`; a compressed layer is unpacked into a temporary file beside it first."""
        path = self.image.blob(self.image.layers[number].digest)
        with path.open("rb") as file:
            if file.read(2) != b"\x1f\x8b":
                file.seek(0)
                yield file
                return
        with tempfile.TemporaryFile(dir=path.parent) as plain, gzip.open(path) as packed:
            shutil.copyfileobj(packed, plain, 1 << 20)
            plain.seek(0)
            yield plain


def to_layout(
    saved: Saved,
    directory: Path,
    *,
    base_layers: int,
    epoch: int,
    compress: bool = False,
    source: str = "",
    progress: Progress = silent,
) -> OciImage:
    """Write ``saved`` into the folder ``directory`` as an OCI layout in the canonical form, and return it.

    ``base_layers`` layers are taken byte for byte, the others are written anew; one that is empty then is left out. What was at
    ``directory`` is replaced at the end; nothing half-written stays on a failure: ``ContentError`` when ``saved`` is no archive of an
    image, ``StorageError`` when the disk does not take it.
    """
    progress(Event(kind=EventKind.START, step=_STEP, text=f"{saved.count} layers"))
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".oci-", dir=directory.parent) as scratch:
            layout = Path(scratch) / directory.name
            (layout / "blobs" / "sha256").mkdir(parents=True)
            layers = list(_layers(saved, layout, _Writing(directory, base_layers, epoch, compress), progress))
            config = canonical_config(
                saved.config.get("config") or {},
                architecture=str(saved.config.get("architecture")),
                diff_ids=[layer.diff_id for layer in layers],
                base_layers=base_layers,
                epoch=epoch,
            )
            oci.finish_layout(layout, config, layers, source=source)
            if directory.exists():
                shutil.rmtree(directory)
            layout.replace(directory)
    except tarfile.TarError as error:
        raise ContentError(f"the engine's image cannot be read: {error}") from error
    except OSError as error:
        raise StorageError(f"{directory}: the OCI layout cannot be written: {error.strerror or error}") from error
    image = oci.read_layout(directory)
    progress(Event(kind=EventKind.DONE, step=_STEP, text=image.manifest_digest))
    return image


def layout_digest(
    saved: Saved, *, base_layers: int, epoch: int, compress: bool = False, progress: Progress = silent
) -> str:
    """The manifest digest that :func:`to_layout` would give, without writing a layer: gigabytes are read and nothing is kept.

    ``ContentError`` when ``saved`` is no archive of an image.
    """
    progress(Event(kind=EventKind.START, step=_STEP, text=f"{saved.count} layers, read only"))
    seen, layers = Seen(), []
    try:
        for number in range(saved.count):
            out = LayerWriter(Path(os.devnull), gzip=compress)
            try:
                with saved.layer(number) as file:
                    kept = _write_layer(file, out, seen, verbatim=number < base_layers, epoch=epoch)
            finally:
                layer = out.close()
            if kept:
                layers.append(layer)
                progress(Event(kind=EventKind.LINE, step=_STEP, text=f"{layer.size} bytes {layer.digest[:19]}"))
    except tarfile.TarError as error:
        raise ContentError(f"the engine's image cannot be read: {error}") from error
    config = canonical_config(
        saved.config.get("config") or {},
        architecture=str(saved.config.get("architecture")),
        diff_ids=[layer.diff_id for layer in layers],
        base_layers=base_layers,
        epoch=epoch,
    )
    digest = "sha256:" + hashlib.sha256(oci.manifest_text(oci.canonical(config), layers)).hexdigest()
    progress(Event(kind=EventKind.DONE, step=_STEP, text=digest))
    return digest


@dataclass(frozen=True, slots=True)
class _Writing:
    """How layers are written: the layout's final place, how many are the base's, the latest file time, and whether with gzip."""

    directory: Path
    base_layers: int
    epoch: int
    compress: bool


def _layers(saved: Saved, layout: Path, how: _Writing, progress: Progress) -> Iterator[OciLayer]:
    seen = Seen()
    for number in range(saved.count):
        fresh = layout / f".layer-{number}"
        out = LayerWriter(fresh, gzip=how.compress)
        try:
            with saved.layer(number) as file:
                kept = _write_layer(file, out, seen, verbatim=number < how.base_layers, epoch=how.epoch)
        finally:
            layer = out.close()
        if not kept:
            fresh.unlink()
            continue
        oci.place_blob(fresh, layer.digest, layout, near=how.directory)
        progress(Event(kind=EventKind.LINE, step=_STEP, text=f"{layer.size} bytes {layer.digest[:19]}"))
        yield layer


def _write_layer(file: IO[bytes], out: LayerWriter, seen: Seen, *, verbatim: bool, epoch: int) -> int:
    """Whether (or how many members) something was written."""
    with tarfile.open(fileobj=file, mode="r:") as layer:
        if not verbatim:
            return normalise(layer, out, seen, epoch=epoch)
        seen.take_base(layer)
    file.seek(0)
    copy_verbatim(file, out)
    return 1
