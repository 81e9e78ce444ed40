"""Every part of a published image that was changed, cut, moved or is missing is named."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import gzip
import hashlib
import io
import json
import tarfile

import pytest

from envsmith.cli.app import run
from envsmith.errors import ContentError
from envsmith.model.lock import OsPackage
from envsmith.net.oci.image import open_image
from envsmith.net.oci.layout import REF_NAME, open_files
from envsmith.net.oci.registry import Repository
from envsmith.net.oci.spec import EMPTY, Descriptor, artifact, canonical, describe, parse_manifest
from envsmith.publish.attachments import BUNDLE_ARTIFACT, ENVELOPE_ARTIFACT, PROOF_ARTIFACT, SBOM_ARTIFACT
from envsmith.publish.cell import seal_with
from envsmith.publish.named_image import NamedImage, find_image, trust_of, verify_image
from envsmith.publish.proof import load_proof
from envsmith.publish.provenance import PREDICATE_TYPE as SLSA
from envsmith.publish.push import Naming, publish
from envsmith.publish.sbom import PREDICATE_TYPE as CYCLONEDX
from envsmith.publish.sbom import make_sbom
from envsmith.publish.sign import envelope_of, load_signer, sign
from envsmith.publish.statement import PREDICATE_TYPE as STATEMENT
from envsmith.publish.statement import Claim, parse_statement, statement_bytes
from envsmith.publish.verify import history, verify

CELL = "ds0.19.8-torch2.15.0-cu132-py312"


@pytest.fixture(scope="session")
def untouched(kit, made_cell, keys):
    """A registry to which one cell was published."""
    with kit.registry() as reg:
        target = Repository(reg.address, "cells", push=True)
        reg.done = publish(load_proof(made_cell), open_image(made_cell / "oci"), target, seal_with(keys[0]))
        yield reg


@pytest.fixture
def published(kit, untouched):
    """A registry with the same content; what a test changes there is tampering."""
    with kit.registry() as reg:
        reg.blobs, reg.manifests, reg.done = dict(untouched.blobs), dict(untouched.manifests), untouched.done
        yield reg


def look(reg, keys, tag=CELL, repo="cells", **how):
    store = Repository(reg.address, repo, wait=lambda _s: None)
    return verify(store, store.resolve(tag), trust_of([keys[1]], None, None), tag=tag, **how)


def differing(report):
    return sorted({check.part for check in report.checks if check.state.value == "differs"})


def test_an_untouched_image_is_verified(published, keys):
    report = look(published, keys)
    assert (report.status, report.exit_code) == ("verified", 0)
    assert [c.part for c in report.checks if c.state.value == "ok"] == [
        "manifest", "config", "layers", "statement", "lock", "labels", "record", "sbom", "provenance", "tag",
    ]  # fmt: skip


# -- one part changed at a time ----------------------------------------------------------------------------------------


def blob_of(reg, part):
    """The digest of a part of what was published."""
    claim = reg.done.claim
    named = {"lock": "lock.json", "record": "record.json", "sbom": "sbom.cdx.json"}
    if part in named:
        return claim.parts[named[part]].digest
    manifest = json.loads(reg.manifests["cells", claim.image][1])
    if part.startswith("layer"):
        return manifest["layers"][int(part[-1]) - 1]["digest"]
    if part == "config":
        return claim.config
    return attached(reg, {"statement": STATEMENT, "provenance": SLSA, "signed sbom": CYCLONEDX}[part])[1]["layers"][0][
        "digest"
    ]


CHANGES = {
    "changed": lambda data: data[:-2] + bytes([data[-2] ^ 1]) + data[-1:],
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda _data: b"",
    "longer": lambda data: data + b"x" * 100_000,
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("part", ["layer 1", "layer 2", "config", "statement", "lock", "record", "sbom", "provenance"])
def test_a_part_whose_bytes_are_others_is_named(published, keys, part, how):
    key = ("cells", blob_of(published, part))
    published.blobs[key] = CHANGES[how](published.blobs[key])
    report = look(published, keys)
    assert differing(report) == [part]
    assert report.exit_code == 8


@pytest.mark.parametrize("how", CHANGES)
def test_only_a_layer_of_another_length_is_named_with_its_lengths(published, keys, how):
    key = ("cells", blob_of(published, "layer 2"))
    size = len(published.blobs[key])
    published.blobs[key] = CHANGES[how](published.blobs[key])
    (text,) = [check.text for check in look(published, keys).checks if check.state.value == "differs"]
    assert (f"not {size})" in text) is (how != "changed")


def test_labels_that_fit_say_the_cell(published, keys):
    (text,) = [check.text for check in look(published, keys).checks if check.part == "labels"]
    assert text == f"they say cell {CELL} and this lock"


@pytest.mark.parametrize("part", ["layer 1", "layer 2", "config", "statement", "lock", "record", "sbom", "provenance"])
def test_a_part_that_is_missing_is_named(published, keys, part):
    del published.blobs["cells", blob_of(published, part)]
    report = look(published, keys)
    assert differing(report) == [part]
    assert report.exit_code == 8


@pytest.mark.parametrize("how", ["changed", "truncated"])
def test_a_manifest_that_is_not_its_digest_is_named(published, keys, how):
    digest = published.done.digest
    kind, raw = published.manifests["cells", digest]
    published.manifests["cells", digest] = (kind, CHANGES[how](raw))
    report = look(published, keys)
    assert differing(report) == ["manifest"]


def test_a_tag_that_was_moved_to_an_image_of_somebody_else_is_refused(published, keys, kit, tmp_path):
    other = kit.make_cell(tmp_path / "other", salt=b"evil")
    foreign = kit.make_keys(tmp_path, "foreign")
    target = Repository(published.address, "cells", push=True)
    publish(load_proof(other), open_image(other / "oci"), target, seal_with(foreign[0]), Naming(replace=True))
    report = look(published, keys)
    assert differing(report) == ["statement"]
    assert "not by anybody whom you trust" in next(c.text for c in report.checks if c.part == "statement")


def test_a_tag_that_was_moved_to_another_cell_of_the_same_signer_is_refused(published, keys, kit, tmp_path):
    other = kit.make_cell(tmp_path / "other", deepspeed="0.19.7")
    target = Repository(published.address, "cells", push=True)
    done = publish(load_proof(other), open_image(other / "oci"), target, seal_with(keys[0]))
    published.manifests["cells", CELL] = published.manifests["cells", done.digest]
    report = look(published, keys)
    assert differing(report) == ["tag"]
    assert report.exit_code == 8


def test_a_tag_that_leads_to_another_digest_than_the_one_written_beside_it(published, keys, capsys):
    wrong = "sha256:" + "0" * 64
    assert run(["verify", f"{published.repo()}:{CELL}@{wrong}", "--key", str(keys[1])]) == 8
    assert "tag" in capsys.readouterr().err
    right = published.done.digest
    assert run(["verify", f"{published.repo()}:{CELL}@{right}", "--key", str(keys[1])]) == 0


def test_an_image_that_nobody_signed_is_unproved(published, keys, kit):
    for (repo, name), (_, raw) in list(published.manifests.items()):
        if b"vnd.dev.sigstore" in raw:
            del published.manifests[repo, name]
    report = look(published, keys)
    assert (report.status, report.exit_code) == ("unproved", 1)


def test_without_a_key_nothing_is_proved(published, capsys):
    assert run(["verify", f"{published.repo()}:{CELL}", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["status"] == "unproved"
    assert [c["part"] for c in told["checks"] if c["state"] == "unproved"] == ["statement"]


def test_one_of_several_keys_is_enough_and_foreign_statements_beside_ours_are_told(
    published, keys, kit, tmp_path, cell
):
    foreign = kit.make_keys(tmp_path, "foreign", kind="ecdsa")
    target = Repository(published.address, "cells", push=True)
    publish(load_proof(cell), open_image(cell / "oci"), target, seal_with(foreign[0]))
    report = look(published, keys)
    assert report.status == "verified"
    signer = load_signer(foreign[0]).public_key.keyid[:16]
    stranger = f"another statement, signed by {signer}, was not asked"
    assert [c.text for c in report.checks if c.state.value == "not covered"].count(stranger) == 1
    store = Repository(published.address, "cells")
    both = trust_of([foreign[1], keys[1]], None, None)
    assert verify(store, published.done.digest, both, tag=CELL).status == "verified"


# -- a signer's statement that does not fit what is there --------------------------------------------------------------


def forged(kit, reg, keys, cell, **changes):
    """Publish again with a signer who signs something else than what is true."""
    from envsmith.publish import push, statement

    def lying(claim):
        value = json.loads(statement.statement_bytes(claim))
        changes["edit"](value)
        return canonical(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(push, "statement_bytes", lying)
        target = Repository(reg.address, "lies", push=True)
        return publish(load_proof(cell), open_image(cell / "oci"), target, seal_with(keys[0]))


def _set(value, path, new):
    *heads, last = path
    for head in heads:
        value = value[head]
    value[last] = new


@pytest.mark.parametrize(
    ("path", "new"),
    [
        (("subject", 0, "digest", "sha256"), "0" * 64),
        (("predicate", "result"), "FAILED"),
        (("predicateType",), "https://example.invalid/x"),
        (("_type",), "https://example.invalid/x"),
        (("predicate", "envsmith", "lock"), "nonsense"),
        (("predicate", "configuration"), []),
        (("predicate", "envsmith"), None),
        (("subject",), []),
        (("predicate", "envsmith", "expires"), "never"),
    ],
)
def test_a_statement_about_something_else_is_refused(kit, published, keys, cell, path, new):
    forged(kit, published, keys, cell, edit=lambda value: _set(value, path, new))
    report = look(published, keys, repo="lies")
    assert differing(report) == ["statement"]


@pytest.mark.parametrize(
    ("path", "new", "part"),
    [
        (("predicate", "envsmith", "lock"), "sha256:" + "0" * 64, "lock"),
        (("predicate", "envsmith", "rungs"), ["framework step(gpu)"], "record"),
        (("predicate", "envsmith", "tags"), ["other"], "tag"),
    ],
)
def test_a_statement_that_does_not_fit_lock_record_or_tag_is_refused(kit, published, keys, cell, path, new, part):
    forged(kit, published, keys, cell, edit=lambda value: _set(value, path, new))
    assert part in differing(look(published, keys, repo="lies"))


def test_an_expired_record_is_told_and_does_not_fail(published, keys):
    report = look(published, keys, today=dt.date(2030, 1, 1))
    assert report.status == "verified"
    assert any(c.part == "age" and "expired" in c.text for c in report.checks)


def _with_first_layer(kit, layout, packed):
    """Put other bytes in the place of the first layer, every digest but the configuration's made to fit; the new image's digest."""
    index = json.loads((layout / "index.json").read_text())
    blobs = layout / "blobs" / "sha256"
    manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_text())
    (blobs / kit.digest(packed)[7:]).write_bytes(packed)
    manifest["layers"][0] |= {"digest": kit.digest(packed), "size": len(packed)}
    raw = json.dumps(manifest).encode()
    (blobs / kit.digest(raw)[7:]).write_bytes(raw)
    index["manifests"][0] |= {"digest": kit.digest(raw), "size": len(raw)}
    (layout / "index.json").write_text(json.dumps(index))
    return kit.digest(raw)


def test_a_layer_that_unpacks_to_something_else_is_refused(kit, tmp_path, keys):
    """Digest, manifest and signature fit; the configuration says that the layer holds other files."""
    cell = kit.make_cell(tmp_path / "cell2")
    layout = cell / "oci"
    _with_first_layer(kit, layout, gzip.compress(b"other", mtime=0))
    with kit.registry() as reg:
        publish(load_proof(cell), open_image(layout), Repository(reg.address, "cells", push=True), seal_with(keys[0]))
        assert differing(look(reg, keys)) == ["layer 1"]


def test_a_layer_that_breaks_off_while_it_is_unpacked_is_read_to_its_end_and_called_unreadable(kit, tmp_path, keys):
    """Its digest is over bytes that no unpacker takes: they are read all the same, so that the right fault is named."""
    layout = kit.make_cell(tmp_path / "cell2") / "oci"
    packed = gzip.compress(bytes(n * n % 251 for n in range(99_999)), mtime=0)[:200] + b"\xff" * (4 << 20)
    digest = _with_first_layer(kit, layout, packed)

    report = verify(open_files(layout), digest, trust_of([keys[1]], None, None))

    text = next(check.text for check in report.checks if check.part == "layer 1")
    assert "its bytes are not those" not in text


def test_of_many_files_that_nothing_names_the_first_twenty_are_listed(kit, tmp_path, keys):
    layout = kit.make_cell(tmp_path / "cell2") / "oci"
    for number in range(25):
        (layout / f"surplus-{number:02}").write_text("")
    store = open_files(layout)

    report = verify(store, open_image(layout).digest, trust_of([keys[1]], None, None))

    named = [check.text.split()[0] for check in report.checks if check.part == "bundle"]
    assert named == [f"surplus-{number:02}" for number in range(20)]


def test_what_a_statement_has_instead_of_a_date_is_quoted_as_far_as_eighty_characters():
    moment = dt.datetime(2026, 11, 21, tzinfo=dt.timezone.utc)
    digest = f"sha256:{'0' * 64}"
    claim = Claim(
        image=digest, cell=CELL, lock=digest, config=digest, parts={}, tags=(), rungs=(), recorded=moment,
        expires=moment.date(),
    )  # fmt: skip
    payload = json.loads(statement_bytes(claim))
    payload["predicate"]["envsmith"]["expires"] = "x" * 200
    with pytest.raises(ContentError) as caught:
        parse_statement(json.dumps(payload).encode())
    assert caught.value.message.endswith(").")
    assert (
        len(caught.value.message)
        == len("Cannot verify the statement: envsmith did not write it (ValueError: ") + 80 + 2
    )


def test_layers_may_be_left_to_whoever_pulls(published, keys):
    published.log.clear()
    report = look(published, keys, layers=False)
    assert report.status == "verified"
    assert not any(blob_of(published, "layer 1") in path for _, path in published.log)


# -- what no signature covers ------------------------------------------------------------------------------------------


def attached(reg, kind):
    """The digest and the manifest of what is attached as ``kind``, the predicate's type where it is a statement."""
    for (_, name), (_, raw) in reg.manifests.items():
        value = json.loads(raw)
        kinds = value.get("artifactType"), value.get("annotations", {}).get("dev.sigstore.bundle.predicateType")
        if name.startswith("sha256:") and kind in kinds:
            return name, value
    raise LookupError(kind)


