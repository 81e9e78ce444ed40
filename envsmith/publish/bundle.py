"""A bundle: an image and its proof in one tar file, an OCI archive that skopeo, podman and ``envsmith verify`` read."""

from __future__ import annotations

import io
import tarfile
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from envsmith.base.files import writing
from envsmith.errors import os_errors
from envsmith.net.oci.layout import REF_NAME
from envsmith.net.oci.registry import Opener
from envsmith.net.oci.spec import Descriptor, Manifest, index_bytes

if TYPE_CHECKING:
    from typing_extensions import Self


class BundleWriter:
    """Take what a push sends and write it to ``path``, which appears when it is complete. A context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self.store = None
        self._stack = ExitStack()
        self._written: set[str] = set()
        self._entries: dict[str, Descriptor] = {}
        self._tags: list[tuple[str, Descriptor]] = []

    def __enter__(self) -> Self:
        file = self._stack.enter_context(writing(self.path))
        self._stack.push(self._finish)
        self._tar = tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT)
        self._add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _finish(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Add every entry once under its tags, then what refers to them. It runs after a complete push."""
        if error is not None:
            return
        tagged = [
            Descriptor(media_type=d.media_type, digest=d.digest, size=d.size, annotations={REF_NAME: tag})
            for tag, d in self._tags
        ]
        named = {entry.digest for entry in tagged}
        untagged = [entry for entry in self._entries.values() if entry.digest not in named]
        self._add("index.json", index_bytes([*tagged, *untagged]))
        self._tar.close()

    def resolve(self, tag: str) -> str | None:
        """Return the digest behind a tag that was set here."""
        return next((d.digest for name, d in self._tags if name == tag), None)

    def push_blob(self, blob: Descriptor, opener: Opener) -> str:
        """Add a blob, which the push has compared with its digest."""
        if blob.digest in self._written:
            return "kept"
        with closing(opener()) as file:
            self._member(f"blobs/sha256/{blob.digest[7:]}", file, blob.size)
        self._written.add(blob.digest)
        return "sent"

    def push_manifest(self, manifest: Manifest, tag: str | None = None) -> None:
        """Add a manifest, or a name for it."""
        if manifest.digest not in self._written:
            self._add(f"blobs/sha256/{manifest.digest[7:]}", manifest.raw)
            self._written.add(manifest.digest)
        plain = Descriptor(media_type=manifest.media_type, digest=manifest.digest, size=len(manifest.raw))
        self._entries[manifest.digest] = plain
        if tag is not None:
            self._tags.append((tag, plain))

    def _add(self, name: str, data: bytes) -> None:
        self._member(name, io.BytesIO(data), len(data))

    def _member(self, name: str, file: IO[bytes], size: int) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, 0o644, 0
        with os_errors(f"write {self.path}"):
            self._tar.addfile(info, file)
