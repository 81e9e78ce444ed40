"""Publishing: the image by digest, then its proof, and the tag last, so that it always leads to something complete.

Whatever breaks on the way, the tag is not there or leads to what it led to before; the same command again sends only
what is missing.
"""

from __future__ import annotations

import datetime as dt
import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, Protocol

from envsmith.base.files import digest_of
from envsmith.base.progress import EventKind, Progress, ProgressEvent, silent
from envsmith.errors import ContentError, EnvsmithError, UsageError
from envsmith.knowledge.graph.expiry import load_expiry
from envsmith.knowledge.graph.location import find_matrix
from envsmith.model.lock import MAX_BYTES, OsPackage
from envsmith.net.oci.image import OciImage
from envsmith.net.oci.spec import Descriptor, Manifest, canonical, describe, image_manifest, parse_manifest
from envsmith.net.oci.store import Store, load_manifest, read_blob
from envsmith.publish import provenance, statement
from envsmith.publish.attachments import (
    BUNDLE_ARTIFACT,
    Attachment,
    document_artifacts,
    documents,
    image_annotations,
    statement_artifact,
)
from envsmith.publish.document_checks import label_differences
from envsmith.publish.proof import Proof, refuse_unproved
from envsmith.publish.sbom import PREDICATE_TYPE as CYCLONEDX
from envsmith.publish.sbom import Bill, make_sbom
from envsmith.publish.sign import ENVELOPE_TYPE, envelope_of, is_keyless
from envsmith.publish.statement import Claim, statement_bytes
from envsmith.publish.system import system_packages

