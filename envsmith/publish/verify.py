"""Is a published image what its signer says, whole and unchanged? Every part that differs is named.

What is believed: the key (or the identity) that the caller gives, and from there only what a digest covers. The
signature covers the statement, the statement names image, lock, record and bill of materials by digest, the image's
manifest names its configuration and layers by digest. What a registry lists or answers in headers decides nothing.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import IO, TYPE_CHECKING, Any

from envsmith.base.files import digest_of
from envsmith.base.schema import AsJson, parse_json
from envsmith.errors import ContentError, DataError
from envsmith.model.lock import MAX_BYTES, Lock, OsPackage, parse_lock
from envsmith.model.record import Record
from envsmith.net.oci.layers import CHUNK, stream
from envsmith.net.oci.layout import LayoutStore
from envsmith.net.oci.packing import packing_of, unpacked
from envsmith.net.oci.spec import EMPTY, Descriptor, Manifest
from envsmith.net.oci.store import Store, load_manifest, read_blob
from envsmith.publish import statement
from envsmith.publish.attachments import BUNDLE_ARTIFACT, CARRIERS, ENVELOPE_ARTIFACT, TITLE, image_annotations
from envsmith.publish.proof import parse_record, unproved
from envsmith.publish.provenance import PREDICATE_TYPE as SLSA
from envsmith.publish.provenance import provenance_differences
from envsmith.publish.sbom import PREDICATE_TYPE as CYCLONEDX
from envsmith.publish.sbom import sbom_differences
from envsmith.publish.sign import Opened, is_keyless, open_bundle, open_envelope, predicate_type
from envsmith.publish.statement import Claim, parse_statement
from envsmith.publish.system import SystemPackages

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey


# Images that one was published in place of, as far back as somebody may want to look.
_MAX_HISTORY = 50


class State(str, Enum):
    """What became of one check."""

    OK = "ok"
    DIFFERS = "differs"
    UNPROVED = "unproved"
    UNCOVERED = "not covered"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check(AsJson):
    """One part of the image or its proof, and what is to be said of it."""

    part: str
    state: State
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """Whom the caller believes: public keys, or an identity that sigstore vouches for, or none."""

    keys: tuple[SSlibKey, ...] = ()
    identity: str = ""
    issuer: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """What a trusted signature covers, itself or by a digest: the only source of what is shown as a fact of an image."""

    signer: str
    claim: Claim
    lock: Lock | None = None


@dataclass(slots=True)
class Report:
    """The checks in the order in which they were made, and what the signature covers."""

    where: str
    digest: str
    checks: list[Check] = field(default_factory=list)
    covered: Covered | None = None

    def add(self, part: str, state: State, text: str) -> None:
        """Add a check."""
        self.checks.append(Check(part=part, state=state, text=text))

    @property
    def status(self) -> str:
        """Return ``verified``, ``differs`` (a part is wrong) or ``unproved`` (nothing differs, not all is shown)."""
        states = {check.state for check in self.checks}
        if State.DIFFERS in states:
            return "differs"
        return "unproved" if State.UNPROVED in states else "verified"

    @property
    def exit_code(self) -> int:
        """Return 0, 8 (content) or 1 (the answer is no), as the table of exit codes says."""
        return {"verified": 0, "differs": ContentError.exit_code, "unproved": 1}[self.status]

    def to_json(self) -> dict[str, object]:
        """Return it as ``verify --json`` prints it."""
        claim = self.covered.claim if self.covered else None
        return {
            "status": self.status,
            "image": self.where,
            "digest": self.digest,
            "signer": self.covered.signer if self.covered else None,
            "cell": claim.cell if claim else None,
            "lock": claim.lock if claim else None,
            "rungs": list(claim.rungs) if claim else [],
            "recorded": claim.recorded.isoformat() if claim else None,
            "expires": claim.expires.isoformat() if claim else None,
            "audit": dict(claim.audit) if claim else {},
            "checks": [check.to_json() for check in self.checks],
        }


@dataclass(frozen=True, slots=True)
class _Part:
    """Put into the report how a part differs; the other parts are checked all the same."""

    report: Report
    name: str

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, (ContentError, DataError)):
            return False
        text = "; ".join([error.reason, *error.details[:5]])
        self.report.add(self.name, State.DIFFERS, text)
        return True


def verify(
    store: Store,
    digest: str,
    trust: Trust,
    *,
    tag: str | None = None,
    layers: bool = True,
    today: dt.date | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Check the image ``digest`` of ``store`` and its proof. ``tag`` is the name by which it was asked for.

    ``NetworkError`` when a registry breaks off, ``EngineError`` without the extra ``publish``. What differs is in the
    report, not raised.
    """
    report = Report(where=f"{store.name}{f':{tag}' if tag else ''}", digest=digest)
    say = progress or (lambda _text: None)
    manifest: Manifest | None = None
    config: Mapping[str, Any] = {}
    with _Part(report, "manifest"):
        manifest = load_manifest(store, digest, "manifest")
        report.add("manifest", State.OK, f"{digest}, {len(manifest.layers)} layers")
    if manifest is None:
        return report
    with _Part(report, "config"):
        config = _config(store, manifest)
        report.add("config", State.OK, manifest.config.digest)
    system = SystemPackages()
    if layers:
        _layers(report, store, manifest, config, say, system=system)
    else:
        report.add("layers", State.UNCOVERED, "not read: a pull of the image by its digest compares them")
    if isinstance(store, LayoutStore):
        for name in store.surplus()[:20]:
            # What a build notes for itself in the folder of a layout.
            state = State.UNCOVERED if name == "source" else State.DIFFERS
            report.add("bundle", state, f"{name[:100]} is a file that nothing in it names")
    attachments = _attachments(report, store, manifest)
    statements = _statements(report, store, manifest, trust, attachments)
    if not statements:
        return report
    today = today or dt.datetime.now(dt.timezone.utc).date()
    newest = max(statements, key=_moment)
    report.covered = covered = _documents(report, store, manifest, config, newest, system=system.packages)
    _carried(report, store, attachments, statements, today)
    if tag is not None:
        _tag(report, covered.claim, tag)
    _age(report, covered.claim, today)
    return report


