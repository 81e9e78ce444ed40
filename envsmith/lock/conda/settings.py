"""What the user's machine says about channels: the configuration of rattler and pixi, and of conda (``.condarc``).

rattler itself finds, merges and parses its ``config.toml`` files (``/etc``, ``$XDG_CONFIG_HOME``, ``$RATTLER_HOME``, ``~/.pixi``);
``.condarc`` it does not know, so the keys of conda's and mamba's documentation that say where a channel lies are read here.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from envsmith.errors import DataError
from envsmith.lock.conda.names import clean

__all__ = ["ChannelSettings", "default_channels", "read_settings"]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelSettings:
    """Where channels lie and how they are reached. Addresses may hold credentials: nothing of it is ever written or shown.

    ``mirrors`` maps a prefix that ends with ``/`` to what is asked in its place, in order; the longest prefix comes first.
    ``verify`` is False where the user switched the check of certificates off, or the file of the authorities to trust.
    """

    alias: str | None = field(default=None, repr=False)
    custom: Mapping[str, str] = field(default_factory=dict, repr=False)
    mirrors: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), repr=False)
    channels: tuple[str, ...] = ()
    verify: bool | Path = True
    proxies: Mapping[str, str] = field(default_factory=dict, repr=False)
    no_proxy: tuple[str, ...] = ()
    auth_file: Path | None = None

    def places(self, url: str) -> tuple[str, ...]:
        """Where the file of ``url`` is asked for, in order: its mirrors where it has some, else itself, as rattler does."""
        for prefix, mirrors in self.mirrors:
            if url.startswith(prefix):
                return tuple(mirror + url[len(prefix) :] for mirror in mirrors)
        return (url,)

    def for_rattler(self, mirrors: Mapping[str, Sequence[str]]) -> str:
        """The same in rattler's own ``config.toml``, for its client; logins are given to it otherwise."""
        lines = [f"tls-no-verify = {str(self.verify is False).lower()}"]
        if self.proxies or self.no_proxy:
            lines.append("[proxy-config]")
            lines += [f"{scheme} = {json.dumps(proxy)}" for scheme, proxy in sorted(self.proxies.items())]
            lines.append(f"non-proxy-hosts = {json.dumps(list(self.no_proxy))}")
        if mirrors:
            lines.append("[mirrors]")
            lines += [f"{json.dumps(prefix)} = {json.dumps(list(urls))}" for prefix, urls in mirrors.items()]
        return "\n".join(lines) + "\n"


def read_settings(environ: Mapping[str, str] | None = None) -> ChannelSettings:
    """What this user configured; ``DataError`` names the file and the key that is wrong, never its value."""
    environ = os.environ if environ is None else environ
    own = _rattler()
    conda = _merged(environ)
    alias = environ.get("CONDA_CHANNEL_ALIAS") or conda.get("channel_alias")
    custom = {n: f"{_address(base)}/{n}" for n, base in conda.get("custom_channels", {}).items()}
    mirrors = {_slash(k): tuple(map(_slash, v)) for k, v in own.mirrors.items()}
    for name, urls in conda.get("mirrored_channels", {}).items():
        mirrors.setdefault(_slash(_resolve(name, alias, custom)), tuple(_slash(_address(u)) for u in urls))
    proxies = dict(conda.get("proxy_servers", {}))
    proxies |= {s: p for s, p in (("http", own.proxy_http), ("https", own.proxy_https)) if p}
    return ChannelSettings(
        alias=_address(alias) if alias else None,
        custom=custom,
        mirrors=tuple(sorted(mirrors.items(), key=lambda pair: (-len(pair[0]), pair[0]))),
        channels=tuple(own.default_channels or ()) or _default_channels(environ, conda),
        verify=False if own.tls_no_verify else _verify(environ, conda),
        proxies=proxies,
        no_proxy=tuple(own.proxy_non_proxy_hosts),
        auth_file=own.authentication_override_file,
    )


def default_channels() -> tuple[str, ...]:
    """The channels of a user who names none: those of the configuration, else conda-forge. Errors as :func:`read_settings`."""
    import importlib.util

    told = read_settings().channels if importlib.util.find_spec("rattler") else ()
    return told or ("conda-forge",)


def _rattler() -> Any:
    from envsmith.lock.conda.channels import require_rattler

    rattler = require_rattler()
    try:
        return rattler.Config.load_from_default_locations("pixi")
    except Exception as error:  # noqa: BLE001 - rattler has no common family
        raise DataError(
            f"{_broken(rattler)}: does not parse: {clean(str(error).splitlines()[0])}",
            hint="repair it, or move it away",
        ) from None  # the rest of rattler's message shows the line, which may hold a secret


def _broken(rattler: Any) -> str:
    """The file that is wrong alone; all of them when each is fine alone."""
    there = [path for path, _ in rattler.Config.config_search_paths("pixi") if path.is_file()]
    for path in there:
        try:
            rattler.Config.load_from_files([path])
        except Exception:  # noqa: BLE001, PERF203 - that it fails is what is asked
            return str(path)
    return ", ".join(map(str, there))


