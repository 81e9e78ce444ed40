"""Source archives of a lock: from where the lock found them, or looked up again on the index by their file name, and held against their sha256."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from envsmith.errors import ContentError, NetworkError
from envsmith.model.lock import Artifact

if TYPE_CHECKING:
    from envsmith.sources.http import Fetcher

__all__ = ["MAX_ARCHIVE", "fetch_archive"]

# The largest that is known, flash-attn with its templates, has 8 MB.
MAX_ARCHIVE = 256 << 20


def fetch_archive(name: str, artifact: Artifact, fetcher: Fetcher | None = None) -> bytes:
    """The bytes of a distribution's source archive.

    ``NetworkError`` when it cannot be had, ``ContentError`` when it is not the file of the lock.
    """
    url = artifact.url
    if url is not None and url.startswith("file:"):
        return _read(Path(url2pathname(urlsplit(url).path)), artifact)
    from envsmith.sources.http import HttpClient

    fetcher = fetcher or HttpClient()
    url = url or _address(name, artifact, fetcher)
    return fetcher.get(url, max_bytes=MAX_ARCHIVE, sha256=artifact.sha256).body


def _read(path: Path, artifact: Artifact) -> bytes:
    try:
        if path.stat().st_size > MAX_ARCHIVE:
            raise ContentError(f"{path}: larger than {MAX_ARCHIVE >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise ContentError(
            f"{path}: the lock took {artifact.filename} from here, and it cannot be read: {error.strerror or error}",
            hint="lock the cell again",
        ) from None
    digest = hashlib.sha256(data).hexdigest()
    if digest != artifact.sha256:
        raise ContentError(
            f"{path}: its sha256 is {digest[:16]}…, the lock says {artifact.sha256[:16]}…", hint="lock the cell again"
        )
    return data


def _address(name: str, artifact: Artifact, fetcher: Fetcher) -> str:
    """A lock that was published names no addresses: the index is asked for the file by its name."""
    from envsmith.sources.index import PackageIndex, find_index

    for file in PackageIndex(fetcher, find_index()).project(name).files:
        if file.filename == artifact.filename:
            return file.url
    raise NetworkError(
        f"{artifact.filename}: the index does not have it",
        hint="set the index that the lock was made with (UV_DEFAULT_INDEX), or lock the cell again",
    )