def history(store: Store, digest: str, trust: Trust) -> list[Claim]:
    """Return what trusted signers said of an image, and of those that it replaced under its tag, latest first."""
    claims: list[Claim] = []
    todo, visited = [digest], set[str]()
    while todo and len(visited) < _MAX_HISTORY:
        visited.add(image := todo.pop())
        aside = Report(where=store.name, digest=image)
        with _Part(aside, "manifest"):
            manifest = load_manifest(store, image, "manifest")
            attachments = _attachments(aside, store, manifest)
            for one in _statements(aside, store, manifest, trust, attachments):
                claims.append(one.claim)
                todo += {one.claim.replaces} - {"", *visited, *todo}
    return sorted(claims, key=lambda claim: claim.recorded, reverse=True)


def _config(store: Store, manifest: Manifest) -> Mapping[str, Any]:
    raw = read_blob(store, manifest.config, "config", limit=MAX_BYTES)
    try:
        config = parse_json(raw)
        if isinstance(config, dict) and isinstance(config["rootfs"]["diff_ids"], list):
            return config
    except (ValueError, KeyError, TypeError):
        pass
    raise ContentError("Cannot verify the config: it is not the configuration of an image.")


def _layers(
    report: Report,
    store: Store,
    manifest: Manifest,
    config: Mapping[str, Any],
    say: Callable[[str], None],
    *,
    system: SystemPackages,
) -> None:
    """Read every layer once: its digest, its size, and what it unpacks to against the configuration.

    ``system`` takes what they say of the packages of the distribution.
    """
    ids = list(config["rootfs"]["diff_ids"]) if config else []
    good = len(ids) == len(manifest.layers) or not config
    if not good:
        report.add("layers", State.DIFFERS, f"{len(manifest.layers)} in the manifest, {len(ids)} in the configuration")
    for number, layer in enumerate(manifest.layers):
        part = f"layer {number + 1}"
        say(f"{part} of {len(manifest.layers)}: {layer.size / 1e6:.1f} MB")
        before = len(report.checks)
        with _Part(report, part):
            _layer(store, layer, part, ids[number] if number < len(ids) else None, system)
        good = good and len(report.checks) == before
    if good:
        size = sum(layer.size for layer in manifest.layers) / 1e6
        report.add("layers", State.OK, f"{len(manifest.layers)}, {size:.1f} MB, each of its digest")


