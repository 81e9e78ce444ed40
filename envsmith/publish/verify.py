"""Is a published image what its signer says, whole and unchanged? Every part that differs is named.

What is believed: the key (or the identity) that the caller gives, and from there only what a digest covers. The
signature covers the statement, the statement names image, lock, record and bill of materials by digest, the image's
manifest names its configuration and layers by digest. What a registry lists or answers in headers decides nothing.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from envsmith.base.json_types import JsonFields
from envsmith.base.schema import parse_json
from envsmith.errors import ContentError
from envsmith.model.lock import MAX_BYTES
from envsmith.net.oci.layout import LayoutStore
from envsmith.net.oci.spec import Manifest
from envsmith.net.oci.store import Store, load_manifest, read_blob
from envsmith.publish.attachment_checks import check_attachments, find_attachments, find_statements
from envsmith.publish.document_checks import check_documents
from envsmith.publish.layer_checks import check_layers
from envsmith.publish.report import CheckState, PartCheck, Trust, VerifyReport
from envsmith.publish.statement import Claim
from envsmith.publish.system import SystemPackages

# Images that one was published in place of, as far back as somebody may want to look.
_MAX_HISTORY = 50


def verify(
    store: Store,
    digest: str,
    trust: Trust,
    *,
    tag: str | None = None,
    layers: bool = True,
    today: dt.date | None = None,
    progress: Callable[[str], None] | None = None,
) -> VerifyReport:
    """Check the image ``digest`` of ``store`` and its proof. ``tag`` is the name by which it was asked for.

    ``NetworkError`` when a registry breaks off, ``EngineError`` without the extra ``publish``. What differs is in the
    report, not raised.
    """
    report = VerifyReport(where=f"{store.name}{f':{tag}' if tag else ''}", digest=digest)
    say = progress or (lambda _text: None)
    manifest: Manifest | None = None
    config: JsonFields = {}
    with PartCheck(report, "manifest"):
        manifest = load_manifest(store, digest, "manifest")
        report.add("manifest", CheckState.OK, f"{digest}, {len(manifest.layers)} layers")
    if manifest is None:
        return report
    with PartCheck(report, "config"):
        config = _config(store, manifest)
        report.add("config", CheckState.OK, manifest.config.digest)
    system = SystemPackages()
    if layers:
        check_layers(report, store, manifest, config, say, system=system)
    else:
        report.add("layers", CheckState.UNCOVERED, "not read: a pull of the image by its digest compares them")
    if isinstance(store, LayoutStore):
        for name in store.surplus()[:20]:
            # What a build notes for itself in the folder of a layout.
            state = CheckState.UNCOVERED if name == "source" else CheckState.DIFFERS
            report.add("bundle", state, f"{name[:100]} is a file that nothing in it names")
    attachments = find_attachments(report, store, manifest)
    statements = find_statements(report, store, manifest, trust, attachments)
    if not statements:
        return report
    today = today or dt.datetime.now(dt.timezone.utc).date()
    newest = max(statements, key=lambda one: one.claim.recorded)
    report.covered = covered = check_documents(report, store, manifest, config, newest, system=system.packages)
    check_attachments(report, store, attachments, statements, today)
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
        aside = VerifyReport(where=store.name, digest=image)
        with PartCheck(aside, "manifest"):
            manifest = load_manifest(store, image, "manifest")
            attachments = find_attachments(aside, store, manifest)
            for one in find_statements(aside, store, manifest, trust, attachments):
                claims.append(one.claim)
                todo += {one.claim.replaces} - {"", *visited, *todo}
    return sorted(claims, key=lambda claim: claim.recorded, reverse=True)


def _config(store: Store, manifest: Manifest) -> JsonFields:
    raw = read_blob(store, manifest.config, "config", limit=MAX_BYTES)
    try:
        config = parse_json(raw)
        if isinstance(config, dict) and isinstance(config["rootfs"]["diff_ids"], list):
            return config
    except (ValueError, KeyError, TypeError):
        pass
    raise ContentError("Cannot verify the config: it is not the configuration of an image.")


def _tag(report: VerifyReport, claim: Claim, tag: str) -> None:
    if tag in claim.tags:
        report.add("tag", CheckState.OK, f"{tag} is a name that the signer gave this image")
    else:
        report.add(
            "tag",
            CheckState.DIFFERS,
            f"{tag} leads to an image that was published as {', '.join(claim.tags)}: it was moved",
        )


def _age(report: VerifyReport, claim: Claim, today: dt.date) -> None:
    if today > claim.expires:
        report.add("age", CheckState.NOTE, f"the record expired on {claim.expires}: what it proved is old news")
