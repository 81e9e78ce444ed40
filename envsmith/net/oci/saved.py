"""The archive in which an engine saves an image, and from which every engine loads one."""

from __future__ import annotations

import io
import posixpath
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from envsmith.base.files import read_bounded
from envsmith.base.schema import UnreadableError, parse_json
from envsmith.errors import ContentError
from envsmith.net.oci.image import MAX_CONFIG, OciImage
from envsmith.net.oci.layers import CHUNK, stream
from envsmith.net.oci.layout import blob_path
from envsmith.net.oci.packing import packing_seen, unpacked
from envsmith.net.oci.spec import canonical, index_bytes
from envsmith.net.oci.store import read_blob

if TYPE_CHECKING:
    from io import BufferedReader


_MAX_LINKS = 8


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
        raise unreadable(str(error)) from None
    rows = _document(_file("manifest.json", files, links), "manifest.json")
    if not isinstance(rows, list) or len(rows) != 1 or not isinstance(rows[0], dict):
        raise unreadable("manifest.json does not name exactly one image")
    config = _document(_file(str(rows[0].get("Config")), files, links), "its configuration")
    if not isinstance(config, dict):
        raise unreadable("its configuration is not a mapping")
    names = [str(name) for name in rows[0].get("Layers") or []]
    return Saved(config=config, layers=tuple(_file(name, files, links) for name in names))


def _file(name: str, files: Mapping[str, Path], links: Mapping[str, str]) -> Path:
    """Return a file of the archive. Up to version 24 a layer that occurs twice is a link to the other."""
    for _ in range(_MAX_LINKS):
        if name in files:
            return files[name]
        name = links.get(name, name)
    raise unreadable(f"the archive does not hold {name[:120]}")


def _document(path: Path, name: str) -> Any:
    try:
        return parse_json(read_bounded(path, MAX_CONFIG))
    except UnreadableError as error:
        raise unreadable(f"{name}: {str(error)[:120]}") from None


def unreadable(reason: str) -> ContentError:
    """Return the refusal of an archive, or of a layer in it, that cannot be read."""
    return ContentError(
        f"Cannot read the image that the engine saved: {reason}.",
        hint="Check that the engine is still running (docker info), then run the same command again.",
    )


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