class _Reader(io.RawIOBase):
    """Takes the digest of what is read, no more than the manifest promised: a store may never stop."""

    def __init__(self, file: IO[bytes], size: int = 1 << 62) -> None:
        self.digest, self.size = hashlib.sha256(), 0
        self._file, self._left = file, size + 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read(min(len(buffer), self._left))
        self.digest.update(piece)
        self.size += len(piece)
        self._left -= len(piece)
        buffer[: len(piece)] = piece
        return len(piece)


def _layer(store: Store, layer: Descriptor, part: str, diff_id: object, system: SystemPackages) -> None:
    opened = store.blob(layer.digest)
    if opened is None:
        raise ContentError(f"Cannot verify the {part}: {layer.digest} is missing.")
    packing, content, unreadable = packing_of(layer.media_type), "", ""
    with closing(opened) as file:
        reader = _Reader(file, layer.size)
        stored = io.BufferedReader(reader, CHUNK)
        try:
            with unpacked(stored, packing or "none") as plain:
                contents = _Reader(plain)
                system.take(io.BufferedReader(contents, CHUNK))
                for _ in iter(lambda: contents.read(CHUNK), b""):
                    pass
                content = f"sha256:{contents.digest.hexdigest()}"
        except ContentError as error:
            unreadable = error.reason
        for _ in stream(stored):  # what an unpacker leaves unread
            pass
    if f"sha256:{reader.digest.hexdigest()}" != layer.digest:
        cut = f" (it has {reader.size} bytes, not {layer.size})" if reader.size != layer.size else ""
        raise ContentError(f"Cannot verify the {part}: its bytes are not those of {layer.digest[:19]}…{cut}.")
    if unreadable:
        raise ContentError(f"Cannot verify the {part}: {unreadable}.")
    if packing is not None and diff_id is not None and content != diff_id:
        raise ContentError(f"Cannot verify the {part}: it unpacks to something else than the configuration says.")


# -- what is attached to the image -------------------------------------------------------------------------------------

# What a report calls the statements that are signed beside the one that covers everything.
_KIND = "dev.sigstore.bundle.predicateType"
_PARTS = {SLSA: "provenance", CYCLONEDX: "sbom"}
_STATEMENTS = (BUNDLE_ARTIFACT, ENVELOPE_ARTIFACT)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Attestation:
    """A signed statement of any kind, and the attachment that carries it. One that cannot be opened has no payload."""

    carrier: Manifest
    kind: str
    opened: Opened


@dataclass(frozen=True, kw_only=True, slots=True)
class _Statement(Covered):
    """A trusted statement about this image that covers everything else, and what of that other attestations carry."""

    carrier: str
    further: Mapping[str, _Attestation] = field(default_factory=dict)


def _attachments(report: Report, store: Store, manifest: Manifest) -> list[Manifest]:
    """Return the attachments that are of our kinds and refer to this image.

    A kind is what the listing says. An attachment that a listing hides in this way is missed later, where the statement
    names what it carries. cosign lists the type of an empty configuration, which says nothing.
    """
    attachments: dict[str, Manifest] = {}
    kinds = ("", EMPTY.media_type, *_STATEMENTS, *CARRIERS)
    for listed in store.referrers(manifest.digest):
        if listed.artifact_type not in kinds:
            report.add("attachment", State.UNCOVERED, f"{listed.digest[:19]}…, {listed.artifact_type}")
            continue
        with _Part(report, "attachment"):
            one = load_manifest(store, listed.digest, "attachment")
            if one.subject is None or one.subject.digest != manifest.digest:
                raise ContentError(
                    f"Cannot verify the attachment: {one.digest[:19]}… is listed, and refers to another image."
                )
            attachments[one.digest] = one
    return list(attachments.values())


