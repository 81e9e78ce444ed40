"""A lock: the cell with everything that is installed pinned and hashed.

The fields say how it is written to lock.json and read from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, Literal

from packaging.utils import is_normalized_name

from envsmith.base.files import digest_of
from envsmith.base.json_types import JsonDict
from envsmith.base.schema import (
    UNWRITTEN,
    AsJson,
    Flag,
    Made,
    Parsed,
    Problems,
    Sha256,
    UnreadableError,
    WrongValueError,
    check,
    each_once,
    not_empty,
    parse_json,
    strict,
    text_of,
    written,
)
from envsmith.errors import DataError
from envsmith.model.cell import FLAVOURS, RUNTIME, Cell, CellId, Platform
from envsmith.model.version import version_key

_SCHEMA = 1
# The origin of a base that is made of exactly pinned packages of its distribution, and what --base says for it.
PACKAGES = "packages"
# The name of a lock in a cell's folder.
LOCK_FILE = "lock.json"
# A lock, a record, or a document that proves them, as a file.
MAX_BYTES = 32 << 20
# The layers of an image, heaviest and most shared first. A pin belongs to exactly one.
Layer = Annotated[str, text_of(20, re.compile("torch|framework|build"))]


def _parse_name(value: object, _context: object) -> str:
    name: str = text_of(200).function(value, None)
    if not is_normalized_name(name):
        raise WrongValueError("not a normalised distribution name")
    return name


def _parse_version(value: object, _context: object) -> str:
    version: str = text_of(64).function(value, None)
    version_key(version)
    return version


def _parse_pair(value: object, _context: object) -> tuple[str, str]:
    one = text_of(4000).function
    if not isinstance(value, list) or len(value) != 2:
        raise WrongValueError("[requirement, rule id] belongs here")
    return one(value[0], None), one(value[1], None)


def _of_form(pattern: str, minimum: int = 1) -> Parsed:
    return text_of(4000, re.compile(pattern), minimum=minimum)


_Word = Annotated[str, text_of(4000)]
_Name = Annotated[str, text_of(200)]
_FileName = Annotated[str, _of_form(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,254}")]
_Variable = Annotated[str, _of_form(r"[A-Z][A-Z0-9_]{0,79}")]
_PlainValue = Annotated[str, _of_form(r"[A-Za-z0-9 .,;:+_=-]{0,255}", minimum=0)]
# Empty, or the address of a wheel as plain.address has it.
_WheelAddress = Annotated[
    str, _of_form(r"|https?://[A-Za-z0-9.:-]{1,260}(?:/[A-Za-z0-9._~%+-]{1,255}){1,16}", minimum=0)
]
# Empty, "file", or an https address without a user.
_Origin = Annotated[str, _of_form(r"|file|https://[^\s@#\x00-\x20]{1,2000}", minimum=0)]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact(AsJson):
    """One file of a release.

    Name, ``sha256`` (64 hex digits), bytes where the index tells, address as the index gave it.
    """

    filename: _FileName
    sha256: Sha256
    size: int | None = field(default=None, metadata=UNWRITTEN)
    url: str | None = field(default=None, metadata=UNWRITTEN)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Pin(AsJson):
    """One Python distribution.

    ``artifacts`` are every file that may be installed for it. ``requires`` are names of other pins. ``address`` is
    where a ready wheel lies that the package index does not have.
    """

    name: Annotated[str, Parsed(_parse_name)]
    version: Annotated[str, Parsed(_parse_version)]
    layer: Layer
    artifacts: Annotated[tuple[Artifact, ...], not_empty("no file: every package of a lock is hashed")] = field(
        metadata=written("files")
    )
    requires: tuple[str, ...] = field(default=(), metadata=UNWRITTEN)
    sdist: Flag = False
    address: _WheelAddress = field(default="", metadata=written(when_set=True))


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class OsPackage(AsJson):
    """A Debian/Ubuntu package by exact version."""

    name: _Word
    version: _Word


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltWheel(AsJson):
    """What became of the source distribution of a pin when it was first built.

    The wheel's file name and its sha256 (64 hex digits).

    ``content`` is a sha256 over the files that it installs, which can be read back from an image. Empty in older locks.
    """

    name: _Name
    filename: _FileName
    sha256: Sha256
    content: Sha256 = field(default="", metadata=written(when_set=True))


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledSource(AsJson):
    """A source distribution of the lock that is compiled in the pinned builder against the cell's torch.

    ``variables`` are set while it is compiled. They keep it from fetching binaries that are not hashed, and from asking
    the GPU of the builder's host. ``toolkit`` says that nvcc is there, from the distributions of ``build_pins``.
    ``archive`` is empty for an archive of the index. For one of the user's it is the https address, or ``file``.
    """

    name: _Name
    variables: Mapping[_Variable, _PlainValue] = field(default_factory=dict)
    toolkit: Flag = True
    archive: _Origin = field(default="", metadata=written(when_set=True))


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class BaseImage(AsJson):
    """The image a cell is built on.

    ``digest`` is ``sha256:…`` of its manifest, of its image id for a local base, of the list of its packages for one
    that is made of them.

    ``origin`` is ``registry``, ``local`` or ``packages`` (``bootstrapped``, in older locks, is a local one). ``python``
    is the interpreter's path inside.
    """

    name: _Word
    digest: Annotated[str, _of_form(r"sha256:[0-9a-f]{64}")]
    origin: _Word
    python: _Word
    distribution: _Word
    packages: tuple[OsPackage, ...] = field(default=(), metadata=written(when_set=True))
    evidence: str = field(default="", metadata=UNWRITTEN)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _CellFile:
    id: Annotated[str, text_of(300)]
    components: Mapping[Annotated[str, text_of(100)], Annotated[str, text_of(100)]]
    platform: Annotated[str, text_of(100)]
    index: Literal["default", "pytorch"] = "default"
    further: tuple[Annotated[str, text_of(4000)], ...] = ()


def _cell(file: _CellFile, _context: object) -> Cell:
    cell_id = CellId.parse(file.id)
    if "python" not in file.components:
        raise WrongValueError("python is missing", path=".components")
    if any(file.components.get(name) != version for name, version in cell_id.components):
        raise WrongValueError("it does not name the components of the cell", path=".id", part=file.id)
    cell = Cell(
        components=file.components,
        chosen=tuple(name for name, _ in cell_id.components),
        platform=Platform.parse(file.platform),
        index=file.index,
        further=file.further,
    )
    if cell.id.further != cell_id.further:
        raise WrongValueError("it does not name the further requirements of the cell", path=".id", part=file.id)
    return cell


@strict
@dataclass(frozen=True, kw_only=True)
class Lock(AsJson):
    """Everything that is installed for a cell on one platform.

    ``build_pins`` are what source distributions are built with. ``constraints`` what rules added to the package
    resolution, with the rule id. ``base`` and ``os_packages`` are ``None``/empty when no image was asked for
    (``image_note`` then says why). ``os_source`` is where the versions of the packages come from, ``snapshot DATE`` or
    ``mirror DATE``. ``wheels`` are what the source distributions became in the pinned builder, once they were built.
    ``compiled`` are those of them that need torch, a compiler and often nvcc for it. ``upgraded`` are packages that moved
    last while all else stayed.

    What locks did not have from the start is written only where it says something, so that an older lock keeps its
    digest.
    """

    cell: Annotated[Cell, Made(_CellFile, _cell)]
    request: Annotated[str, text_of(20_000, minimum=0)]
    exclude_newer: Annotated[str, _of_form(r"\d{4}-\d{2}-\d{2}.{0,40}")]
    python_version: Annotated[str, Parsed(_parse_version)]
    pins: Annotated[tuple[Pin, ...], each_once(attrgetter("name"))] = field(metadata=written("packages"))
    build_pins: tuple[Pin, ...] = field(default=(), metadata=written("build_packages"))
    constraints: tuple[Annotated[tuple[str, str], Parsed(_parse_pair)], ...] = ()
    base: BaseImage | None = None
    os_packages: tuple[OsPackage, ...] = ()
    os_source: Annotated[str, _of_form(r"|(?:snapshot|mirror) [0-9TZ-]{8,20}", minimum=0)] = field(
        default="", metadata=written(when_set=True)
    )
    flavour: Annotated[str, _of_form("|".join(FLAVOURS))] = field(default=RUNTIME, metadata=written(when_set=True))
    wheels: tuple[BuiltWheel, ...] = field(default=(), metadata=written(when_set=True))
    compiled: tuple[CompiledSource, ...] = field(default=(), metadata=written(when_set=True))
    upgraded: tuple[Annotated[str, text_of(200)], ...] = field(default=(), metadata=written(when_set=True))
    image_note: str = field(default="", metadata=UNWRITTEN)
    resolver: Annotated[str, text_of(4000, minimum=0)] = ""
    facts: Mapping[str, str] = field(default_factory=dict, metadata=UNWRITTEN)

    def pin(self, name: str) -> Pin | None:
        """Return the pin of a distribution by its normalised name."""
        return next((p for p in self.pins if p.name == name), None)

    def to_json(self) -> JsonDict:
        """Return the lock without addresses: the same packages from another mirror are the same lock."""
        return {"schema": _SCHEMA, **AsJson.to_json(self)}

    @property
    def name(self) -> str:
        """Return the cell's id, with the flavour where it is not the usual one: the name of its folder and image."""
        return folder_name(self.cell, self.flavour)

    def text(self) -> str:
        """Return canonical JSON: the bytes that :attr:`digest` is taken over."""
        return json.dumps(self.to_json(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    @cached_property
    def digest(self) -> str:
        """Return ``sha256:`` and 64 hex digits over :meth:`text`."""
        return digest_of(self.text().encode())


def folder_name(cell: Cell, flavour: str) -> str:
    """Return the name of a cell's folder and image: its id, with the flavour where that is not ``runtime``."""
    return str(cell.id) if flavour == RUNTIME else f"{cell.id}-{flavour}"


def parse_lock(text: str, *, where: str) -> Lock:
    """Return the lock that ``text`` is.

    ``DataError`` lists every problem of it, or says that it is not the text that the lock prints.
    """
    hint = "Delete it and run envsmith lock again. A lock is not edited by hand."
    try:
        document: Any = parse_json(text)
    except UnreadableError as error:
        raise DataError(f"Cannot read {where}: {str(error)[:200]}.", hint=hint) from None
    number = document.pop("schema", None) if isinstance(document, dict) else None
    if number != _SCHEMA:
        raise DataError(
            f"Cannot read {where}: its schema {str(number)[:20]!r} is not the one that this envsmith reads "
            f"({_SCHEMA}).",
            hint=hint,
        )
    problems = Problems()
    lock = check(Lock, document, where, problems)
    if lock is None:
        raise DataError(
            f"Cannot read {where}: {len(problems.lines)} values in the lock are wrong.",
            details=problems.lines,
            hint=hint,
        )
    if lock.text() != text:
        raise DataError(f"Cannot use {where}: it was changed by hand or by another version of envsmith.", hint=hint)
    return lock


# What a user says about distributions that are compiled from source: archives that are on no index, and variables that
# are set meanwhile.


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenArchive:
    """A source archive (``.tar.gz``) of the user's that was fetched, compared with its ``sha256`` and looked into.

    ``name`` is normalised. ``address`` is ``file:///…`` or ``https://…``. ``requires`` are the run-time requirements
    that it states without being run. ``cuda`` says that there is CUDA code in it. ``size`` is in bytes.
    """

    name: str
    version: str
    address: str
    sha256: str
    size: int
    requires: tuple[str, ...] = ()
    cuda: bool = False

    @property
    def filename(self) -> str:
        """Return the name that a source distribution has, whatever the file was called."""
        return f"{self.name.replace('-', '_')}-{self.version}.tar.gz"

    @property
    def artifact(self) -> Artifact:
        """Return it as it stands in a lock."""
        return Artifact(filename=self.filename, sha256=self.sha256, size=self.size, url=self.address)

    @property
    def origin(self) -> str:
        """Return what a lock says of where it came from.

        The address, or ``file``, because a folder of one machine means nothing on another.
        """
        return self.address if self.address.startswith("https:") else "file"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compile:
    """``archives`` stand for what the index has, or has not, under their names.

    ``variables`` are set while a distribution is compiled.
    """

    archives: tuple[GivenArchive, ...] = ()
    variables: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def archive(self, name: str) -> GivenArchive | None:
        """Return the archive that stands for a distribution."""
        return next((a for a in self.archives if a.name == name), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """An image that a build takes one program from (``micromamba``), by the digest of its multi-platform index."""

    name: str
    image: str
    digest: str
    evidence: str
