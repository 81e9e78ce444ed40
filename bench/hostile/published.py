"""Tamper with a published image and everything that speaks of it, and ask ``envsmith verify`` for its answer.

Each try changes one thing of a published cell: bytes of a file, a document with every digest above it made to fit, the
statement, its signature, annotations, what is listed, or the files of a bundle. Then the verb judges it as a folder, as
a tar or in a registry. What somebody attaches beside the proof must not disturb it.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import importlib.util
import io
import json
import os
import random
import sys
import tarfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from envsmith.cli.app import run
from envsmith.net.oci.spec import EMPTY, IMAGE_MANIFEST, canonical
from envsmith.publish.sign import load_signer, sign
from hostile import Tally

TITLE = "tamperings of a published image"
GOAL = 400
FAILURES = ("verified wrongly", "refused wrongly", "internal errors")

_ROOT = Path(__file__).parents[2]
_FACTS = ("digest", "cell", "lock", "rungs", "recorded", "expires")
_REF = "org.opencontainers.image.ref.name"
_CELL = "ds0.19.8-torch2.15.0-cu132-py312"
_PROOF, _SBOM = "application/vnd.envsmith.proof.v1", "application/vnd.cyclonedx+json"
_BUNDLE, _ENVELOPE = "application/vnd.dev.sigstore.bundle.v0.3+json", "application/vnd.in-toto+json"
# The three signed statements, by the type of their predicate.
_STATEMENT = "https://in-toto.io/attestation/test-result/v0.1"
_SLSA, _BILL = "https://slsa.dev/provenance/v1", "https://cyclonedx.org/bom"
_PREDICATE = "dev.sigstore.bundle.predicateType"
_SIGNED = (_STATEMENT, _SLSA, _BILL)
_ALL = (_PROOF, _SBOM, *_SIGNED)
_LAYOUT_FILES = ("index.json", "oci-layout")


def _kit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("publish_kit", _ROOT / "tests/unit/publish/publish_kit.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules["publish_kit"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


KIT = _kit()


@dataclass
class Layout:
    """A published image as values that can be changed: the entries of the index, the blobs, further files of a tar."""

    entries: list[dict[str, Any]]
    blobs: dict[str, bytes]
    signer: Any
    stranger: Any
    files: list[tuple[str, bytes]] = field(default_factory=list)
    after: bytes = b""
    version: bytes = b'{"imageLayoutVersion":"1.0.0"}'

    @property
    def image(self) -> dict[str, Any]:
        return next(e for e in self.entries if "subject" not in json.loads(self.blobs[e["digest"]]))

    def attachment(self, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return an entry and its manifest."""
        for entry in self.entries:
            manifest = json.loads(self.blobs[entry["digest"]])
            if kind in {manifest.get("artifactType"), manifest.get("annotations", {}).get(_PREDICATE)}:
                return entry, manifest
        raise LookupError(kind)

    def put(self, data: bytes) -> dict[str, Any]:
        """Keep bytes as a blob and return what a descriptor says of them."""
        self.blobs[KIT.digest(data)] = data
        return {"digest": KIT.digest(data), "size": len(data)}

    def rewrite(self, entry: dict[str, Any], manifest: dict[str, Any]) -> None:
        """Give an entry another manifest, with a digest that fits."""
        self.blobs.pop(entry["digest"], None)
        entry |= self.put(canonical(manifest))

    def attach(self, kind: str, data: bytes, **annotations: str) -> None:
        """Attach a document of any kind to the image."""
        image = self.image
        self.put(b"{}")
        manifest = {
            "schemaVersion": 2,
            "mediaType": IMAGE_MANIFEST,
            "artifactType": kind,
            "config": EMPTY.to_json(),
            "layers": [{"mediaType": kind, **self.put(data)}],
            "subject": {key: image[key] for key in ("mediaType", "digest", "size")},
            "annotations": annotations,
        }
        self.entries.append({"mediaType": IMAGE_MANIFEST, **self.put(canonical(manifest))})

    def new_image(self, manifest: dict[str, Any]) -> None:
        """Replace the image's manifest, and make everything that is attached refer to the new one."""
        image = self.image
        attached = [e for e in self.entries if e is not image]
        self.rewrite(image, manifest)
        for entry in attached:
            value = json.loads(self.blobs[entry["digest"]])
            value["subject"] |= {key: image[key] for key in ("digest", "size")}
            self.rewrite(entry, value)

    def documents(self) -> dict[str, bytes]:
        """Return every file of the layout."""
        index = canonical({"schemaVersion": 2, "manifests": self.entries})
        blobs = {f"blobs/sha256/{digest[7:]}": data for digest, data in self.blobs.items()}
        return {"oci-layout": self.version, "index.json": index, **blobs}

    def as_tar(self, path: Path) -> None:
        with tarfile.open(path, "w") as tar:
            for name, data in [*self.documents().items(), *self.files]:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                if name.endswith(".link"):
                    info.type, info.linkname, info.size = tarfile.SYMTYPE, "index.json", 0
                tar.addfile(info, io.BytesIO(data))
        with path.open("ab") as file:
            file.write(self.after)

    def as_folder(self, path: Path) -> None:
        for name, data in [*self.documents().items(), *self.files]:
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def fill(self, registry: Any) -> None:
        for digest, data in self.blobs.items():
            registry.blobs["cells", digest] = data
        for entry in self.entries:
            data = self.blobs.get(entry["digest"])
            if data is not None:
                names = [entry["digest"], *filter(None, [entry.get("annotations", {}).get(_REF)])]
                registry.manifests |= {("cells", name): (IMAGE_MANIFEST, data) for name in names}


