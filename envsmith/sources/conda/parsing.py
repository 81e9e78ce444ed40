"""Hostile text -> plain values: bounded YAML, names, versions and the file names of Conda packages, or a ``DataError``."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from envsmith.errors import DataError
from envsmith.lock.conda.names import clean

__all__ = [
    "MAX_BYTES",
    "NAME",
    "VERSION",
    "as_list",
    "as_mapping",
    "as_name",
    "as_version",
    "load_yaml",
    "split_filename",
]

MAX_BYTES = 64 << 20
_MAX_DEPTH = 60
_MAX_NODES = 4_000_000
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.!+-]{0,127}")


def load_yaml(text: str, where: str) -> Any:
    """YAML of plain values: no aliases (one line of them can stand for gigabytes), no tags, bounded in depth and size. Raises ``DataError``."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    if len(text) > MAX_BYTES:
        raise DataError(f"{where}: {len(text)} characters are too many")
    depth = nodes = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            nodes += 1
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                depth += 1
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                depth -= 1
            elif isinstance(event, yaml.AliasEvent):
                raise DataError(f"{where}: YAML aliases are not read")
            if depth > _MAX_DEPTH or nodes > _MAX_NODES:
                raise DataError(f"{where}: nested or filled beyond what such a file has")
        return yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader in either case
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" (line {mark.line + 1})" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise DataError(f"{where}: not YAML: {clean(str(problem), 120)}{at}") from error
    except (ValueError, RecursionError, OverflowError) as error:
        raise DataError(f"{where}: not readable: {clean(str(error), 120)}") from error


def as_mapping(value: Any, where: str, what: str) -> Mapping[str, Any]:
    """``value`` as a mapping; ``DataError`` names ``where`` (the file) and ``what`` (the key path)."""
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: {what} is not a mapping")
    return value


def as_list(value: Any, where: str, what: str) -> list[Any]:
    """``value`` as a list; ``DataError`` as in :func:`as_mapping`."""
    if not isinstance(value, list):
        raise DataError(f"{where}: {what} is not a list")
    return value


def as_name(value: Any, where: str, what: str) -> str:
    """``value`` as a package's name; ``DataError`` as in :func:`as_mapping`."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise DataError(f"{where}: {what}: {clean(repr(value), 80)} is not a package name")
    return value


def as_version(value: Any, where: str, what: str) -> str:
    """``value`` as a version; ``DataError`` as in :func:`as_mapping`."""
    if not isinstance(value, str) or not VERSION.fullmatch(value):
        raise DataError(
            f"{where}: {what}: {clean(repr(value), 80)} is not a version (quote it, if it looks like a number)"
        )
    return value


def split_filename(url: str) -> tuple[str, str, str] | None:
    """``(name, version, build)`` of the last part of a Conda package's address, or ``None``."""
    try:
        filename = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1])
    except ValueError:
        return None
    stem = re.sub(r"\.(?:conda|tar\.bz2)$", "", filename)
    parts = stem.rsplit("-", 2)
    if stem == filename or len(parts) != 3 or not NAME.fullmatch(parts[0]) or not VERSION.fullmatch(parts[1]):
        return None
    return parts[0].lower(), parts[1], parts[2]
