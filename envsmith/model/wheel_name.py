"""The name of a wheel's file: project, release, tags, and the label of a variant (PEP 427, PEP 825).

A variant is a build of a release for some hardware: two files of one release and the same tags differ by its label.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    from packaging.tags import Tag

_LABEL = re.compile(r"[0-9a-z_.]{1,16}")
# The variant that asks for no hardware.
NULL = "null"


@dataclass(frozen=True, slots=True)
class WheelName:
    """What the name of a wheel says. ``variant`` is empty for a wheel that is not one of several variants."""

    project: str
    version: Version
    tags: frozenset[Tag]
    build: tuple[int, str] | tuple[()] = ()
    variant: str = ""


@lru_cache(maxsize=4096)
def read_wheel_name(filename: str) -> WheelName:
    """Read a name. :class:`packaging.utils.InvalidWheelFilename` where it is not that of a wheel."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename  # and tags: a warm solve reads no name

    plain, label = _split(filename)
    if label and not _LABEL.fullmatch(label):
        raise InvalidWheelFilename(f"Invalid variant label: {label[:60]!r} in {filename[:200]!r}")
    name, version, build, tags = parse_wheel_filename(plain)
    return WheelName(project=name, version=version, tags=tags, build=build, variant=label)


def variant_of(filename: str) -> str:
    """Return the label of a wheel's variant, or nothing where the name has none or is not that of a wheel."""
    try:
        return read_wheel_name(filename).variant
    except ValueError:  # InvalidWheelFilename, InvalidVersion
        return ""


def _split(filename: str) -> tuple[str, str]:
    """Return the name without its label, and the label. The third of six parts is a build if it begins with a digit."""
    parts = filename.removesuffix(".whl").split("-")
    has_build = len(parts) > 2 and parts[2][:1].isdigit()
    if not filename.endswith(".whl") or len(parts) != (7 if has_build else 6):
        return filename, ""
    return "-".join(parts[:-1]) + ".whl", parts[-1]