# -- what is tampered with, and what verify may answer ----------------------------------------------------------------
# "refuse": anything but verified. "name": verified, with a row that says what is not covered.
# "same": any answer whose facts are the signer's.

Tampering = Callable[[Layout, Layout, random.Random], str]
TAMPERINGS: dict[str, tuple[Tampering, str]] = {}
_ANYWHERE, _BUNDLES, _TAR = "folder tar registry", "folder tar", "tar"


def tampering(places: str = _ANYWHERE) -> Callable[[Tampering], Tampering]:
    """Register a way to tamper, with the places in which it is possible."""

    def register(function: Tampering) -> Tampering:
        TAMPERINGS[function.__name__] = (function, places)
        return function

    return register


def _any_blob(layout: Layout, rng: random.Random) -> str:
    return rng.choice(sorted(digest for digest in layout.blobs if layout.blobs[digest] != b"{}"))


@tampering()
def flip_a_bit(layout: Layout, _other: Layout, rng: random.Random) -> str:
    digest = _any_blob(layout, rng)
    data = bytearray(layout.blobs[digest])
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    layout.blobs[digest] = bytes(data)
    return "refuse"


@tampering(_BUNDLES)
def flip_a_bit_of_any_file(layout: Layout, _other: Layout, rng: random.Random) -> str:
    digest = rng.choice(sorted(layout.blobs))
    data = bytearray(layout.blobs[digest])
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    layout.blobs[digest] = bytes(data)
    return "refuse"


@tampering()
def cut_a_blob(layout: Layout, _other: Layout, rng: random.Random) -> str:
    digest = _any_blob(layout, rng)
    layout.blobs[digest] = layout.blobs[digest][: rng.randrange(len(layout.blobs[digest]))]
    return "refuse"


@tampering()
def lengthen_a_blob(layout: Layout, _other: Layout, rng: random.Random) -> str:
    layout.blobs[_any_blob(layout, rng)] += rng.randbytes(rng.choice([1, 100, 100_000]))
    return "refuse"


@tampering()
def remove_a_blob(layout: Layout, _other: Layout, rng: random.Random) -> str:
    del layout.blobs[_any_blob(layout, rng)]
    return "refuse"


@tampering()
def exchange_two_blobs(layout: Layout, _other: Layout, rng: random.Random) -> str:
    one, two = rng.sample(sorted(d for d in layout.blobs if layout.blobs[d] != b"{}"), 2)
    layout.blobs[one], layout.blobs[two] = layout.blobs[two], layout.blobs[one]
    return "refuse"


@tampering()
def take_an_attachment_off_the_list(layout: Layout, _other: Layout, rng: random.Random) -> str:
    entry, _ = layout.attachment(rng.choice(_ALL))
    layout.entries.remove(entry)
    del layout.blobs[entry["digest"]]
    return "refuse"


