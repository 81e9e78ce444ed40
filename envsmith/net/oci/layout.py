"""An image in an OCI layout: ``index.json``, ``oci-layout`` and ``blobs/sha256``, in a folder or in one tar file.

Nothing that a layout or a registry hands out is believed: the reader of a blob compares it with the digest that named
it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from envsmith.base.files import digest_of, open_regular
from envsmith.base.schema import parse_json
from envsmith.errors import ContentError, DataError, os_errors
from envsmith.net.oci.layers import CHUNK, stream
from envsmith.net.oci.packing import packing_of, unpacked
from envsmith.net.oci.spec import (
    MANIFEST_TYPES,
    MAX_MANIFEST,
    Descriptor,
    Manifest,
    canonical,
    index_bytes,
    is_digest,
    parse_index,
    parse_manifest,
)

if TYPE_CHECKING:
    from typing_extensions import Self


REF_NAME = "org.opencontainers.image.ref.name"
MAX_CONFIG = 8 << 20
_MAX_MEMBERS = 10_000
# A tar ends with zeros up to a whole record, of which the longest have 512 blocks.
_MAX_PADDING = 512 * 512
_VERSION = re.compile(rb'\s*\{\s*"imageLayoutVersion"\s*:\s*"1\.\d+\.\d+"\s*\}\s*')


class Store(Protocol):
    """Where an image with its proof can lie: a registry or a layout. ``None`` means "there is no such thing here"."""

    @property
    def name(self) -> str:
        """Return what messages call it."""
        ...

    def resolve(self, tag: str) -> str | None:
        """Return the digest that a tag leads to."""
        ...

    def manifest(self, digest: str) -> bytes | None:
        """Return the bytes of a manifest, not yet compared with ``digest``."""
        ...

    def blob(self, digest: str) -> IO[bytes] | None:
        """Open a blob, not yet compared with ``digest``."""
        ...

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Return what refers to a manifest, as the store tells it."""
        ...


