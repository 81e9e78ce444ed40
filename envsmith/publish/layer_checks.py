"""The layers of a published image, each read once: its digest, its size, and what it unpacks to."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import IO, Any

from envsmith.errors import ContentError
from envsmith.net.oci.layers import CHUNK, stream
from envsmith.net.oci.packing import packing_of, unpacked
from envsmith.net.oci.spec import Descriptor, Manifest
from envsmith.net.oci.store import Store
from envsmith.publish.report import CheckState, PartCheck, VerifyReport
from envsmith.publish.system import SystemPackages


def check_layers(
    report: VerifyReport,
    store: Store,
    manifest: Manifest,
    config: Mapping[str, Any],
    say: Callable[[str], None],
    *,
    system: SystemPackages,
) -> None:
    """Read every layer once: its digest, its size, and what it unpacks to against the configuration.

    ``system`` takes what they say of the packages of the distribution.
    """
    ids = list(config["rootfs"]["diff_ids"]) if config else []
    good = len(ids) == len(manifest.layers) or not config
    if not good:
        report.add(
            "layers", CheckState.DIFFERS, f"{len(manifest.layers)} in the manifest, {len(ids)} in the configuration"
        )
    for number, layer in enumerate(manifest.layers):
        part = f"layer {number + 1}"
        say(f"{part} of {len(manifest.layers)}: {layer.size / 1e6:.1f} MB")
        before = len(report.checks)
        with PartCheck(report, part):
            _layer(store, layer, part, ids[number] if number < len(ids) else None, system)
        good = good and len(report.checks) == before
    if good:
        size = sum(layer.size for layer in manifest.layers) / 1e6
        report.add("layers", CheckState.OK, f"{len(manifest.layers)}, {size:.1f} MB, each of its digest")


class _Reader(io.RawIOBase):
    """Takes the digest of what is read, no more than the manifest promised: a store may never stop."""

    def __init__(self, file: IO[bytes], size: int = 1 << 62) -> None:
        self.digest, self.size = hashlib.sha256(), 0
        self._file, self._left = file, size + 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read(min(len(buffer), self._left))
        self.digest.update(piece)
        self.size += len(piece)
        self._left -= len(piece)
        buffer[: len(piece)] = piece
        return len(piece)


def _layer(store: Store, layer: Descriptor, part: str, diff_id: object, system: SystemPackages) -> None:
    opened = store.blob(layer.digest)
    if opened is None:
        raise ContentError(f"Cannot verify the {part}: {layer.digest} is missing.")
    packing, content, unreadable = packing_of(layer.media_type), "", ""
    with closing(opened) as file:
        reader = _Reader(file, layer.size)
        stored = io.BufferedReader(reader, CHUNK)
        try:
            with unpacked(stored, packing or "none") as plain:
                contents = _Reader(plain)
                system.take(io.BufferedReader(contents, CHUNK))
                for _ in iter(lambda: contents.read(CHUNK), b""):
                    pass
                content = f"sha256:{contents.digest.hexdigest()}"
        except ContentError as error:
            unreadable = error.reason
        for _ in stream(stored):  # what an unpacker leaves unread
            pass
    if f"sha256:{reader.digest.hexdigest()}" != layer.digest:
        cut = f" (it has {reader.size} bytes, not {layer.size})" if reader.size != layer.size else ""
        raise ContentError(f"Cannot verify the {part}: its bytes are not those of {layer.digest[:19]}…{cut}.")
    if unreadable:
        raise ContentError(f"Cannot verify the {part}: {unreadable}.")
    if packing is not None and diff_id is not None and content != diff_id:
        raise ContentError(f"Cannot verify the {part}: it unpacks to something else than the configuration says.")