def _statements(
    report: Report, store: Store, manifest: Manifest, trust: Trust, attachments: Sequence[Manifest]
) -> list[_Statement]:
    """Return the claims about this very image that trusted signers made, and report every other attestation."""
    statements: list[_Statement] = []
    strangers: list[str] = []
    trusted = {key.keyid for key in trust.keys}
    further: list[_Attestation] = []
    for one in (one for one in attachments if one.artifact_type in _STATEMENTS):
        # An attestation of envsmith that is hidden behind another type is missed later, as in the listing.
        stated = one.annotations.get(_KIND, statement.PREDICATE_TYPE)
        if stated not in {statement.PREDICATE_TYPE, *_PARTS}:
            report.add("attachment", State.UNCOVERED, f"{one.digest[:19]}…, attestation of type {stated[:100]}")
            continue
        with _Part(report, _PARTS.get(stated, "statement")):
            raw = b"".join(read_blob(store, blob, "statement", limit=MAX_BYTES) for blob in one.layers)
            if (kind := predicate_type(raw)) not in {"", statement.PREDICATE_TYPE}:
                opened = Opened(payload=b"", claimed=())
                with suppress(ContentError):
                    opened = _open(raw, trust)
                further.append(_Attestation(carrier=one, kind=kind, opened=opened))
                continue
            opened = _open(raw, trust)
            if opened.signer:
                claim = parse_statement(opened.payload)
                if claim.image != manifest.digest:
                    raise ContentError(f"Cannot verify the statement: it is about another image ({claim.image[:19]}…).")
                statements.append(_Statement(signer=opened.signer, claim=claim, carrier=one.digest))
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
            report.add("attachment", State.UNCOVERED, text)
    _say_who_signed(report, trust, statements, strangers, suspects)
    return statements


def _covered_by(covering: _Statement, further: Sequence[_Attestation]) -> dict[str, _Attestation]:
    """Return the attestations of the same signer whose payload a statement names, by predicate type."""
    return {
        one.kind: one
        for one in further
        if one.opened.signer == covering.signer
        and digest_of(one.opened.payload) == covering.claim.attests.get(one.kind)
    }


def _say_who_signed(
    report: Report, trust: Trust, statements: Sequence[_Statement], strangers: Sequence[str], suspects: Sequence[str]
) -> None:
    if statements:
        signers = sorted({one.signer[:16] if trust.keys else one.signer for one in statements})
        report.add("statement", State.OK, f"signed by {', '.join(signers)}, about this image")
        for signer in strangers:
            report.add("attachment", State.UNCOVERED, f"another statement, signed by {signer}, was not asked")
    elif strangers and (trust.keys or trust.identity):
        report.add("statement", State.DIFFERS, f"it is signed by {'; '.join(strangers)}, not by who you trust")
    elif strangers:
        text = f"signed by {'; '.join(strangers)}: say with --key whether you trust that"
        report.add("statement", State.UNPROVED, text)
    elif any(check.part == "statement" for check in report.checks):
        return
    elif suspects:
        text = f"there is none, but an attestation of another kind names {suspects[0][:16]}: it was removed or changed"
        report.add("statement", State.DIFFERS, text)
    else:
        report.add("statement", State.UNPROVED, "there is none, so no one vouches for this image")


def _open(raw: bytes, trust: Trust) -> Opened:
    """Open an envelope, or a keyless one where an identity is given: without it nothing of that can be checked."""
    if not is_keyless(raw):
        return open_envelope(raw, trust.keys)
    if not trust.identity:
        return Opened(payload=b"", claimed=("an identity of sigstore",))
    payload = open_bundle(raw, identity=trust.identity, issuer=trust.issuer)
    return Opened(payload=payload, claimed=(trust.identity,), signer=trust.identity)


