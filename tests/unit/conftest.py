"""What tests of several packages use: sample locks, a cell on an index in a folder, an index in memory and one on the loopback device."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import io
import ipaddress
import os
import shutil
import ssl
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

sys.path.insert(0, str(Path(__file__).parent))

from lock_helpers import component, fine, uv_for
from tiny_index import TinyIndex, framework_index

from envsmith.errors import ContentError, NetworkError
from envsmith.lock.index.uv import Uv
from envsmith.lock.resolve import Resolver, lock_pip
from envsmith.model.cell import Cell
from envsmith.model.component import ComponentTable, Role
from envsmith.model.lock import Lock
from envsmith.net.http import NotFoundError, RangeReply, Reply

MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(scope="session")
def table() -> ComponentTable:
    return ComponentTable.of(
        [
            component("deepspeed", Role.FRAMEWORK, "deepspeed"),
            component("python", Role.CORE),
            component("cuda", Role.CORE),
            component("torch", Role.CORE, "torch"),
            component("nccl", Role.CORE, "nvidia-nccl-cu12"),
            component("driver", Role.HOST),
            component("numpy", Role.COMPANION, "numpy"),
            component("apex", Role.COMPANION),
        ]
    )


@pytest.fixture(scope="session")
def cell() -> Cell:
    components = {"deepspeed": "0.18.5", "torch": "2.9.1+cu128", "cuda": "12.8", "python": MINOR, "nccl": "2.27.5"}
    return Cell(components=components, chosen=("deepspeed", "torch", "cuda", "python"))


@pytest.fixture
def index(tmp_path: Path) -> TinyIndex:
    return framework_index(tmp_path / "index")


@pytest.fixture
def uv(index: TinyIndex, tmp_path: Path) -> Uv:
    return uv_for(index.url, tmp_path / "uv-cache")


@pytest.fixture(scope="session")
def lock(cell: Cell, table: ComponentTable, tmp_path_factory: pytest.TempPathFactory) -> Lock:
    """Resolved once for all tests that only read it."""
    folder = tmp_path_factory.mktemp("shared")
    tool = uv_for(framework_index(folder / "index").url, folder / "uv-cache")
    resolver = Resolver(table=table, uv=tool, judge=fine)
    return lock_pip(cell, request="--framework deepspeed", exclude_newer="2026-11-20", resolver=resolver)


@pytest.fixture(scope="session")
def locks(load_file):
    return load_file("tests/unit/sample_locks.py")


@pytest.fixture
def events():
    """A progress that remembers; ``events.seen`` are (kind, step, text)."""

    class Recorder:
        def __init__(self):
            self.seen = []

        def __call__(self, event):
            self.seen.append((event.kind.value, event.step, event.text))

        def kinds(self, step):
            return [kind for kind, s, _ in self.seen if s == step]

    return Recorder()


class MemoryFetcher:
    """A Fetcher over a dict; counts what is asked."""

    def __init__(self):
        self.files = {}
        self.types = {}
        self.asked = []

    def get(self, url, *, max_bytes, accept=None, sha256=None, keep=True, check=None):
        self.asked.append(url)
        if url not in self.files:
            raise NotFoundError(f"{url} does not exist")
        body = self.files[url]
        if len(body) > max_bytes:
            raise NetworkError("too long")
        if sha256 and hashlib.sha256(body).hexdigest() != sha256:
            raise ContentError("another file")
        reply = Reply(body=body, url=url, content_type=self.types.get(url, "text/html"))
        if check:
            check(reply)
        return reply

    @contextlib.contextmanager
    def open_range(self, url, start, stop=None):
        self.asked.append(f"{url} {start} {stop}")
        if url not in self.files:
            raise NotFoundError(f"{url} does not exist")
        body = self.files[url]
        first = max(0, len(body) + start) if start < 0 else start
        yield RangeReply(stream=io.BytesIO(body[first:stop]), start=first, total=len(body))


@pytest.fixture
def fetcher():
    return MemoryFetcher()


@pytest.fixture
def make_wheel():
    def build(members, compression=zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return buffer.getvalue()

    return build


class Handler(BaseHTTPRequestHandler):
    """Answers from ``server.routes``, by path or by method and path; as a proxy by host and path, or by host."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body of an answer are sent one after the other
    host = ""

    def answer(self):
        path = self.host + self.path
        self.server.seen.append(SimpleNamespace(path=path, command=self.command, headers=self.headers))
        routes = self.server.routes
        keys = (f"{self.command} {path}", path, self.host)
        next((routes[key] for key in keys if key in routes), lambda h: h.reply(404))(self)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = answer  # noqa: N815 - the names that http.server looks for

    def do_CONNECT(self):
        """A proxy that inspects TLS: it answers for every host, with a certificate of its own authority."""
        self.send_response(200)
        self.end_headers()
        self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", buffering=0)
        self.host = self.path.removesuffix(":443")
        self.close_connection = False

    def finish(self):
        super().finish()
        self.connection.close()

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A client that hangs up on a body that is too long, or does not trust us, is what some tests want."""


@contextlib.contextmanager
def _running(server, url):
    server.routes, server.seen, server.url = {}, [], f"{url}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server():
    """``server.routes[path] = callable(handler)``; ``server.seen`` are the requests."""
    with _running(Server(("127.0.0.1", 0), Handler), "http://127.0.0.1") as running:
        yield running


@pytest.fixture
def ssh_key(tmp_path: Path) -> Path:
    """A private key of SSH, its public half beside it. Who has none here cannot sign either."""
    if not shutil.which("ssh-keygen"):
        pytest.skip("ssh-keygen is not installed")
    key = tmp_path / "id_ed25519"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me@a-host", "-f", key]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No user exists for uid" in made.stderr:
        pytest.skip("ssh-keygen works for a user whom the system knows")
    assert made.returncode == 0, made.stderr
    return key


class TlsSocket(ssl.SSLSocket):
    """A socket that closes with its last reference: ``ssl`` leaves it open where a client hung up before the handshake."""

    def __del__(self):
        self.close()


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """(CA bundle, server context): an authority of the tests' own, and what it vouches for: localhost and ``*.corp.invalid``."""
    folder = tmp_path_factory.mktemp("authority")
    now = dt.datetime.now(dt.timezone.utc)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in ("Corp CA", "localhost")]
    texts = []
    for who, is_ca in ((0, True), (1, False)):
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[who])
            .issuer_name(names[0])
            .public_key(keys[who].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(keys[who].public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), critical=False)
        )
        usage = dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        builder = builder.add_extension(
            x509.KeyUsage(digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, **usage), critical=True
        )
        if not is_ca:
            hosts = [
                x509.DNSName("localhost"),
                x509.DNSName("*.corp.invalid"),
                x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            ]
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            builder = builder.add_extension(
                x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
            )
        texts.append(builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "ca.pem").write_bytes(texts[0])
    key = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.pem").write_bytes(key + texts[1])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    context.sslsocket_class = TlsSocket
    return folder / "ca.pem", context


