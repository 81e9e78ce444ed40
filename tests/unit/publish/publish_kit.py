"""What tests of publishing share: a cell that was built (two small layers), keys, and a registry in this process that can be told to fail."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import re
import tarfile
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from envsmith.builder.image.dockerfile import labels
from envsmith.model.cell import Cell
from envsmith.model.lock import Artifact, BaseImage, BuiltWheel, Lock, OsPackage, Pin

GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"
PLAIN = "application/vnd.oci.image.layer.v1.tar"
INDEX = "application/vnd.oci.image.index.v1+json"


STATUS = b"".join(
    f"Package: {name}\nStatus: install ok installed\nArchitecture: amd64\nVersion: {version}\n\n".encode()
    for name, version in (("libc6", "2.36-9+deb12u10"), ("g++", "4:12.2.0-3"))
)


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def make_lock(*, flavour="runtime", **components):
    values = {"deepspeed": "0.19.8", "torch": "2.15.0+cu132", "cuda": "13.2", "python": "3.12", "nccl": "2.29.7"}
    cell = Cell(components={**values, **components}, chosen=("deepspeed", "torch", "cuda", "python"))

    def pin(name, version, layer, *files, sdist=False):
        artifacts = tuple(Artifact(filename=f, sha256=hashlib.sha256(f.encode()).hexdigest()) for f in files)
        return Pin(name=name, version=version, layer=layer, artifacts=artifacts, sdist=sdist)

    return Lock(
        cell=cell,
        request="--framework deepspeed --platform linux-64",
        exclude_newer="2026-11-20",
        python_version="3.12.14",
        pins=(
            pin("torch", "2.15.0", "torch", "torch-2.15.0-cp312-cp312-manylinux_2_28_x86_64.whl"),
            pin("numpy", "2.4.6", "torch", "numpy-2.4.6-a.whl", "numpy-2.4.6-b.whl"),
            pin("deepspeed", values["deepspeed"], "framework", "deepspeed-0.19.8.tar.gz", sdist=True),
        ),
        build_pins=(pin("setuptools", "80.9.0", "framework", "setuptools-80.9.0-py3-none-any.whl"),),
        base=BaseImage(
            name="python:3.12-slim-bookworm",
            digest="sha256:" + "ab" * 32,
            origin="registry",
            python="/usr/local/bin/python3",
            distribution="bookworm",
        ),
        os_packages=(OsPackage(name="g++", version="4:12.2.0-3"),),
        flavour=flavour,
        wheels=(BuiltWheel(name="deepspeed", filename="deepspeed-0.19.8-py3-none-any.whl", sha256="dd" * 32),),
    )


def tar_of(**files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def make_layout(folder, lock, *, salt=b""):
    """A canonical OCI layout of two layers, one of them compressed."""
    first = tar_of(base=b"0" * 70_000, **{"var/lib/dpkg/status": STATUS})
    second = tar_of(cell=b"1" * 9_000 + salt)
    packed = gzip.compress(first, mtime=0)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Labels": labels(lock), "User": "10001:10001"},
        "rootfs": {"type": "layers", "diff_ids": [digest(first), digest(second)]},
    }
    config_raw = json.dumps(config).encode()

    def row(data, kind):
        return {"mediaType": kind, "digest": digest(data), "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": row(config_raw, "application/vnd.oci.image.config.v1+json"),
        "layers": [row(packed, GZIP), row(second, PLAIN)],
    }
    raw = json.dumps(manifest).encode()
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for data in (packed, second, config_raw, raw):
        (blobs / digest(data)[7:]).write_bytes(data)
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    entry = row(raw, manifest["mediaType"])
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return digest(raw), digest(config_raw)


def make_record(lock, image, /, **changes):
    record = {
        "schema": 2,
        "cell": str(lock.cell.id),
        "components": dict(lock.cell.components),
        "lock": lock.digest,
        "engine": "docker",
        "environment": image,
        "image": image,
        "rungs": ["solved", "locked", "installed", "imported", "collectives(cpu)", "framework step(cpu)"],
        "passed": True,
        "summary": "99 of 99 collective cases verified on gloo",
        "started": "2026-11-21T04:05:31+00:00",
        "seconds": {"build": 1.0},
        "host": {},
        "loaded": {},
        "backend": "gloo",
        "ranks": 4,
    }
    return {**record, **changes}


def make_cell(folder, *, record=None, salt=b"", **components):
    """A cell's folder as a build leaves it; ``record`` are changes of its record, ``False`` for none."""
    lock = make_lock(**components)
    folder.mkdir(parents=True)
    (folder / "lock.json").write_text(lock.text())
    _, config = make_layout(folder / "oci", lock, salt=salt)
    if record is not False:
        (folder / "record.json").write_text(json.dumps(make_record(lock, config, **(record or {})), indent=1) + "\n")
    return folder


