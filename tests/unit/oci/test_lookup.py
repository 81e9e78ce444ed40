"""Registries of images: references, digests, logins and tokens, over a registry of the test's own."""

from __future__ import annotations

import hashlib
import json

import pytest

from envsmith.errors import ContentError, NetworkError, UsageError
from envsmith.oci.lookup import Answer, parse_reference, resolve_digest

INDEX = json.dumps({"schemaVersion": 2, "manifests": [{"digest": "sha256:" + "a" * 64}]}).encode()
DIGEST = f"sha256:{hashlib.sha256(INDEX).hexdigest()}"
BEARER = 'Bearer realm="https://auth.invalid/token",service="reg.invalid"'


class Registry:
    """Answers in order and remembers what was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, method, url, headers):
        self.asked.append((url, dict(headers)))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def manifest(body=INDEX, **headers):
    return Answer(status=200, headers={k.replace("_", "-"): v for k, v in headers.items()}, body=body)


def challenge(value=BEARER):
    return Answer(status=401, headers={"www-authenticate": value})


def token(value="abc"):
    return Answer(status=200, headers={}, body=json.dumps({"token": value}).encode())


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


def test_the_digest_is_computed_from_what_was_sent():
    assert resolve_digest("reg.invalid/a:b", transport=Registry(manifest())) == DIGEST


def test_an_index_over_all_platforms_is_preferred():
    registry = Registry(manifest())
    resolve_digest("reg.invalid/a:b", transport=registry)
    url, headers = registry.asked[0]
    assert url == "https://reg.invalid/v2/a/manifests/b"
    assert headers["Accept"].startswith("application/vnd.oci.image.index.v1+json")


def test_a_token_is_asked_for_and_used():
    registry = Registry(challenge(), token(), manifest())
    assert resolve_digest("reg.invalid/a:b", transport=registry) == DIGEST
    assert registry.asked[1][0] == "https://auth.invalid/token?service=reg.invalid&scope=repository%3Aa%3Apull"
    assert registry.asked[2][1]["Authorization"] == "Bearer abc"


def test_credentials_of_docker_login_are_used_for_the_token(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"reg.invalid": {"auth": "dXNlcjpwYXNz"}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    registry = Registry(challenge(), token(), manifest())
    resolve_digest("reg.invalid/a:b", transport=registry)
    assert registry.asked[1][1]["Authorization"] == "Basic dXNlcjpwYXNz"
    assert "Authorization" not in registry.asked[0][1]


@pytest.mark.parametrize("text", ["[]", "{", '{"auths": 1}', '{"auths": {"reg.invalid": {"auth": "\\n"}}}'])
def test_a_broken_docker_configuration_means_no_login(text, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(text)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    registry = Registry(challenge(), token(), manifest())
    resolve_digest("reg.invalid/a:b", transport=registry)
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
        resolve_digest("reg.invalid/a:b", transport=registry)
    assert len(registry.asked) == 1


@pytest.mark.parametrize(
    "bad",
    [
        Answer(status=200, headers={}, body=b"<html>"),
        Answer(status=500, headers={}),
        token(""),
        token("a\r\nX: y"),
        Answer(status=200, headers={}, body=b"[]"),
    ],
)
def test_nonsense_for_a_token_is_refused(bad):
    with pytest.raises(NetworkError, match="token"):
        resolve_digest("reg.invalid/a:b", transport=Registry(challenge(), bad))


@pytest.mark.parametrize(
    "body", [b"", b"<html>login</html>", b"[]", b"{}", b'{"schemaVersion": 1, "manifests": []}', b"\xff\xfe"]
)
def test_what_is_no_manifest_is_refused(body):
    with pytest.raises(NetworkError):
        resolve_digest("reg.invalid/a:b", transport=Registry(manifest(body)))


def test_an_endless_answer_is_refused():
    with pytest.raises(NetworkError, match="too large"):
        resolve_digest("reg.invalid/a:b", transport=Registry(manifest(b"x" * 4_194_305)))


def test_a_header_that_contradicts_the_body_is_a_content_error():
    with pytest.raises(ContentError):
        resolve_digest("reg.invalid/a:b", transport=Registry(manifest(docker_content_digest="sha256:" + "b" * 64)))


def test_a_reference_by_digest_must_lead_to_that_digest():
    with pytest.raises(ContentError):
        resolve_digest("reg.invalid/a@sha256:" + "b" * 64, transport=Registry(manifest()))


def test_a_missing_tag_is_a_usage_error():
    with pytest.raises(UsageError, match="no such image"):
        resolve_digest("reg.invalid/a:b", transport=Registry(Answer(status=404, headers={})))


@pytest.mark.parametrize("status", [403, 429, 500, 302])
def test_other_statuses_are_network_errors(status):
    with pytest.raises(NetworkError):
        resolve_digest(
            "reg.invalid/a:b", transport=Registry(Answer(status=status, headers={"location": "https://evil.invalid"}))
        )


@pytest.mark.parametrize(
    "error", [OSError("no route"), TimeoutError("timed out"), ConnectionResetError(), ValueError("bad port")]
)
def test_no_answer_says_what_to_do_instead(error):
    with pytest.raises(NetworkError) as caught:
        resolve_digest("reg.invalid/a:b", transport=Registry(error))
    assert "--base" in caught.value.hint


def test_loopback_registries_are_asked_without_tls():
    registry = Registry(manifest())
    resolve_digest("localhost:5000/a:b", transport=registry)
    assert registry.asked[0][0].startswith("http://localhost:5000/")
