"""A lock: the cell with everything that is installed pinned and hashed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from packaging.utils import is_normalized_name

from envsmith.errors import DataError
from envsmith.model.cell import FLAVOURS, RUNTIME, Cell, CellId, Platform
from envsmith.model.version import version_key

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


# ``lock.json`` back as a :class:`Lock`: every problem is listed with its key path, and the text must be the one the lock prints.


_SCHEMA = 1
_MAX_ITEMS = 10_000
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,254}")
# Empty, "file", or an https address without a user.
_ORIGIN = re.compile(r"|file|https://[^\s@#\x00-\x20]{1,2000}")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,79}")
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9 .,;:+_=-]{0,255}")
T = TypeVar("T")


class _Reader:
    """Takes values out of parsed JSON and collects what is wrong instead of stopping at the first."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def bad(self, path: str, why: str) -> None:
        if len(self.problems) < 100:
            self.problems.append(f"{path}: {why}")

    def text(self, value: object, path: str, pattern: re.Pattern[str] | None = None, *, limit: int = 4000) -> str:
        if not isinstance(value, str) or len(value) > limit:
            self.bad(
                path,
                f"a text was expected, not {type(value).__name__}"
                if not isinstance(value, str)
                else f"longer than {limit} characters",
            )
            return ""
        if pattern and not pattern.fullmatch(value):
            self.bad(path, f"{value[:80]!r} does not have the form of this field")
        return value

    def mapping(self, value: object, path: str) -> Mapping[str, Any]:
        if isinstance(value, dict):
            return value
        self.bad(path, f"an object was expected, not {type(value).__name__}")
        return {}

    def items(self, value: object, path: str, one: Callable[[object, str], T]) -> tuple[T, ...]:
        if not isinstance(value, list) or len(value) > _MAX_ITEMS:
            self.bad(path, f"a list of at most {_MAX_ITEMS} items was expected")
            return ()
        return tuple(one(item, f"{path}[{number}]") for number, item in enumerate(value))

    def version(self, value: object, path: str) -> str:
        text = self.text(value, path, limit=64)
        try:
            version_key(text)
        except ValueError as error:
            self.bad(path, str(error))
        return text

    def artifact(self, value: object, path: str) -> Artifact:
        fields = self.mapping(value, path)
        return Artifact(
            filename=self.text(fields.get("filename"), f"{path}.filename", _FILENAME),
            sha256=self.text(fields.get("sha256"), f"{path}.sha256", _SHA256),
        )

    def pin(self, value: object, path: str) -> Pin:
        fields = self.mapping(value, path)
        name = self.text(fields.get("name"), f"{path}.name", limit=200)
        if not is_normalized_name(name):
            self.bad(f"{path}.name", f"{name[:80]!r} is not a normalised distribution name")
        layer = self.text(fields.get("layer"), f"{path}.layer", re.compile(r"torch|framework|build"))
        artifacts = self.items(fields.get("files"), f"{path}.files", self.artifact)
        if not artifacts:
            self.bad(f"{path}.files", "no file: every package of a lock is hashed")
        if not isinstance(fields.get("sdist"), bool):
            self.bad(f"{path}.sdist", "true or false was expected")
        version = self.version(fields.get("version"), f"{path}.version")
        return Pin(name=name, version=version, layer=layer, artifacts=artifacts, sdist=fields.get("sdist") is True)

    def cell(self, value: object, path: str) -> Cell:
        fields = self.mapping(value, path)
        components = {
            self.text(name, f"{path}.components", limit=100): self.text(version, f"{path}.components.{name}", limit=100)
            for name, version in self.mapping(fields.get("components"), f"{path}.components").items()
        }
        platform = Platform.LINUX_64
        chosen: tuple[str, ...] = ()
        try:
            platform = Platform.parse(self.text(fields.get("platform"), f"{path}.platform"))
            cell_id = CellId.parse(self.text(fields.get("id"), f"{path}.id", limit=300))
            chosen = tuple(name for name, _ in cell_id.components)
            if any(components.get(name) != version for name, version in cell_id.components):
                self.bad(f"{path}.id", "it does not name the components of the cell")
        except ValueError as error:
            self.bad(path, str(error))
        if "python" not in components:
            self.bad(f"{path}.components", "python is missing")
        index = self.text(fields.get("index", "default"), f"{path}.index", re.compile("default|pytorch"))
        return Cell(components=components, chosen=chosen, platform=platform, index=index)

    def constraint(self, value: object, path: str) -> tuple[str, str]:
        parts = self.items(value, path, self.text)
        if len(parts) != 2:
            self.bad(path, "[requirement, rule id] was expected")
            return ("", "")
        return (parts[0], parts[1])

    def base(self, value: object, path: str) -> BaseImage | None:
        if value is None:
            return None
        fields = self.mapping(value, path)
        told = {
            key: self.text(fields.get(key), f"{path}.{key}") for key in ("name", "origin", "python", "distribution")
        }
        return BaseImage(digest=self.text(fields.get("digest"), f"{path}.digest", _DIGEST), **told)

    def wheel(self, value: object, path: str) -> BuiltWheel:
        fields = self.mapping(value, path)
        return BuiltWheel(
            name=self.text(fields.get("name"), f"{path}.name", limit=200),
            filename=self.text(fields.get("filename"), f"{path}.filename", _FILENAME),
            sha256=self.text(fields.get("sha256"), f"{path}.sha256", _SHA256),
            content=self.text(fields["content"], f"{path}.content", _SHA256) if "content" in fields else "",
        )

    def compiled(self, value: object, path: str) -> CompiledSource:
        fields = self.mapping(value, path)
        variables = self.mapping(fields.get("variables"), f"{path}.variables")
        if not isinstance(fields.get("toolkit"), bool):
            self.bad(f"{path}.toolkit", "true or false was expected")
        return CompiledSource(
            name=self.text(fields.get("name"), f"{path}.name", limit=200),
            variables=tuple(
                (
                    self.text(name, f"{path}.variables", _VARIABLE),
                    self.text(told, f"{path}.variables.{str(name)[:80]}", _PLAIN_VALUE),
                )
                for name, told in variables.items()
            ),
            toolkit=fields.get("toolkit") is True,
            archive=self.text(fields.get("archive", ""), f"{path}.archive", _ORIGIN),
        )

    def os_package(self, value: object, path: str) -> OsPackage:
        fields = self.mapping(value, path)
        return OsPackage(
            name=self.text(fields.get("name"), f"{path}.name"),
            version=self.text(fields.get("version"), f"{path}.version"),
        )