def make_keys(folder, name="key", *, kind="ed25519", password=None):
    """(private, public) PEM files."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    key = ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP256R1())
    locked = s.BestAvailableEncryption(password) if password else s.NoEncryption()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, locked))
    public.write_bytes(key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))
    return private, public


@dataclass
class Fault:
    """What goes wrong: on the ``at``-th request that matches, answer ``status``, or break the connection after ``after`` bytes of its body."""

    method: str
    path: str
    at: int = 1
    times: int = 1
    status: int = 0
    after: int = 0
    seen: int = 0

    def hits(self, method, path):
        if method != self.method or not re.search(self.path, path):
            return False
        self.seen += 1
        return self.at <= self.seen < self.at + self.times


@dataclass
class Registry:
    """The part of the distribution specification that a push and a verification use, in memory."""

    blobs: dict = field(default_factory=dict)  # (repo, digest) -> bytes
    manifests: dict = field(default_factory=dict)  # (repo, tag or digest) -> (type, bytes)
    uploads: dict = field(default_factory=dict)
    faults: list = field(default_factory=list)
    log: list = field(default_factory=list)
    referrers_api: bool = True
    basic: str = ""
    token: str = ""
    address: str = ""
    sent: int = 0

    def tags(self, repo="cells"):
        return sorted(name for r, name in self.manifests if r == repo and not name.startswith("sha256:"))

    def repo(self, name="cells"):
        return f"{self.address}/{name}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body of an answer are sent one after the other

    def log_message(self, *_):
        pass

    def _answer(self, status, body=b"", **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        length = headers.get("Content_Length", str(len(body)))
        if "Content_Length" not in headers:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self, limit=None):
        length = int(self.headers.get("Content-Length") or 0)
        return self.rfile.read(length if limit is None else min(limit, length))

    def _break(self):
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(2)

    def _allowed(self, reg):
        asked = self.headers.get("Authorization", "")
        if reg.token:
            return asked == f"Bearer {reg.token}"
        return not reg.basic or asked == "Basic " + base64.b64encode(reg.basic.encode()).decode()

    def _do(self):
        reg = self.server.registry
        parts = urlsplit(self.path)
        reg.log.append((self.command, self.path))
        for fault in reg.faults:
            if fault.hits(self.command, self.path):
                if fault.status:
                    self._body()
                    return self._answer(fault.status, b'{"errors":[{"code":"OUCH","message":"told to fail"}]}')
                data = self._body(fault.after)
                if "/uploads/" in self.path and data:
                    reg.uploads[parts.path.rpartition("/")[2]] += data
                return self._break()
        if parts.path == "/token":
            good = self.headers.get("Authorization") == "Basic " + base64.b64encode(b"me:secret").decode()
            reg.scopes = parse_qs(parts.query).get("scope")
            return self._answer(200 if good else 401, json.dumps({"token": reg.token}).encode())
        if not self._allowed(reg):
            self._body()
            told = f'Bearer realm="http://{reg.address}/token",service="here"' if reg.token else 'Basic realm="here"'
            return self._answer(401, WWW_Authenticate=told)
        match = re.fullmatch(r"/v2/(.+?)/(blobs|manifests|referrers)/(.*)", parts.path)
        repo, kind, rest = match.groups()
        return getattr(self, f"_{kind}")(reg, repo, rest, parse_qs(parts.query))

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = _do  # noqa: N815

    def _blobs(self, reg, repo, rest, query):
        if rest.startswith("uploads"):
            return self._uploads(reg, repo, rest.partition("/")[2], query)
        data = reg.blobs.get((repo, rest))
        return self._answer(404) if data is None else self._answer(200, data)

    def _uploads(self, reg, repo, name, query):
        if self.command == "POST":
            if "mount" in query and (query["from"][0], query["mount"][0]) in reg.blobs:
                reg.blobs[repo, query["mount"][0]] = reg.blobs[query["from"][0], query["mount"][0]]
                return self._answer(201)
            name = f"u{len(reg.uploads)}"
            reg.uploads[name] = b""
            return self._answer(202, Location=f"/v2/{repo}/blobs/uploads/{name}?state=x")
        if name not in reg.uploads:
            self._body()
            return self._answer(404)
        have = len(reg.uploads[name])
        if self.command == "GET":
            return self._answer(204, Range=f"0-{max(have - 1, 0)}", Location=f"/v2/{repo}/blobs/uploads/{name}?state=y")
        data = self._body()
        if self.command == "PATCH":
            start = int(self.headers["Content-Range"].partition("-")[0])
            if start != have:
                return self._answer(416)
            reg.uploads[name] += data
            reg.sent += len(data)
            return self._answer(202, Location=f"/v2/{repo}/blobs/uploads/{name}?state=z")
        whole = reg.uploads.pop(name) + data
        if digest(whole) != query["digest"][0]:
            return self._answer(400, b'{"errors":[{"code":"DIGEST_INVALID","message":"other bytes"}]}')
        reg.blobs[repo, query["digest"][0]] = whole
        return self._answer(201)

    def _manifests(self, reg, repo, name, _query):
        if self.command == "PUT":
            data = self._body()
            value = json.loads(data)
            for row in [value.get("config"), *value.get("layers", [])]:
                if row and (repo, row["digest"]) not in reg.blobs:
                    return self._answer(400, b'{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN","message":"no"}]}')
            kind = self.headers["Content-Type"]
            for key in (name, digest(data)):
                reg.manifests[repo, key] = (kind, data)
            told = {"OCI_Subject": value["subject"]["digest"]} if "subject" in value and reg.referrers_api else {}
            return self._answer(201, Docker_Content_Digest=digest(data), **told)
        kind, data = reg.manifests.get((repo, name), ("", None))
        return self._answer(404) if data is None else self._answer(200, data, Content_Type=kind)

    def _referrers(self, reg, repo, subject, _query):
        if not reg.referrers_api:
            return self._answer(404, b"404 page not found\n", Content_Type="text/plain")
        rows = []
        for (r, name), (kind, data) in reg.manifests.items():
            value = json.loads(data)
            if r == repo and name.startswith("sha256:") and value.get("subject", {}).get("digest") == subject:
                row = {"mediaType": kind, "digest": name, "size": len(data), "artifactType": value["artifactType"]}
                rows.append({**row, "annotations": value.get("annotations", {})})
        return self._answer(200, json.dumps({"schemaVersion": 2, "manifests": rows}).encode(), Content_Type=INDEX)


@contextlib.contextmanager
def registry(**settings):
    """A registry on a port of this machine, ended whatever happens."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    # Connections that a client keeps open are not waited for.
    server.daemon_threads = True
    server.registry = Registry(address=f"127.0.0.1:{server.server_address[1]}", **settings)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
