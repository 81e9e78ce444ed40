"""Is a published image what its signer says, whole and unchanged? Every part that differs is named.

What is believed: the key (or the identity) that the caller gives, and from there only what a digest covers. The
signature covers the statement, the statement names image, lock, record and bill of materials by digest, the image's
manifest names its configuration and layers by digest. What a registry lists or answers in headers decides nothing.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from typing import IO, TYPE_CHECKING, Any

from envsmith.errors import ContentError, DataError
from envsmith.model.lock import MAX_BYTES, Lock, parse_lock
from envsmith.model.record import Record
from envsmith.oci.layers import stream
from envsmith.oci.layout import Store, load_manifest, read_blob
from envsmith.oci.spec import Descriptor, Manifest
from envsmith.publish import statement
from envsmith.publish.sbom import sbom_differences
from envsmith.publish.sign import open_bundle, open_envelope
from envsmith.publish.statement import Claim, parse_record, parse_statement, unproved
from envsmith.schema import AsJson

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey


_GZIP = ("application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip")
_PLAIN = ("application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar")


class State(str, Enum):
    """What became of one check."""

    OK = "ok"
    DIFFERS = "differs"
    UNPROVED = "unproved"
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


@dataclass(slots=True)
class Report:
    """The checks in the order in which they were made, and the values that were found good."""

    where: str
    digest: str
    checks: list[Check] = field(default_factory=list)
    claim: Claim | None = None
    lock: Lock | None = None
    record: Record | None = None

    def add(self, part: str, state: State, text: str) -> None:
        """Add a check."""
        self.checks.append(Check(part=part, state=state, text=text))

    @property
    def status(self) -> str:
        """``verified``, ``differs`` (a part is wrong) or ``unproved`` (nothing differs, but not all is shown)."""
        states = {check.state for check in self.checks}
        if State.DIFFERS in states:
            return "differs"
        return "unproved" if State.UNPROVED in states else "verified"

    @property
    def exit_code(self) -> int:
        """0, 8 (content) or 1 (the answer is no), as the table of exit codes says."""
        return {"verified": 0, "differs": ContentError.exit_code, "unproved": 1}[self.status]

    def to_json(self) -> dict[str, object]:
        """Return it as ``verify --json`` prints it."""
        claim = self.claim
        return {
            "status": self.status,
            "image": self.where,
            "digest": self.digest,
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
        text = "; ".join([error.message, *error.details[:5]])
        self.report.add(self.name, State.DIFFERS, text.removeprefix(f"{self.name}: "))
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
    if layers:
        _layers(report, store, manifest, config, say)
    else:
        report.add("layers", State.NOTE, "not read: whoever pulls the image by its digest compares them")
    claim = _statement(report, store, manifest, trust)
    if claim is None:
        return report
    report.claim = claim
    _documents(report, store, manifest, config, claim)
    if tag is not None:
        _tag(report, claim, tag)
    _age(report, claim, today or dt.datetime.now(dt.timezone.utc).date())
    return report


def _config(store: Store, manifest: Manifest) -> Mapping[str, Any]:
    raw = read_blob(store, manifest.config, "config", limit=MAX_BYTES)
    try:
        config = json.loads(raw)
        if isinstance(config, dict) and isinstance(config["rootfs"]["diff_ids"], list):
            return config
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ContentError("config: it is not the configuration of an image")


def _layers(
    report: Report, store: Store, manifest: Manifest, config: Mapping[str, Any], say: Callable[[str], None]
) -> None:
    """Read every layer once: its digest, its size, and what it unpacks to against the configuration."""
    ids = list(config["rootfs"]["diff_ids"]) if config else []
    good = len(ids) == len(manifest.layers) or not config
    if not good:
        report.add("layers", State.DIFFERS, f"{len(manifest.layers)} in the manifest, {len(ids)} in the configuration")
    for number, layer in enumerate(manifest.layers):
        part = f"layer {number + 1}"
        say(f"{part} of {len(manifest.layers)}: {layer.size / 1e6:.1f} MB")
        before = len(report.checks)
        with _Part(report, part):
            _layer(store, layer, part, ids[number] if number < len(ids) else None)
        good = good and len(report.checks) == before
    if good:
        size = sum(layer.size for layer in manifest.layers) / 1e6
        report.add("layers", State.OK, f"{len(manifest.layers)}, {size:.1f} MB, each of its digest")


def _layer(store: Store, layer: Descriptor, part: str, diff_id: object) -> None:
    opened = store.blob(layer.digest)
    if opened is None:
        raise ContentError(f"{part}: {layer.digest} is missing")
    stored, unpacked, size = hashlib.sha256(), hashlib.sha256(), 0
    inflate = zlib.decompressobj(31) if layer.media_type in _GZIP else None
    with closing(opened) as file:
        for piece in _bounded(file, layer.size):
            stored.update(piece)
            size += len(piece)
            if inflate is not None:
                _inflate(inflate, piece, unpacked.update, part)
    if f"sha256:{stored.hexdigest()}" != layer.digest:
        cut = f" (it has {size} bytes, not {layer.size})" if size != layer.size else ""
        raise ContentError(f"{part}: its bytes are not those of {layer.digest[:19]}…{cut}")
    content = unpacked if inflate is not None else stored if layer.media_type in _PLAIN else None
    if content is not None and diff_id is not None and f"sha256:{content.hexdigest()}" != diff_id:
        raise ContentError(f"{part}: it unpacks to something else than the configuration says")


def _bounded(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Read no more than the manifest promised: a store that never stops is refused by its length."""
    count = 0
    for piece in stream(file):
        yield piece
        count += len(piece)
        if count > size:
            return


