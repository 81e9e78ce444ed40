"""The parts by themselves: bill of materials, signatures, credentials, hostile manifests, the folder of images/."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import importlib.util
import json
import re

import pytest

from envsmith.cli.app import run
from envsmith.errors import ContentError, DataError, UsageError
from envsmith.model.lock import Artifact, BuiltWheel, CompiledSource, OsPackage, Pin
from envsmith.net.oci.access import login
from envsmith.net.oci.spec import index_bytes, parse_index, parse_manifest
from envsmith.publish.image_folder import read_folder, rendered
from envsmith.publish.proof import load_proof, parse_record
from envsmith.publish.provenance import provenance, provenance_differences
from envsmith.publish.sbom import make_sbom, sbom_differences
from envsmith.publish.sign import load_key, load_signer, open_envelope, sign

IMAGE = "sha256:" + "1a" * 32
MADE = dt.datetime(2026, 11, 21, 4, 5, 31, tzinfo=dt.timezone.utc)


# -- bill of materials -------------------------------------------------------------------------------------------------


@pytest.fixture
def bill(kit):
    return make_sbom(kit.make_lock(), IMAGE, moment=MADE).raw


def schema_error(bill):
    """What CycloneDX's own schema says against a bill."""
    schema = pytest.importorskip("cyclonedx.schema")
    validation = pytest.importorskip("cyclonedx.validation.json")
    return validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(bill.decode())


def test_the_bill_is_valid_cyclonedx(bill):
    assert schema_error(bill) is None


def test_the_bill_lists_packages_with_every_hash_the_system_and_the_base(kit, bill):
    found = {c["bom-ref"]: c for c in json.loads(bill)["components"]}
    assert found["pkg:pypi/torch@2.15.0"]["hashes"][0]["alg"] == "SHA-256"
    assert len(found["pkg:pypi/numpy@2.4.6"]["components"]) == 2
    assert "hashes" not in found["pkg:pypi/numpy@2.4.6"]
    source = found["pkg:pypi/deepspeed@0.19.8"]["components"]
    assert {c["name"] for c in source} == {"deepspeed-0.19.8.tar.gz", "deepspeed-0.19.8-py3-none-any.whl"}
    (system,) = [ref for ref in found if ref.startswith("pkg:deb/")]
    assert system == "pkg:deb/debian/g%2B%2B@4:12.2.0-3?distro=bookworm"
    assert found["base-image"]["version"] == "sha256:" + "ab" * 32
    assert "setuptools" not in bill.decode(), "what a wheel was built with is not in the image"


def test_the_bill_is_the_same_bytes_each_time(kit, bill):
    assert make_sbom(kit.make_lock(), IMAGE, moment=MADE).raw == bill


def test_a_good_bill_has_no_differences(kit, bill):
    assert sbom_differences(bill, kit.make_lock(), IMAGE) == []


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda b: b["components"].pop(), "not listed"),
        (lambda b: b["components"][-1]["components"][0]["hashes"][0].update(content="0" * 64), "other hashes"),
        (lambda b: b["components"].append({"bom-ref": "pkg:pypi/evil@1", "name": "evil"}), "not in the lock"),
        (lambda b: b["metadata"]["component"].update(purl="pkg:oci/x@sha256%3A00"), "another image"),
        (lambda b: [c.update(version="x") for c in b["components"] if c["bom-ref"] == "base-image"], "base image"),
        (lambda b: [c.update(version="x") for c in b["components"] if c["name"] == "g++"], "g++"),
        (lambda b: b.pop("metadata"), "envsmith did not write it"),
    ],
)
def test_a_bill_that_differs_from_the_lock(kit, bill, edit, why):
    value = json.loads(bill)
    edit(value)
    assert any(why in told for told in sbom_differences(json.dumps(value).encode(), kit.make_lock(), IMAGE))


SYSTEM = (OsPackage(name="g++:amd64", version="4:12.2.0-3"), OsPackage(name="tzdata:all", version="2024a-0"))


def test_the_bill_lists_every_package_that_was_read_from_the_image_with_its_architecture(kit):
    bill = make_sbom(kit.make_lock(), IMAGE, moment=MADE, system=SYSTEM).raw
    refs = {c["bom-ref"] for c in json.loads(bill)["components"] if c["bom-ref"].startswith("pkg:deb/")}
    assert refs == {
        "pkg:deb/debian/g%2B%2B@4:12.2.0-3?arch=amd64&distro=bookworm",
        "pkg:deb/debian/tzdata@2024a-0?arch=all&distro=bookworm",
    }
    assert schema_error(bill) is None
    assert sbom_differences(bill, kit.make_lock(), IMAGE, SYSTEM) == []
    # Nobody read the layers: what the lock says is compared.
    assert sbom_differences(bill, kit.make_lock(), IMAGE) == []


