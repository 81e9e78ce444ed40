"""Pushing an image with its proof: order, resumption, tags, and what is not published."""

from __future__ import annotations

import base64
import datetime as dt
import json

import pytest

from envsmith.base.progress import silent
from envsmith.cli.app import run
from envsmith.errors import ContentError, EnvsmithError, NetworkError, UsageError
from envsmith.net.oci.image import open_image
from envsmith.net.oci.layout import open_files
from envsmith.net.oci.registry import Repository
from envsmith.net.oci.spec import Descriptor, canonical
from envsmith.publish.bundle import BundleWriter
from envsmith.publish.cell import seal_with
from envsmith.publish.proof import load_proof
from envsmith.publish.push import Naming, Seal, _opened, check_tags, image_names, publish

CELL = "ds0.19.8-torch2.15.0-cu132-py312"


def push(cell, keys, reg, repo="cells", *, also=(), piece=256 << 20, today=None, progress=silent, **naming):
    target = Repository(reg.address, repo, push=True, also=also, piece=piece, wait=lambda _s: None)
    proof, image, seal = load_proof(cell), open_image(cell / "oci"), seal_with(keys[0])
    return publish(proof, image, target, seal, Naming(**naming), today=today, progress=progress)


@pytest.mark.parametrize("api", [True, False])
def test_the_image_and_five_referrers_are_there_and_the_tag_spells_the_cell(kit, cell, keys, api):
    with kit.registry(referrers_api=api) as reg:
        done = push(cell, keys, reg)
        repository = Repository(reg.address, "cells")
        assert done.digest == repository.resolve(CELL) == open_image(cell / "oci").manifest.digest
        kinds = sorted(d.artifact_type for d in repository.referrers(done.digest))
    assert kinds == [
        "application/vnd.cyclonedx+json",
        *["application/vnd.dev.sigstore.bundle.v0.3+json"] * 3,
        "application/vnd.envsmith.proof.v1",
    ]
    fallback = [tag for tag in reg.tags() if tag.startswith("sha256-") and not tag.endswith(".att")]
    assert bool(fallback) is not api


def test_each_blob_is_told_with_its_place_size_and_way(kit, cell, keys):
    lines = []
    with kit.registry() as reg:
        push(cell, keys, reg, progress=lambda event: lines.append(event.text))
    blobs = open_image(cell / "oci").manifest.blobs
    told = [f"{number} of 3: {b.digest[:19]}… {b.size / 1e6:.1f} MB sent" for number, b in enumerate(blobs, start=1)]
    assert [line for line in lines if " MB " in line] == told


def test_a_flavour_is_in_the_tag(kit, tmp_path, keys):
    cell = kit.make_cell(tmp_path / "devel", flavour="devel")
    with kit.registry() as reg:
        assert push(cell, keys, reg).tags == (f"{CELL}-devel",)


def test_the_annotations_say_cell_lock_rungs_and_date(kit, cell, keys):
    with kit.registry() as reg:
        done = push(cell, keys, reg, source="https://example.invalid/me/cells")
        (proof,) = [d for d in Repository(reg.address, "cells").referrers(done.digest) if "proof" in d.artifact_type]
    told = proof.annotations
    assert told["io.envsmith.cell"] == CELL
    assert told["io.envsmith.lock"] == done.claim.lock
    assert told["io.envsmith.rungs"].endswith("collectives(cpu),framework step(cpu)")
    assert told["io.envsmith.recorded"] == "2026-11-21T04:05:31Z"
    assert told["org.opencontainers.image.source"] == "https://example.invalid/me/cells"
    assert "io.envsmith.expired" not in told


def test_the_tag_is_written_last(kit, cell, keys):
    with kit.registry() as reg:
        push(cell, keys, reg)
        puts = [path for method, path in reg.log if method == "PUT"]
    assert puts[-1].endswith(f"/manifests/{CELL}")
    assert sum(path.endswith(f"/manifests/{CELL}") for path in puts) == 1


def test_a_second_push_sends_nothing_and_attaches_nothing(kit, cell, keys):
    with kit.registry() as reg:
        push(cell, keys, reg)
        sent, there = reg.sent, dict(reg.manifests)
        again = push(cell, keys, reg)
        assert reg.sent == sent
        assert reg.manifests == there
    assert again.blobs == {"kept": 3}


