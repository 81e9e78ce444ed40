"""How a registry lets somebody in: basic credentials or a bearer token, anonymous where no login is known.

Logins are those that Docker and podman keep: in their configuration, or with a helper program that it names. A token is
asked for only over https or from a registry on this machine.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from envsmith.base.files import expand_home, read_bounded
from envsmith.base.programs import execute
from envsmith.base.schema import parse_json
from envsmith.errors import DataError, NetworkError
from envsmith.net.address import follow, split
from envsmith.net.wire import Wire, ask

# Where images without a host name live: the name people write.
DEFAULT_REGISTRY = "docker.io"
_FIELD = re.compile(r'([a-zA-Z]+)="([^"]*)"')
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,16384}")
_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(slots=True)
class RegistryAccess:
    """The ``Authorization`` header of one repository, renewed when the registry challenges again.

    ``actions`` is ``pull`` or ``pull,push``; ``also`` are repositories whose blobs may be mounted (``pull`` is asked
    for).
    """

    registry: str
    repository: str
    actions: str
    wire: Wire
    also: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def denied(self) -> NetworkError:
        """Return the error that says who denies what, and the way out."""
        return NetworkError(
            f"Cannot use {self.repository}: {self.registry} denies access.",
            hint=f"Log in first: docker login {self.registry}.",
        )

    def answer(self, challenge: str, url: str) -> None:
        """Take the login that ``WWW-Authenticate`` asks for. ``NetworkError`` when it cannot be done or must not."""
        kind, _, words = challenge[:4000].partition(" ")
        user = login(self.registry)
        if kind.lower() == "bearer":
            fields = {key.lower(): value for key, value in _FIELD.findall(words)}
            self.headers = {"Authorization": f"Bearer {self._token(fields, url, user)}"}
        elif kind.lower() == "basic":
            headers = {"Authorization": f"Basic {user.basic}"} if user and user.basic else self.headers
            if headers == self.headers:
                raise self.denied()
            self.headers = headers
        else:
            raise NetworkError(
                f"Cannot log in to {self.registry}: it wants a kind of login that envsmith does not know."
            )

    def _token(self, fields: Mapping[str, str], url: str, user: Login | None) -> str:
        realm, service = fields.get("realm", ""), fields.get("service", "")
        place = split(realm)
        follow(url, realm)
        scopes = [
            f"repository:{self.repository}:{self.actions}",
            *(f"repository:{neighbour}:pull" for neighbour in self.also),
        ]
        if user and user.identity:
            form = {"grant_type": "refresh_token", "refresh_token": user.identity, "client_id": "envsmith"}
            body = urlencode({**form, "service": service, "scope": " ".join(scopes)}).encode()
            return self._read("POST", realm, {"Content-Type": "application/x-www-form-urlencoded"}, body)
        query = urlencode([("service", service), *(("scope", scope) for scope in scopes)])
        headers = {"Authorization": f"Basic {user.basic}"} if user else {}
        return self._read("GET", f"{realm}{'&' if place.query else '?'}{query}", headers)

    def _read(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> str:
        try:
            with ask(self.wire, method, url, headers, body) as answer:
                text = answer.body.read(1 << 17)
        except OSError as error:
            raise NetworkError(
                f"Cannot log in to {self.registry}: its place for tokens does not answer ({error})."
            ) from None
        if answer.status in {401, 403}:
            raise self.denied()
        try:
            data = parse_json(text)
            token = data.get("token") or data.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if answer.status != 200 or not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise NetworkError(f"Cannot log in to {self.registry}: it gave no token (status {answer.status}).")
        return token


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """``basic`` is base64 of ``user:password``; ``identity`` a refresh token for access tokens. One of them is set."""

    basic: str = field(default="", repr=False)
    identity: str = field(default="", repr=False)


def login(registry: str) -> Login | None:
    """Return the user's login at ``registry``. ``None`` without one, or when the configuration cannot be understood.

    Looked for in ``DOCKER_CONFIG`` or ``~/.docker``, then in podman's ``REGISTRY_AUTH_FILE``.
    """
    folder = os.environ.get("DOCKER_CONFIG") or expand_home("~/.docker")
    files = [Path(folder) / "config.json", *map(Path, filter(None, [os.environ.get("REGISTRY_AUTH_FILE")]))]
    keys = [registry, f"https://{registry}"]
    if registry == DEFAULT_REGISTRY:
        keys.append(f"https://index.{registry}/v1/")
    return next((entry for path in files if (entry := _from_file(path, keys))), None)


def _from_file(path: Path, keys: Sequence[str]) -> Login | None:
    try:
        config = parse_json(read_bounded(path, 1 << 20))
        helpers, auths = config.get("credHelpers") or {}, config.get("auths") or {}
        logins = (
            _from_helper(helpers.get(k) or config.get("credsStore"), k) or _from_entry(auths.get(k)) for k in keys
        )
        return next(filter(None, logins), None)
    except (DataError, ValueError, AttributeError):
        return None


def _from_entry(entry: object) -> Login | None:
    if not isinstance(entry, dict):
        return None
    if isinstance(token := entry.get("identitytoken"), str) and token:
        return Login(identity=token)
    basic = entry.get("auth")
    try:
        return Login(basic=basic) if isinstance(basic, str) and b":" in base64.b64decode(basic, validate=True) else None
    except binascii.Error:
        return None


def _from_helper(name: object, key: str) -> Login | None:
    """Return what ``docker-credential-NAME get`` prints for the registry on its standard input."""
    program = shutil.which(f"docker-credential-{name}") if isinstance(name, str) and _HELPER.fullmatch(name) else None
    if program is None:
        return None
    try:
        ran = execute([program, "get"], seconds=30, feed=key)
        ran.check_returncode()
        answer = parse_json(ran.stdout)
        user, secret = answer.get("Username"), answer.get("Secret")
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError):
        return None
    if not isinstance(user, str) or not isinstance(secret, str):
        return None
    # So a helper says that the secret is an identity token.
    if user == "<token>":
        return Login(identity=secret)
    return Login(basic=base64.b64encode(f"{user}:{secret}".encode()).decode())