def _inflate(inflate: Any, piece: bytes, take: Callable[[bytes], object], part: str) -> None:
    """Unpack in bounded steps: a layer of zeros is never in memory as a whole."""
    try:
        take(inflate.decompress(piece, 1 << 22))
        while inflate.unconsumed_tail:
            take(inflate.decompress(inflate.unconsumed_tail, 1 << 22))
    except zlib.error as error:
        raise ContentError(f"{part}: it cannot be unpacked: {error}") from None


# -- the statement -----------------------------------------------------------------------------------------------------


def _statement(report: Report, store: Store, manifest: Manifest, trust: Trust) -> Claim | None:
    """Return the newest claim about this very image that a trusted signer made."""
    claims: list[tuple[Claim, str]] = []
    strangers: list[str] = []
    broken: list[str] = []
    for listed in store.referrers(manifest.digest):
        try:
            opened = _open(store, listed, manifest, trust)
        except (ContentError, DataError) as error:
            broken.append(error.message.removeprefix("statement: "))
            continue
        if opened is None:
            continue
        claim, signer, claimed = opened
        if claim is not None and signer:
            claims.append((claim, signer))
        else:
            strangers.append(", ".join(key[:16] for key in claimed) or "nobody")
    if claims:
        claim, signer = max(claims, key=lambda pair: (pair[0].recorded, pair[0].audit.get("when") or ""))
        report.add("statement", State.OK, f"signed by {signer[:16] if trust.keys else signer}, about this image")
        for who in strangers:
            report.add("statement", State.NOTE, f"another one, signed by {who}, was not asked")
        for why in broken:
            report.add("statement", State.DIFFERS, f"another one beside the good one: {why}")
        return claim
    if broken:
        report.add("statement", State.DIFFERS, "; ".join(broken))
    elif strangers and (trust.keys or trust.identity):
        report.add("statement", State.DIFFERS, f"it is signed by {'; '.join(strangers)}, not by who you trust")
    elif strangers:
        report.add(
            "statement", State.UNPROVED, f"signed by {'; '.join(strangers)}: say with --key whether you trust that"
        )
    else:
        report.add("statement", State.UNPROVED, "there is none: nobody vouches for this image")
    return None


def _open(
    store: Store, listed: Descriptor, manifest: Manifest, trust: Trust
) -> tuple[Claim | None, str, tuple[str, ...]] | None:
    """Return a referrer's claim, its trusted signer or empty, whom it names, or ``None``."""
    artifact = load_manifest(store, listed.digest, "statement")
    kind = artifact.artifact_type
    if kind not in {statement.STATEMENT_ARTIFACT, statement.KEYLESS_ARTIFACT} or len(artifact.layers) != 1:
        return None
    raw = read_blob(store, artifact.layers[0], "statement", limit=MAX_BYTES)
    if kind == statement.KEYLESS_ARTIFACT:
        return _open_keyless(raw, manifest, trust)

    opened = open_envelope(raw, trust.keys)
    claim = parse_statement(opened.payload)
    if opened.signer and claim.image != manifest.digest:
        raise ContentError(f"statement: it is about another image ({claim.image[:19]}…)")
    return claim, opened.signer, opened.claimed


def _open_keyless(raw: bytes, manifest: Manifest, trust: Trust) -> tuple[Claim | None, str, tuple[str, ...]]:
    """Open a keyless statement only when an identity was given: its payload cannot be read without checking it."""
    if not trust.identity:
        return None, "", ("an identity of sigstore",)

    claim = parse_statement(open_bundle(raw, identity=trust.identity, issuer=trust.issuer))
    if claim.image != manifest.digest:
        raise ContentError(f"statement: it is about another image ({claim.image[:19]}…)")
    return claim, trust.identity, (trust.identity,)


# -- what the statement names ------------------------------------------------------------------------------------------


def _documents(report: Report, store: Store, manifest: Manifest, config: Mapping[str, Any], claim: Claim) -> None:
    with _Part(report, "lock"):
        raw = read_blob(store, claim.parts["lock.json"], "lock", limit=MAX_BYTES)
        lock = parse_lock(raw.decode(errors="replace"), where="lock")
        if lock.digest != claim.lock or str(lock.cell.id) != claim.cell:
            raise ContentError("lock: it is not the one that the statement speaks of")
        report.lock = lock
        report.add("lock", State.OK, f"{lock.digest}, {len(lock.pins)} packages")
    if report.lock is not None and config:
        differences = label_differences(config, report.lock)
        good = f"they say cell {claim.cell} and this lock"
        report.add("labels", State.DIFFERS if differences else State.OK, "; ".join(differences) or good)
    with _Part(report, "record"):
        raw = read_blob(store, claim.parts["record.json"], "record", limit=MAX_BYTES)
        report.record = parse_record(raw, "record")
        _record(report, manifest, claim)
    with _Part(report, "sbom"):
        raw = read_blob(store, claim.parts["sbom.cdx.json"], "sbom", limit=MAX_BYTES)
        if report.lock is not None and (differences := sbom_differences(raw, report.lock, manifest.digest)):
            raise ContentError("sbom: it is not that of the lock", details=differences)
        report.add("sbom", State.OK, claim.parts["sbom.cdx.json"].digest)


def _record(report: Report, manifest: Manifest, claim: Claim) -> None:
    record = report.record
    if record is None or report.lock is None:
        return
    images = {"manifest": manifest.digest, "config": manifest.config.digest, "engine's image": claim.built_from}
    reasons = unproved(report.lock, record, images=images)
    if [rung.value for rung in record.rungs] != list(claim.rungs):
        reasons.append("the statement tells other rungs than the record")
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