def test_a_key_that_never_signs_twice_alike_attaches_nothing_twice(kit, cell, tmp_path):
    ecdsa = kit.make_keys(tmp_path, "ec", kind="ecdsa")
    with kit.registry() as reg:
        push(cell, ecdsa, reg)
        before = dict(reg.manifests)
        push(cell, ecdsa, reg)
        assert reg.manifests == before


def tagged_envelopes(reg, digest):
    """The rows of the tag where cosign looked before bundles."""
    return json.loads(reg.manifests["cells", f"{digest.replace(':', '-')}.att"][1])["layers"]


def test_cosign_2_finds_the_envelopes_under_its_tag_beside_those_of_a_company(kit, cell, keys):
    with kit.registry() as reg:
        done = push(cell, keys, reg)
        ours = tagged_envelopes(reg, done.digest)
        assert [row["annotations"]["predicateType"] for row in ours] == [
            "https://slsa.dev/provenance/v1",
            "https://cyclonedx.org/bom",
            "https://in-toto.io/attestation/test-result/v0.1",
        ]
        theirs = {"mediaType": "application/vnd.dsse.envelope.v1+json", "digest": kit.digest(b"theirs"), "size": 6}
        reg.blobs["cells", theirs["digest"]] = b"theirs"
        tag = f"{done.digest.replace(':', '-')}.att"
        kind, raw = reg.manifests["cells", tag]
        reg.manifests["cells", tag] = (kind, json.dumps({**json.loads(raw), "layers": [theirs]}).encode())
        push(cell, keys, reg)
        assert [row["digest"] for row in tagged_envelopes(reg, done.digest)] == [
            theirs["digest"],
            *(row["digest"] for row in ours),
        ]


def test_a_keyless_bundle_is_not_listed_where_cosign_2_looks_for_keys(kit, cell):
    envelope = {"payload": "e30=", "payloadType": "application/vnd.in-toto+json", "signatures": []}
    bundle = canonical({"verificationMaterial": {"certificate": {}}, "dsseEnvelope": envelope})
    with kit.registry() as reg:
        target = Repository(reg.address, "cells", push=True)
        publish(load_proof(cell), open_image(cell / "oci"), target, Seal(close=lambda _payload: bundle))
        assert reg.tags() == [CELL]


def test_the_provenance_names_request_lock_base_packages_every_file_and_the_builder(kit, cell, keys):
    lock = kit.make_lock()
    with kit.registry() as reg:
        done = push(cell, keys, reg)
        (row,) = [r for r in tagged_envelopes(reg, done.digest) if "slsa" in r["annotations"]["predicateType"]]
        payload = json.loads(base64.b64decode(json.loads(reg.blobs["cells", row["digest"]])["payload"]))
    assert payload["subject"][0]["digest"]["sha256"] == done.digest[7:]
    definition, details = payload["predicate"]["buildDefinition"], payload["predicate"]["runDetails"]
    assert definition["externalParameters"] == {
        "request": lock.request,
        "lock": {"name": "lock.json", "digest": {"sha256": lock.digest[7:]}},
    }
    stated = {row["digest"]["sha256"] for row in definition["resolvedDependencies"] if "digest" in row}
    pins = (*lock.pins, *lock.build_pins)
    assert stated == {lock.base.digest[7:], *(file.sha256 for pin in pins for file in pin.artifacts)}
    uris = [row.get("uri", "") for row in definition["resolvedDependencies"]]
    assert "pkg:deb/debian/g%2B%2B@4:12.2.0-3?arch=amd64&distro=bookworm" in uris
    assert set(details["builder"]) == {"id", "version"}
    assert details["metadata"] == {"finishedOn": "2026-11-21T04:05:31Z"}
    assert {row["name"] for row in details["byproducts"]} >= {"record.json", "sbom.cdx.json"}


def test_layers_are_taken_over_from_another_repository(kit, cell, keys):
    with kit.registry() as reg:
        push(cell, keys, reg, "one")
        done = push(cell, keys, reg, "two", also=("one",))
    assert done.blobs == {"mounted": 3}


