#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.10"
# dependencies = ["envsmith"]
# [tool.uv.sources]
# envsmith = { path = "..", editable = true }
# ///
"""Which distribution brings which module: read from the file list of each distribution's newest wheel.

    python tools/modules.py [DISTRIBUTION...]

Reads again what ``matrix/modules.yaml`` lists, and what is named. A module that two distributions bring belongs to the
one that stands first in the file. What stands before the list, ``behind`` among it, is written by people.
"""

from __future__ import annotations

import sys

from packaging.utils import canonicalize_name

from envsmith.base.files import now, write_whole
from envsmith.base.schema import parse_document
from envsmith.errors import EnvsmithError
from envsmith.knowledge.graph.location import own_matrix
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.lock.index.remote_wheel import RemoteWheel
from envsmith.net.http import HttpClient

_LISTED = "distributions:\n"
_NOT_MODULES = frozenset({"tests", "test", "docs", "examples", "benchmarks", "scripts", "tools", "build", "dist"})


def main(names: list[str]) -> int:
    """Write the file. 1 when a distribution could not be read; its line stays as it was."""
    path = own_matrix() / "modules.yaml"
    text = path.read_text(encoding="utf-8")
    listed = parse_document(path.name, text.encode())["distributions"]
    index = PackageIndex(HttpClient(), find_index())
    failures = 0
    for name in dict.fromkeys([*listed, *(canonicalize_name(n) for n in names)]):
        try:
            listed[name] = _measured(index, name)
        except EnvsmithError as error:  # noqa: PERF203 - each failure is one line
            failures += 1
            print(f"{name}: {error}", file=sys.stderr)
    lines = [f"  {name}: {{{_row(row)}}}\n" for name, row in listed.items()]
    write_whole(path, f"{text.partition(_LISTED)[0]}{_LISTED}{''.join(lines)}")
    return 1 if failures else 0


def _measured(index: PackageIndex, name: str) -> dict[str, object]:
    releases = index.project(name).releases()
    for version in reversed(list(releases)):
        wheels = [f for f in releases[version] if f.is_wheel and not _is_pre(version)]
        linux = [f for f in wheels if f.filename.endswith(("-any.whl", "linux_x86_64.whl", "linux2014_x86_64.whl"))]
        linux += [f for f in wheels if "manylinux" in f.filename and "x86_64" in f.filename]
        if linux:
            with RemoteWheel(index.fetcher, linux[0].url) as wheel:
                modules = _top_names(wheel.names())
            return {"modules": modules, "wheel": linux[0].filename, "read": now().date().isoformat()}
    raise EnvsmithError(f"Cannot read {name}: it has no wheel for Linux.")


def _is_pre(version: str) -> bool:
    from packaging.version import Version

    return Version(version).is_prerelease


def _top_names(paths: list[str]) -> list[str]:
    tops = set()
    for path in paths:
        first, _, below = path.partition("/")
        if below and not first.endswith((".dist-info", ".data", ".libs")) and below.endswith((".py", ".so", ".pyi")):
            tops.add(first)
        elif not below and first.endswith((".py", ".so")):
            tops.add(first.split(".")[0])
    return sorted(t for t in tops if t.isidentifier() and not t.startswith("_") and t not in _NOT_MODULES)


def _row(row: dict[str, object]) -> str:
    modules = row["modules"]
    listed = ", ".join(modules) if isinstance(modules, list) else ""
    return f"modules: [{listed}], wheel: {row['wheel']}, read: {row['read']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