def replace_attachment(reg, kind, edit):
    """Put an edited attachment in place of the one that was published, with a digest that fits."""
    name, value = attached(reg, kind)
    media, _ = reg.manifests.pop(("cells", name))
    edit(value)
    raw = canonical(value)
    reg.manifests["cells", "sha256:" + hashlib.sha256(raw).hexdigest()] = (media, raw)


def attach(reg, kind, data, **annotations):
    """Attach a document of somebody else's to the image."""
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    reg.blobs["cells", digest] = data
    blob = Descriptor(media_type=kind, digest=digest, size=len(data))
    image = parse_manifest(reg.manifests["cells", reg.done.digest][1], "image")
    one = artifact(artifact_type=kind, layers=[blob], subject=image.descriptor, annotations=annotations)
    reg.manifests["cells", one.digest] = (one.media_type, one.raw)


def uncovered(report):
    return [check.text for check in report.checks if check.state.value == "not covered"]


@pytest.mark.parametrize(("kind", "parts"), [(PROOF_ARTIFACT, ["lock", "record"]), (SBOM_ARTIFACT, ["sbom"])])
def test_what_the_statement_lists_and_nothing_attached_carries_is_missed(published, keys, kind, parts):
    del published.manifests["cells", attached(published, kind)[0]]
    report = look(published, keys)
    assert differing(report) == parts
    assert report.exit_code == 8