def test_further_tags_move_and_the_tag_of_the_cell_does_not(kit, tmp_path, keys):
    first, second = kit.make_cell(tmp_path / "a"), kit.make_cell(tmp_path / "b", salt=b"other")
    with kit.registry() as reg:
        push(first, keys, reg, tags=("latest",))
        before = dict(reg.manifests)
        with pytest.raises(EnvsmithError, match="another image already") as refused:
            push(second, keys, reg, tags=("latest",))
        assert refused.value.exit_code == 1
        assert reg.manifests == before
        done = push(second, keys, reg, tags=("latest",), replace=True)
        repository = Repository(reg.address, "cells")
        assert repository.resolve("latest") == repository.resolve(CELL) == done.digest


def test_the_same_image_packed_otherwise_takes_the_tag_over(kit, cell, keys):
    with kit.registry() as reg:
        first = push(cell, keys, reg)
        words = ["publish", str(cell), "--to", reg.repo(), "--key", str(keys[0]), "--compress", "gzip"]
        assert run(words) == 0
        repository = Repository(reg.address, "cells")
        assert repository.resolve(CELL) != first.digest
        assert run(["verify", f"{reg.repo()}:{CELL}", "--key", str(keys[1])]) == 0


@pytest.mark.parametrize("tag", ["", "a b", "-a", "a" * 129, "sha256-" + "0" * 64, "a/b", "a:b"])
def test_what_is_no_tag_is_refused(tag):
    with pytest.raises(UsageError):
        check_tags((tag,))


# -- the gate ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"passed": False, "summary": "rank 2 never entered"}, "failed: rank 2 never entered"),
        ({"lock": "sha256:" + "1" * 64}, "of lock sha256:1111"),
        ({"image": None}, "virtual environment"),
        ({"image": "sha256:" + "2" * 64}, "of image sha256:2222"),
        (
            {
                "cell": "ds0.19.8-torch2.14.1-cu130-py312",
                "components": {"deepspeed": "0.19.8", "torch": "2.14.1+cu130", "cuda": "13.0", "python": "3.12"},
            },
            "of cell ds0.19.8-torch2.14.1",
        ),
    ],
)
def test_a_cell_without_a_passing_record_of_this_image_is_not_published(kit, tmp_path, keys, record, why):
    cell = kit.make_cell(tmp_path / "cell2", record=record)
    with kit.registry() as reg:
        with pytest.raises(EnvsmithError) as refused:
            push(cell, keys, reg)
        assert refused.value.exit_code == 1
        assert any(why in line for line in refused.value.details)
        assert not reg.log


def test_a_cell_without_a_record_is_not_published(kit, tmp_path, keys, capsys):
    cell = kit.make_cell(tmp_path / "cell2", record=False)
    with kit.registry() as reg:
        assert run(["publish", str(cell), "--to", reg.repo(), "--key", str(keys[0])]) == 1
        assert not reg.log
    assert "only proved cells are published" in capsys.readouterr().err


def test_a_failed_record_is_refused_before_the_image_is_asked_for(kit, tmp_path, keys, capsys):
    failure = {"rung": "collectives(cpu)", "symptom": "NCCL timed out", "log": ["rank 2 waits", "rank 2 is killed"]}
    changes = {"passed": False, "summary": "rank 2 never entered", "failure": failure}
    cell = kit.make_cell(tmp_path / "cell2", record=changes)
    (cell / "oci" / "index.json").unlink()
    assert run(["publish", str(cell), "--to", "127.0.0.1:9/x", "--key", str(keys[0])]) == 1
    printed = capsys.readouterr().err
    assert all(
        text in printed for text in ("rank 2 never entered", "NCCL timed out", "rank 2 is killed", "record.json")
    )
    assert "build --oci" not in printed


@pytest.mark.parametrize("name", ["manifest", "config"])
def test_a_record_may_name_the_image_by_its_manifest_or_configuration(kit, tmp_path, keys, name):
    image = open_image(kit.make_cell(tmp_path / "cell2") / "oci")
    cell = kit.make_cell(tmp_path / "cell3", record={"image": image_names(image)[name]})
    with kit.registry() as reg:
        assert push(cell, keys, reg).digest == image.manifest.digest