class LayoutStore:
    """A layout; ``open_file`` opens one of its files by its path inside. A context manager that closes what is open."""

    def __init__(
        self,
        name: str,
        open_file: Callable[[str], IO[bytes] | None],
        names: Callable[[], Iterable[str]],
        close: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self._open = open_file
        self._names = names
        self._close = close
        index, version = self._read("index.json"), self._read("oci-layout")
        if index is None or version is None or not _VERSION.fullmatch(version):
            raise DataError(
                f"Cannot read {name}: it is not an OCI layout (oci-layout or index.json is missing).",
                hint="Give a bundle that envsmith publish --bundle wrote, or the layout of a build.",
            )
        self.entries = parse_index(index, f"index.json of {name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._close is not None:
            self._close()

    def _read(self, path: str) -> bytes | None:
        opened = self._open(path)
        if opened is None:
            return None
        with closing(opened) as file:
            return file.read(MAX_MANIFEST + 1)

    def resolve(self, tag: str) -> str | None:
        """Return the digest of the entry that is annotated with this tag."""
        return next((e.digest for e in self.entries if e.annotations.get(REF_NAME) == tag), None)

    def manifest(self, digest: str) -> bytes | None:
        """Return the bytes of a manifest, not yet compared with ``digest``."""
        return self._read(blob_path(digest))

    def blob(self, digest: str) -> IO[bytes] | None:
        """Open a blob, not yet compared with ``digest``."""
        return self._open(blob_path(digest))

    def surplus(self) -> list[str]:
        """Return the files that no manifest of the index names: they are unpacked with the layout."""
        named = {"index.json", "oci-layout"}
        for entry in self.entries:
            named.add(blob_path(entry.digest))
            with suppress(ContentError):
                manifest = load_manifest(self, entry.digest, "entry")
                named |= {blob_path(blob.digest) for blob in manifest.blobs}
        return sorted(set(self._names()) - named)

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Return the entries of the index whose manifest names ``digest`` as its subject."""
        descriptors = []
        for entry in self.entries:
            raw = self.manifest(entry.digest) if entry.media_type in MANIFEST_TYPES else None
            if raw is None or digest_of(raw) != entry.digest:
                continue
            manifest = parse_manifest(raw, f"{self.name}: {entry.digest[:19]}")
            if manifest.subject is not None and manifest.subject.digest == digest:
                descriptors.append(manifest.descriptor)
        return tuple(descriptors)


def blob_path(digest: str) -> str:
    """Return the file of a blob.

    ``ContentError`` for what is not a sha256 digest, so that no name leads out of the layout.
    """
    if not is_digest(digest):
        raise ContentError(f"Cannot use {digest[:80]!r}: it is not a sha256 digest.")
    return f"blobs/sha256/{digest[7:]}"


def open_files(path: Path) -> LayoutStore:
    """Open the layout at ``path``: a folder, or an uncompressed tar file (``oci-archive`` of skopeo and podman)."""
    if path.is_dir():
        inside = lambda: (each.relative_to(path).as_posix() for each in path.rglob("*") if not each.is_dir())  # noqa: E731
        return LayoutStore(str(path), partial(_open_in_folder, path), inside)
    if path.exists() and not path.is_file():
        raise DataError(f"Cannot read {path}: it is not a bundle but a pipe or a device.")
    try:
        with os_errors(f"read {path}"):
            archive = tarfile.open(path, "r:")  # noqa: SIM115 - closed by the store
    except tarfile.TarError as error:
        raise _damaged(path, error) from None
    try:
        members = _members(path, archive)
        opener = lambda name: archive.extractfile(members[name]) if name in members else None  # noqa: E731
        return LayoutStore(str(path), opener, lambda: members, archive.close)
    except BaseException:
        archive.close()
        raise


def _members(path: Path, archive: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    """Return the files of a tar by name. ``ContentError`` for what two readers would unpack differently."""
    members: dict[str, tarfile.TarInfo] = {}
    try:
        for number, member in enumerate(archive, 1):
            name = member.name.removeprefix("./")
            if number > _MAX_MEMBERS:
                raise DataError(
                    f"Cannot read {path}: envsmith did not write this bundle, which has more than {_MAX_MEMBERS} files."
                )
            if name in members or not (member.isreg() or member.isdir()):
                raise _damaged(path, f"{name[:80]} is there twice, or is not a file")
            if member.isreg():
                members[name] = member
        with path.open("rb") as file:
            file.seek(archive.offset)
            if file.read(_MAX_PADDING).strip(b"\0") or file.read(1):
                raise _damaged(path, "more data follows after its end")
    except (tarfile.TarError, OSError) as error:
        raise _damaged(path, error) from None
    return members


def _damaged(path: Path, error: object) -> ContentError:
    return ContentError(f"Cannot read the bundle {path}: {error}.", hint="Copy it again: it is cut or damaged.")


def _open_in_folder(folder: Path, name: str) -> IO[bytes] | None:
    absent = suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError)
    with os_errors(f"read {folder / name}"), absent:
        return open_regular(folder / name)
    return None


# -- read --------------------------------------------------------------------------------------------------------------


def blob_sha256(file: IO[bytes]) -> tuple[str, int]:
    """Return digest and length of a blob, read once."""
    digest, size = hashlib.sha256(), 0
    for piece in stream(file):
        digest.update(piece)
        size += len(piece)
    return f"sha256:{digest.hexdigest()}", size


def read_blob(store: Store, blob: Descriptor, part: str, *, limit: int) -> bytes:
    """Read a small blob, complete and of the right digest.

    ``ContentError`` names ``part`` when it is missing, cut or changed.
    """
    if blob.size > limit:
        raise ContentError(f"Cannot read the {part}: its {blob.size} bytes are more than {limit}.")
    opened = store.blob(blob.digest)
    if opened is None:
        raise ContentError(
            f"Cannot read the {part}: {store.name} does not have {blob.digest}.",
            hint="Publish the image again: its proof is not complete.",
        )
    with closing(opened) as file:
        data = file.read(blob.size + 1)
    if digest_of(data) != blob.digest:
        cut = " (it is shorter than it was)" if len(data) < blob.size else ""
        raise ContentError(
            f"Cannot read the {part}: its bytes are not those of {blob.digest[:19]}…{cut}.",
            hint="Fetch it again: it was changed.",
        )
    return data


def load_manifest(store: Store, digest: str, part: str) -> Manifest:
    """Read a manifest whose bytes are those of ``digest``.

    ``ContentError`` names ``part`` when it is missing or changed.
    """
    raw = store.manifest(digest)
    if raw is None:
        raise ContentError(f"Cannot read the {part}: {store.name} does not have {digest}.")
    if digest_of(raw) != digest:
        raise ContentError(
            f"Cannot read the {part}: its bytes are not those of {digest[:19]}….",
            hint="Fetch it again: it was changed or cut.",
        )
    return parse_manifest(raw, part)


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


# -- write -------------------------------------------------------------------------------------------------------------


def copy_layout(store: Store, digest: str, folder: Path) -> None:
    """Write one image of a store as an OCI layout.

    ``StorageError`` when the disk does not take it, ``ContentError`` when a part is missing.
    """
    manifest = load_manifest(store, digest, "manifest")
    with os_errors(f"write {folder}"):
        (folder / "blobs" / "sha256").mkdir(parents=True)
        for blob in manifest.blobs:
            opened = store.blob(blob.digest)
            if opened is None:
                raise ContentError(f"Cannot copy {store.name}: {blob.digest} is missing.")
            with closing(opened) as source, (folder / blob_path(blob.digest)).open("wb") as target:
                shutil.copyfileobj(source, target, CHUNK)
        finish(folder, manifest)


def finish(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, then the index: a layout with an index is whole."""
    (folder / blob_path(manifest.digest)).write_bytes(manifest.raw)
    (folder / "oci-layout").write_bytes(canonical({"imageLayoutVersion": "1.0.0"}))
    partial_index = folder / ".index.json.partial"
    partial_index.write_bytes(index_bytes([manifest.descriptor]))
    partial_index.replace(folder / "index.json")
