"""The packages of the distribution in an image, as dpkg wrote them into its layers: what is really there."""

from __future__ import annotations

import posixpath
import re
import tarfile
from contextlib import suppress
from typing import IO, Literal

from envsmith.model.lock import OsPackage
from envsmith.oci.layers import CHUNK
from envsmith.oci.layout import OciImage, open_layer

# dpkg's own list, and the folder in which images without dpkg keep one file a package.
_LIST, _LISTS = "var/lib/dpkg/status", "var/lib/dpkg/status.d"
_MAX_BYTES = 64 << 20
_GONE, _ALL_GONE = ".wh.", ".wh..wh..opq"
_FIELD = re.compile(r"^(Package|Status|Architecture|Version): *(\S.*?) *$", re.MULTILINE)
_NAME, _VERSION = re.compile(r"[a-z0-9][a-z0-9+.-]{0,199}"), re.compile(r"[A-Za-z0-9][A-Za-z0-9.+:~-]{0,199}")


class SystemPackages:
    """What the layers of an image say of its packages. They are taken in their order, the lowest first."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def take(self, layer: IO[bytes]) -> None:
        """Read the unpacked tar of a layer. What is no tar says nothing, and may be read to any place."""
        fresh: dict[str, bytes] = {}
        mode: Literal["r:", "r|"] = "r:" if layer.seekable() else "r|"
        with suppress(tarfile.TarError, UnicodeError), tarfile.open(fileobj=layer, mode=mode, bufsize=CHUNK) as tar:
            for member in tar:
                name = posixpath.normpath("/" + member.name).lstrip("/")
                self._forget(name)
                if (name == _LIST or posixpath.dirname(name) == _LISTS) and member.isreg():
                    content = tar.extractfile(member) if member.size <= _MAX_BYTES else None
                    fresh[name] = content.read() if content else b""
        self._files |= fresh

    def _forget(self, name: str) -> None:
        """Drop what a layer takes away from those below it (image specification, "whiteouts")."""
        folder, base = posixpath.split(name)
        if base.startswith(_GONE) and "var/lib/dpkg/".startswith(folder):
            place = folder if base == _ALL_GONE else posixpath.join(folder, base.removeprefix(_GONE))
            self._files = {kept: data for kept, data in self._files.items() if not f"{kept}/".startswith(f"{place}/")}

    @property
    def packages(self) -> tuple[OsPackage, ...]:
        """The installed packages by name, each with its architecture (``g++:amd64``). Empty for another system."""
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
    for number in range(len(image.manifest.layers)):
        with open_layer(image, number) as layer:
            system.take(layer)
    return system.packages
