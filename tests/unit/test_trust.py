"""Behind a proxy that inspects TLS with an authority of its own, every verb trusts the bundle that one variable names."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import struct

import pytest
from lock_helpers import fine
from tiny_index import framework_index

from envsmith.cli.app import run
from envsmith.errors import NetworkError
from envsmith.lock.conda.lock import lock_conda
from envsmith.lock.conda.model import CondaRequest
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.lock.index.uv import Uv
from envsmith.lock.resolve import Resolver, lock_pip
from envsmith.net.http import HttpClient
from envsmith.net.oci.registry import resolve_digest

INDEX, CHANNEL, REGISTRY = "index.corp.invalid", "channel.corp.invalid", "registry.corp.invalid"


@pytest.fixture
def proxy(tls_proxy, clean_trust, tmp_path, monkeypatch):
    """A user whose index, channel and registries lie behind the proxy, and who has told nobody of its authority yet."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "DOCKER_CONFIG"):
        monkeypatch.setenv(name, str(home))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_INDEX", "UV_NO_INDEX", "CONDA_SSL_VERIFY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"https://{INDEX}/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    return tls_proxy


def serve_index(folder):
    """The index in ``folder`` as PEP 691 pages, with times of upload."""
    index = framework_index(folder)

    def answer(handler):
        name, _, filename = handler.path.removeprefix("/simple/").rstrip("/").partition("/")
        files = index.files.get(name, {})
        if filename:
            return handler.reply(200, files[filename])
        rows = [
            {
                "filename": file,
                "url": f"https://{INDEX}/simple/{name}/{file}",
                "hashes": {"sha256": hashlib.sha256(data).hexdigest()},
                "size": len(data),
                "upload-time": "2026-01-01T00:00:00Z",
            }
            for file, data in files.items()
        ]
        page = {"meta": {"api-version": "1.1"}, "name": name, "versions": [], "files": rows}
        kind = "application/vnd.pypi.simple.v1+json"
        return handler.reply(200 if rows else 404, json.dumps(page).encode(), Content_Type=kind)

    return answer


def serve_folder(folder):
    def answer(handler):
        path = folder / handler.path.lstrip("/")
        return handler.reply(200, path.read_bytes()) if path.is_file() else handler.reply(404)

    return answer


def forward(address):
    """What the plain server at ``address`` says."""

    def answer(handler):
        connection = http.client.HTTPConnection(address, timeout=10)
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        fields = {k: v for k, v in handler.headers.items() if k not in {"Host", "Content-Length"}}
        connection.request(handler.command, handler.path, body, fields)
        reply = connection.getresponse()
        data = reply.read()
        connection.close()
        told = {k.replace("-", "_"): v for k, v in reply.getheaders() if k not in {"Server", "Date", "Content-Length"}}
        handler.reply(reply.status, data, **told)

    return answer


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"])
def test_what_is_refreshed_from_the_index(proxy, tmp_path, monkeypatch, variable):
    proxy.routes[INDEX] = serve_index(tmp_path / "index")
    with pytest.raises(NetworkError, match="certificate"):
        PackageIndex(HttpClient(cache=tmp_path / "cache"), find_index()).project("torch")
    monkeypatch.setenv(variable, str(proxy.ca))
    assert PackageIndex(HttpClient(cache=tmp_path / "cache"), find_index()).project("torch").releases().keys() == {
        "2.9.1"
    }


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "PIP_CERT"])
def test_lock(proxy, tmp_path, monkeypatch, cell, table, variable):
    proxy.routes[INDEX] = serve_index(tmp_path / "index")

    def lock():
        tool = Uv(cache=tmp_path / "uv")
        return lock_pip(cell, exclude_newer="2026-11-20", resolver=Resolver(table=table, uv=tool, judge=fine))

    with pytest.raises(NetworkError):
        lock()
    monkeypatch.setenv(variable, str(proxy.ca))
    assert {pin.name for pin in lock().pins} >= {"torch", "deepspeed"}


@pytest.mark.parametrize("variable", ["REQUESTS_CA_BUNDLE", "PIP_CERT"])
def test_lock_for_conda(proxy, tmp_path, monkeypatch, load_file, variable):
    pytest.importorskip("rattler", reason="the extra `conda` is not installed")
    local = load_file("tests/unit/lock/conda/localchannel.py")
    channel = local.write_index(tmp_path / "channel", local.real_records())
    proxy.routes[CHANNEL] = serve_folder(channel)
    cell, pins = local.cell(**local.DEEPSPEED), local.pins_for(local.DEEPSPEED)

    def lock(cache):
        return lock_conda(cell, pins, CondaRequest(channels=(f"https://{CHANNEL}/conda-forge",), cache_dir=cache))

    with pytest.raises(NetworkError):
        lock(tmp_path / "before")
    monkeypatch.setenv(variable, str(proxy.ca))
    assert lock(tmp_path / "after").platforms[0].package("pytorch").version == "2.8.0"


def test_the_base_image_of_a_build(proxy, monkeypatch):
    body = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
    proxy.routes[f"{REGISTRY}/v2/library/python/manifests/3.12"] = lambda h: h.reply(200, body)
    with pytest.raises(NetworkError, match="certificate"):
        resolve_digest(f"{REGISTRY}/library/python:3.12")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(proxy.ca))
    assert resolve_digest(f"{REGISTRY}/library/python:3.12") == f"sha256:{hashlib.sha256(body).hexdigest()}"


def test_publish_and_verify(proxy, tmp_path, monkeypatch, load_file, capsys):
    pytest.importorskip("securesystemslib", reason="the extra `publish` is not installed")
    kit = load_file("tests/unit/publish/publish_kit.py")
    folder, keys = kit.make_cell(tmp_path / "cell"), kit.make_keys(tmp_path)
    push = ["publish", str(folder), "--to", f"{REGISTRY}/cells", "--key", str(keys[0]), "--json"]
    with kit.registry() as registry:
        proxy.routes[REGISTRY] = forward(registry.address)
        assert run(push) == 5
        assert "certificate" in capsys.readouterr().err
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(proxy.ca))
        assert run(push) == 0
        name = f"{REGISTRY}/cells:{json.loads(capsys.readouterr().out)['published'][0]['cell']}"
        assert run(["verify", name, "--key", str(keys[1])]) == 0
        monkeypatch.delenv("REQUESTS_CA_BUNDLE")
        assert run(["verify", name, "--key", str(keys[1])]) == 5


def test_a_client_that_resets_before_the_handshake_leaves_no_socket_of_these_tests_open(authority):
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    with listener, accepted, pytest.raises(OSError, match=r"reset|not connected"):
        authority[1].wrap_socket(accepted, server_side=True)
