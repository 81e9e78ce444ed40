"""The one image of an OCI layout: its manifest, its configuration, and its layers as uncompressed tars."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from envsmith.base.schema import parse_json
from envsmith.errors import ContentError, DataError
from envsmith.net.oci.layers import CHUNK
from envsmith.net.oci.layout import LayoutStore, open_files
from envsmith.net.oci.packing import packing_of, unpacked
from envsmith.net.oci.spec import Manifest, is_digest
from envsmith.net.oci.store import blob_sha256, load_manifest, read_blob

MAX_CONFIG = 8 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class OciImage:
    """The one image of a layout."""

    store: LayoutStore = field(compare=False)
    manifest: Manifest
    config: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Return what a registry calls the image."""
        return self.manifest.digest

    @property
    def identity(self) -> str:
        """Return the digest of the configuration, which is the same however the layers are stored."""
        return self.manifest.config.digest

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels of the configuration."""
        labels = (self.config.get("config") or {}).get("Labels") or {}
        return {str(key): str(value) for key, value in labels.items()}

    @property
    def diff_ids(self) -> tuple[str, ...]:
        """Return the digest of each layer's uncompressed tar."""
        return tuple(self.config["rootfs"]["diff_ids"])


def open_image(path: Path, *, check: bool = False) -> OciImage:
    """Open the one image of a layout.

    ``DataError`` for what is not one, ``ContentError`` when a blob is not what its name says.

    The small blobs are always compared with their digests, and the layers, gigabytes of them, only when ``check`` is
    given.
    """
    store = open_files(path)
    manifest = load_manifest(store, image_of(store), "image")
    try:
        config = parse_json(read_blob(store, manifest.config, "config", limit=MAX_CONFIG))
        diff_ids = config["rootfs"]["diff_ids"]
        is_described = len(diff_ids) == len(manifest.layers) and all(map(is_digest, diff_ids))
    except (ValueError, KeyError, TypeError):
        is_described = False
    if not is_described:
        raise DataError(f"Cannot read {store.name}: its manifest and configuration do not name the same layers.")
    for layer in manifest.layers:
        opened = store.blob(layer.digest)
        if opened is None:
            raise ContentError(
                f"Cannot read {store.name}: layer {layer.digest[:19]}… is missing.", hint="Build the cell again."
            )
        with closing(opened) as file:
            identity = blob_sha256(file) if check else (layer.digest, file.seek(0, os.SEEK_END))
        if identity != (layer.digest, layer.size):
            raise ContentError(
                f"Cannot read {store.name}: layer {layer.digest[:19]}… holds other bytes.", hint="Build the cell again."
            )
    return OciImage(store=store, manifest=manifest, config=config)


@contextmanager
def open_layer(image: OciImage, number: int) -> Iterator[IO[bytes]]:
    """Open a layer's uncompressed tar, seekable. One that is packed is unpacked into a temporary file first."""
    layer = image.manifest.layers[number]
    opened = image.store.blob(layer.digest)
    if opened is None:
        raise ContentError(f"Cannot read {image.store.name}: layer {number + 1} is missing.")
    with closing(opened) as file, unpacked(file, packing_of(layer.media_type) or "none") as content:
        if content is file:
            yield file
            return
        with tempfile.TemporaryFile(dir=Path(image.store.name).parent) as plain:
            shutil.copyfileobj(content, plain, CHUNK)
            plain.seek(0)
            yield plain


def image_of(store: LayoutStore, tag: str | None = None) -> str:
    """Return the digest of the one image of a layout, or of the one that bears ``tag``. ``DataError`` without one.

    What refers to another manifest is proof, not an image. ``ContentError`` for a document that is not what its digest
    says.
    """
    if tag is not None:
        digest = store.resolve(tag)
        if digest is None:
            raise DataError(f"Cannot find the image {tag!r}: {store.name} does not hold it.")
        return digest
    manifests = {
        e.digest: load_manifest(store, e.digest, f"manifest {e.digest[:19]}… of {store.name}") for e in store.entries
    }
    images = [digest for digest, manifest in manifests.items() if manifest.subject is None]
    if len(images) != 1:
        raise DataError(f"Cannot choose an image of {store.name}: it holds {len(images)}.", hint="Name one by its tag.")
    return images[0]
