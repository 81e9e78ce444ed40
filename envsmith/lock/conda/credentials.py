"""Who the user is to a channel's server: what rattler, pixi and micromamba's users have stored, looked up in rattler's order.

rattler's client does this by itself when packages are fetched; the index is fetched by us (bounded, and kept whole), so the same
places are read here. A credential is a value that prints as nothing.
"""

from __future__ import annotations

import base64
import importlib
import json
import netrc
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from envsmith.errors import DataError

__all__ = ["Login", "Logins", "find_logins"]

_MAX_BYTES = 1 << 20
# The name under which rattler keeps its entries in the keyring of the operating system.
_SERVICE = "rattler"
Store = Callable[[str], "Login | None"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Login:
    """A header, or a token that goes into the path (``/t/TOKEN/…``); ``source`` is where it was found and may be shown."""

    source: str
    header: str = field(default="", repr=False)
    token: str = field(default="", repr=False)

    def on(self, url: str) -> str:
        """The address as the server wants it."""
        parts = urlsplit(url)
        if not self.token or parts.path.startswith("/t/"):
            return url
        return urlunsplit(parts._replace(path=f"/t/{self.token}{parts.path}"))


@dataclass(frozen=True, slots=True)
class Logins:
    """The stores in the order in which rattler asks them; ``problems`` are told when a server wants to know who asks."""

    stores: tuple[Store, ...] = ()
    problems: tuple[str, ...] = ()

    def find(self, url: str) -> Login | None:
        """What is known for the address: in itself, for its host, then for ``*.`` and each parent domain."""
        parts = urlsplit(url)
        if parts.username is not None:
            return _basic("the address", unquote(parts.username), unquote(parts.password or ""))
        for key in _keys(parts.hostname or ""):
            for store in self.stores:
                if login := store(key):
                    return login
        return None


def _keys(host: str) -> list[str]:
    """``host``, ``*.host``, ``*.parent`` …; an address in numbers has no parents."""
    if not host or ":" in host or host.replace(".", "").isdigit():
        return [host] if host else []
    labels = host.split(".")
    return [host, *("*." + ".".join(labels[n:]) for n in range(len(labels)))]


def find_logins(auth_file: Path | None = None, environ: Mapping[str, str] | None = None) -> Logins:
    """The stores of this user.

    ``auth_file`` (rattler's ``authentication-override-file``) alone where it is configured; else ``RATTLER_AUTH_FILE``, the keyring,
    ``~/.rattler/credentials.json`` and ``$NETRC`` or ``~/.netrc``.

    ``DataError`` for a file of rattler's that does not parse; a broken netrc belongs to other programs and is only remembered.
    """
    environ = os.environ if environ is None else environ
    if auth_file:
        return Logins((_file(auth_file),))
    home = Path(environ.get("HOME") or "~").expanduser()
    stores: list[Store] = []
    if named := environ.get("RATTLER_AUTH_FILE"):
        stores.append(_file(Path(named)))
    stores += [_keyring, _file(home / ".rattler" / "credentials.json")]
    named = environ.get("NETRC")
    path = Path(named) if named else home / ".netrc"
    try:
        hosts = netrc.netrc(path).hosts
    except FileNotFoundError:
        return Logins(tuple(stores), (f"NETRC names {path}, which is not there",) if named else ())
    except (OSError, netrc.NetrcParseError, UnicodeDecodeError) as error:
        line = f", line {error.lineno}" if isinstance(error, netrc.NetrcParseError) else ""
        return Logins(tuple(stores), (f"{path}: not readable as a netrc{line}",))
    return Logins((*stores, _netrc(path, hosts)))


def _basic(source: str, user: str, password: str) -> Login:
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    return Login(source=source, header=f"Basic {pair}")


def _netrc(path: Path, hosts: Mapping[str, tuple[str, str | None, str | None]]) -> Store:
    def look(host: str) -> Login | None:
        if host not in hosts or host == "default":
            return None
        user, _, password = hosts[host]
        return _basic(str(path), user or "", password or "")

    return look


def _file(path: Path) -> Store:
    """Rattler's JSON: a host, and one of its kinds of credentials."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: larger than {_MAX_BYTES >> 10} KiB: no file of credentials")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        data = {}
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path}: not JSON", hint="write it again with `pixi auth login`") from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: not a mapping of hosts to credentials")

    def look(host: str) -> Login | None:
        return _parse(str(path), host, data[host]) if host in data else None

    return look


def _parse(source: str, host: str, entry: Any) -> Login | None:
    """One entry; ``None`` for one that is of no use over HTTP (S3)."""
    if not isinstance(entry, dict) or len(entry) != 1:
        raise DataError(f"{source}: {host}: expected one of BearerToken, BasicHTTP, CondaToken, OAuth")
    ((kind, value),) = entry.items()
    if kind == "BearerToken":
        return Login(source=source, header=f"Bearer {_word(source, host, kind, value)}")
    if kind == "CondaToken":
        return Login(source=source, token=_word(source, host, kind, value, but=" /?#%"))
    if kind == "BasicHTTP":
        names = [f"{kind}.{n}" for n in ("username", "password")]
        values = [value.get(n) for n in ("username", "password")] if isinstance(value, dict) else [None, None]
        return _basic(source, *(_word(source, host, n, v, but="") for n, v in zip(names, values, strict=True)))
    if kind == "OAuth":
        return _oauth(source, host, value)
    if kind == "S3Credentials":
        return None
    raise DataError(f"{source}: {host}: a kind of credentials that is not known here")


def _oauth(source: str, host: str, value: Any) -> Login:
    token = _word(source, host, "OAuth.access_token", value.get("access_token") if isinstance(value, dict) else None)
    until = value.get("expires_at")
    if isinstance(until, (int, float)) and until < time.time():
        raise DataError(f"{source}: {host}: the login has expired", hint=f"pixi auth login {host}")
    return Login(source=source, header=f"Bearer {token}")


def _word(source: str, host: str, key: str, value: Any, *, but: str = " ") -> str:
    """A text without control characters; what goes into a header or a path as it is may have nothing of ``but`` in it, and is not empty."""
    wrong = not isinstance(value, str) or any(ord(c) < 32 or ord(c) == 127 for c in value)
    if wrong or (but and (not value or not value.isascii() or any(c in but for c in value))):
        raise DataError(f"{source}: {host}: {key}: not usable as a credential")
    return str(value)


@cache
def _backend() -> Any:
    try:
        return importlib.import_module("keyring")
    except ImportError:
        return None


def _keyring(host: str) -> Login | None:
    """The operating system's keyring, where the ``keyring`` package is installed; one that is locked or absent knows nothing."""
    backend = _backend()
    if backend is None:
        return None
    try:
        told = backend.get_password(_SERVICE, host)
        entry = json.loads(told) if told else None
    except Exception:  # noqa: BLE001 - each backend has its own family, and none of them may end a lock
        return None
    return _parse("the keyring", host, entry) if entry is not None else None
