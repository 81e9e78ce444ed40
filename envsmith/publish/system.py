"""The packages of the distribution in an image, as dpkg wrote them into its layers: what is really there."""

from __future__ import annotations

import os
import posixpath
import re
from contextlib import closing
from dataclasses import dataclass
from typing import IO

from envsmith.errors import ContentError
from envsmith.model.lock import OsPackage
from envsmith.net.oci.image import OciImage
from envsmith.net.oci.layers import CHUNK
from envsmith.net.oci.packing import packing_of, unpacked

# dpkg's own list, and the folder in which images without dpkg keep one file a package.
_LIST, _LISTS = "var/lib/dpkg/status", "var/lib/dpkg/status.d"
_MAX_BYTES = 64 << 20
_BLOCK = 512
_MAX_MEMBER = 1 << 40
_GONE, _ALL_GONE = ".wh.", ".wh..wh..opq"
_FIELD = re.compile(r"^(Package|Status|Architecture|Version): *(\S.*?) *$", re.MULTILINE)
_NAME, _VERSION = re.compile(r"[a-z0-9][a-z0-9+.-]{0,199}"), re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~-]{0,199}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    """What stands before a member of a tar (POSIX ustar). ``size`` in bytes, ``stored`` in whole blocks."""

    name: str
    kind: bytes
    size: int

    @property
    def stored(self) -> int:
        return -(-self.size // _BLOCK) * _BLOCK

    @classmethod
    def parse(cls, block: bytes) -> _Header | None:
        """Return ``None`` for the end of a tar, and for what is none."""
        if len(block) < _BLOCK or block[257:262] != b"ustar":
            return None
        size = block[124:136]
        try:
            # Beyond 8 GiB in binary, with the first bit set.
            length = int.from_bytes(size[1:], "big") if size[0] & 0x80 else int(size.strip(b" \0") or b"0", 8)
        except ValueError:
            return None
        if length > _MAX_MEMBER:
            return None
        # GNU's own form has other things in the place of the folder.
        folder = block[345:500] if block[262] == 0 else b""
        parts = [part.partition(b"\0")[0].decode(errors="replace") for part in (folder, block[:100])]
        name = posixpath.normpath("/" + "/".join(parts)).lstrip("/")
        return cls(name=name, kind=block[156:157], size=length)


def _skip(layer: IO[bytes], count: int) -> None:
    if layer.seekable():
        layer.seek(count, os.SEEK_CUR)
        return
    while count > 0 and (piece := layer.read(min(count, CHUNK))):
        count -= len(piece)


class SystemPackages:
    """What the layers of an image say of its packages. They are taken in their order, the lowest first."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def take(self, layer: IO[bytes]) -> None:
        """Read the unpacked tar of a layer, a block of it at a time. What is not a tar is passed over."""
        fresh: dict[str, bytes] = {}
        # The name of a member that a header before it renames is too long, or too strange, for a list of dpkg.
        is_renamed = False
        while (header := _Header.parse(layer.read(_BLOCK))) is not None:
            name, is_list = header.name, False
            if not is_renamed:
                self._forget(name)
                is_list = name == _LIST or posixpath.dirname(name) == _LISTS
            if is_list and header.kind in b"0\0" and header.size <= _MAX_BYTES:
                fresh[name] = layer.read(header.stored)[: header.size]
            else:
                _skip(layer, header.stored)
            is_renamed = header.kind in b"xL"
        self._files |= fresh

    def _forget(self, name: str) -> None:
        """Drop what a layer takes away from those below it (image specification, "whiteouts")."""
        folder, base = posixpath.split(name)
        if base.startswith(_GONE) and "var/lib/dpkg/".startswith(folder):
            place = folder if base == _ALL_GONE else posixpath.join(folder, base.removeprefix(_GONE))
            self._files = {path: data for path, data in self._files.items() if not f"{path}/".startswith(f"{place}/")}

    @property
    def packages(self) -> tuple[OsPackage, ...]:
        """Return the installed packages by name, with their architecture (``g++:amd64``). Empty for another system."""
        stanzas = [
            dict(_FIELD.findall(stanza))
            for data in self._files.values()
            for stanza in re.split(r"\n\s*\n", data.decode(errors="replace"))
        ]
        packages = {
            f"{one['Package']}:{one['Architecture']}": one["Version"]
            for one in stanzas
            if one.get("Status", "ok installed").endswith(" installed")
            and _NAME.fullmatch(one.get("Package", ""))
            and _NAME.fullmatch(one.get("Architecture", ""))
            and _VERSION.fullmatch(one.get("Version", ""))
        }
        return tuple(OsPackage(name=name, version=version) for name, version in sorted(packages.items()))


def system_packages(image: OciImage) -> tuple[OsPackage, ...]:
    """Return the packages of the distribution in an image. ``ContentError`` for a layer that cannot be unpacked."""
    system = SystemPackages()
    for layer in image.manifest.layers:
        opened = image.store.blob(layer.digest)
        if opened is None:
            raise ContentError(f"Cannot read layer {layer.digest[:19]}… of {image.store.name}: it is missing.")
        with closing(opened) as file, unpacked(file, packing_of(layer.media_type) or "none") as plain:
            system.take(plain)
    return system.packages