def _resolve(name: str, alias: str | None, custom: Mapping[str, str]) -> str:
    from envsmith.lock.conda.channels import base_url

    return base_url(name, ChannelSettings(alias=_address(alias) if alias else None, custom=custom))


def _slash(url: str) -> str:
    return url.rstrip("/") + "/"


def _address(url: str) -> str:
    """An address; conda takes it without a scheme too, and means https then."""
    return (url if "://" in url else f"https://{url}").rstrip("/")


def _default_channels(environ: Mapping[str, str], conda: Mapping[str, Any]) -> tuple[str, ...]:
    """The channels of ``.condarc``. ``defaults`` stands for ``default_channels``; where those are not told it is left out."""
    told = environ.get("CONDA_CHANNELS")
    named: Sequence[str] = [n.strip() for n in told.split(",")] if told else conda.get("channels", ())
    found: list[str] = []
    for name in named:
        found += conda.get("default_channels", ()) if name == "defaults" else [name] if name else []
    return tuple(dict.fromkeys(found))


def _verify(environ: Mapping[str, str], conda: Mapping[str, Any]) -> bool | Path:
    value = environ.get("CONDA_SSL_VERIFY", conda.get("ssl_verify", True))
    if isinstance(value, bool):
        return value
    if value.lower() in {"true", "yes", "1", "truststore", "<truststore>", ""}:
        return True
    return False if value.lower() in {"false", "no", "0"} else Path(value).expanduser()


def _merged(environ: Mapping[str, str]) -> dict[str, Any]:
    """Every ``.condarc``, later files over earlier ones, key by key."""
    merged: dict[str, Any] = {}
    for path in _condarcs(environ):
        for key, value in _condarc(path, environ).items():
            merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return merged


def _condarcs(environ: Mapping[str, str]) -> list[Path]:
    """Where conda looks, in its order; the last one wins."""
    home = Path(environ.get("HOME") or "~").expanduser()
    names = ["/etc/conda/.condarc", "/etc/conda/condarc", "/var/lib/conda/.condarc", "/var/lib/conda/condarc"]
    if root := environ.get("CONDA_ROOT"):
        names += [f"{root}/.condarc", f"{root}/condarc"]
    if xdg := environ.get("XDG_CONFIG_HOME"):
        names += [f"{xdg}/conda/.condarc", f"{xdg}/conda/condarc"]
    names += [f"{home}/{n}" for n in (".config/conda/.condarc", ".config/conda/condarc", ".conda/.condarc")]
    names += [f"{home}/.conda/condarc", f"{home}/.condarc"]
    if prefix := environ.get("CONDA_PREFIX"):
        names += [f"{prefix}/.condarc", f"{prefix}/condarc"]
    if named := environ.get("CONDARC"):
        names.append(named)
    return [p for n in dict.fromkeys(names) if (p := Path(n)).is_file()]


def _condarc(path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """The keys that are ours, typed and with their variables filled in."""
    import yaml

    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: larger than {_MAX_BYTES >> 10} KiB: no .condarc")
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise DataError(f"{path}: not YAML{where}", hint="repair it, or set CONDARC to another file") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise DataError(f"{path}: not a mapping of settings")
    read = _Reader(path, environ)
    return {key: parse(read, key, data[key]) for key, parse in _KEYS.items() if data.get(key) is not None}


@dataclass(frozen=True, slots=True)
class _Reader:
    """Values of one file; a wrong one is named by its key."""

    path: Path
    environ: Mapping[str, str]

    def text(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or any(ord(c) < 32 for c in value):
            raise DataError(f"{self.path}: {key}: expected text")
        for name in _VARIABLE.findall(value):
            if name not in self.environ:
                raise DataError(f"{self.path}: {key}: the variable ${{{name}}} is not set")
        return _VARIABLE.sub(lambda match: self.environ[match[1]], value)

    def switch(self, key: str, value: Any) -> bool | str:
        return value if isinstance(value, bool) else self.text(key, value)

    def texts(self, key: str, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            raise DataError(f"{self.path}: {key}: expected a list of channels")
        return tuple(self.text(f"{key}[{number}]", item) for number, item in enumerate(value))

    def table(self, key: str, value: Any) -> dict[str, str]:
        return {name: self.text(f"{key}.{name}", item) for name, item in self._items(key, value)}

    def proxies(self, key: str, value: Any) -> dict[str, str]:
        return {name: proxy for name, proxy in self.table(key, value).items() if urlsplit(proxy).scheme}

    def lists(self, key: str, value: Any) -> dict[str, tuple[str, ...]]:
        return {name: self.texts(f"{key}.{name}", item) for name, item in self._items(key, value)}

    def _items(self, key: str, value: Any) -> list[tuple[str, Any]]:
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            raise DataError(f"{self.path}: {key}: expected a mapping by name")
        return list(value.items())


_KEYS = {
    "channels": _Reader.texts,
    "default_channels": _Reader.texts,
    "channel_alias": _Reader.text,
    "custom_channels": _Reader.table,
    "mirrored_channels": _Reader.lists,
    "ssl_verify": _Reader.switch,
    "proxy_servers": _Reader.proxies,
}
