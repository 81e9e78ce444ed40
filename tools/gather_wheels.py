#!/usr/bin/env python3
"""Gather ready wheels into matrix/wheels/ from lock files and lists that other projects publish.

FOLDER holds ``OWNER+REPOSITORY/COMMIT/path`` for each file: lock files (uv, poetry, pixi, PEP 751), lists of assets, Nix
hashes, simple pages. A wheel is kept when its address is below one of ``matrix/wheels/publishers.yaml`` and every file
that names the address names one sha256. Nothing is fetched but, with ``--index``, what the releases require. The same
folder gives the same bytes.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envsmith.base.files import read_toml
from envsmith.base.schema import UnreadableError, parse_document
from envsmith.errors import EnvsmithError
from envsmith.knowledge.graph.fields import load_table
from envsmith.knowledge.graph.wheel_files import PUBLISHERS_FILE, Publishers
from envsmith.lock.index.distribution import best_file, read_release
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.net.http import HttpClient

ROOT = Path(__file__).resolve().parent.parent
_HEX = re.compile(r"(?:sha256[:-])?([0-9a-f]{64})")
_NIX = re.compile(r'url = "(?P<url>https://[^"]+\.whl)";\s*hash = "(?P<hash>sha256-[A-Za-z0-9+/=]{44})";')
_FRAGMENT = re.compile(r"(?P<url>https://[^\s\"'<>#]+\.whl)#sha256=(?P<hash>[0-9a-f]{64})")
_CUDA = re.compile(r"cu(\d{2,3})(?!\d)")
_TORCH = re.compile(r"torch-?(\d+\.\d+|\d{2,4})")
# Whose wheels serve every CUDA of a major, whatever minor their names have (evidence: publishers.yaml).
_FOR_MAJOR = frozenset({"Dao-AILab/flash-attention"})
_ABI = re.compile(r"cxx11abi(true|false)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sighting:
    """One file that names an address with a hash. ``version`` is what a lock read in the wheel's METADATA."""

    address: str
    sha256: str
    source: str
    version: str = ""
    requires: tuple[str, ...] | None = None


def sightings(folder: Path) -> Iterator[Sighting]:
    """Yield what every file below the folder says, in the order of the paths."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        repository, commit, *parts = path.relative_to(folder).parts
        source = f"{repository.replace('+', '/', 1)} @{commit[:12]} {'/'.join(parts)}"
        yield from read_sightings(path.name, path.read_text(encoding="utf-8", errors="replace"), source)


def read_sightings(name: str, text: str, source: str) -> Iterator[Sighting]:
    """Yield what one file says: tables with an address and a hash, or lines with both."""
    toml = name.endswith((".toml", ".lock")) and name != "pixi.lock"
    if toml or name.endswith((".lock", ".json", ".yaml", ".yml")):
        try:
            yield from _of_document(read_toml(text) if toml else parse_document(name, text.encode()), source)
        except (UnreadableError, ValueError) as error:
            print(f"left out {source}: {error}", file=sys.stderr)
        return
    for pattern in (_NIX, _FRAGMENT):
        for match in pattern.finditer(text):
            yield Sighting(_plain(match["url"]), _hex(match["hash"]), source)


def _of_document(
    value: Any, source: str, version: str = "", requires: tuple[str, ...] | None = None
) -> Iterator[Sighting]:
    if isinstance(value, list):
        for each in value:
            yield from _of_document(each, source, version, requires)
    if not isinstance(value, dict):
        return
    if isinstance(value.get("source"), dict) and isinstance(value.get("wheels"), list):
        # A package of uv.lock, which keeps what uv read in METADATA.
        version, requires = str(value.get("version", "")), _requires(value)
    address, digest = value.get("url") or value.get("browser_download_url"), _digest(value)
    if isinstance(address, str) and address.startswith("https://") and address.endswith(".whl") and digest:
        yield Sighting(_plain(address), digest, source, version, requires)
    for each in value.values():
        yield from _of_document(each, source, version, requires)


def _digest(table: Mapping[str, Any]) -> str:
    hashes = table.get("hashes")
    words = [table.get("hash"), table.get("sha256"), table.get("digest")]
    words += [hashes.get("sha256")] if isinstance(hashes, dict) else []
    return next((match[1] for word in words if isinstance(word, str) and (match := _HEX.fullmatch(word))), "")


def _requires(package: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the requirements without extras: with their specs where a lock keeps them, else their names.

    ``None`` without any: every extension requires torch, so somebody overrode what it says.
    """
    metadata = package.get("metadata")
    declared = metadata.get("requires-dist") if isinstance(metadata, dict) else None
    lines = declared if isinstance(declared, list) else package.get("dependencies", [])
    plain = [line for line in lines if isinstance(line, dict) and "extra ==" not in str(line.get("marker", ""))]
    return tuple(sorted({f"{line.get('name')}{line.get('specifier', '')}" for line in plain})) or None


