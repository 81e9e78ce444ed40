"""Which torch compiled wheels link with: ``rules/linking.yaml``, over ``symbols/torch.bin``, what each torch exports.

A release whose METADATA pins one torch is not measured. Of every other one the wheel for x86-64 is read once, by
ranges, and held against ``symbols/torch.bin``. The rules are made here as a whole.

``symbols/torch.bin`` has every default build of torch, measured in its wheel by range requests. A wheel that was read is
not read again: a build is added to the sets of the symbols that are there. A build whose wheel the index exchanged is
read anew. One CPython of a version and platform is read. The others differ in helpers for the frames of the interpreter
that no extension uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from envsmith.base.files import read_bounded
from envsmith.errors import DataError, NetworkError
from envsmith.knowledge.symbols.elf import Binary
from envsmith.knowledge.symbols.fit import WheelNeeds, fits
from envsmith.knowledge.symbols.owned import is_torch_symbol
from envsmith.knowledge.symbols.symbols_file import Stored, hash_of, packed
from envsmith.knowledge.symbols.table import MAX_BYTES, SymbolTable, TorchBuild, spec_of
from envsmith.lock.index.compiled import WHEEL_BUDGET, library_names, read_compiled, read_needs
from envsmith.lock.index.index import IndexFile
from envsmith.lock.index.remote_wheel import RemoteWheel
from envsmith.matrix.refresh.shared import RefreshRun, in_parallel
from envsmith.model.cell import Platform
from envsmith.model.version import public
from envsmith.net.http import Fetcher

_PINNED = re.compile(r"==[\d.]+(?:post\d+)?")
_ROW = re.compile(
    r"(?:  - \{when: \{|# (?P<every>any|none): )(?P<component>[\w-]+): \"(?P<releases>[^\"]+)\""
    r"(?:, platform: linux-64\}, needs: \{torch: \"(?P<torch>[^\"]+)\"\}\})?"
)
_HEAD = """\
# Made by `envsmith matrix refresh`: which torch the compiled wheels of a component link with. Change the updater, not the lines.
# `any` are releases that link with every measured torch, `none` those that link with none: they were built for an
# older one, or for a nightly.
{notes}evidence:
  linked: {{kind: measured, source: "compiled wheels of {names} for x86-64 on the package index: the symbols that they need, held against symbols/torch.bin", date: {day}}}
rules:
"""
_RULE = """\
- id: {name}-links-torch
  kind: requires
  severity: {linked.severity}
  stage: import
  symptom: "{linked.symptom}"
  cause: "The compiled files of {name} link with some releases of torch only, and its METADATA admits more. With another torch {linked.outcome}."
  fix: "Use the {name} that was built for the installed torch."
  rows:
{rows}
  evidence: [linked]
