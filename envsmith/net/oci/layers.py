"""A layer's tar in one canonical form: the same files give the same bytes, whichever engine and version wrote them.

Members stand sorted by name, owners are numbers, every time is the epoch; a directory
that an engine only touched on the way to a file is left out, and so is what every engine mounts over (``/dev``,
``/proc``, ``/sys``, ``/etc/hosts`` …). Byte-code, package manager logs and the like never get here: the Dockerfile's
own steps leave none.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, cast

from envsmith.base.files import HashedWriter
from envsmith.errors import ContentError

# Written by the engine into a running step, mounted over in every container: never content of a cell.
_STUBS = frozenset({"etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/mtab", ".dockerenv", "run/.containerenv"})
_MOUNTED = ("dev/", "proc/", "sys/", "run/secrets/")
_MOUNT_POINTS = frozenset({"dev", "proc", "sys", "run/secrets"})
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
CHUNK = 1 << 20


@dataclass(slots=True)
class Seen:
    """Directories of the layers below, by name: type, mode and owners."""

    directories: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def known(self, member: tarfile.TarInfo, name: str) -> bool:
        """Tell whether a directory stands below with the same mode and owners."""
        return self.directories.get(name) == (member.mode & 0o7777, member.uid, member.gid)

    def hides_nothing(self, name: str) -> bool:
        """Tell whether a member only hides what a new directory held below: some engines write it where dpkg renames."""
        folder, _, last = name.rpartition("/")
        return last == _OPAQUE and folder not in self.directories

    def take(self, members: dict[str, tarfile.TarInfo]) -> None:
        """Note what a layer adds, and drop what it hides."""
        for name in members:
            folder, _, last = name.rpartition("/")
            if last == _OPAQUE:
                self._forget(folder, inside=True)
            elif last.startswith(_WHITEOUT):
                self._forget("/".join(filter(None, (folder, last.removeprefix(_WHITEOUT)))), inside=False)
        for name, member in members.items():
            if member.isdir():
                self.directories[name] = (member.mode & 0o7777, member.uid, member.gid)
            else:
                self.directories.pop(name, None)

    def take_base(self, layer: tarfile.TarFile) -> None:
        """Note a layer of the base, which is not written anew."""
        self.take({member_name(member.name): member for member in layer})

    def _forget(self, name: str, *, inside: bool) -> None:
        gone = [d for d in self.directories if d.startswith(f"{name}/") or (not inside and d == name)]
        for directory in gone:
            del self.directories[directory]


def member_name(name: str) -> str:
    """Return a member's path without leading ``./`` and ``/``, and ``.`` for the root.

    ``ContentError`` for one that leads out of the image.
    """
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise ContentError(f"Cannot read a layer: its path {name[:120]!r} leads out of the image.")
    return "/".join(parts) or "."


def _ours(name: str) -> bool:
    return name != "." and name not in _STUBS and name not in _MOUNT_POINTS and not name.startswith(_MOUNTED)


def normalise(layer: tarfile.TarFile, out: HashedWriter, entries: Seen, *, epoch: int) -> int:
    """Write ``layer`` to ``out`` in the canonical form, tell ``entries`` of it, and return how many members it has."""
    members = {name: m for m in layer if _ours(name := member_name(m.name)) and not entries.hides_nothing(name)}
    first = _first_names(members)
    fresh = {n: m for n, m in members.items() if not (m.isdir() and entries.known(m, n))}
    written = tarfile.TarFile(fileobj=cast("IO[bytes]", out), mode="w", format=tarfile.PAX_FORMAT, copybufsize=CHUNK)
    for name in sorted(fresh):
        member = fresh[name]
        info = _plain(member, name, epoch)
        content: IO[bytes] | None = None
        if name in first:
            carrier, source = first[name]
            if carrier == name:
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", source.size
                content = layer.extractfile(source)
            else:
                info.type, info.linkname = tarfile.LNKTYPE, carrier
        elif member.isreg():
            info.size = member.size
            content = layer.extractfile(member)
        written.addfile(info, content)
    written.close()
    entries.take(members)
    return len(fresh)


def _first_names(members: dict[str, tarfile.TarInfo]) -> dict[str, tuple[str, tarfile.TarInfo]]:
    """Map each name of a file with several names to the smallest of them and to the member that has the content."""
    groups: dict[str, list[str]] = {}
    for name, member in members.items():
        if member.islnk():
            groups.setdefault(member_name(member.linkname), []).append(name)
    first: dict[str, tuple[str, tarfile.TarInfo]] = {}
    for target, names in groups.items():
        if target not in members:
            raise ContentError(f"Cannot read a layer: it links {names[0]} to {target}, which it does not hold.")
        alike = sorted([*names, target])
        first |= dict.fromkeys(alike, (alike[0], members[target]))
    return first


def _plain(member: tarfile.TarInfo, name: str, epoch: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.REGTYPE if member.isreg() else member.type
    info.mode, info.uid, info.gid = member.mode & 0o7777, member.uid, member.gid
    # One time for all: podman gives its own to what Docker leaves as the package had it.
    info.mtime = epoch
    info.linkname = member.linkname if member.issym() else ""
    info.devmajor, info.devminor = member.devmajor, member.devminor
    capability = {k: v for k, v in member.pax_headers.items() if k == "SCHILY.xattr.security.capability"}
    info.pax_headers = capability
    return info


def stream(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the file in pieces."""
    while piece := file.read(CHUNK):
        yield piece
