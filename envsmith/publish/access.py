"""How a registry lets somebody in: an anonymous or configured bearer token, or basic credentials, as its challenge asks.

A token is asked for only over https, or from a registry on this machine; credentials are never sent anywhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from envsmith.errors import NetworkError
from envsmith.publish.wire import Response, Wire, is_loopback
from envsmith.sources.credentials import Login, login

__all__ = ["Access"]

_FIELD = re.compile(r'([a-zA-Z]+)="([^"]*)"')
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,16384}")
_MAX_TOKEN = 1 << 17


@dataclass(slots=True)
class Access:
    """The ``Authorization`` header of one repository, renewed when the registry challenges again.

    ``actions`` is ``pull`` or ``pull,push``; ``also`` are repositories whose blobs may be mounted (``pull`` is asked for).
    """

    registry: str
    repository: str
    actions: str
    wire: Wire
    also: tuple[str, ...] = ()
    _header: str = field(default="", repr=False)

    def headers(self) -> Mapping[str, str]:
        """What goes with the next request."""
        return {"Authorization": self._header} if self._header else {}

    def answer(self, challenge: str, url: str) -> None:
        """Do what ``WWW-Authenticate`` asks; ``NetworkError`` when it cannot be done or must not."""
        kind, _, rest = challenge[:4000].partition(" ")
        fields = {key.lower(): value for key, value in _FIELD.findall(rest)}
        known = login(self.registry)
        if kind.lower() == "basic":
            if known is None or not known.basic:
                raise _denied(self.registry, self.repository)
            if self._header == f"Basic {known.basic}":
                raise _denied(self.registry, self.repository)
            if not _private(url):
                raise NetworkError(f"{self.registry}: credentials are not sent over an unencrypted connection")
            self._header = f"Basic {known.basic}"
        elif kind.lower() == "bearer":
            self._header = f"Bearer {self._token(fields, url, known)}"
        else:
            raise NetworkError(f"registry {self.registry} asks for a kind of login that is not understood")

    def _token(self, fields: Mapping[str, str], url: str, known: Login | None) -> str:
        realm = fields.get("realm", "")
        parts = urlsplit(realm)
        same = is_loopback(parts.hostname or "") and is_loopback(urlsplit(url).hostname or "")
        if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and same)):
            raise NetworkError(f"registry {self.registry} sends to a place for tokens that is not trusted")
        scopes = [("scope", f"repository:{self.repository}:{self.actions}")]
        scopes += [("scope", f"repository:{other}:pull") for other in self.also]
        query = [("service", fields.get("service", "")), *scopes]
        if known and known.identity:
            form = [("grant_type", "refresh_token"), ("refresh_token", known.identity), ("client_id", "envsmith")]
            form += [("service", fields.get("service", "")), ("scope", " ".join(value for _, value in scopes))]
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            response = self._send("POST", realm, headers, urlencode(form).encode())
        else:
            headers = {"Authorization": f"Basic {known.basic}"} if known else {}
            response = self._send("GET", f"{realm}{'&' if parts.query else '?'}{urlencode(query)}", headers, None)
        return self._read(response)

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        try:
            return self.wire(method, url, headers, body)
        except OSError as error:
            raise NetworkError(f"{self.registry}: the place for tokens cannot be reached: {error}") from None

    def _read(self, response: Response) -> str:
        try:
            data = json.loads(response.body.read(_MAX_TOKEN))
            token = data.get("token") or data.get("access_token")
        except (OSError, ValueError, AttributeError):
            token = None
        finally:
            response.close()
        if response.status in {401, 403}:
            raise _denied(self.registry, self.repository)
        if response.status != 200 or not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise NetworkError(f"registry {self.registry} gave no token (status {response.status})")
        return token


def _private(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def _denied(registry: str, repository: str) -> NetworkError:
    return NetworkError(f"{registry}: access to {repository} is denied", hint=f"log in first: docker login {registry}")
