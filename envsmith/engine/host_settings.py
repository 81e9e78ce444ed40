"""What this host needs to reach its package index, for passing into a build as secrets: a CA bundle and index settings.

Read from where pip and uv read it themselves: their variables, ``pip.conf``, ``uv.toml``. Nothing is invented: a host without settings
passes none, and pip's and uv's own defaults hold inside the build as they do outside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envsmith.sources.pip_settings import pip_values

__all__ = ["HostSettings", "read_host_settings"]

_SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_CA_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# The predefined build arguments of BuildKit: neither kept in the image nor part of the cache key.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSettings:
    """``ca`` is a PEM file of this host; ``uv_toml`` a configuration for uv (it may hold passwords: never log it).

    ``proxies`` are variables for the build; ``unreachable`` names settings that point to a folder of this host, which a build cannot see.
    """

    ca: Path | None = None
    uv_toml: str = ""
    proxies: tuple[tuple[str, str], ...] = ()
    unreachable: tuple[str, ...] = ()


def read_host_settings(environ: Mapping[str, str] | None = None, home: Path | None = None) -> HostSettings:
    """Collect the settings; never raises for a file that is not there or does not parse."""
    env = os.environ if environ is None else environ
    home = home or Path(env.get("HOME") or Path.home())
    pip = pip_values({**env, "HOME": str(home)})
    settings: dict[str, list[str]] = {}
    unreachable: list[str] = []
    for key, values in _index_settings(env, pip).items():
        here = [v for v in values if _is_local(v)]
        unreachable += [f"{key} {value}" for value in here]
        if far := [v for v in values if v not in here]:
            settings[key] = far
    text = _own_uv_config(env, home) or _toml(settings)
    proxies = tuple((n, v) for name in _PROXIES for n in (name, name.lower()) if (v := env.get(n)))
    return HostSettings(ca=_ca(env, pip), uv_toml=text, proxies=proxies, unreachable=tuple(unreachable))


def _ca(env: Mapping[str, str], pip: Mapping[str, str]) -> Path | None:
    named = [env.get(name) for name in _CA_VARIABLES] + [pip.get("cert"), *_SYSTEM_BUNDLES]
    return next((Path(p) for p in named if p and Path(p).is_file()), None)


def _index_settings(env: Mapping[str, str], pip: Mapping[str, str]) -> dict[str, list[str]]:
    """Keys of uv and their values; a variable of uv wins over pip's setting of the same meaning."""
    sources = {
        "index-url": env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or pip.get("index-url"),
        "extra-index-url": env.get("UV_INDEX") or env.get("UV_EXTRA_INDEX_URL") or pip.get("extra-index-url"),
        "find-links": env.get("UV_FIND_LINKS") or pip.get("find-links"),
        "allow-insecure-host": env.get("UV_INSECURE_HOST") or pip.get("trusted-host"),
    }
    # UV_INDEX may name its indexes (name=url); the old spelling in uv.toml has no names.
    strip = {"extra-index-url": lambda v: v.split("=", 1)[1] if "=" in v.split("://")[0] else v}
    found: dict[str, list[str]] = {}
    for key, value in sources.items():
        if value:
            found[key] = [strip.get(key, str)(v) for v in value.replace(",", " ").split()]
    return found


def _is_local(value: str) -> bool:
    return value.startswith(("file:", "/", ".", "~"))


def _own_uv_config(env: Mapping[str, str], home: Path) -> str:
    """The user's own ``uv.toml``, word for word, when one is there; uv itself would read it and nothing of pip's."""
    config = env.get("XDG_CONFIG_HOME") or str(home / ".config")
    for name in (env.get("UV_CONFIG_FILE"), f"{config}/uv/uv.toml", "/etc/uv/uv.toml"):
        if name and (text := _read(Path(name))).strip():
            return text
    return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return ""


def _toml(settings: Mapping[str, list[str]]) -> str:
    """A JSON string is a valid TOML basic string for everything a URL can hold."""
    lines = []
    for key, values in settings.items():
        lines.append(f"{key} = {json.dumps(values[0] if key == 'index-url' else values)}")
    return "\n".join(lines) + "\n" if lines else ""