def test_a_bill_of_an_earlier_release_lists_the_packages_of_the_lock_alone(kit, bill):
    assert sbom_differences(bill, kit.make_lock(), IMAGE, SYSTEM) == []


def test_a_base_of_packages_is_listed_as_its_packages_and_as_no_image(kit):
    lock = kit.make_lock()
    packages = (OsPackage(name="libc6", version="2.36-9"),)
    base = dataclasses.replace(lock.base, name="packages", origin="packages", packages=packages)
    lock = dataclasses.replace(lock, base=base)
    made = make_sbom(lock, IMAGE, moment=MADE)
    bill = made.raw
    components = {c["bom-ref"]: c for c in json.loads(bill)["components"]}
    assert "pkg:deb/debian/libc6@2.36-9?distro=bookworm" in components
    assert "purl" not in components["base-image"]
    assert schema_error(bill) is None
    assert sbom_differences(bill, lock, IMAGE) == []
    predicate = provenance(lock, b"{}", made, finished=MADE)
    dependencies = predicate["buildDefinition"]["resolvedDependencies"]
    assert lock.base.digest[7:] not in {row["digest"]["sha256"] for row in dependencies if "digest" in row}
    assert {"uri": "pkg:deb/debian/libc6@2.36-9?distro=bookworm"} in dependencies
    assert provenance_differences(predicate, lock) == []


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda p: p["externalParameters"]["lock"]["digest"].update(sha256="0" * 64), "it is of another lock"),
        (lambda p: p["resolvedDependencies"].pop(), None),
        (lambda p: p["resolvedDependencies"].pop(0), "is not listed"),
        (lambda p: p["resolvedDependencies"].append({"digest": {"sha256": "0" * 64}}), "is not in the lock"),
        (lambda p: p.pop("resolvedDependencies"), "envsmith did not write it"),
        (lambda p: p.update(resolvedDependencies=7), "envsmith did not write it"),
    ],
)
def test_a_provenance_that_says_otherwise_than_the_lock_is_named(kit, edit, why):
    lock = dataclasses.replace(kit.make_lock(), resolver="uv 0.13.9")
    predicate = provenance(lock, b"{}", make_sbom(lock, IMAGE, moment=MADE), finished=MADE)
    # uv stands last, by its version alone: nothing in the lock has its digest.
    assert predicate["buildDefinition"]["resolvedDependencies"][-1] == {"uri": "pkg:pypi/uv@0.13.9"}
    edit(predicate["buildDefinition"])
    differences = provenance_differences(predicate, lock)
    assert (not differences) if why is None else any(why in line for line in differences)


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        (
            (SYSTEM[0], OsPackage(name="evil:all", version="1")),
            ["tzdata 2024a-0 is not listed", "evil 1 is not in the image"],
        ),
        ((*SYSTEM, OsPackage(name="evil:all", version="1")), ["evil 1 is not in the image"]),
        (SYSTEM[1:], ["g++ 4:12.2.0-3 is not listed"]),
    ],
)
def test_a_bill_that_lists_other_packages_than_the_image_has_differs(kit, listed, why):
    bill = make_sbom(kit.make_lock(), IMAGE, moment=MADE, system=listed).raw
    assert sbom_differences(bill, kit.make_lock(), IMAGE, SYSTEM) == why


# -- signatures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa"])
def test_a_signature_is_found_good_by_its_key_and_by_no_other(kit, tmp_path, kind):
    private, public = kit.make_keys(tmp_path, "a", kind=kind)
    _, foreign = kit.make_keys(tmp_path, "b", kind=kind)
    envelope = sign(b"{}", load_signer(private))
    assert open_envelope(envelope, [load_key(public)]).signer == load_key(public).keyid
    assert open_envelope(envelope, [load_key(foreign)]).signer == ""
    assert open_envelope(envelope, []).claimed == (load_key(public).keyid,)


def test_a_signature_over_other_bytes_is_not_good(kit, tmp_path):
    private, public = kit.make_keys(tmp_path)
    value = json.loads(sign(b'{"a": 1}', load_signer(private)))
    value["dsseEnvelope"]["payload"] = base64.b64encode(b'{"a": 2}').decode()
    assert open_envelope(json.dumps(value).encode(), [load_key(public)]).signer == ""