@pytest.fixture
def tls_server(authority):
    """As ``server``, at https://localhost; ``tls_server.ca`` is the bundle that makes it trusted."""
    running = Server(("127.0.0.1", 0), Handler)
    running.ca, context = authority
    running.socket = context.wrap_socket(running.socket, server_side=True, do_handshake_on_connect=False)
    with _running(running, "https://localhost"):
        yield running


@pytest.fixture
def tls_proxy(authority, monkeypatch):
    """A proxy that inspects TLS, set in the environment: it is ``NAME.corp.invalid``, with routes ``NAME.corp.invalid/path``.

    ``tls_proxy.ca`` is its authority's bundle; it is not trusted yet.
    """
    running = Server(("127.0.0.1", 0), Handler)
    running.ca, running.tls = authority
    with _running(running, "http://127.0.0.1"):
        for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"):
            monkeypatch.setenv(name, running.url)
        for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield running


@pytest.fixture
def clean_trust(monkeypatch, tmp_path):
    """No variable and no configuration file names a CA bundle; the system's store stays."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory) -> Path:
    """A folder with a libnvidia-ml.so.1 that answers from a file (nvml_stand_in.c)."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("nvml_stand_in.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True)
    return folder


@pytest.fixture
def on_gpus(nvml_library, tmp_path):
    """Run a Python program on a machine whose NVML says what the lines say. Return what it printed."""

    def run(lines: str, program: str) -> str:
        state = tmp_path / "gpus.txt"
        state.write_text(lines)
        environment = {**os.environ, "NVML_STAND_IN": str(state), "LD_LIBRARY_PATH": str(nvml_library)}
        environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        answer = subprocess.run(
            [sys.executable, "-c", program, state], env=environment, capture_output=True, text=True, check=True
        )
        return answer.stdout

    return run