@tampering()
def list_the_attachment_of_another_image(layout: Layout, other: Layout, rng: random.Random) -> str:
    kind = rng.choice(_ALL)
    layout.entries.remove(layout.attachment(kind)[0])
    layout.entries.append(other.attachment(kind)[0])
    layout.blobs |= other.blobs
    return "refuse"


@tampering()
def attach_the_documents_of_another_image(layout: Layout, other: Layout, rng: random.Random) -> str:
    kind = rng.choice(_ALL)
    entry, manifest = other.attachment(kind)
    layout.blobs |= {blob["digest"]: other.blobs[blob["digest"]] for blob in manifest["layers"]}
    manifest["subject"] = layout.attachment(kind)[1]["subject"]
    layout.entries.remove(layout.attachment(kind)[0])
    entry = dict(entry)
    layout.entries.append(entry)
    layout.rewrite(entry, manifest)
    return "refuse"


@tampering()
def attach_a_second_proof_of_another_image(layout: Layout, other: Layout, rng: random.Random) -> str:
    _, manifest = other.attachment(rng.choice([_PROOF, _SBOM]))
    layout.blobs |= {blob["digest"]: other.blobs[blob["digest"]] for blob in manifest["layers"]}
    manifest["subject"] = layout.attachment(_PROOF)[1]["subject"]
    layout.entries.append({"mediaType": IMAGE_MANIFEST, **layout.put(canonical(manifest))})
    return "name"


@tampering()
def forge_an_annotation(layout: Layout, _other: Layout, rng: random.Random) -> str:
    lies = {
        "io.envsmith.rungs": "framework step(gpu)",
        "io.envsmith.expires": "2099-01-01",
        "io.envsmith.expired": rng.choice(["true", "false"]),
        "io.envsmith.recorded": "2030-01-01T00:00:00Z",
        "io.envsmith.cell": "ds0.19.8-torch2.99.0-cu132-py312",
        "io.envsmith.lock": "sha256:" + "0" * 64,
        "org.opencontainers.image.version": "another cell",
    }
    entry, manifest = layout.attachment(rng.choice(_ALL))
    key = rng.choice(sorted(lies))
    manifest["annotations"][key] = lies[key]
    layout.rewrite(entry, manifest)
    return "refuse"


@tampering()
def add_an_annotation(layout: Layout, _other: Layout, rng: random.Random) -> str:
    entry, manifest = layout.attachment(rng.choice(_ALL))
    manifest["annotations"][rng.choice(["io.envsmith.gpu", "org.opencontainers.image.vendor"])] = "proved on H200"
    layout.rewrite(entry, manifest)
    return "name"


@tampering(_BUNDLES)
def annotate_the_list(layout: Layout, _other: Layout, rng: random.Random) -> str:
    rng.choice(layout.entries).setdefault("annotations", {})["io.envsmith.rungs"] = "framework step(gpu)"
    return "same"


@tampering()
def call_a_document_by_another_name(layout: Layout, _other: Layout, rng: random.Random) -> str:
    entry, manifest = layout.attachment(rng.choice([_PROOF, _SBOM]))
    rng.choice(manifest["layers"])["annotations"]["org.opencontainers.image.title"] = "other.json"
    layout.rewrite(entry, manifest)
    return "refuse"


@tampering()
def change_the_kind_of_an_attachment(layout: Layout, _other: Layout, rng: random.Random) -> str:
    entry, manifest = layout.attachment(rng.choice(_ALL))
    kinds = {_PROOF, _SBOM, _BUNDLE, "application/x"} - {manifest["artifactType"]}
    manifest["artifactType"] = rng.choice(sorted(kinds))
    layout.rewrite(entry, manifest)
    return "refuse"


@tampering()
def put_a_file_into_an_attachment(layout: Layout, _other: Layout, rng: random.Random) -> str:
    entry, manifest = layout.attachment(rng.choice([_PROOF, _SBOM]))
    manifest["layers"].append({"mediaType": "application/json", **layout.put(rng.randbytes(40))})
    layout.rewrite(entry, manifest)
    return "name"