def test_the_proof_of_another_image_in_the_place_of_ours_is_refused(published, keys, kit, tmp_path):
    other = kit.make_cell(tmp_path / "other", deepspeed="0.19.7")
    target = Repository(published.address, "others", push=True)
    publish(load_proof(other), open_image(other / "oci"), target, seal_with(keys[0]))
    published.blobs |= {("cells", digest): data for (repo, digest), data in published.blobs.items() if repo == "others"}
    foreign = next(
        json.loads(raw)["layers"]
        for (repo, _), (_, raw) in published.manifests.items()
        if repo == "others" and json.loads(raw).get("artifactType") == PROOF_ARTIFACT
    )
    replace_attachment(published, PROOF_ARTIFACT, lambda value: value.update(layers=foreign))
    assert differing(look(published, keys)) == ["lock", "record"]


@pytest.mark.parametrize("kind", [PROOF_ARTIFACT, SBOM_ARTIFACT, STATEMENT, SLSA, CYCLONEDX])
@pytest.mark.parametrize(
    ("key", "lie"),
    [
        ("io.envsmith.rungs", "framework step(gpu)"),
        ("io.envsmith.expires", "2099-01-01"),
        ("io.envsmith.expired", "true"),
        ("org.opencontainers.image.version", "another"),
    ],
)
def test_an_annotation_that_says_otherwise_than_the_statement_is_refused(published, keys, kind, key, lie):
    replace_attachment(published, kind, lambda value: value["annotations"].update({key: lie}))
    report = look(published, keys)
    assert differing(report) == ["attachment"]
    assert any(f"{key} is {lie}" in check.text for check in report.checks)


