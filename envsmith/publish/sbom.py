"""The software bill of materials of an image, in CycloneDX 1.6. The same lock and digest give the same bytes.

Python packages with the sha256 of every file that may have been installed, the distribution's packages by version, the
base image by digest.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from envsmith.base.json_types import JsonFields
from envsmith.base.schema import parse_json
from envsmith.model.lock import PACKAGES, BaseImage, BuiltWheel, CompiledSource, Lock, OsPackage, Pin

# The name under which it is published.
SBOM_FILE = "sbom.cdx.json"
MEDIA_TYPE = "application/vnd.cyclonedx+json"
# What in-toto calls a bill as a predicate.
PREDICATE_TYPE = "https://cyclonedx.org/bom"
# Serial numbers are derived from digests under this name, so that a bill has one identity however often it is made.
_SPACE = uuid.uuid5(uuid.NAMESPACE_OID, "envsmith sbom")
_FORMAT = {"$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", "bomFormat": "CycloneDX", "specVersion": "1.6"}
_UBUNTU = frozenset({"focal", "jammy", "noble"})


@dataclass(frozen=True, slots=True)
class Bill:
    """A bill of materials as the ``value`` and as the bytes that are published (``raw``)."""

    value: JsonFields
    raw: bytes


def make_sbom(lock: Lock, image_digest: str, *, moment: dt.datetime, system: Sequence[OsPackage] = ()) -> Bill:
    """Return the bill of the image ``image_digest`` of ``lock``. ``moment`` is the time of the record.

    ``system`` are all packages of the distribution in the image. Without them the lock's own are listed.
    """
    compiled = {source.name: source for source in lock.compiled}
    parts = [_pin(pin, lock.wheels, compiled.get(pin.name)) for pin in lock.pins]
    parts += [_os_package(package, lock.base) for package in system or _pinned(lock)]
    parts += [_base(lock.base)] if lock.base else []
    parts = list({part["bom-ref"]: part for part in parts}.values())
    cell = str(lock.cell.id)
    image = _component(
        "container", cell, lock.digest, _purl("oci", cell.lower(), image_digest), bom_ref="image",
        **{"io.envsmith.lock": lock.digest, "io.envsmith.platform": lock.cell.platform.value},
    )  # fmt: skip
    refs = sorted(part["bom-ref"] for part in parts)
    links = [{"ref": ref} for ref in refs] + [{"ref": "image", "dependsOn": refs}]
    bill = {
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SPACE, f'{lock.digest} {image_digest}')}",
        "version": 1,
        "metadata": {"timestamp": moment.isoformat(), "component": image},
        "components": sorted(parts, key=lambda part: (part["type"], part["name"], part["version"])),
        "dependencies": sorted(links, key=lambda link: str(link["ref"])),
    }
    value = {**parse_json(json.dumps(bill, sort_keys=True)), **_FORMAT}
    return Bill(value, (json.dumps(value, indent=1) + "\n").encode())


def _pinned(lock: Lock) -> tuple[OsPackage, ...]:
    """Return the packages of the distribution that the lock names: those of a cell, and of a base that is made of them."""
    return (*(lock.base.packages if lock.base else ()), *lock.os_packages)


def _purl(kind: str, name: str, version: str, **qualifiers: str) -> str:
    """Return a package URL (ECMA-427)."""
    words = "&".join(f"{key}={quote(value)}" for key, value in qualifiers.items() if value)
    return f"pkg:{kind}/{quote(name, safe='/')}@{quote(version, safe=':')}{words and f'?{words}'}"


def _component(
    kind: str, name: str, version: str, purl: str, *, bom_ref: str = "", **properties: str
) -> dict[str, Any]:
    pairs = [{"name": key, "value": value} for key, value in sorted(properties.items())]
    component = {"type": kind, "name": name, "version": version, "bom-ref": bom_ref or purl}
    return component | ({"purl": purl} if purl else {}) | ({"properties": pairs} if pairs else {})


def _pin(pin: Pin, wheels: Sequence[BuiltWheel], source: CompiledSource | None) -> dict[str, Any]:
    """Return a distribution with its files: only the platform's installer knows which one was installed.

    The wheel that a source distribution became in the pinned builder is one of them.
    """
    named = [(a.filename, a.sha256) for a in pin.artifacts]
    named += [(wheel.filename, wheel.sha256) for wheel in wheels if wheel.name == pin.name]
    ref = _ref(pin, source)
    files = [
        {"type": "file", "name": name, "bom-ref": f"{ref}#{name}", "hashes": [{"alg": "SHA-256", "content": content}]}
        for name, content in sorted(named)
    ]
    component = _component("library", pin.name, pin.version, ref, **{"io.envsmith.layer": pin.layer}, **_made(source))
    return {**component, "components": files, **({"hashes": files[0]["hashes"]} if len(files) == 1 else {})}


def _ref(pin: Pin, source: CompiledSource | None) -> str:
    """Return what a distribution is called. An archive of the user's is another program than the index's of its name."""
    kind = "generic" if source and source.archive else "pypi"
    return _purl(kind, pin.name, pin.version, download_url=pin.address)


def _made(source: CompiledSource | None) -> dict[str, str]:
    """Return how a distribution was compiled, and from whose archive."""
    if source is None:
        return {}
    facts = {"io.envsmith.compiled": " ".join(f"{name}={value}" for name, value in source.variables.items()) or "true"}
    return {**facts, "io.envsmith.archive": source.archive} if source.archive else facts


def _os_package(package: OsPackage, base: BaseImage | None) -> dict[str, Any]:
    name, _, arch = package.name.partition(":")
    release = base.distribution if base else ""
    vendor = "ubuntu" if release.startswith("ubuntu") or release in _UBUNTU else "debian"
    purl = _purl("deb", f"{vendor}/{name}", package.version, arch=arch, distro=release)
    return _component("library", name, package.version, purl)


def _base(base: BaseImage) -> dict[str, Any]:
    """Return the base. One that is made of packages is not an image of its own: its digest is that of their list."""
    name = base.name.partition("@")[0]
    oci = _purl("oci", name.rpartition("/")[2].partition(":")[0].lower(), base.digest)
    purl = "" if base.origin == PACKAGES else oci
    facts = {"io.envsmith.origin": base.origin, "io.envsmith.distribution": base.distribution}
    return _component("container", name, base.digest, purl, bom_ref="base-image", **facts)


def sbom_differences(text: bytes, lock: Lock, image_digest: str, system: Sequence[OsPackage] = ()) -> list[str]:
    """Return what a bill says otherwise than lock and image: packages, hashes, base, image. Needs no extra.

    ``system`` are the packages of the distribution that were read from the image. A bill of an earlier release lists
    only those of the lock.
    """
    try:
        bill = parse_json(text)
        root = bill["metadata"]["component"]
        components = {str(c["bom-ref"]): c for c in bill["components"]}
        stated = {ref: _hashes(c) for ref, c in components.items()}
        differences = [] if str(root["purl"]).endswith(f"@{image_digest}") else ["it is the bill of another image"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return ["envsmith did not write it"]
    built = {w.name: [w.sha256] for w in lock.wheels}
    sources = {source.name: source for source in lock.compiled}
    refs = {pin.name: _ref(pin, sources.get(pin.name)) for pin in lock.pins}
    expected = {refs[p.name]: sorted([*(a.sha256 for a in p.artifacts), *built.get(p.name, [])]) for p in lock.pins}
    differences += [f"{ref.removeprefix('pkg:')} is not listed" for ref in expected if ref not in components]
    differences += [
        f"{ref.removeprefix('pkg:')} has other hashes"
        for ref, h in expected.items()
        if ref in components and stated[ref] != h
    ]
    differences += [
        f"{ref.removeprefix('pkg:')} is not in the lock"
        for ref in components
        if ref.startswith(("pkg:pypi/", "pkg:generic/")) and ref not in expected
    ]
    differences += [
        f"{name} was compiled otherwise"
        for name, source in sources.items()
        if (part := components.get(refs.get(name, ""))) is not None and not _as_made(part, source)
    ]
    differences += _system_differences(components, lock, system)
    if lock.base and components.get("base-image", {}).get("version") != lock.base.digest:
        differences.append("the base image is another one")
    return differences


def _system_differences(components: Mapping[str, Any], lock: Lock, system: Sequence[OsPackage]) -> list[str]:
    listed = {f"{c.get('name')} {c.get('version')}" for ref, c in components.items() if ref.startswith("pkg:deb/")}
    required, installed = (
        {f"{p.name.partition(':')[0]} {p.version}" for p in packages} for packages in (_pinned(lock), system)
    )
    missing, surplus = required - listed, set[str]()
    if installed and listed != required:
        missing, surplus = missing | installed - listed, listed - installed
    return [
        *(f"{package} is not listed" for package in sorted(missing)),
        *(f"{package} is not in the image" for package in sorted(surplus)),
    ]


def _as_made(component: Mapping[str, Any], source: CompiledSource) -> bool:
    stated = {str(p.get("name")): str(p.get("value")) for p in component.get("properties", [])}
    return {**stated, **_made(source)} == stated


def _hashes(component: Mapping[str, Any]) -> list[str]:
    return sorted(str(h["content"]) for part in component.get("components", []) for h in part.get("hashes", []))
