"""An OCI layout: ``index.json``, ``oci-layout`` and ``blobs/sha256``, in a folder or in one tar file."""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from envsmith.base.files import digest_of, open_regular
from envsmith.errors import ContentError, DataError, os_errors
from envsmith.net.oci.layers import CHUNK
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
from envsmith.net.oci.store import Store, load_manifest

if TYPE_CHECKING:
    from typing_extensions import Self


REF_NAME = "org.opencontainers.image.ref.name"
_MAX_MEMBERS = 10_000
# A tar ends with zeros up to a whole record, of which the longest have 512 blocks.
_MAX_PADDING = 512 * 512
_VERSION = re.compile(rb'\s*\{\s*"imageLayoutVersion"\s*:\s*"1\.\d+\.\d+"\s*\}\s*')


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
