"""Registries of images: references, digests, logins and tokens, over a registry of the test's own."""

from __future__ import annotations

import hashlib
import io
import json
import ssl

import pytest

from envsmith.errors import ContentError, NetworkError, UsageError
from envsmith.net.oci.access import Login
from envsmith.net.oci.registry import Repository, parse_reference, resolve_digest
from envsmith.net.oci.spec import Descriptor
from envsmith.net.wire import Response

INDEX = json.dumps({"schemaVersion": 2, "manifests": [{"digest": "sha256:" + "a" * 64}]}).encode()
DIGEST = f"sha256:{hashlib.sha256(INDEX).hexdigest()}"
BEARER = 'Bearer realm="https://auth.invalid/token",service="reg.invalid"'


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, tmp_path):
    """No credentials of this machine, no waiting between attempts."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)


class Registry:
    """A wire that answers in order, the last answer again and again, and remembers what was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, method, url, headers, body=None):
        self.asked.append((url, dict(headers)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        status, fields, content = answer
        return Response(status=status, headers=fields, body=io.BytesIO(content))


def answer(status, content=b"", **headers):
    return status, {k.replace("_", "-"): v for k, v in headers.items()}, content


def manifest(body=INDEX, **headers):
    return answer(200, body, **headers)


def challenge(value=BEARER):
    return answer(401, www_authenticate=value)


def token(value="abc"):
    return answer(200, json.dumps({"token": value}).encode())


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag"),
    [
        ("python:3.12-slim", "docker.io", "library/python", "3.12-slim"),
        ("nvidia/cuda:12.8.1-devel-ubuntu24.04", "docker.io", "nvidia/cuda", "12.8.1-devel-ubuntu24.04"),
        ("reg.invalid/a/b", "reg.invalid", "a/b", "latest"),
        ("localhost:5000/a:b", "localhost:5000", "a", "b"),
        ("reg.invalid:443/a/b:c@sha256:" + "0" * 64, "reg.invalid:443", "a/b", "c"),
    ],
)
def test_references_are_parsed_as_people_write_them(text, registry, repository, tag):
    parsed = parse_reference(text)
    assert (parsed.registry, parsed.repository, parsed.tag) == (registry, repository, tag)


@pytest.mark.parametrize("text", ["", "A:b", "a b", "a//b", "a:b:c", "-x", "a@sha256:1", "http://x/y", "a" * 600])
def test_what_is_no_reference_is_a_usage_error(text):
    with pytest.raises(UsageError):
        parse_reference(text)


def test_a_server_that_is_not_trusted_is_asked_once():
    registry = Registry(ssl.SSLCertVerificationError("certificate verify failed"))
    with pytest.raises(NetworkError, match="certificate verify failed"):
        resolve_digest("reg.invalid/a:b", wire=registry)
    assert len(registry.asked) == 1


def test_the_digest_is_computed_from_what_was_sent():
    assert resolve_digest("reg.invalid/a:b", wire=Registry(manifest())) == DIGEST


def test_an_index_over_all_platforms_is_preferred():
    registry = Registry(manifest())
    resolve_digest("reg.invalid/a:b", wire=registry)
    url, headers = registry.asked[0]
    assert url == "https://reg.invalid/v2/a/manifests/b"
    assert headers["Accept"].startswith("application/vnd.oci.image.index.v1+json")


def test_a_token_is_asked_for_and_used():
    registry = Registry(challenge(), token(), manifest())
    assert resolve_digest("reg.invalid/a:b", wire=registry) == DIGEST
    assert registry.asked[1][0] == "https://auth.invalid/token?service=reg.invalid&scope=repository%3Aa%3Apull"
    assert registry.asked[2][1]["Authorization"] == "Bearer abc"


def test_credentials_of_docker_login_are_used_for_the_token(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"reg.invalid": {"auth": "dXNlcjpwYXNz"}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    registry = Registry(challenge(), token(), manifest())
    resolve_digest("reg.invalid/a:b", wire=registry)
    assert registry.asked[1][1]["Authorization"] == "Basic dXNlcjpwYXNz"
    assert "Authorization" not in registry.asked[0][1]


@pytest.mark.parametrize("text", ["[]", "{", '{"auths": 1}', '{"auths": {"reg.invalid": {"auth": "\\n"}}}'])
def test_a_broken_docker_configuration_means_no_login(text, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(text)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    registry = Registry(challenge(), token(), manifest())
    resolve_digest("reg.invalid/a:b", wire=registry)
    assert "Authorization" not in registry.asked[1][1]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Basic realm=x",
        'Bearer realm="http://auth.invalid/token"',
        'Bearer realm="file:///etc/passwd"',
        'Bearer service="x"',
    ],
)
def test_a_realm_that_is_not_https_gets_nothing(value):
    registry = Registry(challenge(value))
    with pytest.raises(NetworkError):
        resolve_digest("reg.invalid/a:b", wire=registry)
    assert len(registry.asked) == 1


@pytest.mark.parametrize(
    "bad",
    [
        answer(200, b"<html>"),
        answer(500),
        token(""),
        token("a\r\nX: y"),
        answer(200, b"[]"),
    ],
)
def test_nonsense_for_a_token_is_refused(bad):
    with pytest.raises(NetworkError, match="token"):
        resolve_digest("reg.invalid/a:b", wire=Registry(challenge(), bad))


@pytest.mark.parametrize(
    "body", [b"", b"<html>login</html>", b"[]", b"{}", b'{"schemaVersion": 1, "manifests": []}', b"\xff\xfe"]
)
def test_what_is_no_manifest_is_refused(body):
    with pytest.raises(NetworkError):
        resolve_digest("reg.invalid/a:b", wire=Registry(manifest(body)))


def test_an_endless_answer_is_refused():
    with pytest.raises(NetworkError, match="is longer than"):
        resolve_digest("reg.invalid/a:b", wire=Registry(manifest(b"x" * 4_194_305)))


def test_a_header_that_contradicts_the_body_is_a_content_error():
    with pytest.raises(ContentError):
        resolve_digest("reg.invalid/a:b", wire=Registry(manifest(docker_content_digest="sha256:" + "b" * 64)))


def test_a_reference_by_digest_must_lead_to_that_digest():
    with pytest.raises(ContentError):
        resolve_digest("reg.invalid/a@sha256:" + "b" * 64, wire=Registry(manifest()))


def test_a_missing_tag_is_a_usage_error():
    with pytest.raises(UsageError, match="no such image"):
        resolve_digest("reg.invalid/a:b", wire=Registry(answer(404)))


@pytest.mark.parametrize("status", [403, 429, 500, 302])
def test_other_statuses_are_network_errors(status):
    with pytest.raises(NetworkError):
        resolve_digest("reg.invalid/a:b", wire=Registry(answer(status, location="https://evil.invalid")))


@pytest.mark.parametrize("error", [OSError("no route"), TimeoutError("timed out"), ConnectionResetError()])
def test_no_answer_says_what_to_do_instead(error):
    with pytest.raises(NetworkError) as caught:
        resolve_digest("reg.invalid/a:b", wire=Registry(error))
    assert "--base" in caught.value.hint


def test_loopback_registries_are_asked_without_tls():
    registry = Registry(manifest())
    resolve_digest("localhost:5000/a:b", wire=registry)
    assert registry.asked[0][0].startswith("http://localhost:5000/")


@pytest.fixture
def logged_in(tmp_path, monkeypatch):
    auths = {name: {"auth": "dXNlcjpwYXNz"} for name in ("reg.invalid", "localhost:5000")}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


def test_no_secret_of_a_login_is_shown():
    assert repr(Login(basic="secret", identity="secret")) == "Login()"


def test_the_login_of_a_registry_is_sent_to_no_other_host(logged_in):
    elsewhere = answer(202, location="https://store.invalid/upload?state=1")
    wire = Registry(challenge("Basic realm=x"), answer(404), elsewhere, elsewhere, answer(201))
    content = b"a layer"
    blob = Descriptor(media_type="x", digest=f"sha256:{hashlib.sha256(content).hexdigest()}", size=len(content))

    Repository("reg.invalid", "a", push=True, wire=wire).push_blob(blob, lambda: io.BytesIO(content))

    logins = {(url.split("/")[2], headers.get("Authorization")) for url, headers in wire.asked[1:]}
    assert logins == {("reg.invalid", "Basic dXNlcjpwYXNz"), ("store.invalid", None)}


def test_a_challenge_of_another_host_is_not_answered(logged_in):
    elsewhere = answer(202, location="https://store.invalid/upload")
    evil = answer(401, www_authenticate='Bearer realm="https://evil.invalid/token"')
    wire = Registry(answer(404), elsewhere, evil, answer(404), answer(500))
    repository = Repository("reg.invalid", "a", push=True, wire=wire, wait=lambda _: None)
    blob = Descriptor(media_type="x", digest=DIGEST, size=3)

    with pytest.raises(NetworkError):
        repository.push_blob(blob, lambda: io.BytesIO(b"abc"))

    assert not [url for url, _ in wire.asked if "evil" in url]


@pytest.mark.parametrize(
    "place",
    [
        "file:///etc/passwd",
        "http://reg.invalid/blob",
        "http://127.0.0.1:8080/blob",
        "https://localhost/blob",
        "https://169.254.169.254/latest/meta-data",
        "https://10.1.2.3/blob",
        "https://[nonsense/blob",
    ],
)
def test_a_blob_is_not_fetched_from_a_place_closer_to_this_machine_or_less_closed(place):
    wire = Registry(answer(307, location=place), answer(200, b"secret"))

    with pytest.raises(NetworkError):
        Repository("reg.invalid", "a", wire=wire).blob(DIGEST)

    assert len(wire.asked) == 1


def test_a_blob_is_fetched_from_another_public_place_without_the_login(logged_in):
    wire = Registry(
        challenge("Basic realm=x"), answer(307, location="https://cdn.invalid/blob"), answer(200, b"a layer")
    )

    body = Repository("reg.invalid", "a", wire=wire).blob(DIGEST)

    assert body is not None
    assert body.read() == b"a layer"
    assert wire.asked[2] == ("https://cdn.invalid/blob", {})


@pytest.mark.parametrize(
    ("registry", "realm"),
    [
        ("reg.invalid", "http://reg.invalid/token"),
        ("reg.invalid", "http://localhost/token"),
        ("reg.invalid", "https://127.0.0.1/token"),
        ("reg.invalid", "/token"),
        ("localhost:5000", "http://auth.invalid/token"),
    ],
)
def test_no_login_is_sent_to_a_realm_that_is_open_or_closer_to_this_machine(logged_in, registry, realm):
    wire = Registry(challenge(f'Bearer realm="{realm}"'), token(), manifest())

    with pytest.raises(NetworkError):
        resolve_digest(f"{registry}/a:b", wire=wire)

    assert len(wire.asked) == 1


def test_a_registry_on_this_machine_may_give_tokens_itself(logged_in):
    wire = Registry(challenge('Bearer realm="http://localhost:5001/token"'), token(), manifest())

    assert resolve_digest("localhost:5000/a:b", wire=wire) == DIGEST


def test_an_upload_is_not_sent_to_an_open_place(logged_in):
    wire = Registry(answer(404), answer(202, location="http://reg.invalid/upload"))

    repository = Repository("reg.invalid", "a", push=True, wire=wire)
    blob = Descriptor(media_type="x", digest=DIGEST, size=3)

    with pytest.raises(NetworkError, match="unencrypted"):
        repository.push_blob(blob, lambda: io.BytesIO(b"abc"))

    assert len(wire.asked) == 2