def test_a_document_under_the_name_of_another_is_refused(published, keys):
    def exchange(value):
        one, two = (layer["annotations"] for layer in value["layers"])
        value["layers"][0]["annotations"], value["layers"][1]["annotations"] = two, one

    replace_attachment(published, PROOF_ARTIFACT, exchange)
    assert differing(look(published, keys)) == ["attachment"]


def test_an_annotation_and_a_file_that_nobody_signed_are_named_as_not_covered(published, keys):
    def add(value):
        value["annotations"]["org.opencontainers.image.vendor"] = "me"
        value["layers"].append({**value["layers"][0], "digest": "sha256:" + "1" * 64})

    replace_attachment(published, SBOM_ARTIFACT, add)
    report = look(published, keys)
    assert report.status == "verified"
    assert [text.partition(" ")[0] for text in uncovered(report)] == [
        "sha256:111111111111…",
        "org.opencontainers.image.vendor",
    ]


def test_layers_that_were_not_read_are_named_as_not_covered(published, keys):
    assert "not read" in uncovered(look(published, keys, layers=False))[0]


@pytest.mark.parametrize("by", ["a stranger", "the same signer", "nobody", "sigstore"])
def test_the_provenance_of_a_company_beside_ours_disturbs_nothing(published, keys, kit, tmp_path, by):
    slsa = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "x", "digest": {"sha256": published.done.digest[7:]}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {},
    }
    key = keys[0] if by == "the same signer" else kit.make_keys(tmp_path, "company")[0]
    envelope = envelope_of(sign(canonical(slsa), load_signer(key)))
    kind, data = {
        "nobody": (ENVELOPE_ARTIFACT, canonical(slsa)),
        "sigstore": (BUNDLE_ARTIFACT, canonical({"verificationMaterial": {}, "dsseEnvelope": envelope})),
    }.get(by, (ENVELOPE_ARTIFACT, canonical(envelope)))
    attach(published, kind, data)
    report = look(published, keys)
    assert report.status == "verified"
    assert ["slsa.dev" in text for text in uncovered(report)] == [True]


