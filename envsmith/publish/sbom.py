"""The software bill of materials of an image, in CycloneDX 1.6. The same lock and digest give the same bytes.

Python packages with the sha256 of every file that may have been installed, the distribution's packages by version, the
base image by digest.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from envsmith.errors import EngineError
from envsmith.model.lock import BaseImage, BuiltWheel, CompiledSource, Lock, OsPackage, Pin
from envsmith.schema import parse_json

if TYPE_CHECKING:
    from cyclonedx.model.component import Component


MEDIA_TYPE = "application/vnd.cyclonedx+json"
# What in-toto calls a bill as a predicate.
PREDICATE_TYPE = "https://cyclonedx.org/bom"
# Serial numbers are derived from digests under this name, so that a bill has one identity however often it is made.
_SPACE = uuid.uuid5(uuid.NAMESPACE_OID, "envsmith sbom")
_UBUNTU = frozenset({"focal", "jammy", "noble"})


def make_sbom(lock: Lock, image_digest: str, *, moment: dt.datetime, system: Sequence[OsPackage] = ()) -> bytes:
    """Return the bill of the image ``image_digest`` of ``lock``. ``moment`` is the time of the record.

    ``system`` are all packages of the distribution in the image. Without them the lock's own are listed.
    ``EngineError`` when the extra ``publish`` is not installed.
    """
    try:
        from cyclonedx.model.bom import Bom, BomMetaData
        from cyclonedx.model.component import Component, ComponentType
        from cyclonedx.output.json import JsonV1Dot6
    except ImportError:
        raise missing_extra("the bill of materials") from None
    image = Component(
        name=str(lock.cell.id),
        version=lock.digest,
        type=ComponentType.CONTAINER,
        bom_ref="image",
        purl=_oci(str(lock.cell.id), image_digest),
        properties=_properties({"io.envsmith.lock": lock.digest, "io.envsmith.platform": lock.cell.platform.value}),
    )
    bill = Bom(serial_number=uuid.uuid5(_SPACE, f"{lock.digest} {image_digest}"))
    bill.metadata = BomMetaData(component=image, timestamp=moment)
    compiled = {source.name: source for source in lock.compiled}
    pins = {pin.name: _pin(pin, lock.wheels, compiled.get(pin.name)) for pin in lock.pins}
    parts = [_os_package(package, lock.base) for package in system or lock.os_packages]
    parts += [_base(lock.base)] if lock.base else []
    for component in (*pins.values(), *parts):
        bill.components.add(component)
    bill.register_dependency(image, [*pins.values(), *parts])
    return (JsonV1Dot6(bill).output_as_string(indent=1) + "\n").encode()


def missing_extra(what: str, extra: str = "publish") -> EngineError:
    """Return the error of an optional part that is not installed."""
    return EngineError(f"{what} needs packages that are not installed", hint=f"pip install 'envsmith[{extra}]'")


def _oci(name: str, digest: str) -> Any:
    from packageurl import PackageURL

    return PackageURL("oci", None, name.rpartition("/")[2].partition(":")[0].lower(), digest)


def _properties(pairs: Mapping[str, str]) -> list[Any]:
    from cyclonedx.model import Property

    return [Property(name=name, value=value) for name, value in pairs.items()]


def _sha256(content: str) -> Any:
    from cyclonedx.model import HashAlgorithm, HashType

    return HashType(alg=HashAlgorithm.SHA_256, content=content)


def _pin(pin: Pin, wheels: Sequence[BuiltWheel], source: CompiledSource | None) -> Component:
    """Return a distribution with its files: only the platform's installer knows which one was installed.

    The wheel that a source distribution became in the pinned builder is one of them. An archive of the user's is
    nothing that the index has: a distribution of the same name there is another program.
    """
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    kind = "generic" if source and source.archive else "pypi"
    purl = PackageURL(kind, None, pin.name, pin.version)
    named = [(a.filename, a.sha256) for a in pin.artifacts]
    named += [(wheel.filename, wheel.sha256) for wheel in wheels if wheel.name == pin.name]
    files = [
        Component(
            name=name,
            type=ComponentType.FILE,
            bom_ref=f"{purl.to_string()}#{name}",
            hashes=[_sha256(content)],
        )
        for name, content in named
    ]
    return Component(
        name=pin.name,
        version=pin.version,
        type=ComponentType.LIBRARY,
        bom_ref=purl.to_string(),
        purl=purl,
        hashes=[_sha256(named[0][1])] if len(named) == 1 else [],
        components=files,
        properties=_properties({"io.envsmith.layer": pin.layer, **_made(source)}),
    )


def _made(source: CompiledSource | None) -> dict[str, str]:
    """Return how a distribution was compiled, and from whose archive."""
    if source is None:
        return {}
    facts = {"io.envsmith.compiled": " ".join(f"{name}={value}" for name, value in source.variables.items()) or "true"}
    return {**facts, "io.envsmith.archive": source.archive} if source.archive else facts


def _os_package(package: OsPackage, base: BaseImage | None) -> Component:
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    name, _, arch = package.name.partition(":")
    release = base.distribution if base else ""
    vendor = "ubuntu" if release.startswith("ubuntu") or release in _UBUNTU else "debian"
    qualifiers = {key: value for key, value in (("arch", arch), ("distro", release)) if value}
    purl = PackageURL("deb", vendor, name, package.version, qualifiers)
    return Component(
        name=name, version=package.version, type=ComponentType.LIBRARY, bom_ref=purl.to_string(), purl=purl
    )


def _base(base: BaseImage) -> Component:
    from cyclonedx.model.component import Component, ComponentType

    name = base.name.partition("@")[0]
    return Component(
        name=name,
        version=base.digest,
        type=ComponentType.CONTAINER,
        bom_ref="base-image",
        purl=_oci(name, base.digest),
        properties=_properties({"io.envsmith.origin": base.origin, "io.envsmith.distribution": base.distribution}),
    )


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
        differences = [] if str(root["purl"]).endswith(_quoted(image_digest)) else ["it is the bill of another image"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return ["it is not a CycloneDX document of ours"]
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
        {f"{p.name.partition(':')[0]} {p.version}" for p in packages} for packages in (lock.os_packages, system)
    )
    missing, surplus = required - listed, set[str]()
    if installed and listed != required:
        missing, surplus = missing | installed - listed, listed - installed
    return [
        *(f"{package} is not listed" for package in sorted(missing)),
        *(f"{package} is not in the image" for package in sorted(surplus)),
    ]


def _ref(pin: Pin, source: CompiledSource | None) -> str:
    from urllib.parse import quote

    kind = "generic" if source and source.archive else "pypi"
    return f"pkg:{kind}/{pin.name}@{quote(pin.version, safe='.-_~')}"


def _as_made(component: Mapping[str, Any], source: CompiledSource) -> bool:
    stated = {str(p.get("name")): str(p.get("value")) for p in component.get("properties", [])}
    return {**stated, **_made(source)} == stated


def _quoted(digest: str) -> str:
    return "@" + digest.replace(":", "%3A") if "%3A" in digest else f"@{digest}"


def _hashes(component: Mapping[str, Any]) -> list[str]:
    return sorted(str(h["content"]) for part in component.get("components", []) for h in part.get("hashes", []))