_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class PushTarget(Protocol):
    """Where a push goes: a registry's ``Repository`` or a :class:`envsmith.publish.bundle.BundleWriter`."""

    @property
    def name(self) -> str:
        """Return the name in messages."""

    @property
    def store(self) -> Store | None:
        """Return where what was published earlier can be read, or ``None``."""

    def resolve(self, tag: str) -> str | None:
        """Return the digest that ``tag`` leads to, or ``None``."""

    def push_blob(self, blob: Descriptor, opener: Callable[[], IO[bytes]]) -> str:
        """Send a blob: ``sent``, or ``kept`` or ``mounted`` where that was not necessary."""

    def push_manifest(self, manifest: Manifest, tag: str | None = None) -> None:
        """Put a manifest under its digest and, when given, under ``tag``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seal:
    """How a statement is signed: ``close`` makes a bundle of it. ``by`` is the key's id or empty.

    ``opens`` returns the payload of a bundle that this key signed, and raises ``ContentError`` for any other.
    """

    close: Callable[[bytes], bytes]
    opens: Callable[[bytes], bytes] | None = None
    by: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What was published where. ``blobs`` counts how each blob got there: sent, kept, mounted."""

    target: str
    digest: str
    tags: tuple[str, ...]
    claim: Claim
    expired: bool
    blobs: Mapping[str, int] = field(default_factory=dict)
    attachments: tuple[str, ...] = ()
    system: tuple[OsPackage, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Naming:
    """Under what an image is published beside the cell's id.

    ``tags`` are further tags, ``source`` is the address of the source. ``replace`` lets the cell's tag leave another
    image.
    """

    tags: Sequence[str] = ()
    source: str = ""
    replace: bool = False


# The cell's id alone.
OWN_NAME = Naming()


def image_names(image: OciImage) -> dict[str, str]:
    """Return the names that a record may call an image by, with what each is: the manifest in earlier releases."""
    return {"config": image.identity, "manifest": image.digest}


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Raise ``UsageError`` for what a registry would refuse as a tag, or what is a digest in disguise."""
    for tag in tags:
        if not _TAG.fullmatch(tag) or tag.startswith("sha256-"):
            raise UsageError(
                f"Cannot use the tag {tag[:80]!r}: it is not one that registries accept.",
                hint="Use letters, digits, dots, hyphens and underscores, at most 128.",
            )
    return tuple(dict.fromkeys(tags))


def publish(
    proof: Proof,
    image: OciImage,
    target: PushTarget,
    seal: Seal,
    naming: Naming = OWN_NAME,
    *,
    today: dt.date | None = None,
    progress: Progress = silent,
) -> Published:
    """Push ``image`` with its proof to ``target``, tagged with the cell's id and further tags, which may be moved.

    ``EnvsmithError`` (exit code 1) when no passing record speaks of this image, or the cell's tag leads to another
    image already and may not be moved. An expired record is published and marked: in the annotations and in the
    result.
    """
    refuse_unproved(proof, images=image_names(image))
    _labelled(proof, image)
    # The cell's id, with the flavour where it is not the usual one.
    names = check_tags((proof.lock.name, *naming.tags))
    earlier = _free(target, proof.lock.name, image, replace=naming.replace)
    system = system_packages(image)
    bill = make_sbom(proof.lock, image.manifest.digest, moment=proof.record.moment, system=system)
    parts = documents(proof, bill.raw)
    further = _further(proof, image.manifest.digest, bill)
    named = {name: descriptor for name, (descriptor, _) in parts.items()}
    attests = {kind: digest_of(payload) for kind, payload in further.items()}
    claim = _claim(proof, image, tags=names, parts=named, attests=attests, replaces=earlier)
    bundles = _sealed({**further, statement.PREDICATE_TYPE: statement_bytes(claim)}, image.manifest, target, seal)
    expired = (today or dt.datetime.now(dt.timezone.utc).date()) > claim.expires
    annotations = image_annotations(claim, source=naming.source, expired=expired)
    counts = _push_image(image, target, progress)
    attached = [
        *document_artifacts(image.manifest, parts, annotations),
        *(statement_artifact(image.manifest, bundle, kind, annotations) for kind, bundle in bundles.items()),
    ]
    for one in attached:
        _push_attachment(one, target)
    if target.store is not None:
        _list_for_cosign_2(image.manifest, bundles, target, target.store)
    progress(ProgressEvent(kind=EventKind.LINE, step="publish", text=f"{len(attached)} attachments are there"))
    for tag in names:
        if target.resolve(tag) != image.manifest.digest:
            target.push_manifest(image.manifest, tag)
    return Published(
        target=target.name,
        digest=image.manifest.digest,
        tags=names,
        claim=claim,
        expired=expired,
        blobs=counts,
        attachments=tuple(one.manifest.digest for one in attached),
        system=system,
    )


def _claim(proof: Proof, image: OciImage, **fields: Any) -> Claim:
    return Claim(
        image=image.manifest.digest,
        cell=str(proof.lock.cell.id),
        lock=proof.lock.digest,
        config=image.manifest.config.digest,
        rungs=tuple(rung.value for rung in proof.record.rungs),
        recorded=proof.record.moment,
        expires=load_expiry(find_matrix()).until(proof.record),
        **fields,
    )


def _further(proof: Proof, image: str, bill: Bill) -> dict[str, bytes]:
    """Return the statements that other tools look for, by predicate type: provenance and bill of materials."""
    claim = provenance.provenance(proof.lock, proof.record_raw, bill, finished=proof.record.moment)
    predicates = {provenance.PREDICATE_TYPE: claim, CYCLONEDX: bill.value}
    cell = str(proof.lock.cell.id)
    return {kind: statement.attestation(image, cell, kind, predicate) for kind, predicate in predicates.items()}


def _sealed(payloads: Mapping[str, bytes], image: Manifest, target: PushTarget, seal: Seal) -> dict[str, bytes]:
    """Return a bundle for each payload: one that was published already, because a signature may differ each time."""
    signed: dict[bytes, bytes] = {}
    if (store := target.store) is not None and seal.opens is not None:
        for listed in store.referrers(image.digest):
            with suppress(ContentError):
                one = load_manifest(store, listed.digest, "attachment")
                if one.artifact_type == BUNDLE_ARTIFACT and len(one.layers) == 1:
                    raw = read_blob(store, one.layers[0], "statement", limit=MAX_BYTES)
                    signed[seal.opens(raw)] = raw
    return {kind: signed.get(payload) or seal.close(payload) for kind, payload in payloads.items()}


def _list_for_cosign_2(image: Manifest, bundles: Mapping[str, bytes], target: PushTarget, store: Store) -> None:
    """Add the envelopes to the tag where cosign looked before bundles, beside those of other people.

    cosign, pkg/oci/remote: an image whose layers are envelopes, under ``sha256-….att``. A keyless signature stands in
    other places there, and is left to the bundle.
    """
    tag = f"{image.digest.replace(':', '-')}.att"
    raw = store.manifest(tag)
    rows = [] if raw is None else list(parse_manifest(raw, f"{target.name}:{tag}").layers)
    count = len(rows)
    for kind, bundle in bundles.items():
        envelope = canonical(envelope_of(bundle))
        row = describe(envelope, ENVELOPE_TYPE, **{"dev.cosignproject.cosign/signature": "", "predicateType": kind})
        if not is_keyless(bundle) and row.digest not in {listed.digest for listed in rows}:
            target.push_blob(row, partial(io.BytesIO, envelope))
            rows.append(row)
    if len(rows) > count:
        config = canonical({"rootfs": {"type": "layers", "diff_ids": [row.digest for row in rows]}})
        listing = image_manifest(config, rows)
        target.push_blob(listing.config, partial(io.BytesIO, config))
        target.push_manifest(listing, tag)


def _labelled(proof: Proof, image: OciImage) -> None:
    """Raise ``ContentError`` when the image's own labels name another cell or lock."""
    if differences := label_differences(image.config, proof.lock):
        message = f"Cannot publish {proof.lock.cell.id}: the labels of the image differ from the lock."
        raise ContentError(message, details=differences, hint="Build it again.")


def _free(target: PushTarget, cell: str, image: OciImage, *, replace: bool) -> str:
    """Refuse to move the tag of a cell, which is a promise, unless the user says so. Return the image that it leaves.

    The same image with its layers packed otherwise keeps the promise.
    """
    tagged = target.resolve(cell)
    if tagged in {None, image.digest}:
        return ""
    same = False
    if target.store is not None:
        with suppress(ContentError):
            same = load_manifest(target.store, str(tagged), "manifest").config.digest == image.identity
    if not replace and not same:
        raise EnvsmithError(
            f"Cannot tag {target.name}:{cell}: it is another image already ({tagged}).",
            hint="Add --replace to move the tag: this image was built from another lock or at another base.",
        )
    return str(tagged)


def _push_image(image: OciImage, target: PushTarget, progress: Progress) -> dict[str, int]:
    counts: dict[str, int] = {}
    for number, blob in enumerate(image.manifest.blobs, start=1):
        text = f"{number} of {len(image.manifest.blobs)}: {blob.digest[:19]}… {blob.size / 1e6:.1f} MB"
        outcome = target.push_blob(blob, partial(_opened, image, blob))
        counts[outcome] = counts.get(outcome, 0) + 1
        progress(ProgressEvent(kind=EventKind.LINE, step="publish", text=f"{text} {outcome}"))
    target.push_manifest(image.manifest)
    return counts


def _opened(image: OciImage, blob: Descriptor) -> IO[bytes]:
    opened = image.store.blob(blob.digest)
    if opened is None:
        raise ContentError(f"Cannot send {blob.digest[:19]}… of {image.store.name}: it was removed meanwhile.")
    return opened


def _push_attachment(one: Attachment, target: PushTarget) -> None:
    for blob in one.manifest.blobs:
        target.push_blob(blob, partial(io.BytesIO, one.blobs[blob.digest]))
    target.push_manifest(one.manifest)
