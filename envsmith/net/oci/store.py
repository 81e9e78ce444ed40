"""Where an image with its proof can lie, and how its parts are read from there.

Nothing that a layout or a registry hands out is believed: the reader of a blob compares it with the digest that named
it.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from typing import IO, Protocol

from envsmith.base.files import digest_of
from envsmith.errors import ContentError
from envsmith.net.oci.layers import stream
from envsmith.net.oci.spec import Descriptor, Manifest, parse_manifest


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


def blob_sha256(file: IO[bytes]) -> tuple[str, int]:
    """Return digest and length of a blob, read once."""
    digest, size = hashlib.sha256(), 0
    for piece in stream(file):
        digest.update(piece)
        size += len(piece)
    return f"sha256:{digest.hexdigest()}", size
