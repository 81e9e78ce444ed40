"""What is attached to a published image: which statements trusted signers made of it, and what else stands there."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from envsmith.base.files import digest_of
from envsmith.base.keyless import open_bundle
from envsmith.errors import ContentError
from envsmith.model.lock import MAX_BYTES
from envsmith.net.oci.spec import EMPTY, Manifest
from envsmith.net.oci.store import Store, load_manifest, read_blob
from envsmith.publish.attachments import BUNDLE_ARTIFACT, CARRIERS, ENVELOPE_ARTIFACT, TITLE, image_annotations
from envsmith.publish.provenance import PREDICATE_TYPE as SLSA
from envsmith.publish.report import CheckState, Covered, PartCheck, Trust, VerifyReport
from envsmith.publish.sbom import PREDICATE_TYPE as CYCLONEDX
from envsmith.publish.sign import Opened, is_keyless, open_envelope, predicate_type
from envsmith.publish.statement import PREDICATE_TYPE, Claim, parse_statement

# What a report calls the statements that are signed beside the one that covers everything.
_KIND = "dev.sigstore.bundle.predicateType"
_PARTS = {SLSA: "provenance", CYCLONEDX: "sbom"}
_STATEMENTS = (BUNDLE_ARTIFACT, ENVELOPE_ARTIFACT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attestation:
    """A signed statement of any kind, and the attachment that carries it. One that cannot be opened has no payload."""

    carrier: Manifest
    kind: str
    opened: Opened


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedStatement(Covered):
    """A trusted statement about this image that covers everything else, and what of that other attestations carry."""

    carrier: str
    further: Mapping[str, Attestation] = field(default_factory=dict)


def find_attachments(report: VerifyReport, store: Store, manifest: Manifest) -> list[Manifest]:
    """Return the attachments that are of our kinds and refer to this image.

    A kind is what the listing says. An attachment that a listing hides in this way is missed later, where the statement
    names what it carries. cosign lists the type of an empty configuration, which says nothing.
    """
    attachments: dict[str, Manifest] = {}
    kinds = ("", EMPTY.media_type, *_STATEMENTS, *CARRIERS)
    for listed in store.referrers(manifest.digest):
        if listed.artifact_type not in kinds:
            report.add("attachment", CheckState.UNCOVERED, f"{listed.digest[:19]}…, {listed.artifact_type}")
            continue
        with PartCheck(report, "attachment"):
            one = load_manifest(store, listed.digest, "attachment")
            if one.subject is None or one.subject.digest != manifest.digest:
                raise ContentError(
                    f"Cannot verify the attachment: {one.digest[:19]}… is listed, and refers to another image."
                )
            attachments[one.digest] = one
    return list(attachments.values())


def find_statements(
    report: VerifyReport, store: Store, manifest: Manifest, trust: Trust, attachments: Sequence[Manifest]
) -> list[SignedStatement]:
    """Return the claims about this very image that trusted signers made, and report every other attestation."""
    statements: list[SignedStatement] = []
    strangers: list[str] = []
    trusted = {key.keyid for key in trust.keys}
    further: list[Attestation] = []
    for one in (one for one in attachments if one.artifact_type in _STATEMENTS):
        # An attestation of envsmith that is hidden behind another type is missed later, as in the listing.
        stated = one.annotations.get(_KIND, PREDICATE_TYPE)
        if stated not in {PREDICATE_TYPE, *_PARTS}:
            report.add("attachment", CheckState.UNCOVERED, f"{one.digest[:19]}…, attestation of type {stated[:100]}")
            continue
        with PartCheck(report, _PARTS.get(stated, "statement")):
            raw = b"".join(read_blob(store, blob, "statement", limit=MAX_BYTES) for blob in one.layers)
            if (kind := predicate_type(raw)) not in {"", PREDICATE_TYPE}:
                opened = Opened(payload=b"", claimed=())
                with suppress(ContentError):
                    opened = open_trusted(raw, trust)
                further.append(Attestation(carrier=one, kind=kind, opened=opened))
                continue
            opened = open_trusted(raw, trust)
            if opened.signer:
                claim = parse_statement(opened.payload)
                if claim.image != manifest.digest:
                    raise ContentError(f"Cannot verify the statement: it is about another image ({claim.image[:19]}…).")
                statements.append(SignedStatement(signer=opened.signer, claim=claim, carrier=one.digest))
            elif trusted.intersection(opened.claimed):
                raise ContentError("Cannot verify the statement: it was changed after it was signed.")
            else:
                strangers.append(", ".join(key[:16] for key in opened.claimed) or "no key")
    suspects = [key for one in further for key in one.opened.claimed if key in trusted]
    statements = [replace(one, further=_covered_by(one, further)) for one in statements]
    ours = {one.carrier.digest for covering in statements for one in covering.further.values()}
    for second in further:
        if second.carrier.digest not in ours:
            text = f"{second.carrier.digest[:19]}…, attestation of type {second.kind[:100]}"
            report.add("attachment", CheckState.UNCOVERED, text)
    _say_who_signed(report, trust, statements, strangers, suspects)
    return statements


def _covered_by(covering: SignedStatement, further: Sequence[Attestation]) -> dict[str, Attestation]:
    """Return the attestations of the same signer whose payload a statement names, by predicate type."""
    return {
        one.kind: one
        for one in further
        if one.opened.signer == covering.signer
        and digest_of(one.opened.payload) == covering.claim.attests.get(one.kind)
    }


def _say_who_signed(
    report: VerifyReport,
    trust: Trust,
    statements: Sequence[SignedStatement],
    strangers: Sequence[str],
    suspects: Sequence[str],
) -> None:
    if statements:
        signers = sorted({one.signer[:16] if trust.keys else one.signer for one in statements})
        report.add("statement", CheckState.OK, f"signed by {', '.join(signers)}, about this image")
        for signer in strangers:
            report.add("attachment", CheckState.UNCOVERED, f"another statement, signed by {signer}, was not asked")
    elif strangers and (trust.keys or trust.identity):
        report.add(
            "statement", CheckState.DIFFERS, f"it is signed by {'; '.join(strangers)}, not by anybody whom you trust"
        )
    elif strangers:
        text = f"signed by {'; '.join(strangers)}: say with --key whether you trust that"
        report.add("statement", CheckState.UNPROVED, text)
    elif any(check.part == "statement" for check in report.checks):
        return
    elif suspects:
        text = f"there is none, but an attestation of another kind names {suspects[0][:16]}: it was removed or changed"
        report.add("statement", CheckState.DIFFERS, text)
    else:
        report.add("statement", CheckState.UNPROVED, "there is none, so no one vouches for this image")


def open_trusted(raw: bytes, trust: Trust) -> Opened:
    """Open an envelope, or a keyless one where an identity is given: without it nothing of that can be checked."""
    if not is_keyless(raw):
        return open_envelope(raw, trust.keys)
    if not trust.identity:
        return Opened(payload=b"", claimed=("an identity of sigstore",))
    payload = open_bundle(raw, identity=trust.identity, issuer=trust.issuer)
    return Opened(payload=payload, claimed=(trust.identity,), signer=trust.identity)


def check_attachments(
    report: VerifyReport,
    store: Store,
    attachments: Sequence[Manifest],
    statements: Sequence[SignedStatement],
    today: dt.date,
) -> None:
    """Report what the statement lists and no attachment carries, and what the attachments hold beside it."""
    names = {part.digest: name for one in statements for name, part in one.claim.parts.items()}
    kinds = {further.carrier.digest: kind for one in statements for kind, further in one.further.items()}
    kinds |= {one.carrier: PREDICATE_TYPE for one in statements}
    signed = _signed_annotations([one.claim for one in statements], today)
    carried: set[tuple[str, str]] = set()
    for one in attachments:
        digests = {blob.digest for blob in one.layers}
        if one.artifact_type in _STATEMENTS:
            if one.digest not in kinds:
                continue
        elif not digests & names.keys():
            report.add("attachment", CheckState.UNCOVERED, f"{one.digest[:19]}…, {one.artifact_type}")
            continue
        else:
            carried |= {(one.artifact_type, digest) for digest in digests}
            for digest in sorted(digests - names.keys()):
                report.add("attachment", CheckState.UNCOVERED, f"{digest[:19]}… in {one.digest[:19]}…")
        with PartCheck(report, "attachment"):
            read_blob(store, one.config, "attachment", limit=MAX_BYTES)
            _annotations(report, one, names, {**signed, _KIND: {kinds.get(one.digest, "")}})
    newest = max(statements, key=lambda one: one.claim.recorded)
    for kind, documents in CARRIERS.items():
        for name in documents:
            if (kind, newest.claim.parts[name].digest) not in carried:
                report.add(name.partition(".")[0], CheckState.DIFFERS, f"no attachment of the image carries {name}")
    for kind in sorted(newest.claim.attests.keys() - newest.further.keys()):
        report.add(
            _PARTS.get(kind, "attestation"), CheckState.DIFFERS, f"no attachment carries the statement {kind[:100]}"
        )


def _signed_annotations(claims: Sequence[Claim], today: dt.date) -> dict[str, set[str]]:
    """Return what each annotation of an attachment may say: several statements may be signed of one image."""
    signed: dict[str, set[str]] = {
        "io.envsmith.expired": set(),
        "dev.sigstore.bundle.content": {"dsse-envelope"},
    }
    for claim in claims:
        for key, text in image_annotations(claim, expired=today > claim.expires).items():
            signed.setdefault(key, set()).add(text)
    return signed


def _annotations(report: VerifyReport, one: Manifest, names: Mapping[str, str], signed: Mapping[str, set[str]]) -> None:
    """Compare what an attachment says of itself with what was signed: registries show it, and no signature covers it."""
    wrong = [f"{key} is {text[:60]}" for key, text in one.annotations.items() if text not in signed.get(key, {text})]
    titles = [(blob.annotations.get(TITLE), names.get(blob.digest)) for blob in one.layers]
    wrong += [f"{name} is called {title[:60]}" for title, name in titles if title and name and title != name]
    if wrong:
        raise ContentError(
            "Cannot verify the attachment: its annotations are not those that were signed.", details=wrong
        )
    if unsigned := sorted(one.annotations.keys() - signed.keys()):
        report.add("annotations", CheckState.UNCOVERED, f"{', '.join(unsigned)[:300]} of {one.digest[:19]}…")
