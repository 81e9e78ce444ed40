"""The values of a Conda lock. Addresses are part of it (a Conda lock names files), credentials never are."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.base.cache import cache_folder
from envsmith.lock.days import cutoff
from envsmith.model.cell import Cell, Platform

# Receives progress, one line at a time.
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class CondaRequest:
    """What is asked of Conda beside the cell.

    Without ``channels`` those of this user's configuration count. ``platforms`` are locked besides the cell's own.
    ``tolerate`` names components (``nccl``, ``cudnn``, ``triton``) that may be another release than in the pip lock:
    conda-forge builds PyTorch against a newer NCCL than the wheels carry. ``exclude_newer`` is the day that the user
    named.
    """

    channels: tuple[str, ...] = ()
    platforms: tuple[Platform, ...] = ()
    tolerate: tuple[str, ...] = ()
    exclude_newer: str | None = None
    offline: bool = False
    cache_dir: Path = field(default_factory=lambda: cache_folder() / "conda")

    def platforms_of(self, cell: Cell) -> tuple[Platform, ...]:
        """Return the cell's own platform and those that were asked for, in one order."""
        return tuple(sorted({cell.platform, *self.platforms}, key=lambda p: p.value))

    @property
    def end(self) -> dt.datetime | None:
        """Return the first moment of which nothing counts."""
        day = self.exclude_newer
        return dt.datetime.fromisoformat(cutoff(day).replace("Z", "+00:00")) if day else None

    def until(self, default: str | None) -> CondaRequest:
        """Return the same with the day after which packages are not seen.

        A day that is only our default does not hide what stands in a folder of this machine, whose index says when it
        was indexed, not when its packages were made.
        """
        own = all(c.startswith(("file:", "/", "./", "../")) for c in self.channels)
        return dataclasses.replace(self, exclude_newer=self.exclude_newer or (None if own else default))


@dataclass(frozen=True, kw_only=True, slots=True)
class CondaPackage:
    """One Conda package as its channel records it. ``sha256`` and ``md5`` are hex, ``timestamp`` is in milliseconds."""

    name: str
    version: str
    build: str
    build_number: int
    subdir: str
    url: str
    sha256: str
    md5: str
    channel: str
    size: int | None = None
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    noarch: str | None = None
    license: str | None = None
    timestamp: int | None = None
    python_site_packages_path: str | None = None

    @property
    def filename(self) -> str:
        """Return the last part of the address."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True, kw_only=True, slots=True)
class PipPackage:
    """One distribution that no channel has, by file and hash. ``requires`` are names of other packages of the lock."""

    name: str
    version: str
    url: str
    sha256: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CondaSpec:
    """A question to the solver: ``version`` is ``==2.9.1``, ``12.9.*`` or empty, ``build`` a glob."""

    name: str
    version: str = ""
    build: str | None = None

    def __str__(self) -> str:
        return " ".join(
            [self.name, *([self.version or "*"] if self.version or self.build else []), *filter(None, [self.build])]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformLock:
    """What one platform gets.

    ``packages`` are ordered so that each comes after what it depends on. ``specs`` is what was asked of the solver.
    ``virtual_packages`` maps ``__cuda`` … to ``version`` or ``version build``.
    """

    platform: Platform
    specs: tuple[CondaSpec, ...]
    virtual_packages: Mapping[str, str]
    packages: tuple[CondaPackage, ...]
    pip: tuple[PipPackage, ...] = ()

    def package(self, name: str) -> CondaPackage | None:
        """Return the Conda package of a name."""
        return next((p for p in self.packages if p.name == name), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class CondaLock:
    """A cell pinned in Conda's terms, for one or more platforms.

    ``request`` is the hash of everything that was asked (cell, pip pins, channels, platforms): equal requests need no
    new lock. ``notes`` are sentences for the user that do not make the lock wrong.
    """

    cell_id: str
    channels: tuple[str, ...]
    platforms: tuple[PlatformLock, ...]
    request: str
    notes: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def on(self, platform: Platform) -> PlatformLock:
        """Return the part of a platform. ``KeyError`` when the lock does not cover it."""
        for part in self.platforms:
            if part.platform is platform:
                return part
        raise KeyError(platform.value)