@pytest.mark.parametrize(
    ("of_the_key", "in_the_variable", "why"),
    [("secret", None, "its passphrase is not set"), (None, "secret", "it has no passphrase, and one is set")],
)
def test_a_passphrase_too_few_or_too_many_is_named(kit, tmp_path, monkeypatch, of_the_key, in_the_variable, why):
    private, _ = kit.make_keys(tmp_path, password=of_the_key.encode() if of_the_key else None)
    monkeypatch.delenv("ENVSMITH_KEY_PASSWORD", raising=False)
    if in_the_variable:
        monkeypatch.setenv("ENVSMITH_KEY_PASSWORD", in_the_variable)
    with pytest.raises(UsageError, match=why):
        load_signer(private)


def test_a_lock_that_is_not_text_is_refused_with_its_file(kit, tmp_path):
    folder = kit.make_cell(tmp_path / "cell")
    (folder / "lock.json").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"lock\.json: it is not UTF-8"):
        load_proof(folder)


def test_a_key_with_a_passphrase(kit, tmp_path, monkeypatch):
    private, public = kit.make_keys(tmp_path, password=b"secret")
    for value in (None, "wrong"):
        if value:
            monkeypatch.setenv("ENVSMITH_KEY_PASSWORD", value)
        with pytest.raises(UsageError, match="key"):
            load_signer(private)
    monkeypatch.setenv("ENVSMITH_KEY_PASSWORD", "secret")
    assert open_envelope(sign(b"x", load_signer(private)), [load_key(public)]).payload == b"x"


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_what_is_no_key(tmp_path, text):
    path = tmp_path / "k.pem"
    path.write_text(text)
    for load in (load_signer, load_key):
        with pytest.raises(UsageError, match=r"k\.pem"):
            load(path)


@pytest.mark.parametrize("owner", ["SIGSTORE", "COSIGN"])
def test_a_key_that_cosign_encrypted_says_how_both_can_use_one(tmp_path, owner):
    path = tmp_path / "cosign.key"
    path.write_text(
        f"-----BEGIN ENCRYPTED {owner} PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED {owner} PRIVATE KEY-----\n"
    )
    with pytest.raises(UsageError, match="cosign has encrypted it") as refused:
        load_signer(path)
    assert "cosign import-key-pair --key" in refused.value.hint


def test_a_private_key_is_not_asked_for_to_verify(kit, tmp_path):
    private, _ = kit.make_keys(tmp_path)
    with pytest.raises(UsageError, match="private"):
        load_key(private)


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[]", b'{"payload": 1, "payloadType": "x", "signatures": []}', b'{"payload": "AA=="}']
)
def test_what_is_no_envelope(raw):
    with pytest.raises(ContentError, match="statement"):
        open_envelope(raw, [])


def test_keyless_without_the_extra_or_an_identity_says_what_to_do(cell, capsys, monkeypatch):
    for name in (
        "SIGSTORE_ID_TOKEN",
        "ACTIONS_ID_TOKEN_REQUEST_URL",
        "GITHUB_ACTIONS",
        "GITLAB_CI",
        "BUILDKITE",
        "CIRCLECI",
    ):
        monkeypatch.delenv(name, raising=False)
    code = run(["publish", str(cell), "--bundle", str(cell / "b.tar"), "--keyless"])
    told = capsys.readouterr().err
    assert (code, "hint" in told) in {(6, True), (2, True), (5, True)}
    assert not (cell / "b.tar").exists()


@pytest.mark.skipif(importlib.util.find_spec("sigstore") is None, reason="sigstore is not installed")
def test_keyless_where_sigstore_cannot_be_reached_says_so_and_publishes_nothing(
    kit, cell, capsys, monkeypatch, tmp_path
):
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):  # no root of trust from an earlier run
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", "an.identity.token")
    with kit.registry() as reg:
        words = ["publish", str(cell), "--to", reg.repo(), "--bundle", str(cell / "b.tar"), "--keyless"]
        assert run(words) == 5
        assert reg.tags() == []
    told = capsys.readouterr().err
    assert "Cannot sign without a key" in told
    assert "--key FILE signs without a network" in told
    assert "Traceback" not in told
    assert "an.identity.token" not in told
    assert not (cell / "b.tar").exists()


def compiled_lock(kit, **fields):
    """The lock with a distribution that was built from an archive of the user's."""
    lock = kit.make_lock()
    source = CompiledSource(name="apex", variables={"APEX_CPP_EXT": "1"}, archive="https://host.example/a.tar.gz")
    artifact = Artifact(filename="apex-0.1.tar.gz", sha256="ab" * 32)
    pin = Pin(name="apex", version="0.1", layer="framework", artifacts=(artifact,), sdist=True)
    wheel = BuiltWheel(name="apex", filename="apex-0.1-cp312-cp312-linux_x86_64.whl", sha256="cd" * 32)
    made = dataclasses.replace(source, **fields)
    return dataclasses.replace(lock, pins=(*lock.pins, pin), wheels=(*lock.wheels, wheel), compiled=(made,))