def _carried(
    report: Report, store: Store, attachments: Sequence[Manifest], statements: Sequence[_Statement], today: dt.date
) -> None:
    """Report what the statement lists and no attachment carries, and what the attachments hold beside it."""
    names = {part.digest: name for one in statements for name, part in one.claim.parts.items()}
    kinds = {further.carrier.digest: kind for one in statements for kind, further in one.further.items()}
    kinds |= {one.carrier: statement.PREDICATE_TYPE for one in statements}
    signed = _signed_annotations([one.claim for one in statements], today)
    carried: set[tuple[str, str]] = set()
    for one in attachments:
        digests = {blob.digest for blob in one.layers}
        if one.artifact_type in _STATEMENTS:
            if one.digest not in kinds:
                continue
        elif not digests & names.keys():
            report.add("attachment", State.UNCOVERED, f"{one.digest[:19]}…, {one.artifact_type}")
            continue
        else:
            carried |= {(one.artifact_type, digest) for digest in digests}
            for digest in sorted(digests - names.keys()):
                report.add("attachment", State.UNCOVERED, f"{digest[:19]}… in {one.digest[:19]}…")
        with _Part(report, "attachment"):
            read_blob(store, one.config, "attachment", limit=MAX_BYTES)
            _annotations(report, one, names, {**signed, _KIND: {kinds.get(one.digest, "")}})
    newest = max(statements, key=_moment)
    for kind, documents in CARRIERS.items():
        for name in documents:
            if (kind, newest.claim.parts[name].digest) not in carried:
                report.add(name.partition(".")[0], State.DIFFERS, f"no attachment of the image carries {name}")
    for kind in sorted(newest.claim.attests.keys() - newest.further.keys()):
        report.add(_PARTS.get(kind, "attestation"), State.DIFFERS, f"no attachment carries the statement {kind[:100]}")


def _moment(one: Covered) -> tuple[dt.datetime, str]:
    return one.claim.recorded, str(one.claim.audit.get("when") or "")


def _signed_annotations(claims: Sequence[Claim], today: dt.date) -> dict[str, set[str]]:
    """Return what each annotation of an attachment may say: several statements may be signed of one image."""
    signed: dict[str, set[str]] = {
        "io.envsmith.expired": set(),
        "dev.sigstore.bundle.content": {"dsse-envelope"},
        # A bare envelope of an earlier release.
        "in-toto.io/predicate-type": {statement.PREDICATE_TYPE},
    }
    for claim in claims:
        for key, text in image_annotations(claim, expired=today > claim.expires).items():
            signed.setdefault(key, set()).add(text)
    return signed


def _annotations(report: Report, one: Manifest, names: Mapping[str, str], signed: Mapping[str, set[str]]) -> None:
    """Compare what an attachment says of itself with what was signed: registries show it, and no signature covers it."""
    wrong = [f"{key} is {text[:60]}" for key, text in one.annotations.items() if text not in signed.get(key, {text})]
    titles = [(blob.annotations.get(TITLE), names.get(blob.digest)) for blob in one.layers]
    wrong += [f"{name} is called {title[:60]}" for title, name in titles if title and name and title != name]
    if wrong:
        raise ContentError(
            "Cannot verify the attachment: its annotations are not those that were signed.", details=wrong
        )
    if unsigned := sorted(one.annotations.keys() - signed.keys()):
        report.add("annotations", State.UNCOVERED, f"{', '.join(unsigned)[:300]} of {one.digest[:19]}…")


# -- what the statement names ------------------------------------------------------------------------------------------


