"""A lock: the cell with everything that is installed pinned and hashed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.model.cell import Cell

__all__ = [
    "DEVEL",
    "FLAVOURS",
    "RUNTIME",
    "Artifact",
    "BaseImage",
    "BuiltWheel",
    "CompiledSource",
    "Layer",
    "Lock",
    "OsPackage",
    "Pin",
    "folder_name",
]

# What an image is for: to train, or to compile operators in as well.
RUNTIME, DEVEL = "runtime", "devel"
FLAVOURS = (RUNTIME, DEVEL)

# The layers of an image, heaviest and most shared first. A pin belongs to exactly one.
Layer = str  # "torch" | "framework"


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """One file of a release: name, ``sha256`` (64 hex digits), bytes where the index tells, address as the index gave it."""

    filename: str
    sha256: str
    size: int | None = None
    url: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """One Python distribution. ``artifacts`` are every file that may be installed for it; ``requires`` are names of other pins."""

    name: str
    version: str
    layer: Layer
    artifacts: tuple[Artifact, ...]
    requires: tuple[str, ...] = ()
    sdist: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class OsPackage:
    """A Debian/Ubuntu package by exact version."""

    name: str
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltWheel:
    """What became of the source distribution of a pin when it was first built: the wheel's file name and its sha256 (64 hex digits).

    ``content`` is a sha256 over the files that it installs, which can be read back from an image; empty in older locks.
    """

    name: str
    filename: str
    sha256: str
    content: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledSource:
    """A source distribution of the lock that is compiled against the cell's torch, in the pinned builder, from a fixed folder.

    ``variables`` are set while it is compiled: no binary that nobody hashed is fetched, no GPU of the builder's host is asked. ``toolkit``
    says that nvcc is there, from the distributions of the lock's ``build_pins``. ``archive`` is empty for an archive of the index; of one that
    the user gave it is the https address, or ``file``.
    """

    name: str
    variables: tuple[tuple[str, str], ...] = ()
    toolkit: bool = True
    archive: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseImage:
    """The image a cell is built on. ``digest`` is ``sha256:…`` of its manifest (or of its image id, for a local base).

    ``origin`` is ``registry``, ``local`` or ``bootstrapped`` (made here from the distribution's packages); ``python`` is the interpreter's path inside.
    """

    name: str
    digest: str
    origin: str
    python: str
    distribution: str
    evidence: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """Everything that is installed for a cell on one platform.

    ``build_pins`` are what source distributions are built with; ``constraints`` what rules added to the package resolution, with the rule id.
    ``base`` and ``os_packages`` are ``None``/empty when no image was asked for (``image_note`` then says why); ``os_source`` is where the
    versions of the packages come from, ``snapshot DATE`` or ``mirror DATE``. ``wheels`` are what the source distributions became in the
    pinned builder, once they were built; ``compiled`` are those of them that need torch, a compiler and often nvcc for it.
    """

    cell: Cell
    request: str
    exclude_newer: str
    python_version: str
    pins: tuple[Pin, ...]
    build_pins: tuple[Pin, ...] = ()
    constraints: tuple[tuple[str, str], ...] = ()
    base: BaseImage | None = None
    os_packages: tuple[OsPackage, ...] = ()
    os_source: str = ""
    flavour: str = RUNTIME
    wheels: tuple[BuiltWheel, ...] = ()
    compiled: tuple[CompiledSource, ...] = ()
    image_note: str = ""
    resolver: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    def pin(self, name: str) -> Pin | None:
        """The pin of a distribution by its normalised name."""
        return next((p for p in self.pins if p.name == name), None)

    def to_json(self) -> dict[str, object]:
        """The lock without addresses: the same packages from another mirror are the same lock."""
        return {
            "schema": 1,
            "cell": self.cell.to_json(),
            "request": self.request,
            "exclude_newer": self.exclude_newer,
            "python_version": self.python_version,
            "resolver": self.resolver,
            "constraints": [list(c) for c in self.constraints],
            "packages": [_pin_json(p) for p in self.pins],
            "build_packages": [_pin_json(p) for p in self.build_pins],
            "base": None
            if self.base is None
            else {k: getattr(self.base, k) for k in ("name", "digest", "origin", "python", "distribution")},
            "os_packages": [{"name": p.name, "version": p.version} for p in self.os_packages],
            **self._later(),
        }

    @property
    def name(self) -> str:
        """The cell's id, with the flavour where it is not the usual one: the name of its folder and image."""
        return folder_name(self.cell, self.flavour)

    def _later(self) -> dict[str, object]:
        """What locks did not have from the start; left out where it is empty, so that an older lock keeps its digest."""
        wheels = [_wheel_json(w) for w in self.wheels]
        compiled = [_compiled_json(c) for c in self.compiled]
        told = {
            "compiled": compiled,
            "os_source": self.os_source,
            "flavour": "" if self.flavour == RUNTIME else self.flavour,
            "wheels": wheels,
        }
        return {key: value for key, value in told.items() if value}

    def text(self) -> str:
        """Canonical JSON: the bytes that :attr:`digest` is taken over."""
        return json.dumps(self.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @property
    def digest(self) -> str:
        """``sha256:`` and 64 hex digits over :meth:`text`."""
        return "sha256:" + hashlib.sha256(self.text().encode()).hexdigest()


def folder_name(cell: Cell, flavour: str) -> str:
    """The name of a cell's folder and image: its id, with the flavour where that is not ``runtime``."""
    return str(cell.id) if flavour == RUNTIME else f"{cell.id}-{flavour}"


def _wheel_json(wheel: BuiltWheel) -> dict[str, object]:
    told: dict[str, object] = {"name": wheel.name, "filename": wheel.filename, "sha256": wheel.sha256}
    return {**told, "content": wheel.content} if wheel.content else told


def _compiled_json(source: CompiledSource) -> dict[str, object]:
    told = {"name": source.name, "toolkit": source.toolkit, "variables": dict(source.variables)}
    return {**told, "archive": source.archive} if source.archive else told


def _pin_json(pin: Pin) -> dict[str, object]:
    files = [{"filename": a.filename, "sha256": a.sha256} for a in pin.artifacts]
    return {"name": pin.name, "version": pin.version, "layer": pin.layer, "sdist": pin.sdist, "files": files}