def test_an_attestation_of_a_company_that_cannot_be_read_disturbs_nothing(published, keys):
    kind = "https://cosign.sigstore.dev/attestation/v1"
    attach(published, BUNDLE_ARTIFACT, b"theirs", **{"dev.sigstore.bundle.predicateType": kind})
    del published.blobs["cells", "sha256:" + hashlib.sha256(b"theirs").hexdigest()]
    report = look(published, keys)
    assert report.status == "verified"
    assert [kind in text for text in uncovered(report)] == [True]


@pytest.mark.parametrize("kind", [STATEMENT, SLSA])
def test_one_of_ours_that_is_called_a_companys_is_missed(published, keys, kind):
    theirs = {"dev.sigstore.bundle.predicateType": "https://cosign.sigstore.dev/attestation/v1"}
    replace_attachment(published, kind, lambda value: value["annotations"].update(theirs))
    assert look(published, keys).exit_code == 8


@pytest.mark.parametrize("kind", [SBOM_ARTIFACT, PROOF_ARTIFACT, "application/spdx+json"])
def test_a_document_of_somebody_else_beside_ours_is_named_as_not_covered(published, keys, kind):
    attach(published, kind, b"{}", **{"io.envsmith.rungs": "framework step(gpu)"})
    report = look(published, keys)
    assert report.status == "verified"
    carrier = next(
        d for (_, d), (_, raw) in published.manifests.items() if b"framework step(gpu)" in raw and d[6] == ":"
    )
    assert f"{carrier[:19]}…, {kind}" in uncovered(report)
    assert report.to_json()["rungs"] == list(published.done.claim.rungs)


