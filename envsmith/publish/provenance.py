"""How an image was made, as SLSA provenance v1: what was asked, what went in by digest, who built it.

The predicate follows from lock, record and bill of materials alone. docs/explanation/attestations.md says what each
field means, and what is not claimed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from envsmith.base.about import VERSION
from envsmith.base.files import digest_of
from envsmith.base.json_types import JsonFields, objects_in, text_in
from envsmith.model.lock import PACKAGES, BaseImage, Lock, Pin
from envsmith.model.record import RECORD_FILE
from envsmith.publish.sbom import SBOM_FILE, Bill

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:envsmith:build-type:cell:v1"
# A person or a job ran envsmith: the signer vouches for the machine, and nothing isolates the build (level 1).
BUILDER = "urn:envsmith:builder:signer"


def provenance(lock: Lock, record_raw: bytes, bill: Bill, *, finished: dt.datetime) -> dict[str, Any]:
    """Return the predicate. ``finished`` is when the test of the finished image began."""
    parameters = {
        "platform": lock.cell.platform.value,
        "flavour": lock.flavour,
        "excludeNewer": lock.exclude_newer,
        "osPackages": lock.os_source,
    }
    documents = {RECORD_FILE: digest_of(record_raw), SBOM_FILE: digest_of(bill.raw)}
    byproducts = [_named(wheel.filename, wheel.sha256) for wheel in lock.wheels]
    byproducts += [_named(name, digest[7:]) for name, digest in documents.items()]
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"request": lock.request, "lock": _named("lock.json", lock.digest[7:])},
            "internalParameters": {key: value for key, value in parameters.items() if value},
            "resolvedDependencies": _dependencies(lock, bill.value),
        },
        "runDetails": {
            "builder": {"id": BUILDER, "version": {"envsmith": VERSION}},
            "metadata": {"finishedOn": finished.astimezone(dt.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")},
            "byproducts": byproducts,
        },
    }


def _dependencies(lock: Lock, bill: JsonFields) -> list[dict[str, Any]]:
    """Return the base, the packages of the distribution, every file of a pin, and uv: what the build was made from."""
    base = [_named(image.name.partition("@")[0], image.digest[7:]) for image in _base(lock)]
    parts = objects_in(bill, "components")
    system = [{"uri": text_in(part, "purl")} for part in parts if text_in(part, "bom-ref").startswith("pkg:deb/")]
    files = [row for pin in (*lock.pins, *lock.build_pins) for row in _files(pin)]
    name, _, version = lock.resolver.partition(" ")
    resolver = [{"uri": f"pkg:pypi/uv@{version}"}] if name == "uv" and version else []
    return [*base, *system, *files, *resolver]


def _base(lock: Lock) -> list[BaseImage]:
    """Return the base, unless it is made of packages: then these are what went in."""
    return [lock.base] if lock.base and lock.base.origin != PACKAGES else []


def _files(pin: Pin) -> list[dict[str, Any]]:
    """Return the files of a pin. Where there are several, the platform's installer took one of them."""
    several = {"annotations": {"oneOf": len(pin.artifacts)}} if len(pin.artifacts) > 1 else {}
    uri = f"pkg:pypi/{pin.name}@{pin.version}"
    return [{**_named(one.filename, one.sha256), "uri": uri, **several} for one in pin.artifacts]


def _named(name: str, sha256: str) -> dict[str, Any]:
    return {"name": name, "digest": {"sha256": sha256}}


def provenance_differences(predicate: Mapping[str, Any], lock: Lock) -> list[str]:
    """Return what a provenance says otherwise than the lock: the lock itself, and every file that went in."""
    try:
        definition = predicate["buildDefinition"]
        stated_lock = definition["externalParameters"]["lock"]["digest"]["sha256"]
        stated = {row["digest"]["sha256"] for row in definition["resolvedDependencies"] if "digest" in row}
    except (KeyError, TypeError, AttributeError):
        return ["envsmith did not write it"]
    expected = {file.sha256 for pin in (*lock.pins, *lock.build_pins) for file in pin.artifacts}
    expected |= {image.digest[7:] for image in _base(lock)}
    differences = [] if f"sha256:{stated_lock}" == lock.digest else ["it is of another lock"]
    differences += [f"sha256:{digest[:12]}… is not listed" for digest in sorted(expected - stated)]
    return differences + [f"sha256:{digest[:12]}… is not in the lock" for digest in sorted(stated - expected)]
