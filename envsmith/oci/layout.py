"""Where an image with its proof can lie: a registry, an OCI layout in a folder, or one tar file. Readers share one Protocol.

Nothing that a store hands out is believed: whoever reads a blob compares it with the digest that named it (:func:`read_blob`).
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
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol

from envsmith.errors import ContentError, DataError, StorageError
from envsmith.oci import spec
from envsmith.oci.layers import LayerWriter, Seen, copy_verbatim, normalise
from envsmith.oci.spec import (
    MANIFEST_TYPES,
    MAX_MANIFEST,
    Descriptor,
    Manifest,
    OciImage,
    OciLayer,
    canonical_config,
    digest_of,
    index_bytes,
    is_digest,
    parse_index,
    parse_manifest,
)
from envsmith.progress import Event, EventKind, Progress, silent

if TYPE_CHECKING:
    from typing_extensions import Self


CHUNK = 1 << 20
REF_NAME = "org.opencontainers.image.ref.name"
_MAX_MEMBERS = 10_000


class Store(Protocol):
    """What :mod:`envsmith.publish.verify` and the push read from. ``None`` means "there is no such thing here"."""

    @property
    def name(self) -> str:
        """How messages call it."""
        ...

    def resolve(self, tag: str) -> str | None:
        """The digest that a tag leads to."""
        ...

    def manifest(self, digest: str) -> bytes | None:
        """The bytes of a manifest, not yet compared with ``digest``."""
        ...

    def blob(self, digest: str) -> IO[bytes] | None:
        """An open blob, not yet compared with ``digest``."""
        ...

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """What refers to a manifest, as the store tells it."""
        ...


def stream(file: IO[bytes]) -> Iterator[bytes]:
    """The file in pieces."""
    while piece := file.read(CHUNK):
        yield piece


def read_blob(store: Store, what: Descriptor, part: str, *, limit: int) -> bytes:
    """A small blob, complete and of the right digest; ``ContentError`` names ``part`` when it is missing, cut or changed."""
    if what.size > limit:
        raise ContentError(f"{part}: {what.size} bytes, more than {limit}: refused")
    opened = store.blob(what.digest)
    if opened is None:
        raise ContentError(f"{part}: {store.name} does not have {what.digest}", hint="the proof is not complete")
    with closing(opened) as file:
        data = file.read(what.size + 1)
    if digest_of(data) != what.digest:
        cut = " (it is shorter than it was)" if len(data) < what.size else ""
        raise ContentError(f"{part}: its bytes are not those of {what.digest[:19]}…{cut}", hint="it was changed")
    return data


class _Files(Protocol):
    @property
    def name(self) -> str:
        """What the messages call it."""
        ...

    def open(self, path: str) -> IO[bytes] | None:
        """A file of the layout by its path inside, or ``None``."""
        ...


def _small(files: _Files, path: str) -> bytes | None:
    opened = files.open(path)
    if opened is None:
        return None
    with closing(opened) as file:
        return file.read(MAX_MANIFEST + 1)


class LayoutStore:
    """An OCI layout: ``index.json``, ``oci-layout`` and ``blobs/sha256``, wherever its files lie."""

    def __init__(self, files: _Files) -> None:
        self._files = files
        index = _small(files, "index.json")
        if index is None or _small(files, "oci-layout") is None:
            raise DataError(
                f"{files.name}: no OCI layout (oci-layout or index.json is missing)",
                hint="a bundle is made by envsmith publish --bundle; a layout by a build",
            )
        self.entries = parse_index(index, f"{files.name}: index.json")

    @property
    def name(self) -> str:
        """See :class:`Store`."""
        return self._files.name

    def resolve(self, tag: str) -> str | None:
        """See :class:`Store`."""
        return next((e.digest for e in self.entries if e.annotations.get(REF_NAME) == tag), None)

    def manifest(self, digest: str) -> bytes | None:
        """See :class:`Store`."""
        return _small(self._files, _blob_path(digest))

    def blob(self, digest: str) -> IO[bytes] | None:
        """See :class:`Store`."""
        return self._files.open(_blob_path(digest))

    def referrers(self, digest: str) -> tuple[Descriptor, ...]:
        """Entries of the index whose manifest names ``digest`` as its subject."""
        found = []
        for entry in self.entries:
            raw = self.manifest(entry.digest) if entry.media_type in MANIFEST_TYPES else None
            if raw is None or digest_of(raw) != entry.digest:
                continue
            manifest = parse_manifest(raw, f"{self.name}: {entry.digest[:19]}")
            if manifest.subject is not None and manifest.subject.digest == digest:
                found.append(manifest.descriptor)
        return tuple(found)


def _blob_path(digest: str) -> str:
    if not is_digest(digest):
        raise ContentError(f"{digest[:80]!r} is not a sha256 digest")
    return f"blobs/sha256/{digest[7:]}"


@dataclass(frozen=True, slots=True)
class _Folder:
    path: Path

    @property
    def name(self) -> str:
        return str(self.path)

    def open(self, path: str) -> IO[bytes] | None:
        try:
            return (self.path / path).open("rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise StorageError(f"{self.path / path}: cannot be read: {error.strerror or error}") from None


@dataclass(slots=True)
class _Tar:
    name: str
    file: tarfile.TarFile
    members: dict[str, tarfile.TarInfo] = field(default_factory=dict)

    def open(self, path: str) -> IO[bytes] | None:
        member = self.members.get(path)
        return None if member is None else self.file.extractfile(member)


class ArchiveStore(LayoutStore):
    """The same in an uncompressed tar file (``oci-archive`` of skopeo and podman). A context manager."""

    def __init__(self, path: Path) -> None:
        try:
            self._tar = tarfile.open(path, "r:")  # noqa: SIM115 - closed by __exit__
        except tarfile.TarError as error:
            raise _damaged(path, error) from None
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror or error}") from None
        try:
            super().__init__(_Tar(str(path), self._tar, self._members(path)))
        except BaseException:
            self._tar.close()
            raise

    def _members(self, path: Path) -> dict[str, tarfile.TarInfo]:
        members = {}
        try:
            for number, member in enumerate(self._tar):
                if number > _MAX_MEMBERS:
                    raise DataError(f"{path}: more than {_MAX_MEMBERS} files: no bundle of ours")
                if member.isreg():
                    members[member.name.removeprefix("./")] = member
        except (tarfile.TarError, OSError) as error:
            raise _damaged(path, error) from None
        return members

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tar.close()


def _damaged(path: Path, error: Exception) -> ContentError:
    return ContentError(f"{path}: the bundle cannot be read: {error}", hint="it is cut or damaged: copy it again")


def open_files(path: Path) -> LayoutStore:
    """The layout at ``path``, a folder or a tar file."""
    return LayoutStore(_Folder(path)) if path.is_dir() else ArchiveStore(path)


def image_of(store: LayoutStore, tag: str | None = None) -> str:
    """The digest of the one image of a layout, or of the one that bears ``tag``; ``DataError`` when there is no such one.

    What refers to another manifest is proof, not an image. ``ContentError`` for a document that is not what its digest says.
    """
    if tag is not None:
        found = store.resolve(tag)
        if found is None:
            raise DataError(f"{store.name}: it holds no image {tag!r}")
        return found
    images = []
    for entry in store.entries:
        raw = store.manifest(entry.digest)
        if raw is None:
            raise ContentError(f"{store.name}: the manifest {entry.digest[:19]}… is missing")
        if digest_of(raw) != entry.digest:
            raise ContentError(f"{store.name}: the manifest {entry.digest[:19]}… holds other bytes")
        if parse_manifest(raw, f"{store.name}: {entry.digest[:19]}").subject is None:
            images.append(entry.digest)
    if len(set(images)) != 1:
        raise DataError(
            f"{store.name}: it holds {len(set(images))} images, one was expected", hint="name one by its tag"
        )
    return images[0]


def load_manifest(store: Store, digest: str, part: str) -> Manifest:
    """A manifest whose bytes are those of ``digest``; ``ContentError`` names ``part`` when it is missing or changed."""
    raw = store.manifest(digest)
    if raw is None:
        raise ContentError(f"{part}: {store.name} does not have {digest}")
    if digest_of(raw) != digest:
        raise ContentError(f"{part}: its bytes are not those of {digest[:19]}…", hint="it was changed or cut")
    return parse_manifest(raw, part)


def blob_sha256(file: IO[bytes]) -> tuple[str, int]:
    """Digest and length of a blob, read once."""
    digest, size = hashlib.sha256(), 0
    for piece in stream(file):
        digest.update(piece)
        size += len(piece)
    return f"sha256:{digest.hexdigest()}", size


def copy_layout(store: Store, digest: str, folder: Path) -> None:
    """Write one image of a store as an OCI layout; ``StorageError`` when the disk does not take it, ``ContentError`` when a part is missing or not what its digest says."""
    manifest = load_manifest(store, digest, "manifest")
    blobs = folder / "blobs" / "sha256"
    try:
        blobs.mkdir(parents=True)
        (blobs / digest[7:]).write_bytes(manifest.raw)
        for blob in manifest.blobs:
            opened = store.blob(blob.digest)
            if opened is None:
                raise ContentError(f"{store.name}: {blob.digest} is missing")
            with closing(opened) as source, (blobs / blob.digest[7:]).open("wb") as target:
                for piece in stream(source):
                    target.write(piece)
        (folder / "oci-layout").write_bytes(b'{"imageLayoutVersion":"1.0.0"}')
        plain = Descriptor(media_type=manifest.media_type, digest=digest, size=len(manifest.raw))
        (folder / "index.json").write_bytes(index_bytes([plain]))
    except OSError as error:
        raise StorageError(f"{folder}: cannot be written: {error.strerror or error}") from None


# What engines write when they are asked for an image, and how it becomes an OCI layout of ours.
#
# ``docker save`` writes a tar with ``manifest.json`` in two styles (a folder a layer up to 24, blobs since 25), podman and buildah write an OCI
# layout folder. Both are read as they are: configuration, then each layer as a seekable tar.


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
            spec.finish_layout(layout, config, layers, source=source)
            if directory.exists():
                shutil.rmtree(directory)
            layout.replace(directory)
    except tarfile.TarError as error:
        raise ContentError(f"the engine's image cannot be read: {error}") from error
    except OSError as error:
        raise StorageError(f"{directory}: the OCI layout cannot be written: {error.strerror or error}") from error
    image = spec.read_layout(directory)
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
    digest = "sha256:" + hashlib.sha256(spec.manifest_text(spec.canonical(config), layers)).hexdigest()
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
        spec.place_blob(fresh, layer.digest, layout, near=how.directory)
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