def test_an_expired_record_is_published_and_marked(kit, cell, keys):
    with kit.registry() as reg:
        expires = push(cell, keys, reg).claim.expires
        assert dt.date(2026, 11, 21) < expires
        assert not push(cell, keys, reg, today=expires).expired
        late = expires + dt.timedelta(days=1)
        done = push(cell, keys, reg, "more", today=late)
        told = [
            d.annotations.get("io.envsmith.expired") for d in Repository(reg.address, "more").referrers(done.digest)
        ]
    assert done.expired
    assert told == ["true"] * 5


@pytest.mark.parametrize("broken", ["{", "[]", '{"cell": 1}', '{"passed": "yes"}'])
def test_a_broken_record_is_exit_code_3(cell, keys, broken, capsys):
    (cell / "record.json").write_text(broken)
    assert run(["publish", str(cell), "--to", "127.0.0.1:9/x", "--key", str(keys[0])]) == 3
    assert "record" in capsys.readouterr().err


def test_a_layout_that_was_changed_after_the_build_is_not_sent(cell):
    layer = max((cell / "oci" / "blobs" / "sha256").iterdir(), key=lambda p: p.stat().st_size)
    layer.write_bytes(layer.read_bytes()[:-1] + b"!")
    with pytest.raises(ContentError, match="other bytes"):
        open_image(cell / "oci", check=True)


def test_a_layer_that_goes_away_while_it_is_sent_is_named(cell):
    image = open_image(cell / "oci")
    layer = image.manifest.layers[0]
    (cell / "oci/blobs/sha256" / layer.digest[7:]).unlink()

    with pytest.raises(ContentError, match=rf"{layer.digest[:19]}… of .*: it was removed meanwhile\.$"):
        _opened(image, layer)


def test_an_image_whose_labels_name_another_lock_is_not_sent(kit, tmp_path, keys):
    cell, other = kit.make_cell(tmp_path / "a2"), kit.make_cell(tmp_path / "b2", nccl="2.30.7")
    (cell / "oci").rename(tmp_path / "away")
    (other / "oci").rename(cell / "oci")
    record = json.loads((cell / "record.json").read_text())
    (cell / "record.json").write_text(json.dumps({**record, "image": open_image(cell / "oci").identity}))
    with kit.registry() as reg:
        with pytest.raises(ContentError, match="labels"):
            push(cell, keys, reg)
        assert not reg.log


# -- what breaks -------------------------------------------------------------------------------------------------------


def _requests(kit, cell, keys):
    with kit.registry(referrers_api=False) as reg:
        push(cell, keys, reg)
        return list(reg.log)


@pytest.mark.slow
def test_whatever_request_fails_no_tag_is_left_and_the_next_push_ends_well(kit, cell, keys):
    """Every single request of a push refused once for good, on a registry without the referrers API (which asks for most)."""
    count = len(_requests(kit, cell, keys))
    tagged = []
    for number in range(1, count):
        with kit.registry(referrers_api=False) as reg:
            reg.faults = [kit.Fault("", "", status=418)]
            seen = iter(range(1, 10_000))
            reg.faults[0].hits = lambda _m, _p, seen=seen, number=number: next(seen) >= number
            try:
                push(cell, keys, reg)
            except NetworkError:
                assert CELL not in reg.tags(), f"request {number}"
            else:
                tagged.append(number)
            if number % 4 == 0:  # each would take long
                reg.faults = []
                done = push(cell, keys, reg)
                assert Repository(reg.address, "cells").resolve(CELL) == done.digest
    assert tagged == []


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_registry_that_comes_right_again_is_asked_again(kit, cell, keys, status):
    with kit.registry() as reg:
        reg.faults = [
            kit.Fault(method, ".", at=2, times=2, status=status) for method in ("HEAD", "POST", "PATCH", "PUT", "GET")
        ]
        done = push(cell, keys, reg)
        assert Repository(reg.address, "cells").resolve(CELL) == done.digest