@tampering()
def take_a_document_out_of_an_attachment(layout: Layout, _other: Layout, rng: random.Random) -> str:
    entry, manifest = layout.attachment(rng.choice(_ALL))
    manifest["layers"].pop(rng.randrange(len(manifest["layers"])))
    layout.rewrite(entry, manifest)
    return "refuse"


@tampering()
def change_a_document(layout: Layout, _other: Layout, rng: random.Random) -> str:
    """Every digest above the document fits, save that in the statement."""
    kind = rng.choice([_PROOF, _SBOM])
    entry, manifest = layout.attachment(kind)
    blob = rng.choice(manifest["layers"])
    value = json.loads(layout.blobs.pop(blob["digest"]))
    if kind == _SBOM:
        value["components"].pop(rng.randrange(len(value["components"])))
    elif "rungs" in value:
        value |= rng.choice(
            [{"rungs": [*value["rungs"], "collectives(gpu)"]}, {"summary": "all well"}, {"ranks": 4096}]
        )
    else:
        value["request"] = "--framework deepspeed --gpu h100"
    blob |= layout.put(canonical(value))
    layout.rewrite(entry, manifest)
    return "refuse"


# -- the statement -----------------------------------------------------------------------------------------------------


def _envelope(layout: Layout, change: Callable[[dict[str, Any]], object], kind: str = _STATEMENT) -> str:
    entry, manifest = layout.attachment(kind)
    blob = manifest["layers"][0]
    bundle = json.loads(layout.blobs.pop(blob["digest"]))
    change(bundle["dsseEnvelope"])
    blob |= layout.put(canonical(bundle))
    layout.rewrite(entry, manifest)
    return "refuse"


def _lied(layout: Layout, rng: random.Random) -> bytes:
    blob = layout.attachment(_STATEMENT)[1]["layers"][0]
    value = json.loads(base64.b64decode(json.loads(layout.blobs[blob["digest"]])["dsseEnvelope"]["payload"]))
    ours = value["predicate"]["envsmith"]
    key, lie = rng.choice(
        [
            ("cell", "ds0.19.8-torch2.99.0-cu132-py312"),
            ("lock", "sha256:" + "0" * 64),
            ("config", "sha256:" + "1" * 64),
            ("tags", ["latest"]),
            ("rungs", ["framework step(gpu)"]),
            ("recorded", "2030-01-01T00:00:00+00:00"),
            ("expires", "2099-01-01"),
            ("attests", {}),
            ("replaces", "sha256:" + "2" * 64),
        ]
    )
    ours[key] = lie
    return canonical(value)


@tampering()
def edit_the_statement(layout: Layout, _other: Layout, rng: random.Random) -> str:
    payload = base64.b64encode(_lied(layout, rng)).decode()
    return _envelope(layout, lambda envelope: envelope.update(payload=payload))


@tampering()
def edit_the_kind_of_statement(layout: Layout, _other: Layout, rng: random.Random) -> str:
    key = rng.choice(["predicateType", "_type"])

    def change(envelope: dict[str, Any]) -> None:
        value = json.loads(base64.b64decode(envelope["payload"]))
        value[key] = "https://slsa.dev/provenance/v1" if value[key] != _SLSA else _BILL
        envelope["payload"] = base64.b64encode(canonical(value)).decode()

    return _envelope(layout, change, rng.choice(_SIGNED))


@tampering()
def edit_what_is_signed_beside_the_statement(layout: Layout, _other: Layout, rng: random.Random) -> str:
    kind = rng.choice([_SLSA, _BILL])

    def change(envelope: dict[str, Any]) -> None:
        value = json.loads(base64.b64decode(envelope["payload"]))
        predicate = value["predicate"]
        if kind == _BILL:
            predicate["components"].pop(rng.randrange(len(predicate["components"])))
        else:
            definition = predicate["buildDefinition"]
            lies: list[Callable[[], object]] = [
                definition["resolvedDependencies"].pop,
                lambda: definition["externalParameters"].update(request="--framework deepspeed --gpu h100"),
                lambda: predicate["runDetails"]["builder"].update(id="https://builder.example/trusted"),
                lambda: value["subject"][0]["digest"].update(sha256="0" * 64),
            ]
            rng.choice(lies)()
        envelope["payload"] = base64.b64encode(canonical(value)).decode()

    return _envelope(layout, change, kind)


