"""The in-toto statement of an image: which image, proved by which record, built from which lock, with which bill of materials. Pure.

The predicate is in-toto's own ``test-result`` 0.1 (result and the descriptors of what was tested), so that policy engines understand it;
what is ours stands under ``envsmith``. Statement and predicate are public formats of the in-toto attestation framework 1.0.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envsmith.errors import ContentError
from envsmith.publish.content import Descriptor, canonical, is_digest

__all__ = ["PAYLOAD_TYPE", "PREDICATE_TYPE", "Claim", "parse_statement", "statement_bytes"]

PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PARTS = ("lock.json", "record.json", "sbom.cdx.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What the signer says. ``built_from`` is the id of the engine's image that the record names; ``parts`` the three documents by name.

    ``tags`` are the names under which this image was published; ``expires`` the day (UTC) after which the record is old.
    """

    image: str
    cell: str
    lock: str
    config: str
    parts: Mapping[str, Descriptor]
    tags: tuple[str, ...]
    rungs: tuple[str, ...]
    recorded: dt.datetime
    expires: dt.date
    built_from: str = ""
    audit: Mapping[str, Any] = field(default_factory=dict)


def statement_bytes(claim: Claim) -> bytes:
    """The statement in one spelling: what is signed."""
    parts = [
        {
            "name": name,
            "digest": {"sha256": d.digest[7:]},
            "mediaType": d.media_type,
            "annotations": {"size": str(d.size)},
        }
        for name, d in sorted(claim.parts.items())
    ]
    ours = {
        "cell": claim.cell,
        "lock": claim.lock,
        "config": claim.config,
        "builtFrom": claim.built_from,
        "tags": sorted(claim.tags),
        "rungs": list(claim.rungs),
        "recorded": claim.recorded.isoformat(timespec="seconds"),
        "expires": claim.expires.isoformat(),
        "audit": dict(claim.audit),
    }
    return canonical(
        {
            "_type": _STATEMENT,
            "subject": [{"name": claim.cell, "digest": {"sha256": claim.image[7:]}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": {"result": "PASSED", "configuration": parts, "envsmith": ours},
        }
    )


def parse_statement(payload: bytes) -> Claim:
    """The claim in a payload whose signature was checked; ``ContentError`` says what is not as it was written."""
    try:
        value = json.loads(payload)
        if value["_type"] != _STATEMENT or value["predicateType"] != PREDICATE_TYPE:
            raise ContentError("statement: it is of another kind than the proof of an image")
        (subject,) = value["subject"]
        predicate = value["predicate"]
        ours = predicate["envsmith"]
        if predicate["result"] != "PASSED":
            raise ContentError("statement: it does not say that the image passed")
        claim = Claim(
            image=f"sha256:{subject['digest']['sha256']}",
            cell=str(ours["cell"]),
            lock=str(ours["lock"]),
            config=str(ours["config"]),
            built_from=str(ours["builtFrom"]),
            tags=tuple(str(tag) for tag in ours["tags"]),
            rungs=tuple(str(rung) for rung in ours["rungs"]),
            recorded=dt.datetime.fromisoformat(str(ours["recorded"])),
            expires=dt.date.fromisoformat(str(ours["expires"])),
            audit=dict(ours["audit"]),
            parts={str(part["name"]): _part(part) for part in predicate["configuration"]},
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ContentError(f"statement: it is not one of ours ({type(error).__name__}: {str(error)[:80]})") from None
    digests = [claim.image, claim.lock, claim.config, *(d.digest for d in claim.parts.values())]
    if not all(is_digest(d) for d in digests) or set(claim.parts) != set(_PARTS):
        raise ContentError("statement: it names no digests of lock, record and bill of materials")
    return claim


def _part(value: Mapping[str, Any]) -> Descriptor:
    return Descriptor(
        media_type=str(value["mediaType"]),
        digest=f"sha256:{value['digest']['sha256']}",
        size=int(value["annotations"]["size"]),
    )
