"""What rattler's client is told when it fetches packages: mirrors, proxies, certificates, logins.

A package keeps the address that the lock gives it, without any secret: that address is what rattler writes into the prefix and into its
cache. A token in a channel's address reaches the client as a mirror of the channel, a password as a stored login.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from envsmith.errors import DataError
from envsmith.lock.conda.channels import base_url
from envsmith.lock.conda.names import public_url
from envsmith.lock.conda.settings import ChannelSettings, read_settings

__all__ = ["Network", "network_for"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """``mirrors`` by prefix, ``logins`` as rattler's file of credentials holds them, ``environ`` for the process."""

    mirrors: Mapping[str, tuple[str, ...]] = field(repr=False)
    logins: Mapping[str, Any] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    insecure: str = ""

    def told(self) -> dict[str, Any]:
        """The linker's share. ``config`` is given where only rattler's own configuration can say it (no check of certificates)."""
        return {"mirrors": dict(self.mirrors), "logins": dict(self.logins), "config": self.insecure}


def network_for(channels: Sequence[str], environ: Mapping[str, str] | None = None) -> Network:
    """For the channels of a lock, with the user's credentials where they gave them; ``DataError`` for a file that does not parse."""
    environ = os.environ if environ is None else environ
    settings = read_settings(environ)
    logins = _stored(settings, environ)
    wanted: dict[str, tuple[str, ...]] = dict(settings.mirrors)
    for channel in channels:
        base = base_url(channel, settings) + "/"
        if urlsplit(base).scheme in {"http", "https"}:
            wanted[public_url(base)] = settings.places(base)
    mirrors = {}
    for prefix, places in wanted.items():
        plain = tuple(_without_user(place, logins) for place in places)
        if plain != (prefix,):
            mirrors[prefix] = plain
    return Network(
        mirrors=mirrors,
        logins=logins,
        environ=_environ(settings, environ),
        insecure=settings.for_rattler(mirrors) if settings.verify is False else "",
    )


def _without_user(url: str, logins: dict[str, Any]) -> str:
    parts = urlsplit(url)
    if parts.username is not None and parts.hostname:
        pair = {"username": unquote(parts.username), "password": unquote(parts.password or "")}
        logins[parts.hostname] = {"BasicHTTP": pair}
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))


def _stored(settings: ChannelSettings, environ: Mapping[str, str]) -> dict[str, Any]:
    """What the file holds that rattler asks first."""
    named = settings.auth_file or environ.get("RATTLER_AUTH_FILE")
    if not named:
        return {}
    try:
        data = json.loads(Path(named).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        raise DataError(f"{named}: not readable as a file of credentials") from None
    if not isinstance(data, dict):
        raise DataError(f"{named}: not a mapping of hosts to credentials")
    return data


def _environ(settings: ChannelSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Proxies and authorities as rattler's client takes them from the environment."""
    told = dict(environ)
    if isinstance(settings.verify, Path):
        told["SSL_CERT_DIR" if settings.verify.is_dir() else "SSL_CERT_FILE"] = str(settings.verify)
    for scheme, proxy in settings.proxies.items():
        if scheme in {"http", "https"}:
            told[f"{scheme}_proxy"] = told[f"{scheme.upper()}_PROXY"] = proxy
    if settings.no_proxy:
        told["no_proxy"] = told["NO_PROXY"] = ",".join(settings.no_proxy)
    return told