@tampering()
def sign_another_provenance_or_bill_as_somebody_else(layout: Layout, _other: Layout, rng: random.Random) -> str:
    kind = rng.choice([_SLSA, _BILL])
    subject = [{"name": "x", "digest": {"sha256": layout.image["digest"][7:]}}]
    payload = {"_type": "https://in-toto.io/Statement/v1", "subject": subject, "predicateType": kind, "predicate": {}}
    lie = json.loads(sign(canonical(payload), rng.choice([layout.stranger, layout.signer])))["dsseEnvelope"]
    return _envelope(layout, lambda envelope: envelope.update(lie), kind)


@tampering()
def say_that_another_key_signed(layout: Layout, _other: Layout, rng: random.Random) -> str:
    """The hint is nobody's promise: the signature still fits the key that is trusted."""
    entry, manifest = layout.attachment(rng.choice(_SIGNED))
    bundle = json.loads(layout.blobs.pop(manifest["layers"][0]["digest"]))
    bundle["verificationMaterial"] = rng.choice([{}, {"publicKey": {}}, {"publicKey": {"hint": "evil"}}, None])
    manifest["layers"][0] |= layout.put(canonical(bundle))
    layout.rewrite(entry, manifest)
    return "same"


@tampering()
def sign_a_lie_as_somebody_else(layout: Layout, _other: Layout, rng: random.Random) -> str:
    lie = json.loads(sign(_lied(layout, rng), layout.stranger))["dsseEnvelope"]
    if rng.random() < 0.5:
        lie["signatures"][0]["keyid"] = layout.signer.public_key.keyid
    return _envelope(layout, lambda envelope: envelope.update(lie))


@tampering()
def attach_a_lie_of_somebody_else(layout: Layout, _other: Layout, rng: random.Random) -> str:
    layout.attach(_BUNDLE, sign(_lied(layout, rng), layout.stranger))
    return "name"


@tampering()
def take_the_signatures_off(layout: Layout, _other: Layout, rng: random.Random) -> str:
    rest = rng.choice([[], [{"keyid": "", "sig": ""}], [{"keyid": layout.signer.public_key.keyid, "sig": "AAAA"}]])
    return _envelope(layout, lambda envelope: envelope.update(signatures=rest), rng.choice(_SIGNED))


@tampering()
def take_the_signature_of_another_statement(layout: Layout, other: Layout, rng: random.Random) -> str:
    kind = rng.choice(_SIGNED)
    foreign = json.loads(other.blobs[other.attachment(kind)[1]["layers"][0]["digest"]])["dsseEnvelope"]
    return _envelope(layout, lambda envelope: envelope.update(signatures=foreign["signatures"]), kind)


@tampering()
def change_the_type_of_the_payload(layout: Layout, _other: Layout, rng: random.Random) -> str:
    kind = rng.choice(["text/plain", "", "x" * 9000])
    return _envelope(layout, lambda envelope: envelope.update(payloadType=kind), rng.choice(_SIGNED))


@tampering()
def write_nonsense_as_a_statement(layout: Layout, _other: Layout, rng: random.Random) -> str:
    entry, manifest = layout.attachment(rng.choice(_SIGNED))
    nonsense = [
        b"",
        b"[" * 3000,
        b"null",
        b'{"payload":3}',
        rng.randbytes(200),
        b'{"payload":"e30=","signatures":7}',
        b"1" * 5000,
    ]
    layout.blobs.pop(manifest["layers"][0]["digest"])
    manifest["layers"][0] |= layout.put(rng.choice(nonsense))
    layout.rewrite(entry, manifest)
    return "refuse"


# -- the image ---------------------------------------------------------------------------------------------------------


@tampering()
def change_the_manifest(layout: Layout, _other: Layout, rng: random.Random) -> str:
    manifest = json.loads(layout.blobs[layout.image["digest"]])
    changes: list[Callable[[], object]] = [
        manifest["layers"].reverse,
        manifest["layers"].pop,
        lambda: manifest["layers"].append({"mediaType": KIT.PLAIN, **layout.put(rng.randbytes(512))}),
        lambda: manifest.update(annotations={"io.envsmith.rungs": "framework step(gpu)"}),
        lambda: manifest["layers"][0].update(mediaType="application/x"),
    ]
    rng.choice(changes)()
    layout.new_image(manifest)
    return "refuse"