@pytest.mark.parametrize("path", [("predicate", "envsmith", "expires"), ("predicateType",)])
def test_an_edited_statement_is_called_changed_and_not_a_strangers(published, keys, path):
    def edit(value):
        blob = value["layers"][0]
        bundle = json.loads(published.blobs["cells", blob["digest"]])
        payload = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        _set(payload, path, "2099-01-01")
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(canonical(payload)).decode()
        raw = canonical(bundle)
        blob |= {"digest": "sha256:" + hashlib.sha256(raw).hexdigest(), "size": len(raw)}
        published.blobs["cells", blob["digest"]] = raw

    replace_attachment(published, STATEMENT, edit)
    report = look(published, keys)
    assert (differing(report), report.exit_code) == (["statement"], 8)
    (text,) = [check.text for check in report.checks if check.state.value == "differs"]
    assert "changed" in text
    assert "not by anybody whom you trust" not in text


@pytest.mark.parametrize(("kind", "part"), [(SLSA, "provenance"), (CYCLONEDX, "sbom")])
def test_a_signed_document_that_nothing_attached_carries_any_more_is_missed(published, keys, kind, part):
    del published.manifests["cells", attached(published, kind)[0]]
    report = look(published, keys)
    assert (differing(report), report.exit_code) == ([part], 8)


@pytest.mark.parametrize(("kind", "part"), [(SLSA, "provenance"), (CYCLONEDX, "sbom")])
def test_another_document_of_the_same_signer_in_the_place_of_ours_is_refused(published, keys, kind, part):
    other = {"_type": "x", "subject": [], "predicateType": kind, "predicate": {}}

    def exchange(value):
        raw = sign(canonical(other), load_signer(keys[0]))
        value["layers"][0] |= {"digest": "sha256:" + hashlib.sha256(raw).hexdigest(), "size": len(raw)}
        published.blobs["cells", value["layers"][0]["digest"]] = raw

    replace_attachment(published, kind, exchange)
    assert differing(look(published, keys)) == [part]


def test_what_cosign_lists_without_its_type_is_read_all_the_same(published, keys):
    def nameless(store, digest):
        return tuple(
            dataclasses.replace(d, artifact_type=EMPTY.media_type) for d in Repository.referrers(store, digest)
        )

    class Listing(Repository):
        referrers = nameless

    store = Listing(published.address, "cells", wait=lambda _s: None)
    assert verify(store, published.done.digest, trust_of([keys[1]], None, None), tag=CELL).status == "verified"


def test_a_bill_that_hides_a_package_of_the_image_is_refused(kit, published, keys):
    claim = published.done.claim
    system = (OsPackage(name="g++", version="4:12.2.0-3"), OsPackage(name="more", version="1"))
    bill = make_sbom(kit.make_lock(), claim.image, moment=claim.recorded, system=system).raw
    parts = {**claim.parts, "sbom.cdx.json": describe(bill, SBOM_ARTIFACT)}
    hiding = dataclasses.replace(claim, parts=parts, attests={})
    del published.manifests["cells", attached(published, STATEMENT)[0]]
    attach(published, SBOM_ARTIFACT, bill)
    attach(published, BUNDLE_ARTIFACT, sign(statement_bytes(hiding), load_signer(keys[0])))

    report = look(published, keys)

    assert differing(report) == ["sbom"]
    (text,) = [check.text for check in report.checks if check.state.value == "differs"]
    assert "libc6 2.36-9+deb12u10 is not listed" in text
    assert "more 1 is not in the image" in text


# -- what was published before --------------------------------------------------------------------------------------------


def again(reg, folder, keys, *, replace=False):
    target = Repository(reg.address, "cells", push=True)
    return publish(load_proof(folder), open_image(folder / "oci"), target, seal_with(keys[0]), Naming(replace=replace))


