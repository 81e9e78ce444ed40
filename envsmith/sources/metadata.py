"""What a distribution says of itself: ``METADATA``, ``PKG-INFO``, ``requires.txt``; parsed, bounded, evaluated for one platform."""

from __future__ import annotations

import email.parser
import email.policy
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from envsmith.errors import NetworkError
from envsmith.model.platform import Platform

__all__ = ["Metadata", "active", "parse_metadata", "parse_requires_txt"]

_MAX = 4 << 20
_MAX_REQUIREMENTS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Metadata:
    """The fields that rules are made of. ``requires`` are the lines as they stand there, extras and markers included."""

    name: str
    version: str
    requires_python: str | None = None
    requires: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()


def parse_metadata(data: bytes, where: str) -> Metadata:
    """Parse ``METADATA`` or ``PKG-INFO``; ``NetworkError`` names ``where`` when it has no name or version."""
    if len(data) > _MAX:
        raise NetworkError(f"{where}: METADATA of {len(data)} bytes: refused")
    headers = email.parser.BytesHeaderParser(policy=email.policy.compat32).parsebytes(data)

    def one(field: str) -> str:
        value = headers.get(field)
        return " ".join(str(value).split()) if value is not None else ""

    def several(field: str) -> tuple[str, ...]:
        return tuple(" ".join(str(v).split())[:1000] for v in (headers.get_all(field) or [])[:_MAX_REQUIREMENTS])

    if not one("Name") or not one("Version"):
        raise NetworkError(f"{where}: METADATA names no project or no version")
    return Metadata(
        name=one("Name")[:200],
        version=one("Version")[:100],
        requires_python=one("Requires-Python")[:200] or None,
        requires=several("Requires-Dist"),
        extras=several("Provides-Extra"),
    )


def parse_requires_txt(data: bytes) -> tuple[str, ...]:
    """The requirements of setuptools' ``requires.txt``, its sections spelt as markers.

    ``[cuda]`` is an extra, ``[:python_version < "3.8"]`` a marker, ``[dev:sys_platform == "linux"]`` both.
    """
    found = []
    marker = ""
    for raw in data[:_MAX].decode("utf-8", "replace").splitlines()[:_MAX_REQUIREMENTS]:
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        section = re.fullmatch(r"\[([^:\]]*)(?::(.*))?\]", line)
        if section:
            clauses = [f"({section[2]})"] if section[2] else []
            if section[1]:
                clauses.append(f'extra == "{section[1]}"')
            marker = " and ".join(clauses)
        else:
            found.append(f"{line} ; {marker}" if marker else line)
    return tuple(found)


def active(
    requires: Iterable[str], *, python: str, platform: Platform, extras: Iterable[str] = ()
) -> dict[str, Requirement]:
    """What is asked for on a platform, by canonical name: without extras unless named; lines that do not parse are skipped.

    Two lines of one name are joined (their specifiers intersect).
    """
    environment: Mapping[str, str] = {
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": platform.machine,
        "platform_release": "",
        "platform_version": "",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "implementation_version": f"{python}.0",
        "python_version": python,
        "python_full_version": f"{python}.0",
    }
    found: dict[str, Requirement] = {}
    for line in requires:
        try:
            requirement = Requirement(line)
            wanted = requirement.marker is None or any(
                requirement.marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)
            )
        except (InvalidRequirement, ValueError, KeyError):
            continue
        if not wanted:
            continue
        name = canonicalize_name(requirement.name)
        if name in found:
            requirement.specifier &= found[name].specifier
        found[name] = requirement
    return found