@tampering()
def change_the_configuration(layout: Layout, _other: Layout, rng: random.Random) -> str:
    manifest = json.loads(layout.blobs[layout.image["digest"]])
    config = json.loads(layout.blobs.pop(manifest["config"]["digest"]))
    config["config"] |= rng.choice([{"Entrypoint": ["/evil"]}, {"User": "root"}, {"Env": ["LD_PRELOAD=/evil.so"]}])
    manifest["config"] |= layout.put(canonical(config))
    layout.new_image(manifest)
    return "refuse"


@tampering()
def exchange_the_layers(layout: Layout, other: Layout, rng: random.Random) -> str:
    manifest, foreign = (json.loads(one.blobs[one.image["digest"]]) for one in (layout, other))
    number = rng.randrange(2)
    manifest["layers"][number] = foreign["layers"][number] | {"annotations": {"x": "y"}}
    layout.blobs |= {blob["digest"]: other.blobs[blob["digest"]] for blob in foreign["layers"]}
    layout.new_image(manifest)
    return "refuse"


@tampering()
def give_the_name_to_another_image(layout: Layout, other: Layout, rng: random.Random) -> str:
    """The other image is signed by the same person, under its own name."""
    image = other.image
    layout.entries = [{**image, "annotations": {_REF: _CELL}}, *(e for e in other.entries if e is not image)]
    layout.blobs = dict(other.blobs)
    if rng.random() < 0.3:
        layout.entries = layout.entries[:1]
    return "refuse"


@tampering()
def rename_the_image(layout: Layout, _other: Layout, _rng: random.Random) -> str:
    layout.image["annotations"] = {_REF: _CELL, "x": "y"}
    layout.image["annotations"][_REF] = "latest"
    return "refuse"


# -- the bundle --------------------------------------------------------------------------------------------------------


@tampering(_BUNDLES)
def add_a_file(layout: Layout, _other: Layout, rng: random.Random) -> str:
    names = [
        "install.sh",
        "blobs/sha256/" + "0" * 64,
        "blobs/sha512/x",
        ".hidden",
        "blobs/index.json",
        "x" * 90,
        "source",
    ]
    name = rng.choice(names)
    layout.files.append((name, rng.randbytes(rng.choice([0, 10, 5000]))))
    return "name" if name == "source" else "refuse"


@tampering(_TAR)
def add_what_a_reader_may_take_otherwise(layout: Layout, _other: Layout, rng: random.Random) -> str:
    names = [*_LAYOUT_FILES, rng.choice(sorted(layout.documents())), "a.link", "../evil", "/etc/evil", "./index.json"]
    layout.files.append((rng.choice(names), rng.randbytes(50)))
    return "refuse"


@tampering(_TAR)
def write_after_the_end(layout: Layout, _other: Layout, rng: random.Random) -> str:
    layout.after = rng.choice([b"evil", KIT.tar_of(evil=b"x" * 2000), bytes(1 << 20) + b"x"])
    return "refuse"


@tampering(_BUNDLES)
def change_the_version_of_the_layout(layout: Layout, _other: Layout, rng: random.Random) -> str:
    layout.version = rng.choice([b"", b"{}", b"x", b'{"imageLayoutVersion":"9.0.0"}', b"[" * 5000])
    return "refuse"


@tampering(_BUNDLES)
def flip_a_bit_of_the_index(layout: Layout, _other: Layout, rng: random.Random) -> str:
    """The index is a list that nobody signed: without its tag the image is verified, and no tag is shown."""
    index = canonical({"schemaVersion": 2, "manifests": layout.entries})
    data = bytearray(index)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(7)
    layout.documents = lambda: {**Layout.documents(layout), "index.json": bytes(data)}  # type: ignore[method-assign]
    return "same"


# -- what other people attach beside the proof -------------------------------------------------------------------------