def test_a_newer_record_of_the_same_image_is_believed_and_the_earlier_one_stays_listed(
    published, keys, kit, tmp_path, capsys
):
    newer = kit.make_cell(tmp_path / "newer", record={"started": "2026-11-22T04:05:31+00:00", "ranks": 8})
    again(published, newer, keys)
    assert run(["verify", f"{published.repo()}:{CELL}", "--key", str(keys[1]), "--history", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["recorded"] == "2026-11-22T04:05:31+00:00"
    assert [c["text"][:10] for c in answer["checks"] if c["part"] == "history"] == ["2026-11-22", "2026-11-21"]


def test_an_image_that_took_over_the_tag_leads_to_the_records_of_the_one_before(published, keys, kit, tmp_path):
    images = [published.done.digest]
    for day in (22, 23):
        record = {"started": f"2026-11-{day}T04:05:31+00:00"}
        other = kit.make_cell(tmp_path / f"other{day}", salt=bytes([day]), record=record)
        images.append(again(published, other, keys, replace=True).digest)
    # The same command again says nothing of what was replaced: the chain holds.
    again(published, other, keys, replace=True)
    store = Repository(published.address, "cells")
    claims = history(store, images[-1], trust_of([keys[1]], None, None))
    assert list(dict.fromkeys(claim.image for claim in claims)) == images[::-1]
    assert look(published, keys).status == "verified"


def test_the_history_of_somebody_else_is_nobodys(published, kit, tmp_path):
    stranger = kit.make_keys(tmp_path, "stranger")
    store = Repository(published.address, "cells")
    assert history(store, published.done.digest, trust_of([stranger[1]], None, None)) == []


# -- the bundle --------------------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(cell, keys, tmp_path):
    path = tmp_path / "cell.tar"
    assert run(["publish", str(cell), "--bundle", str(path), "--key", str(keys[0]), "--json"]) == 0
    return path


def test_a_bundle_is_verified_without_a_network(bundle, keys, monkeypatch, capsys):
    monkeypatch.setattr("socket.socket.connect", lambda *_a: pytest.fail("a connection was made"))
    capsys.readouterr()
    assert run(["verify", "--bundle", str(bundle), "--key", str(keys[1]), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["cell"]) == ("verified", CELL)


def rewrite(path, edit):
    """Every member of a bundle through ``edit(name, data)``; ``None`` leaves it out."""
    with tarfile.open(path) as tar:
        members = [(m, tar.extractfile(m).read()) for m in tar]
    with tarfile.open(path, "w") as tar:
        for member, data in members:
            new = edit(member.name, data)
            if new is not None:
                member.size = len(new)
                tar.addfile(member, io.BytesIO(new))


def test_every_blob_of_a_bundle_is_needed_and_checked(bundle, keys):
    """Each file in turn is changed, then each is left out: never 0."""
    with tarfile.open(bundle) as tar:
        names = [m.name for m in tar]
    whole = bundle.read_bytes()
    assert len(names) == 18
    for name in names:
        for edit in (lambda _n, data: data[:-1] + bytes([data[-1] ^ 1]), lambda _n, _d: None):
            bundle.write_bytes(whole)
            rewrite(bundle, lambda n, d, name=name, edit=edit: edit(n, d) if n == name else d)
            code = run(["verify", "--bundle", str(bundle), "--key", str(keys[1])])
            assert code in {1, 3, 8}, name


@pytest.mark.parametrize("name", ["install.sh", "blobs/sha256/" + "0" * 64, "index.json", "./oci-layout"])
def test_a_bundle_with_a_file_too_many_is_refused(bundle, keys, name, capsys):
    with tarfile.open(bundle, "a") as tar:
        info = tarfile.TarInfo(name)
        info.size = 4
        tar.addfile(info, io.BytesIO(b"evil"))
    assert run(["verify", "--bundle", str(bundle), "--key", str(keys[1])]) == 8
    assert name.removeprefix("./") in capsys.readouterr().err


def test_a_bundle_with_a_link_is_refused(bundle, keys):
    with tarfile.open(bundle, "a") as tar:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = tarfile.SYMTYPE, "index.json"
        tar.addfile(info)
    assert run(["verify", "--bundle", str(bundle), "--key", str(keys[1])]) == 8


@pytest.mark.parametrize("rest", [b"evil", bytes(1 << 20)])
def test_a_bundle_that_goes_on_after_its_end_is_refused(bundle, keys, rest):
    with bundle.open("ab") as file:
        file.write(rest)
    assert run(["verify", "--bundle", str(bundle), "--key", str(keys[1])]) == 8


@pytest.mark.parametrize("keep", [0.05, 0.5, 0.8])
def test_a_bundle_that_is_cut_is_refused(bundle, keys, keep):
    data = bundle.read_bytes()
    bundle.write_bytes(data[: int(len(data) * keep)])
    assert run(["verify", "--bundle", str(bundle), "--key", str(keys[1])]) in {3, 8}


@pytest.mark.parametrize("data", [b"", b"\0" * 10240, b"not a tar", b"PK\x03\x04"])
def test_what_is_no_bundle_is_refused_without_a_traceback(tmp_path, keys, data, capsys):
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    assert run(["verify", "--bundle", str(path), "--key", str(keys[1])]) in {3, 8}
    assert "x.tar" in capsys.readouterr().err


def test_a_layout_in_a_folder_can_be_verified_too(bundle, keys, tmp_path):
    with tarfile.open(bundle) as tar:
        safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Debian's Python 3.11.2 has none
        tar.extractall(tmp_path / "layout", **safe)
    assert run(["verify", "--bundle", str(tmp_path / "layout"), CELL, "--key", str(keys[1])]) == 0
    assert run(["verify", "--bundle", str(tmp_path / "layout"), "other", "--key", str(keys[1])]) == 3


# -- usage -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["verify"], 2),
        (["verify", "a b"], 2),
        (["verify", "x", "--identity", "me"], 2),
        (["verify", "x", "--key", "/nowhere.pub"], 2),
        (["publish"], 2),
        (["publish", "--to", "127.0.0.1:9/x"], 2),
        (["publish", "--to", "127.0.0.1:9/x", "--key", "k", "--keyless"], 2),
        (["publish", "nowhere", "--to", "127.0.0.1:9/x", "--key", "k"], 2),
    ],
)
def test_usage(words, code, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(words) == code
    assert "hint" in capsys.readouterr().err or words[1:2] == ["x"]


def test_two_ways_to_sign_are_one_too_many(capsys):
    assert run(["publish", "--to", "127.0.0.1:9/x", "--key", "k", "--keyless"]) == 2

    assert "both of --key and --keyless are given" in capsys.readouterr().err


def test_a_repository_with_a_tag_is_no_place_to_publish_to(cell, keys, capsys):
    assert run(["publish", str(cell), "--to", "127.0.0.1:9/x:tag", "--key", str(keys[0])]) == 2


def test_an_image_that_is_not_there(published, keys, capsys):
    assert run(["verify", f"{published.repo()}:nothing", "--key", str(keys[1])]) == 2
    assert run(["verify", f"{published.repo()}@sha256:{'0' * 64}", "--key", str(keys[1])]) == 2


# -- rebuilding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False])
def test_rebuilding_compares_with_what_was_published(published, keys, monkeypatch, same):
    from envsmith.builder.engines import rebuild as engine_rebuild

    seen = {}

    def build_again(lock, digest, fetch, scratch, **_how):
        seen["lock"] = lock.text()
        fetch(scratch / "published" / "oci")
        seen["digest"] = open_image(scratch / "published" / "oci").manifest.digest
        assert open_image(scratch / "published" / "oci").identity == digest
        second = published.done.digest if same else "sha256:" + "9" * 64
        told = () if same else ("opt/cell/lib/x.py: other bytes",)
        return engine_rebuild.RebuildReport(same=same, first=seen["digest"], second=second, differences=told)

    monkeypatch.setattr(engine_rebuild, "rebuild", build_again)
    monkeypatch.setattr("envsmith.publish.named_image.choose_engine", lambda: type("Choice", (), {"engine": None}))
    image = NamedImage(store=Repository(published.address, "cells"), digest=published.done.digest, tag=CELL)
    report = verify_image(image, trust_of([keys[1]], None, None), layers=True, rebuild=True)
    assert seen["digest"] == published.done.digest
    assert json.loads(seen["lock"])["cell"]["id"] == CELL
    assert report.status == ("verified" if same else "differs")
    assert same or any("x.py" in c.text for c in report.checks)


def test_the_layout_of_the_build_is_no_proof(cell, keys):
    store = open_files(cell / "oci")
    report = verify(store, open_image(cell / "oci").manifest.digest, trust_of([keys[1]], None, None))
    assert report.status == "unproved"


def test_an_image_of_a_bundle_has_the_tag_that_was_given_or_else_the_first_one_that_names_it(kit, tmp_path):
    cell = kit.make_cell(tmp_path / "cell2")
    index = json.loads((cell / "oci" / "index.json").read_text())
    index["manifests"] = [{**index["manifests"][0], "annotations": {REF_NAME: tag}} for tag in ("one", "two")]
    (cell / "oci" / "index.json").write_text(json.dumps(index))

    found = {}
    for name in (None, "two"):
        with find_image(name or index["manifests"][0]["digest"], cell / "oci") as image:
            found[name] = image.tag

    assert found == {None: "one", "two": "two"}