def _hex(word: str) -> str:
    if _HEX.fullmatch(word):
        return word
    try:
        return base64.b64decode(word.removeprefix("sha256-"), validate=True).hex()
    except binascii.Error:
        return ""


def _plain(address: str) -> str:
    return unquote(address)


@dataclass(frozen=True, slots=True)
class Wheel:
    """One address with all that its sightings agree on."""

    distribution: str
    by: str
    tag: str
    file: str
    version: str
    sha256: str
    sources: tuple[str, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """The place in the file: by release, publisher, tag and name."""
        return parse_wheel_filename(self.file)[1], self.by, self.tag, self.file

    @property
    def built_for(self) -> dict[str, str]:
        """What the file's name, or else its tag, says of torch, CUDA and the C++ ABI."""
        facts = {"torch": "any", "cuda": "any"} if self.file.endswith("-py3-none-any.whl") else {}
        if match := _TORCH.search(self.file) or _TORCH.search(self.tag):
            facts["torch"] = _minor(match[1])
        if match := _CUDA.search(self.file) or _CUDA.search(self.tag):
            minor = "" if self.by in _FOR_MAJOR else f".{match[1][2:]}"
            facts["cuda"] = f"{match[1][:2]}{minor}".rstrip(".")
        if match := _ABI.search(self.file):
            facts["cxx11_abi"] = match[1].lower()
        return facts


def _minor(digits: str) -> str:
    """Return ``2.10`` of ``2.10``, ``210`` and ``2100``, and ``2.8`` of ``28`` and ``280``."""
    if "." in digits:
        return digits
    return f"{digits[0]}.{digits[1:3] if digits[1:2] == '1' and len(digits) > 2 else digits[1]}"


def gathered(
    seen: Iterable[Sighting], publishers: Publishers
) -> tuple[list[Wheel], dict[str, tuple[str, ...]], list[str]]:
    """Return the wheels, what releases require, and a sentence for each address that is left out."""
    by_address: dict[str, list[Sighting]] = defaultdict(list)
    for sighting in seen:
        by_address[sighting.address].append(sighting)
    wheels, left_out = [], []
    requires: dict[str, tuple[str, ...]] = {}
    for address, group in sorted(by_address.items()):
        publisher = next((p for p in publishers.publishers if address.startswith(f"{p.releases}/")), None)
        if publisher is None:
            continue
        tag, _, file = address.removeprefix(f"{publisher.releases}/").partition("/")
        hashes = sorted({s.sha256 for s in group})
        try:
            name, version = parse_wheel_filename(file)[:2]
        except InvalidWheelFilename:
            left_out.append(f"{address}: not the name of a wheel")
            continue
        if name not in publishers.distributions or not ("linux" in file or file.endswith("-any.whl")):
            continue
        if len(hashes) > 1:
            left_out.append(f"{address}: {len(hashes)} hashes, so the file was replaced")
            continue
        read = {s.version for s in group if s.version in {str(version), version.public}}
        official = name in publisher.official
        # A project renames its finished wheel. Whoever builds for others builds with the label.
        exact = next(iter(read)) if len(read) == 1 else version.public if official else str(version)
        sources = tuple(sorted({s.source for s in group}))
        wheels.append(Wheel(name, publisher.name, tag, file, exact, hashes[0], sources))
        for sighting in group:
            if sighting.requires is not None and sighting.version == exact:
                requires.setdefault(f"{name} {exact}", sighting.requires)
    return _each_once(wheels), requires, left_out


def _each_once(wheels: Iterable[Wheel]) -> list[Wheel]:
    """Leave out a second spelling of one file."""
    first: dict[tuple[str, str, str], Wheel] = {}
    for wheel in wheels:
        first.setdefault((wheel.by, wheel.tag, wheel.sha256), wheel)
    return list(first.values())


def cover(wheels: Iterable[Wheel], most: int = 2) -> dict[str, list[str]]:
    """Choose few files that vouch for all wheels: for each wheel one of every repository, up to ``most``."""
    counts: dict[str, int] = defaultdict(int)
    for wheel in wheels:
        for source in wheel.sources:
            counts[source] += 1
    chosen: dict[str, list[str]] = {}
    for wheel in wheels:
        best: dict[str, str] = {}
        for source in sorted(wheel.sources, key=lambda s: (-counts[s], s)):
            best.setdefault(source.partition(" ")[0], source)
        chosen[f"{wheel.by}/{wheel.tag}/{wheel.file}"] = sorted(best.values(), key=lambda s: (-counts[s], s))[:most]
    return chosen


def written(
    distribution: str, wheels: list[Wheel], requires: Mapping[str, tuple[tuple[str, ...], str]], day: str
) -> str:
    """Return the file of one distribution."""
    wheels = sorted(wheels, key=lambda w: w.key)
    chosen = cover(wheels)
    sources = list(dict.fromkeys(s for each in chosen.values() for s in each))
    names = {source: f"s{number}" for number, source in enumerate(sources, 1)}
    lines = [
        f"# Ready wheels of {distribution}: {len(wheels)}. Written by tools/gather_wheels.py: change its sources, not this file.",
        "# Nothing here was downloaded. Address and hash are what the named files say; torch, CUDA and ABI what the names say.",
        f"distribution: {distribution}",
        "evidence:",
    ]
    texts = sorted({source for _, source in requires.values()})
    keys = {text: f"r{number}" for number, text in enumerate(texts, 1)}
    lines += [
        f'  {key}: {{kind: declared, source: "{text}", date: {day}}}' for text, key in (*names.items(), *keys.items())
    ]
    if requires:
        lines.append("requires:")
    groups: dict[tuple[tuple[str, ...], str], list[str]] = defaultdict(list)
    for version, value in requires.items():
        groups[value].append(version)
    for (needs, text), versions in sorted(groups.items(), key=lambda item: item[1]):
        listed = ", ".join(f'"{v}"' for v in sorted(versions))
        words = ", ".join(f'"{need}"' for need in needs)
        lines.append(f"- {{versions: [{listed}], requires: [{words}], evidence: {keys[text]}}}")
    lines.append("wheels:")
    for wheel in wheels:
        built = "".join(
            f", {key}: {value if key == 'cxx11_abi' else chr(34) + value + chr(34)}"
            for key, value in wheel.built_for.items()
        )
        evidence = ", ".join(names[s] for s in chosen[f"{wheel.by}/{wheel.tag}/{wheel.file}"])
        lines.append(
            f'- {{by: {wheel.by}, tag: "{wheel.tag}", file: "{wheel.file}", version: "{wheel.version}"{built}, '
            f'sha256: "{wheel.sha256}", evidence: [{evidence}]}}'
        )
    return "\n".join(lines) + "\n"


def index_requires(distribution: str, version: str) -> tuple[tuple[str, ...], str] | None:
    """Return what METADATA of a release on the package index requires, without extras. ``None`` where it has none."""
    fetcher = HttpClient()
    try:
        file = best_file(PackageIndex(fetcher, find_index()).project(distribution).releases().get(version, ()))
        requires = read_release(fetcher, file).requires if file else ()
    except EnvsmithError as error:
        print(f"{distribution} {version}: {error.message}", file=sys.stderr)
        return None
    needs = tuple(sorted(r for r in requires if "extra ==" not in r))
    return (needs, f"package index: METADATA of {file.filename}") if file and needs else None


def main() -> int:
    """Read the folder and write matrix/wheels/."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--matrix", type=Path, default=ROOT / "matrix")
    parser.add_argument("--date", required=True, help="the day on which the files were read")
    parser.add_argument("--index", action="store_true", help="ask the package index what the releases require")
    arguments = parser.parse_args()
    publishers = load_table(Publishers, PUBLISHERS_FILE, arguments.matrix)
    wheels, read, left_out = gathered(sightings(arguments.folder), publishers)
    for line in left_out:
        print(f"left out {line}")
    groups: dict[str, list[Wheel]] = defaultdict(list)
    for wheel in wheels:
        groups[canonicalize_name(wheel.distribution)].append(wheel)
    for distribution, group in sorted(groups.items()):
        requires = _all_requires(distribution, group, read, index=arguments.index)
        path = arguments.matrix / "wheels" / f"{distribution}.yaml"
        path.write_text(written(distribution, group, requires, arguments.date), encoding="utf-8")
        print(f"{path.name}: {len(group)} wheels, requirements of {len(requires)} releases")
    return 0


def _all_requires(
    distribution: str, wheels: Iterable[Wheel], read: Mapping[str, tuple[str, ...]], *, index: bool
) -> dict[str, tuple[tuple[str, ...], str]]:
    requires: dict[str, tuple[tuple[str, ...], str]] = {}
    for version in sorted({w.version for w in wheels}):
        if (needs := read.get(f"{distribution} {version}")) is not None:
            requires[version] = needs, "requires-dist of the wheel as uv.lock files keep it"
        elif index and "+" not in version and (declared := index_requires(distribution, version)):
            requires[version] = declared
    return requires


if __name__ == "__main__":
    sys.exit(main())
