"""Opens an address of a channel as this user: proxies, certificates, credentials; the one place where a secret goes out."""

from __future__ import annotations

import base64
import functools
import importlib
import json
import netrc
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from envsmith.conda.model import CondaRequest
from envsmith.conda.names import clean, public_url, require_rattler, scrub
from envsmith.errors import DataError, UsageError

# What the user's machine says about channels: the configuration of rattler and pixi, and of conda (``.condarc``).
#
# rattler itself finds, merges and parses its ``config.toml`` files (``/etc``, ``$XDG_CONFIG_HOME``, ``$RATTLER_HOME``, ``~/.pixi``);
# ``.condarc`` it does not know, so the keys of conda's and mamba's documentation that say where a channel lies are read here.


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


# Who the user is to a channel's server: what rattler, pixi and micromamba's users have stored, looked up in rattler's order.
#
# rattler's client does this by itself when packages are fetched; the index is fetched by us (bounded, and kept whole), so the same
# places are read here. A credential is a value that prints as nothing.


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


@dataclass(frozen=True, kw_only=True)
class Access:
    """What this user may see, and by which way."""

    settings: ChannelSettings = field(default_factory=ChannelSettings)
    logins: Logins = field(default_factory=Logins)

    def open(self, url: str, headers: Mapping[str, str], seconds: float) -> Any:
        """The answer to a GET; raises what urllib raises. A redirect is asked anew, with the credentials of where it leads."""
        return self._opener.open(self._request(url, headers), timeout=seconds)

    def told(self, url: str) -> str:
        """Which credentials were sent, for the message about a refused request."""
        login = self.logins.find(url)
        return f"credentials of {login.source} were sent" if login else "no credentials are known for it"

    def _request(self, url: str, headers: Mapping[str, str]) -> urllib.request.Request:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in {"http", "https"}:
            raise urllib.error.URLError("it leads to an address that is not http or https")
        login = self.logins.find(url)
        plain = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))
        request = urllib.request.Request(login.on(plain) if login else plain, headers=dict(headers))  # noqa: S310 - looked at above
        if login and login.header:
            request.add_unredirected_header("Authorization", login.header)
        return request

    @functools.cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = [
            _Redirect(self),
            urllib.request.HTTPSHandler(context=_context(self.settings)),
        ]
        if self.settings.proxies:
            handlers.append(_Proxies(self.settings))
        return urllib.request.build_opener(*handlers)


def user_access() -> Access:
    """As the configuration of this machine says; ``DataError`` for a file of it that does not parse."""
    settings = read_settings()
    return Access(settings=settings, logins=find_logins(settings.auth_file))


def _context(settings: ChannelSettings) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if settings.verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif isinstance(settings.verify, Path):
        try:
            where = "capath" if settings.verify.is_dir() else "cafile"
            context.load_verify_locations(**{where: str(settings.verify)})
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"ssl_verify names {settings.verify}, which holds no certificates") from error
    return context


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Follows; what was meant for one server does not go to the next one, and nothing goes from https to http."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def redirect_request(  # noqa: PLR0917 - urllib's signature
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if super().redirect_request(req, fp, code, msg, headers, newurl) is None:
            return None
        if req.type == "https" and urllib.parse.urlsplit(newurl).scheme == "http":
            raise urllib.error.URLError("it leads from https to http")
        made = self.access._request(newurl, req.headers)  # noqa: SLF001 - the other half of this class
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        sent = req.get_header("Authorization")
        if sent and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            made.add_unredirected_header("Authorization", sent)
        return made


class _Proxies(urllib.request.ProxyHandler):
    """The configured proxies, but for hosts that are to be reached without one."""

    def __init__(self, settings: ChannelSettings) -> None:
        super().__init__(dict(settings.proxies))
        self.direct = settings.no_proxy

    def proxy_open(self, req: urllib.request.Request, proxy: str, type: str) -> Any:  # noqa: A002 - urllib's name
        host = urllib.parse.urlsplit(req.full_url).hostname or ""
        if any(host == name or host.endswith("." + name.lstrip("*.")) for name in self.direct):
            return None
        return super().proxy_open(req, proxy, type)


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


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


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


def with_channels(conda: CondaRequest) -> CondaRequest:
    """Return the request with the channels of this user's configuration where it names none. Errors as :func:`read_settings`."""
    return conda if conda.channels else replace(conda, channels=default_channels())


def default_channels() -> tuple[str, ...]:
    """The channels of a user who names none: those of the configuration, else conda-forge. Errors as :func:`read_settings`."""
    import importlib.util

    told = read_settings().channels if importlib.util.find_spec("rattler") else ()
    return told or ("conda-forge",)


def _rattler() -> Any:

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

_SCHEMES = frozenset({"http", "https", "file"})


def base_url(channel: str, settings: ChannelSettings | None = None) -> str:
    """The address below which the channel's subdirs lie, without a slash at the end; ``UsageError`` for what is no channel.

    A name means what ``settings`` (by default those of this user) say; an address and a folder need none.
    """
    text = channel.strip()
    if not text or any(ord(c) < 33 for c in text):
        raise UsageError(
            f"{clean(channel)!r} is not a channel", hint="give a name (conda-forge), a URL or file:///path"
        )
    if "://" not in text and (text.startswith(("/", "./", "../")) or text == "."):
        return Path(text).resolve().as_uri()
    if "://" not in text:
        return _named(text, settings or read_settings())
    scheme = urllib.parse.urlsplit(text).scheme.lower()
    if scheme not in _SCHEMES:
        raise UsageError(
            f"channel {clean(public_url(text))}: {scheme!r} is not a scheme that channels have (http, https, file)"
        )
    return text.rstrip("/")


def _named(text: str, settings: ChannelSettings) -> str:
    name, slash, rest = text.partition("/")
    if name in settings.custom:
        return f"{settings.custom[name]}{slash}{rest}".rstrip("/")
    rattler = require_rattler()
    config = rattler.ChannelConfig(channel_alias=f"{settings.alias}/") if settings.alias else rattler.ChannelConfig()
    try:
        return str(rattler.Channel(text, config).base_url).rstrip("/")
    except Exception as error:
        raise UsageError(f"{clean(text)!r} is not a channel: {clean(scrub(str(error)))}") from error
