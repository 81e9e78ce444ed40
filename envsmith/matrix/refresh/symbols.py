"""``symbols/torch.bin``: what each default build of torch exports, measured in its wheel by range requests.

A wheel that was read is not read again: a build is added to the sets of the symbols that are there. A build whose wheel
the index exchanged is read anew. One CPython of a version and platform is read. The others differ in helpers for the
frames of the interpreter that no extension uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from envsmith.errors import DataError, NetworkError
from envsmith.files import read_bounded
from envsmith.http import Fetcher
from envsmith.matrix.refresh.shared import Context, in_parallel
from envsmith.model.cell import Platform
from envsmith.model.version import public
from envsmith.python.compiled import WHEEL_BUDGET, library_names, read_compiled
from envsmith.python.index import IndexFile
from envsmith.python.remote_wheel import RemoteWheel
from envsmith.symbols.elf import Binary
from envsmith.symbols.owned import is_torch_symbol
from envsmith.symbols.store import Stored, hash_of, packed
from envsmith.symbols.table import MAX_BYTES, TorchBuild

# The libraries that an extension finds in the process once torch is imported.
_LIBRARIES = ("libc10", "libtorch", "libshm", "libcaffe2")


@dataclass(frozen=True, slots=True)
class BuildExports:
    """A build and the hashes of torch's symbols that it exports."""

    build: TorchBuild
    hashes: frozenset[bytes]


def build_exports(build: Mapping[str, str], names: Iterable[str], binaries: Iterable[Binary]) -> BuildExports:
    """Return what the libraries of a wheel export. ``build`` states version, platform, file, sha256 and date."""
    libraries = {name.rpartition("/")[2] for name in names}
    hashes: set[bytes] = set()
    for binary in binaries:
        libraries |= {*binary.libraries, *([binary.soname] if binary.soname else [])}
        hashes |= {hash_of(symbol) for symbol in binary.exports if is_torch_symbol(symbol)}
    return BuildExports(TorchBuild(**build, libraries=frozenset(libraries)), frozenset(hashes))


def measure_build(fetcher: Fetcher, file: IndexFile, version: str, platform: str, day: str) -> BuildExports:
    """Read the libraries of one wheel of torch. ``NetworkError`` or ``ContentError`` when they cannot be read."""
    build = {"version": version, "platform": platform, "file": file.filename, "sha256": file.sha256 or "", "date": day}
    with RemoteWheel(fetcher, file.url, budget=WHEEL_BUDGET) as wheel:
        binaries = (b for _, b in read_compiled(wheel, select=_is_torch_library))
        return build_exports(build, library_names(wheel), binaries)


def _is_torch_library(name: str) -> bool:
    return "/lib/" in name and name.rpartition("/")[2].startswith(_LIBRARIES)


def update_symbols(path: Path, lines: Iterable[Mapping[str, Any]], context: Context) -> tuple[bytes | None, list[str]]:
    """Return the table with every default build of ``lines``, and what changed. ``None`` when nothing did."""
    stored = _read(path)
    read = {row["sha256"] for row in stored.header["builds"]} if stored else set()
    listed = {(line["version"], line["platform"]): line for line in lines if line.get("index") == "default"}
    tasks = {
        key: f"symbols of torch {key[0]} for {key[1]}"
        for key, line in listed.items()
        if context.again or line.get("sha256") not in read
    }

    def measure(key: tuple[str, str]) -> BuildExports:
        files = context.project("torch").releases().get(public(key[0]), ())
        file = next((f for f in files if f.sha256 == listed[key].get("sha256")), None)
        if file is None:
            raise NetworkError("Cannot read its symbols: the index does not list the wheel that was measured.")
        return measure_build(context.index.fetcher, file, key[0], key[1], context.today)

    fresh = in_parallel(context, "symbols of torch", tasks, measure)
    if not fresh:
        return None, []
    return with_builds(stored, fresh.values()), [f"{f.build}: {len(f.hashes)} symbols" for f in fresh.values()]


def _read(path: Path) -> Stored | None:
    if not path.exists():
        return None
    try:
        return Stored(read_bounded(path, MAX_BYTES))
    except ValueError as error:
        raise DataError(f"Cannot read {path}: {error}.", hint="Restore it from version control.") from None


def with_builds(stored: Stored | None, fresh: Iterable[BuildExports]) -> bytes:
    """Return the file with more builds. A build that is in it already is replaced."""
    exports = {(f.build.version, f.build.platform): f for f in fresh}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    old_bits: dict[int, tuple[str, str]] = {}
    if stored:
        shared = stored.header["libraries"]
        for number, row in enumerate(stored.header["builds"]):
            key = row["version"], row["platform"]
            rows[key] = {**row, "libraries": shared[row["libraries"]]}
            if key not in exports:
                old_bits[number] = key
    rows |= {key: _row(f.build) for key, f in exports.items()}
    order = sorted(rows, key=lambda key: (Version(public(key[0])), key[1] != Platform.LINUX_64.value, key[0]))
    place = {key: number for number, key in enumerate(order)}
    masks: dict[bytes, int] = {}
    for symbol, mask in stored or ():
        if remaining := sum(1 << place[key] for number, key in old_bits.items() if mask >> number & 1):
            masks[symbol] = remaining
    for key, export in exports.items():
        for symbol in export.hashes:
            masks[symbol] = masks.get(symbol, 0) | 1 << place[key]
    return packed(_header([rows[key] for key in order]), masks, len(order))


def _row(build: TorchBuild) -> dict[str, Any]:
    names = ("version", "platform", "file", "sha256", "date")
    return {**{name: getattr(build, name) for name in names}, "libraries": sorted(build.libraries)}


def _header(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the header. Builds share few lists of libraries, so each list stands in it once."""
    shared = sorted({tuple(row["libraries"]) for row in rows})
    return {
        "libraries": [list(libraries) for libraries in shared],
        "builds": [{**row, "libraries": shared.index(tuple(row["libraries"]))} for row in rows],
    }