def test_the_bill_says_from_whose_archive_and_how_a_distribution_was_compiled(kit):
    lock = compiled_lock(kit)
    bill = make_sbom(lock, IMAGE, moment=MADE).raw
    # No package of the index: what has this name there is another program.
    (found,) = (c for c in json.loads(bill)["components"] if c["name"] == "apex")
    assert found["purl"] == "pkg:generic/apex@0.1"
    assert {p["name"]: p["value"] for p in found["properties"]} == {
        "io.envsmith.archive": "https://host.example/a.tar.gz",
        "io.envsmith.compiled": "APEX_CPP_EXT=1",
        "io.envsmith.layer": "framework",
    }
    assert {h["content"] for file in found["components"] for h in file["hashes"]} == {"ab" * 32, "cd" * 32}
    assert sbom_differences(bill, lock, IMAGE) == []


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"archive": "https://host.example/b.tar.gz"}, ["apex was compiled otherwise"]),
        ({"variables": {}}, ["apex was compiled otherwise"]),
        ({"archive": ""}, ["pypi/apex@0.1 is not listed", "generic/apex@0.1 is not in the lock"]),
    ],
)
def test_another_archive_or_another_way_of_compiling_is_a_difference(kit, other, told):
    bill = make_sbom(compiled_lock(kit), IMAGE, moment=MADE).raw
    assert sbom_differences(bill, compiled_lock(kit, **other), IMAGE) == told


# -- credentials -------------------------------------------------------------------------------------------------------


def docker(tmp_path, monkeypatch, text):
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "config.json").write_text(text)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


def test_the_config_itself_an_identity_token_and_podmans_file(tmp_path, monkeypatch):
    auths = {"a.invalid": {"auth": "bWU6c2VjcmV0"}, "https://b.invalid": {"identitytoken": "idtok"}}
    docker(tmp_path, monkeypatch, json.dumps({"auths": auths}))
    more = tmp_path / "auth.json"
    more.write_text(json.dumps({"auths": {"c.invalid": {"auth": "bWU6cG9kbWFu"}}}))
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(more))
    assert login("a.invalid").basic == "bWU6c2VjcmV0"
    assert login("b.invalid").identity == "idtok"
    assert login("c.invalid").basic == "bWU6cG9kbWFu"
    assert login("d.invalid") is None
    assert "c2VjcmV0" not in repr(login("a.invalid"))


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ('{"Username": "me", "Secret": "x"}', ("bWU6eA==", "")),
        ('{"Username": "<token>", "Secret": "idtok"}', ("", "idtok")),
        ("credentials not found", None),
    ],
)
def test_a_helper_program(tmp_path, monkeypatch, said, wanted):
    docker(tmp_path, monkeypatch, json.dumps({"credHelpers": {"a.invalid": "mine"}}))
    program = tmp_path / "bin" / "docker-credential-mine"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nread -r asked\n[ \"$1 $asked\" = 'get a.invalid' ] && echo '{said}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    found = login("a.invalid")
    assert (found and (found.basic, found.identity)) == wanted


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"auths": []}', '{"credHelpers": {"a.invalid": "../../evil"}}', '{"credsStore": 1}']
)
def test_a_broken_configuration_is_no_login(tmp_path, monkeypatch, text):
    docker(tmp_path, monkeypatch, text)
    assert login("a.invalid") is None


# -- hostile documents -------------------------------------------------------------------------------------------------

DESCRIPTOR = {"mediaType": "a/b", "digest": "sha256:" + "0" * 64, "size": 3}
MANIFEST = {"schemaVersion": 2, "config": DESCRIPTOR, "layers": [DESCRIPTOR]}


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"schemaVersion": 1}, "schemaVersion"),
        ({"config": None}, "config"),
        ({"layers": {}}, "layers"),
        ({"layers": [{**DESCRIPTOR, "digest": "sha256:../../etc/passwd"}]}, "layers[0].digest"),
        ({"layers": [{**DESCRIPTOR, "digest": "md5:" + "0" * 32}]}, "layers[0].digest"),
        ({"layers": [{**DESCRIPTOR, "size": -1}]}, "layers[0].size"),
        ({"layers": [{**DESCRIPTOR, "size": True}]}, "layers[0].size"),
        ({"layers": [{**DESCRIPTOR, "size": 1 << 60}]}, "layers[0].size"),
        ({"layers": [DESCRIPTOR] * 1001}, "layers"),
        ({"config": {**DESCRIPTOR, "mediaType": "a\nb"}}, "config.mediaType"),
        ({"annotations": {"a": 1}}, "annotations"),
        ({"subject": []}, "subject"),
        ({"manifests": []}, "index"),
    ],
)
def test_a_hostile_manifest_is_refused_with_the_key_path(change, where):
    with pytest.raises(ContentError) as told:
        parse_manifest(json.dumps({**MANIFEST, **change}).encode(), "m")
    assert where in told.value.message


