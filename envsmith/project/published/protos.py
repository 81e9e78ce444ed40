"""Modules of a published release that protoc made, and the protobuf that refuses them.

protobuf 4 makes no descriptor for a module that protoc made before 3.19 (``descriptor.py`` of protobuf 4.21.7). A module
of protoc 5.27 or later names the release that made it: an older protobuf refuses it, and one that is two major versions
newer (``runtime_version.py`` of protobuf 6.31.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from packaging.version import Version

PROTOBUF = "protobuf"
_WRITTEN_OUT = re.compile(
    rb"^\s*(?:\w+ = )?_descriptor\.(?:Field|Enum|EnumValue|Service|Method)?Descriptor\(", re.MULTILINE
)
_MADE_BY = re.compile(rb"ValidateProtobufRuntimeVersion\(\s*[\w.]+,\s*(\d+),\s*(\d+),\s*(\d+),")
_FIRST_REFUSING = 4


def refused_protos(texts: Mapping[str, bytes], protobuf: Version) -> Iterator[tuple[str, str, str]]:
    """Yield the path of each module that a release of protobuf refuses, what made it, and the protobuf that takes it."""
    for path, text in texts.items():
        if not path.endswith("_pb2.py"):
            continue
        if maker := _MADE_BY.search(text):
            major, minor, patch = map(int, maker.groups())
            by = f"{major}.{minor}.{patch}"
            if protobuf.major > major + 1 or protobuf < Version(by):
                yield path, f"protoc of protobuf {by}", f">={by},<{major + 2}"
        elif protobuf.major >= _FIRST_REFUSING and _WRITTEN_OUT.search(text):
            yield path, "a protoc before 3.19", f"<{_FIRST_REFUSING}"
