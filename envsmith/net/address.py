"""An address: its parts, what of it may be told, the proxy on the way to it, and where its server may lead."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from functools import lru_cache
from urllib.parse import SplitResult, urldefrag, urljoin, urlsplit

from envsmith.base.text import without_secrets
from envsmith.errors import NetworkError
from envsmith.net.index_settings import pip_values


def parts_of(url: str) -> SplitResult:
    """Return the parts of an address. A malformed one is all path, and refused wherever a path is."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # a port that is not a number is found out when it is asked for
    except ValueError:
        return SplitResult("", "", url, "", "")
    return parts


def split(url: str) -> SplitResult:
    """Return the parts of an address. ``NetworkError`` for what is not one of http or https."""
    parts = parts_of(url)
    if parts.scheme in {"https", "http"} and parts.hostname and parts.port != 0:
        return parts
    raise NetworkError(
        f"Cannot read {url.rpartition('@')[2][:200]!r}: it is not an http address.",
        hint="Set the index, registry or channel to an http(s) address.",
    )


def origin(url: str) -> tuple[str, str]:
    """Return scheme, host and port: what a login is good for."""
    parts = parts_of(url)
    return parts.scheme, parts.netloc.rpartition("@")[2]


def redact(url: str) -> str:
    """Return the address without user, password, signature and fragment."""
    return without_secrets(urldefrag(url).url)


def is_loopback(host: str | None) -> bool:
    """Tell whether ``host`` is this machine: the only place that is spoken to without TLS and without a proxy."""
    return host in {"localhost", "127.0.0.1", "::1"}


def proxy_of(url: str) -> str | None:
    """Return the proxy for an address: of the environment, else of pip, the same that uv gets.

    httpx's own rule fails on IPv6 networks in ``NO_PROXY``.
    """
    from urllib.request import getproxies, proxy_bypass

    parts = parts_of(url)
    if is_loopback(parts.hostname) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all") or pip_values(os.environ).get("proxy")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


def follow(before: str, location: str, *, first: str | None = None) -> str:
    """Return the address to which the server of ``before`` leads: by a redirect, a link or a header.

    The user named ``first`` (default: ``before``). ``NetworkError`` where an encrypted way becomes an open one, or
    where the server would lead this machine to itself, or into a network that is closer to it than ``first``.
    """
    first, reason = first or before, "it leads to a malformed address"
    with contextlib.suppress(ValueError):
        place = urljoin(before, location)
        parts = split(place)
        is_local = is_loopback(parts.hostname)
        if parts.scheme == "http" and (
            parts_of(before).scheme == "https" or (is_loopback(parts_of(first).hostname) and not is_local)
        ):
            reason = f"it leads to the unencrypted address {redact(place)}"
        elif origin(place) != origin(first) and _reach(place) < _reach(first):
            reason = f"it leads to {redact(place)}, into a network that is closer to this machine"
        else:
            return place
    raise NetworkError(
        f"Cannot follow {redact(before)}: {reason}.", hint="Use another server, or tell the one who runs this one."
    )


def _reach(url: str) -> int:
    """Return from where a server can be seen: 0 this machine, 1 its link, 2 a private network, 3 everywhere.

    A name is resolved, unless a proxy does that. One that cannot be resolved counts as seen from everywhere.
    """
    host = parts_of(url).hostname or ""
    with contextlib.suppress(ValueError):
        return _reach_of(host)
    return 3 if proxy_of(url) else _reach_of_name(host)


@lru_cache(maxsize=256)
def _reach_of_name(host: str) -> int:
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return 3
    return min(_reach_of(str(row[4][0])) for row in rows)


def _reach_of(text: str) -> int:
    address = ipaddress.ip_address(text)
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback or address.is_unspecified:
        return 0
    if address.is_link_local or address.is_multicast:
        return 1
    return 3 if address.is_global else 2