"""
# Specs that are no rule: what links with every torch, and what links with none that was measured.
_EVERY = {"any": "*", "none": ""}
_UNDEFINED = "undefined symbol"
# The libraries that an extension finds in the process once torch is imported.
_LIBRARIES = ("libc10", "libtorch", "libshm", "libcaffe2")


@dataclass(frozen=True, kw_only=True, slots=True)
class Linked:
    """What happens where the compiled files of a component do not link with torch, and what is printed then."""

    severity: str
    symptom: str
    outcome: str


LINKED: Mapping[str, Linked] = {
    "tensordict": Linked(severity="error", symptom=_UNDEFINED, outcome="its import fails"),
    "torchao": Linked(
        severity="warning", symptom="Skipping import of cpp extensions", outcome="its compiled kernels are left out"
    ),
    "torchaudio": Linked(severity="error", symptom=_UNDEFINED, outcome="its import fails"),
    "torchdata": Linked(severity="error", symptom=_UNDEFINED, outcome="its import fails"),
    "torchtext": Linked(severity="error", symptom=_UNDEFINED, outcome="its import fails"),
    "torchvision": Linked(
        severity="error", symptom="Couldn't load custom C++ ops", outcome="its operators cannot be used"
    ),
    "vllm": Linked(severity="error", symptom=_UNDEFINED, outcome="its import fails"),
    "xformers": Linked(
        severity="warning",
        symptom="xFormers can't load C++/CUDA extensions",
        outcome="its attention kernels are left out",
    ),
}


def update_linking(
    old: str | None, releases: Mapping[str, Iterable[Mapping[str, Any]]], table: SymbolTable, context: RefreshRun
) -> tuple[str | None, list[str]]:
    """Return the file with a row for each set of releases that link with the same torch, and what is new.

    ``releases`` are the records of each component of :data:`LINKED` that is measured in this run.
    """
    specs = {} if old is None else _read(old)
    summary: list[str] = []
    for name, records in releases.items():
        earlier = {} if context.again else specs.get(name, {})
        open_releases = {str(r["version"]) for r in records if not _pins_torch(r)}
        wheels = {v: f for v, f in wheels_of(context, name).items() if v in open_releases}
        tasks = {v: f"{name} {v}" for v in wheels if v not in earlier}
        read = in_parallel(
            context,
            f"symbols of {name}",
            tasks,
            lambda v, w=wheels: read_needs(w[v].url, context.index.fetcher),  # type: ignore[misc]
        )
        fresh = {version: _linking(needs, table) for version, needs in read.items()}
        specs[name] = {**earlier, **fresh}
        summary += [f"{name} {v}: links with torch {fresh[v] or 'of no measured release'}" for v in fresh]
    return (_text(specs, context.today) if summary else old), summary


def _pins_torch(record: Mapping[str, Any]) -> bool:
    return _PINNED.fullmatch(str((record.get("requires") or {}).get("torch", ""))) is not None


def wheels_of(context: RefreshRun, name: str) -> dict[str, IndexFile]:
    """Return a wheel for x86-64 of every final release."""
    wheels = {}
    for version, files in context.project(name).releases().items():
        fitting = [f for f in files if f.is_wheel and "linux" in f.filename and "x86_64" in f.filename]
        if fitting and not Version(version).is_prerelease:
            wheels[version] = max(fitting, key=lambda f: f.filename)
    return wheels


def _linking(needs: WheelNeeds, table: SymbolTable) -> str:
    """Return the spec of the releases of torch that export what a wheel needs, ``""`` for none that was measured.

    Libraries of CUDA do not count: another index has the same release of both for another CUDA.
    """
    judged = [(public(f.build.version), any(m.symbols for m in f.missing)) for f in fits(needs, table)]
    return spec_of((v for v, lacks in judged if not lacks), (v for v, lacks in judged if lacks))


def _read(text: str) -> dict[str, dict[str, str]]:
    """Return the spec of each release that the file has."""
    specs: dict[str, dict[str, str]] = {}
    for row in _ROW.finditer(text):
        for release in row["releases"].split(" || "):
            torch = row["torch"] or _EVERY[row["every"]]
            specs.setdefault(row["component"], {})[release.removeprefix("==")] = torch
    return specs


def _text(specs: Mapping[str, Mapping[str, str]], day: str) -> str:
    rules, notes, measured = [], [], []
    for name in sorted(specs):
        rows = _rows(name, specs[name])
        notes += [row for row in rows if row.startswith("#")]
        if own := [row for row in rows if not row.startswith("#")]:
            measured.append(name)
            rules.append(_RULE.format(name=name, linked=LINKED[name], rows="\n".join(own)))
    head = _HEAD.format(names=", ".join(measured), day=day, notes="".join(f"{note}\n" for note in notes))
    return head + "".join(rules)


def _rows(name: str, specs: Mapping[str, str]) -> list[str]:
    releases: dict[str, list[str]] = {}
    for version in sorted(specs, key=Version):
        releases.setdefault(specs[version], []).append(f"=={version}")
    return [_row(name, " || ".join(versions), torch) for torch, versions in releases.items()]


def _row(name: str, versions: str, torch: str) -> str:
    for word, spec in _EVERY.items():
        if torch == spec:
            return f'# {word}: {name}: "{versions}"'
    return f'  - {{when: {{{name}: "{versions}", platform: linux-64}}, needs: {{torch: "{torch}"}}}}'


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


def update_symbols(
    path: Path, lines: Iterable[Mapping[str, Any]], context: RefreshRun
) -> tuple[bytes | None, list[str]]:
    """Return the table with every default build of ``lines``, and what changed. ``None`` when nothing did."""
    stored = _read_exports(path)
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


def _read_exports(path: Path) -> Stored | None:
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
    rows |= {key: _export_row(f.build) for key, f in exports.items()}
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


def _export_row(build: TorchBuild) -> dict[str, Any]:
    names = ("version", "platform", "file", "sha256", "date")
    return {**{name: getattr(build, name) for name in names}, "libraries": sorted(build.libraries)}


def _header(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the header. Builds share few lists of libraries, so each list stands in it once."""
    shared = sorted({tuple(row["libraries"]) for row in rows})
    return {
        "libraries": [list(libraries) for libraries in shared],
        "builds": [{**row, "libraries": shared.index(tuple(row["libraries"]))} for row in rows],
    }