def _documents(
    report: Report,
    store: Store,
    manifest: Manifest,
    config: Mapping[str, Any],
    newest: _Statement,
    *,
    system: Sequence[OsPackage],
) -> Covered:
    """Compare lock, labels, record, bill of materials and provenance, and return what is covered with the lock."""
    claim, covered = newest.claim, Covered(signer=newest.signer, claim=newest.claim)
    with _Part(report, "lock"):
        raw = read_blob(store, claim.parts["lock.json"], "lock", limit=MAX_BYTES)
        lock = parse_lock(raw.decode(errors="replace"), where="lock")
        if lock.digest != claim.lock or str(lock.cell.id) != claim.cell:
            raise ContentError("Cannot verify the lock: it is not the one of the statement.")
        covered = replace(covered, lock=lock)
        report.add("lock", State.OK, f"{lock.digest}, {len(lock.pins)} packages")
    if covered.lock is not None and config:
        differences = label_differences(config, covered.lock)
        good = f"they say cell {claim.cell} and this lock"
        report.add("labels", State.DIFFERS if differences else State.OK, "; ".join(differences) or good)
    with _Part(report, "record"):
        raw = read_blob(store, claim.parts["record.json"], "record", limit=MAX_BYTES)
        record = parse_record(raw, "record")
        if covered.lock is not None:
            _record(report, manifest, claim, covered.lock, record)
    with _Part(report, "sbom"):
        raw = read_blob(store, claim.parts["sbom.cdx.json"], "sbom", limit=MAX_BYTES)
        digest = manifest.digest
        if covered.lock is not None and (differences := sbom_differences(raw, covered.lock, digest, system)):
            raise ContentError("Cannot verify the sbom: it is not that of lock and image.", details=differences)
        if CYCLONEDX in newest.further and _predicate(newest.further[CYCLONEDX]) != parse_json(raw):
            raise ContentError("Cannot verify the sbom: the signed one differs from the attached one.")
        report.add("sbom", State.OK, claim.parts["sbom.cdx.json"].digest)
    with _Part(report, "provenance"):
        if covered.lock is not None and SLSA in newest.further:
            if differences := provenance_differences(_predicate(newest.further[SLSA]), covered.lock):
                raise ContentError("Cannot verify the provenance: it is not that of the lock.", details=differences)
            report.add("provenance", State.OK, claim.attests[SLSA])
    return covered


def _predicate(one: _Attestation) -> Any:
    return parse_json(one.opened.payload).get("predicate")


def _record(report: Report, manifest: Manifest, claim: Claim, lock: Lock, record: Record) -> None:
    images = {"manifest": manifest.digest, "config": manifest.config.digest, "engine's image": claim.built_from}
    reasons = unproved(lock, record, images=images)
    stated = (list(claim.rungs), claim.recorded, claim.config)
    if stated != ([rung.value for rung in record.rungs], record.moment, manifest.config.digest):
        reasons.append("the statement gives other rungs, another time or another configuration than record and image")
    if reasons:
        report.add("record", State.DIFFERS, "; ".join(reasons))
    else:
        report.add("record", State.OK, f"passed {record.moment.date()}: {record.summary}")


def label_differences(config: Mapping[str, Any], lock: Lock) -> list[str]:
    """Return how the labels of an image differ from its lock. Cell and lock must be among them."""
    inner = config.get("config")
    value = inner.get("Labels") if isinstance(inner, dict) else None
    labels: Mapping[str, Any] = value if isinstance(value, dict) else {}
    expected = {"io.envsmith.cell": str(lock.cell.id), "io.envsmith.lock": lock.digest}
    expected |= {
        key: version for name, version in lock.cell.components.items() if (key := f"io.envsmith.{name}") in labels
    }
    if "io.envsmith.flavour" in labels:
        expected["io.envsmith.flavour"] = lock.flavour
    if lock.base is not None and "org.opencontainers.image.base.digest" in labels:
        expected["org.opencontainers.image.base.digest"] = lock.base.digest
    return [
        f"{key} is {str(labels.get(key, 'missing'))[:80]}, the lock says {value}"
        for key, value in expected.items()
        if labels.get(key) != value
    ]


def _tag(report: Report, claim: Claim, tag: str) -> None:
    if tag in claim.tags:
        report.add("tag", State.OK, f"{tag} is a name that the signer gave this image")
    else:
        report.add(
            "tag", State.DIFFERS, f"{tag} leads to an image that was published as {', '.join(claim.tags)}: it was moved"
        )


def _age(report: Report, claim: Claim, today: dt.date) -> None:
    if today > claim.expires:
        report.add("age", State.NOTE, f"the record expired on {claim.expires}: what it proved is old news")
    audit = str(claim.audit.get("status") or "not audited")
    report.add("audit", State.NOTE, f"{audit} ({str(claim.audit.get('when', ''))[:10]})" if claim.audit else audit)