@pytest.mark.parametrize("raw", [b"", b"[" * 100_000, b"nonsense", b"[]", b" " * (5 << 20), b'"x"'])
def test_what_is_no_document_is_refused(raw):
    for parse in (parse_manifest, parse_index):
        with pytest.raises(ContentError):
            parse(raw, "m")


def test_an_index_is_read_back_as_it_was_written():
    rows = parse_index(
        json.dumps({"schemaVersion": 2, "manifests": [{**DESCRIPTOR, "annotations": {"a": "b"}}]}).encode(), "i"
    )
    assert parse_index(index_bytes(rows), "i") == rows


@pytest.mark.parametrize("field", ["cell", "lock", "passed", "rungs", "summary", "started"])
def test_a_record_without_a_field_is_refused_by_its_name(kit, field):
    record = kit.make_record(kit.make_lock(), "sha256:" + "5e" * 32)
    del record[field]
    with pytest.raises(DataError) as told:
        parse_record(json.dumps(record).encode(), "r")
    assert any(f"`{field}` is missing" in line for line in told.value.details)


# -- images/ -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def images(cell, keys, tmp_path):
    folder = tmp_path / "images"
    words = ["publish", str(cell), "--bundle", str(tmp_path / "b.tar"), "--key", str(keys[0])]
    assert run([*words, "--images-dir", str(folder)]) == 0
    return folder


def test_the_folder_of_an_image_renders_again_to_the_same_files(images):
    (folder,) = [path for path in images.iterdir() if path.is_dir()]
    lock, told, record = read_folder(folder)
    for name, text in rendered(lock, told, record).items():
        assert (folder / name).read_text() == text, name
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == {
        *rendered(lock, told, record),
        "record.json",
    }
    texts = [p.read_text() for p in folder.rglob("*") if p.is_file() and p.name != "Dockerfile"]
    assert not re.search(r"://[a-z]", "".join(texts))
    assert str(lock.cell.id) in (images / "README.md").read_text()


def test_a_cell_that_is_published_again_keeps_in_its_folder_what_was_before(kit, images, keys, tmp_path):
    (folder,) = [path for path in images.iterdir() if path.is_dir()]
    first = json.loads((folder / "image.json").read_text())
    assert "earlier" not in first
    assert first["system"] == {"g++:amd64": "4:12.2.0-3", "libc6:amd64": "2.36-9+deb12u10"}
    for day in (22, 23):
        newer = kit.make_cell(tmp_path / f"n{day}", record={"started": f"2026-11-{day}T04:05:31+00:00"})
        words = ["publish", str(newer), "--bundle", str(tmp_path / f"{day}.tar"), "--key", str(keys[0])]
        # Again changes nothing.
        for _ in range(2):
            assert run([*words, "--images-dir", str(images)]) == 0
    lock, facts, record = read_folder(folder)
    assert [before["recorded"][:10] for before in facts["earlier"]] == ["2026-11-22", "2026-11-21"]
    assert {before["image"] for before in facts["earlier"]} == {first["image"]}
    assert rendered(lock, facts, record)["image.json"] == (folder / "image.json").read_text()


@pytest.mark.parametrize("name", ["lock.json", "record.json", "image.json"])
def test_a_folder_whose_parts_do_not_belong_together_is_refused(images, name):
    (folder,) = [path for path in images.iterdir() if path.is_dir()]
    value = json.loads((folder / name).read_text())
    value[{"lock.json": "request", "record.json": "image", "image.json": "config"}[name]] = "sha256:" + "7" * 64
    (folder / name).write_text(json.dumps(value))
    with pytest.raises(DataError):
        read_folder(folder)


def test_another_image_digest_in_a_folder_is_another_bill(images):
    (folder,) = [path for path in images.iterdir() if path.is_dir()]
    lock, told, record = read_folder(folder)
    forged = {**told, "image": "sha256:" + "7" * 64}
    assert rendered(lock, forged, record)["image.json"] != json.dumps(forged, indent=1, sort_keys=True) + "\n"