def test_a_broken_upload_goes_on_where_it_broke(kit, cell, keys):
    with kit.registry() as reg:
        reg.faults = [kit.Fault("PATCH", "uploads", at=3, after=5_000)]
        done = push(cell, keys, reg, piece=6_000)
        patches = [path for method, path in reg.log if method == "PATCH"]
        assert Repository(reg.address, "cells").resolve(CELL) == done.digest
        size = sum(len(data) for (repo, _), data in reg.blobs.items() if repo == "cells")
        # Counted without the 5,000 bytes of the piece that broke: they arrived, and were not sent again.
        assert reg.sent == size - 5_000
    assert len(patches) > 5


def test_an_upload_that_the_registry_forgot_begins_again(kit, cell, keys):
    with kit.registry() as reg:
        reg.faults = [
            kit.Fault("PATCH", "uploads", at=3, after=10),
            kit.Fault("GET", "uploads", status=404),
        ]
        done = push(cell, keys, reg, piece=6_000)
        assert Repository(reg.address, "cells").resolve(CELL) == done.digest


def test_an_upload_that_breaks_again_and_again_is_an_error_that_says_how_to_go_on(kit, cell, keys):
    with kit.registry() as reg:
        reg.faults = [kit.Fault("PATCH", "uploads", times=1000)]
        with pytest.raises(NetworkError, match="broke 5 times") as told:
            push(cell, keys, reg)
        assert "same command again" in told.value.hint
        assert reg.tags() == []


def test_the_words_of_the_registry_are_passed_on(kit, cell, keys):
    with kit.registry() as reg:
        reg.faults = [kit.Fault("PUT", "manifests", status=413)]
        with pytest.raises(NetworkError, match=r"413.*OUCH told to fail"):
            push(cell, keys, reg)


# -- logins ------------------------------------------------------------------------------------------------------------


def login(tmp_path, monkeypatch, reg, text="me:secret"):
    import base64

    folder = tmp_path / "docker"
    folder.mkdir(exist_ok=True)
    auth = base64.b64encode(text.encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {reg.address: {"auth": auth}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))


@pytest.mark.parametrize("how", [{"basic": "me:secret"}, {"token": "t0ken"}])
def test_credentials_as_docker_keeps_them(kit, cell, keys, tmp_path, monkeypatch, how):
    with kit.registry(**how) as reg:
        login(tmp_path, monkeypatch, reg)
        assert push(cell, keys, reg).tags == (CELL,)
        if "token" in how:
            assert reg.scopes == ["repository:cells:pull,push"]


@pytest.mark.parametrize("how", [{"basic": "me:secret"}, {"token": "t0ken"}])
@pytest.mark.parametrize("known", [True, False])
def test_no_or_wrong_credentials_are_denied_with_the_way_out(kit, cell, keys, tmp_path, monkeypatch, how, known):
    with kit.registry(**how) as reg:
        if known:
            login(tmp_path, monkeypatch, reg, "me:wrong")
        with pytest.raises(NetworkError, match="denies access") as told:
            push(cell, keys, reg)
        assert f"docker login {reg.address}" in told.value.hint


def test_a_registry_that_is_not_there(cell, keys, capsys):
    assert run(["publish", str(cell), "--to", "127.0.0.1:9/x", "--key", str(keys[0])]) == 5
    assert "Cannot reach" in capsys.readouterr().err


# -- bundles -----------------------------------------------------------------------------------------------------------


def test_a_bundle_is_the_same_bytes_each_time_and_appears_only_whole(kit, cell, keys, tmp_path):
    paths = [tmp_path / "one.tar", tmp_path / "two.tar"]
    for path in paths:
        with BundleWriter(path) as bundle:
            publish(load_proof(cell), open_image(cell / "oci"), bundle, seal_with(keys[0]))
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with pytest.raises(ZeroDivisionError), BundleWriter(tmp_path / "three.tar") as bundle:
        bundle.push_blob(Descriptor(media_type="a/b", digest="sha256:" + "0" * 64, size=1), lambda: 1 // 0)
    assert sorted(p.name for p in tmp_path.glob("*.tar")) == ["one.tar", "two.tar"]
    assert not list(tmp_path.glob(".three*"))
    with open_files(paths[0]) as store:
        assert store.resolve(CELL) == open_image(cell / "oci").manifest.digest
