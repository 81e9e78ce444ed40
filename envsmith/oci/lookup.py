"""Digest of an image's tag, by the registry's HTTP API (OCI distribution specification, token authentication).

One ``GET`` of a manifest, a few kilobytes, so that the digest can be computed from what was sent. Everything a registry says is hostile:
sizes are bounded, a token is asked for only from an https address, and a digest is believed only when it is one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode, urlsplit

from envsmith import plain
from envsmith.errors import ContentError, NetworkError, UsageError
from envsmith.http import ssl_context

# Where images without a host name live: the name people write, and the host that answers its API.
_DEFAULT_REGISTRY = "docker.io"
API_HOSTS = {_DEFAULT_REGISTRY: f"registry-1.{_DEFAULT_REGISTRY}"}
# An index first: it is the digest over all platforms, and the one that pins of others name.
_ACCEPT = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')
# Manifests are a few kilobytes; the specification lets registries refuse more than 4 MB.
_MAX_BODY = 4_194_304
_TIMEOUT = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """An image reference in its parts; ``registry`` and ``repository`` as the API wants them."""

    registry: str
    repository: str
    tag: str
    digest: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a registry said: status, headers with lower-case names, the body (at most :data:`_MAX_BODY` bytes)."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


class Transport(Protocol):
    """One request; tests pass a function. Raises ``OSError`` when there is no answer."""

    def __call__(self, method: str, url: str, headers: Mapping[str, str]) -> Answer:
        """Send the request, follow no redirect, return whatever status comes back."""
        ...


def parse_reference(text: str) -> Reference:
    """``python:3.12-slim`` as docker.io, library/python, 3.12-slim; ``UsageError`` when it is not an image reference."""
    name, _, digest = plain.image(text).partition("@")
    head, slash, rest = name.partition("/")
    has_host = bool(slash) and ("." in head or ":" in head or head == "localhost")
    registry, path = (head, rest) if has_host else (_DEFAULT_REGISTRY, name)
    path, colon, tag = path.rpartition(":") if ":" in path else (path, "", "")
    if registry == _DEFAULT_REGISTRY and "/" not in path:
        path = f"library/{path}"
    return Reference(registry=registry, repository=path, tag=tag if colon else "latest", digest=digest or None)


def resolve_digest(text: str, *, transport: Transport | None = None) -> str:
    """The digest behind a reference: of the multi-platform index where there is one.

    ``UsageError`` for a malformed reference or one that the registry does not have, ``NetworkError`` when it cannot be reached or
    answers nonsense, ``ContentError`` when a reference that names a digest leads to another.
    """
    reference = parse_reference(text)
    send = transport or _http
    host = API_HOSTS.get(reference.registry, reference.registry)
    scheme = "http" if re.fullmatch(r"(localhost|127\.0\.0\.1)(:\d+)?", host) else "https"
    url = f"{scheme}://{host}/v2/{reference.repository}/manifests/{reference.digest or reference.tag}"
    answer = _authorised(send, url, reference)
    if answer.status == 404:
        raise UsageError(f"{text}: the registry has no such image", hint="check the name and the tag")
    if answer.status != 200:
        raise NetworkError(
            f"{reference.registry}: status {answer.status} for {text}",
            hint="try again later, or name the base by digest",
        )
    digest = _digest_of(answer, text)
    if reference.digest and digest != reference.digest:
        raise ContentError(f"{text}: the registry answers with {digest[:19]}…", hint="do not use this registry")
    return digest


def _authorised(send: Transport, url: str, reference: Reference) -> Answer:
    headers = {"Accept": _ACCEPT}
    answer = _ask(send, "GET", url, headers, reference)
    if answer.status == 401:
        token = _token(send, answer.headers.get("www-authenticate", ""), url, reference)
        answer = _ask(send, "GET", url, {**headers, "Authorization": f"Bearer {token}"}, reference)
    if answer.status in {401, 403}:
        raise NetworkError(
            f"{reference.registry}: access to {reference.repository} is denied",
            hint="log in with docker login, or name a public image",
        )
    return answer


def _ask(send: Transport, method: str, url: str, headers: Mapping[str, str], reference: Reference) -> Answer:
    try:
        return send(method, url, headers)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise NetworkError(
            f"registry {reference.registry} cannot be reached: {str(reason)[:200]}",
            hint="name the base by digest (--base NAME:TAG@sha256:…), or leave --base out to use the pinned one",
        ) from error


def _token(send: Transport, challenge: str, url: str, reference: Reference) -> str:
    """An anonymous (or configured) pull token; the realm must be https, or the registry itself on loopback."""
    fields = dict(_CHALLENGE.findall(challenge[:2000]))
    realm = fields.get("realm", "")
    parts, own = urlsplit(realm), urlsplit(url)
    trusted = parts.scheme == "https" or (own.scheme == "http" and parts.hostname == own.hostname)
    if not challenge.lower().startswith("bearer ") or not trusted or not parts.hostname:
        raise NetworkError(f"registry {reference.registry} asks for a kind of login that is not understood")
    query = urlencode({"service": fields.get("service", ""), "scope": f"repository:{reference.repository}:pull"})
    headers = {}
    if (known := login(reference.registry)) and known.basic:
        headers["Authorization"] = f"Basic {known.basic}"
    answer = _ask(send, "GET", f"{realm}{'&' if parts.query else '?'}{query}", headers, reference)
    try:
        data = json.loads(answer.body)
        token = data.get("token") or data.get("access_token")
    except (ValueError, AttributeError):
        token = None
    if answer.status != 200 or not isinstance(token, str) or not re.fullmatch(r"[A-Za-z0-9._~+/=-]{1,16384}", token):
        raise NetworkError(f"registry {reference.registry} gave no token (status {answer.status})")
    return token


def _digest_of(answer: Answer, text: str) -> str:
    """The digest of the body; the header is believed only where it agrees, because it is what the registry says, not what it sent."""
    if not answer.body or len(answer.body) > _MAX_BODY:
        raise NetworkError(f"{text}: the registry's manifest is {'empty' if not answer.body else 'too large'}")
    try:
        manifest = json.loads(answer.body)
        known = manifest["schemaVersion"] == 2 and ("manifests" in manifest or "config" in manifest)
    except (ValueError, KeyError, TypeError):
        known = False
    if not known:
        raise NetworkError(
            f"{text}: the registry's answer is not a manifest", hint="is a login page or proxy in between?"
        )
    digest = f"sha256:{hashlib.sha256(answer.body).hexdigest()}"
    told = answer.headers.get("docker-content-digest")
    if told and _DIGEST.fullmatch(told) and told != digest:
        raise ContentError(
            f"{text}: the registry says {told[:19]}…, what it sent is {digest[:19]}…",
            hint="something between here and the registry changes manifests",
        )
    return digest


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: object, **_more: object) -> None:
        """A manifest is never redirected; a token must not travel to another host."""


def _lower(headers: Message) -> dict[str, str]:
    return {key.lower(): value for key, value in headers.items()}


def _http(method: str, url: str, headers: Mapping[str, str]) -> Answer:
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=ssl_context()), _NoRedirect())
    request = urllib.request.Request(url, headers={**headers, "User-Agent": "envsmith"}, method=method)  # noqa: S310 - built above
    try:
        with opener.open(request, timeout=_TIMEOUT) as response:
            return Answer(status=response.status, headers=_lower(response.headers), body=response.read(_MAX_BODY + 1))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(status=error.code, headers=_lower(error.headers), body=error.read(65536))


# Credentials of a registry as Docker keeps them: in ``config.json`` itself, or with a helper program that it names.
#
# ``DOCKER_CONFIG`` or ``~/.docker``, then podman's ``REGISTRY_AUTH_FILE``. A helper (``docker-credential-NAME get``) is run only when the
# configuration names it, with the registry on its standard input, as the specification of credential helpers says.

_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What a helper prints instead of a user name when the secret is an identity token.
_TOKEN_USER = "<token>"  # noqa: S105
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """``basic`` is base64 of ``user:password``; ``identity`` a refresh token that is exchanged for access tokens. One of them is set."""

    basic: str = ""
    identity: str = ""

    def __repr__(self) -> str:
        return "Login(…)"


def login(registry: str) -> Login | None:
    """What is known for ``registry``; ``None`` when nothing is, or when the configuration cannot be understood."""
    for path in _files():
        try:
            text = path.read_text(encoding="utf-8")
            config = json.loads(text) if len(text) <= _MAX_BYTES else None
        except (OSError, ValueError):
            continue
        if isinstance(config, dict) and (found := _helped(config, registry) or _kept(config, registry)):
            return found
    return None


def _files() -> Iterator[Path]:
    yield Path(os.environ.get("DOCKER_CONFIG") or str(Path.home() / ".docker")) / "config.json"
    if more := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(more)


def _keys(registry: str) -> list[str]:
    hub = [f"https://index.{registry}/v1/"] if registry == _DEFAULT_REGISTRY else []
    return [registry, f"https://{registry}", *hub]


def _kept(config: dict[str, object], registry: str) -> Login | None:
    auths = config.get("auths")
    for key in _keys(registry):
        entry = auths.get(key) if isinstance(auths, dict) else None
        if not isinstance(entry, dict):
            continue
        if isinstance(token := entry.get("identitytoken"), str) and token:
            return Login(identity=token)
        basic = entry.get("auth")
        try:
            if isinstance(basic, str) and b":" in base64.b64decode(basic, validate=True):
                return Login(basic=basic)
        except (binascii.Error, ValueError):
            continue
    return None


def _helped(config: dict[str, object], registry: str) -> Login | None:
    helpers = config.get("credHelpers")
    for key in _keys(registry):
        named = helpers.get(key) if isinstance(helpers, dict) else None
        name = named or config.get("credsStore")
        if isinstance(name, str) and _HELPER.fullmatch(name) and (found := _ask_program(name, key)):
            return found
    return None


def _ask_program(name: str, key: str) -> Login | None:
    program = shutil.which(f"docker-credential-{name}")
    if program is None:
        return None
    try:
        ran = subprocess.run([program, "get"], input=key.encode(), capture_output=True, timeout=30, check=False)
        told = json.loads(ran.stdout) if ran.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    user, secret = (told.get("Username"), told.get("Secret")) if isinstance(told, dict) else (None, None)
    if not isinstance(user, str) or not isinstance(secret, str):
        return None
    if user == _TOKEN_USER:
        return Login(identity=secret)
    return Login(basic=base64.b64encode(f"{user}:{secret}".encode()).decode())
