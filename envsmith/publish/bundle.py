"""One tar file with an image and its whole proof: an OCI archive that skopeo, podman and ``envsmith verify --bundle`` read, without a network."""

from __future__ import annotations

import io
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from envsmith.errors import StorageError
from envsmith.oci.layout import REF_NAME
from envsmith.oci.registry import Opener
from envsmith.oci.spec import Descriptor, Manifest, index_bytes

if TYPE_CHECKING:
    from typing_extensions import Self


class BundleWriter:
    """Takes what a push sends and writes it to ``path``, which appears only when everything is in it. A context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        self._there: set[str] = set()
        self._entries: dict[str, Descriptor] = {}
        self._tags: list[tuple[str, Descriptor]] = []

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=f".{self.path.name}-", delete=False)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        self._partial = Path(self._file.name)
        self._tar = tarfile.open(fileobj=self._file, mode="w:", format=tarfile.PAX_FORMAT)
        self._add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                # Every entry once under its tags, then what refers to them.
                tagged = [
                    Descriptor(media_type=d.media_type, digest=d.digest, size=d.size, annotations={REF_NAME: tag})
                    for tag, d in self._tags
                ]
                rest = [d for d in self._entries.values() if d.digest not in {t.digest for t in tagged}]
                self._add("index.json", index_bytes([*tagged, *rest]))
                self._tar.close()
                self._file.close()
                self._partial.chmod(0o644)
                self._partial.replace(self.path)
        except OSError as broken:
            raise StorageError(f"{self.path}: cannot be written: {broken.strerror or broken}") from None
        finally:
            self._file.close()
            self._partial.unlink(missing_ok=True)

    def resolve(self, tag: str) -> str | None:
        """The digest behind a tag that was set here."""
        return next((d.digest for name, d in self._tags if name == tag), None)

    def referrers(self, _digest: str) -> tuple[Descriptor, ...]:
        """A bundle is written anew: nothing refers to anything yet."""
        return ()

    def push_blob(self, blob: Descriptor, opener: Opener) -> str:
        """Add a blob, which the push has compared with its digest."""
        if blob.digest in self._there:
            return "kept"
        with closing(opener()) as file:
            self._member(f"blobs/sha256/{blob.digest[7:]}", file, blob.size)
        self._there.add(blob.digest)
        return "sent"

    def push_manifest(self, manifest: Manifest, tag: str | None = None) -> None:
        """Add a manifest, or a name for it."""
        if manifest.digest not in self._there:
            self._add(f"blobs/sha256/{manifest.digest[7:]}", manifest.raw)
            self._there.add(manifest.digest)
        plain = Descriptor(media_type=manifest.media_type, digest=manifest.digest, size=len(manifest.raw))
        self._entries[manifest.digest] = plain
        if tag is not None:
            self._tags.append((tag, plain))

    def _add(self, name: str, data: bytes) -> None:
        self._member(name, io.BytesIO(data), len(data))

    def _member(self, name: str, file: IO[bytes], size: int) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, 0o644, 0
        try:
            self._tar.addfile(info, file)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written: {error.strerror or error}") from None