@tampering()
def attach_something_of_a_company(layout: Layout, _other: Layout, rng: random.Random) -> str:
    provenance = canonical(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "x", "digest": {"sha256": layout.image["digest"][7:]}}],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": {"buildDefinition": {}},
        }
    )
    bundle = sign(provenance, rng.choice([layout.stranger, layout.signer]))
    envelope = json.loads(bundle)["dsseEnvelope"]
    kind, data = rng.choice(
        [
            (_BUNDLE, bundle),
            (_ENVELOPE, canonical(envelope)),
            (_ENVELOPE, provenance),
            (_BUNDLE, canonical({"mediaType": _BUNDLE, "dsseEnvelope": envelope})),
            (_BUNDLE, canonical({"mediaType": _BUNDLE, "messageSignature": {"signature": "AAAA"}})),
            (_SBOM, b'{"bomFormat":"CycloneDX","specVersion":"1.6","components":[]}'),
            ("application/vnd.dev.cosign.simplesigning.v1+json", b"{}"),
            ("application/spdx+json", b"{}"),
        ]
    )
    layout.attach(kind, data, **rng.choice([{}, {"org.opencontainers.image.created": "2020-01-01T00:00:00Z"}]))
    return "name"


# -- judged by the verb ------------------------------------------------------------------------------------------------


def _publish(folder: Path, key: Path, **components: str) -> Layout:
    cell = KIT.make_cell(folder / "cell", **components)
    bundle = folder / "bundle.tar"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert run(["publish", str(cell), "--bundle", str(bundle), "--key", str(key)]) == 0
    with tarfile.open(bundle) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    blobs = {"sha256:" + name.rpartition("/")[2]: data for name, data in files.items() if name.startswith("blobs/")}
    return Layout(json.loads(files["index.json"])["manifests"], blobs, signer=load_signer(key), stranger=None)


def _verify(*words: str) -> tuple[int, dict[str, Any], str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = run(["verify", *words, "--json"])
        except Exception:  # noqa: BLE001 - counted
            return 70, {}, traceback.format_exc(limit=-3)
    text = out.getvalue()
    return code, json.loads(text) if text.startswith("{") else {}, err.getvalue()


def _judge(layout: Layout, place: str, folder: Path, key: Path) -> tuple[int, dict[str, Any], str]:
    path = folder / f"{place}-{len(list(folder.iterdir()))}"
    if place == "registry":
        with KIT.registry() as registry:
            layout.fill(registry)
            return _verify(f"{registry.address}/cells:{_CELL}", "--key", str(key))
    layout.as_tar(path) if place == "tar" else layout.as_folder(path)
    try:
        return _verify("--bundle", str(path), "--key", str(key))
    finally:
        if path.is_file():
            path.unlink()


def _wrong(expected: str, code: int, answer: dict[str, Any], truth: dict[str, Any]) -> str:
    if code not in {0, 1, 2, 3, 5, 8}:
        return "internal errors"
    if code == 0:
        is_named = any(check["state"] == "not covered" for check in answer["checks"])
        is_false = any(answer[fact] != truth[fact] for fact in _FACTS)
        wrong = is_false or expected == "refuse" or (expected == "name" and not is_named)
        return "verified wrongly" if wrong else ""
    return "refused wrongly" if expected == "name" else ""


def attack(tally: Tally, count: int, random: random.Random, folder: Path) -> None:
    """Tamper ``count`` times, each way in turn."""
    os.environ["DOCKER_CONFIG"] = str(folder / "no-docker")
    private, public = KIT.make_keys(folder)
    stranger, _ = KIT.make_keys(folder, "stranger")
    first, second = (folder / name for name in ("first", "second"))
    published, other = _publish(first, private), _publish(second, private, deepspeed="0.19.7")
    published.stranger = load_signer(stranger)
    tries = folder / "tries"
    tries.mkdir()
    code, truth, message = _judge(copy.copy(published), "tar", tries, public)
    assert code == 0, message
    ways = sorted(TAMPERINGS)
    for number in range(count):
        way = ways[number % len(ways)]
        tamper, places = TAMPERINGS[way]
        layout = Layout(copy.deepcopy(published.entries), dict(published.blobs), published.signer, published.stranger)
        expected = tamper(layout, Layout(copy.deepcopy(other.entries), dict(other.blobs), None, None), random)
        place = random.choice(places.split())
        code, answer, message = _judge(layout, place, tries, public)
        tally.tried += 1
        if what := _wrong(expected, code, answer, truth):
            tally.fail(what, f"{way} in a {place}: {code} {message.strip()[:200]}")
