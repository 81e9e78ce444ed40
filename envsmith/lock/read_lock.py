"""``lock.json`` back as a :class:`Lock`: every problem is listed with its key path, and the text must be the one the lock prints."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from packaging.utils import is_normalized_name

from envsmith.errors import DataError
from envsmith.model.cell import Cell, CellId
from envsmith.model.lock import (
    FLAVOURS,
    RUNTIME,
    Artifact,
    BaseImage,
    BuiltWheel,
    CompiledSource,
    Lock,
    OsPackage,
    Pin,
)
from envsmith.model.platform import Platform
from envsmith.model.version import version_key

__all__ = ["parse_lock"]

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