def parse_lock(text: str, *, where: str) -> Lock:
    """The lock that ``text`` is; ``DataError`` lists every problem of it."""
    hint = "delete it and run envsmith lock again; a lock is not edited by hand"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {str(error)[:200]}", hint=hint) from None
    reader = _Reader()
    fields = reader.mapping(document, "lock")
    if fields.get("schema") != _SCHEMA:
        raise DataError(
            f"{where}: schema {str(fields.get('schema'))[:20]!r} is not one that this envsmith reads ({_SCHEMA})",
            hint=hint,
        )
    lock = Lock(
        cell=reader.cell(fields.get("cell"), "cell"),
        request=reader.text(fields.get("request"), "request", limit=20_000),
        exclude_newer=reader.text(
            fields.get("exclude_newer"), "exclude_newer", re.compile(r"\d{4}-\d{2}-\d{2}.{0,40}")
        ),
        python_version=reader.version(fields.get("python_version"), "python_version"),
        pins=reader.items(fields.get("packages"), "packages", reader.pin),
        build_pins=reader.items(fields.get("build_packages"), "build_packages", reader.pin),
        constraints=reader.items(fields.get("constraints"), "constraints", reader.constraint),
        base=reader.base(fields.get("base"), "base"),
        os_packages=reader.items(fields.get("os_packages"), "os_packages", reader.os_package),
        resolver=reader.text(fields.get("resolver"), "resolver"),
        os_source=reader.text(
            fields.get("os_source", ""), "os_source", re.compile(r"|(?:snapshot|mirror) [0-9TZ-]{8,20}")
        ),
        flavour=reader.text(fields.get("flavour", RUNTIME), "flavour", re.compile("|".join(FLAVOURS))),
        wheels=reader.items(fields.get("wheels", []), "wheels", reader.wheel),
        compiled=reader.items(fields.get("compiled", []), "compiled", reader.compiled),
    )
    names = [pin.name for pin in lock.pins]
    for name in sorted({n for n in names if names.count(n) > 1}):
        reader.bad("packages", f"{name} is pinned twice")
    if reader.problems:
        raise DataError(f"{where}: {len(reader.problems)} problems in the lock", details=reader.problems, hint=hint)
    if lock.text() != text:
        raise DataError(f"{where}: it was changed by hand or by another version of envsmith", hint=hint)
    return lock


# What a user says about distributions that are compiled from source: archives that are on no index, and variables that are set meanwhile.


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenArchive:
    """A source archive (``.tar.gz``) of the user's that was fetched, held against its ``sha256`` (64 hex digits) and looked into.

    ``name`` is normalised; ``address`` is ``file:///…`` or ``https://…``; ``requires`` are the run-time requirements that it states without
    being run; ``cuda`` says that there is CUDA code in it. ``size`` is in bytes.
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
        """The name that a source distribution has, whatever the file was called."""
        return f"{self.name.replace('-', '_')}-{self.version}.tar.gz"

    @property
    def artifact(self) -> Artifact:
        """As it stands in a lock."""
        return Artifact(filename=self.filename, sha256=self.sha256, size=self.size, url=self.address)

    @property
    def origin(self) -> str:
        """What a lock says of where it came from: the address, or ``file``, because a folder of one machine means nothing on another."""
        return self.address if self.address.startswith("https:") else "file"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compile:
    """``archives`` stand for what the index has, or has not, under their names; ``variables`` are set while a distribution is compiled."""

    archives: tuple[GivenArchive, ...] = ()
    variables: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def archive(self, name: str) -> GivenArchive | None:
        """The archive that stands for a distribution."""
        return next((a for a in self.archives if a.name == name), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """An image that a build takes one program from (``micromamba``), by the digest of its multi-platform index."""

    name: str
    image: str
    digest: str
    evidence: str
