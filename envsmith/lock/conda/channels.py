"""Give rattler's Gateway and Client what this user configured, and read what the channels offer.

rattler finds and parses its own and pixi's ``config.toml``, the stores of logins and ``~/.netrc``. ``.condarc`` it does
not know, so the keys of conda's and mamba's documentation that say where a channel lies are read here. A package keeps
the address that the lock gives it, without any secret: a token in a channel's address reaches the client as a mirror of
the channel, a password as a stored login.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote, urlunsplit

from envsmith.base.files import expand_home, read_bounded, scratch
from envsmith.base.schema import Parsed, Problems, WrongValueError, one_or_many, parse_json, read_document
from envsmith.errors import DataError, EnvsmithError, LockError, NetworkError, StorageError, UsageError
from envsmith.lock.conda.copies import drop_changed, sealed
from envsmith.lock.conda.model import CondaPackage, CondaRequest, Tell
from envsmith.lock.conda.names import clean, public_url, require_rattler, scrub
from envsmith.net.address import parts_of
from envsmith.net.authorities import ca_bundle

_T = TypeVar("_T")
_MAX_BYTES = 1 << 20
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ADDRESS = re.compile(r"(?:https?|file)://[^\s)'`]+")
_SCHEMES = frozenset({"http", "https", "file"})
_LOGIN = (
    "Store a login where rattler reads it: pixi auth login, RATTLER_AUTH_FILE, ~/.rattler/credentials.json or ~/.netrc."
)


class DamagedIndexError(NetworkError):
    """What a channel answers is not an index, or a part of one."""


def _filled(value: object, environ: Mapping[str, str]) -> str:
    if not isinstance(value, str) or any(ord(c) < 32 for c in value):
        raise WrongValueError("text belongs here")
    if unset := [name for name in _VARIABLE.findall(value) if name not in environ]:
        raise WrongValueError(f"the variable ${{{unset[0]}}} is not set")
    return _VARIABLE.sub(lambda match: environ[match[1]], value)


def _switch(value: object, environ: Mapping[str, str]) -> bool | str:
    return value if isinstance(value, bool) else _filled(value, environ)


_Text = Annotated[str, Parsed(_filled)]
_Texts = Annotated[tuple[_Text, ...], one_or_many()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Condarc:
    """The keys of ``.condarc`` that are read."""

    channels: _Texts | None = None
    default_channels: _Texts | None = None
    channel_alias: _Text | None = None
    custom_channels: dict[str, _Text] | None = None
    mirrored_channels: dict[str, _Texts] | None = None
    ssl_verify: Annotated[bool | str, Parsed(_switch)] | None = None
    proxy_servers: dict[str, _Text] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelSettings:
    """Where channels lie and how they are reached.

    Addresses may hold credentials: nothing of it is ever written or shown. ``mirrors`` maps a prefix that ends with
    ``/`` to what is asked in its place, in order. The longest prefix comes first. ``verify`` is False where the user
    switched the check of certificates off, or the file of the authorities to trust.
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
        """Return where the file of ``url`` is asked for, in order: its mirrors, or itself where it has none."""
        for prefix, mirrors in self.mirrors:
            if url.startswith(prefix):
                return tuple(mirror + url[len(prefix) :] for mirror in mirrors)
        return (url,)


def read_settings() -> ChannelSettings:
    """Return what this user configured. ``DataError`` names the file and the key that is wrong."""
    environ = os.environ
    own, conda = _rattlers_own(), _merged(environ)
    alias = environ.get("CONDA_CHANNEL_ALIAS") or conda.channel_alias
    custom = {name: f"{_address(base)}/{name}" for name, base in (conda.custom_channels or {}).items()}
    names = ChannelSettings(alias=_address(alias) if alias else None, custom=custom)
    mirrors = {_slash(prefix): tuple(map(_slash, urls)) for prefix, urls in own.mirrors.items()}
    for name, urls in (conda.mirrored_channels or {}).items():
        mirrors.setdefault(_slash(base_url(name, names)), tuple(_slash(_address(url)) for url in urls))
    proxies = {scheme: proxy for scheme, proxy in (conda.proxy_servers or {}).items() if parts_of(proxy).scheme}
    proxies |= {scheme: proxy for scheme, proxy in (("http", own.proxy_http), ("https", own.proxy_https)) if proxy}
    return dataclasses.replace(
        names,
        mirrors=tuple(sorted(mirrors.items(), key=lambda pair: (-len(pair[0]), pair[0]))),
        channels=tuple(own.default_channels or ()) or _channels_of(environ, conda),
        verify=False if own.tls_no_verify else _verify(environ, conda),
        proxies=proxies,
        no_proxy=tuple(own.proxy_non_proxy_hosts),
        auth_file=own.authentication_override_file,
    )


def _rattlers_own() -> Any:
    rattler = require_rattler()
    try:
        return rattler.Config.load_from_default_locations("pixi")
    except Exception as error:  # noqa: BLE001 - rattler has no common family
        files = [str(path) for path, _ in rattler.Config.config_search_paths("pixi") if path.is_file()]
        reason = clean(str(error).splitlines()[0])
        # What follows in rattler's message shows the line, which may hold a secret.
        raise DataError(f"Cannot read {', '.join(files)}: {reason}.", hint="Repair it, or move it away.") from None


def _merged(environ: Mapping[str, str]) -> Condarc:
    """Return every ``.condarc`` as one: later files over earlier ones, key by key."""
    merged: dict[str, Any] = {}
    for path in _condarcs(environ):
        problems = Problems()
        content = read_bounded(path, _MAX_BYTES)
        own = read_document(Condarc, str(path), content, problems, context=environ) if content.strip() else Condarc()
        if own is None:
            lines = [scrub(line) for line in problems.lines]
            raise DataError(
                f"Cannot read {path}: {len(lines)} of its values cannot be used.",
                details=lines,
                hint="Repair it, or set CONDARC to another file.",
            )
        for key in Condarc.__slots__:
            value = getattr(own, key)
            if value is not None:
                merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return Condarc(**merged)


def _condarcs(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that conda reads, in its order: the last one wins."""
    home = expand_home("~", environ)
    folders = ["/etc/conda", "/var/lib/conda", environ.get("CONDA_ROOT")]
    folders += [f"{xdg}/conda"] if (xdg := environ.get("XDG_CONFIG_HOME")) else []
    folders += [f"{home}/.config/conda", f"{home}/.conda"]
    prefix = environ.get("CONDA_PREFIX")
    names = [f"{folder}/{name}" for folder in folders if folder for name in (".condarc", "condarc")]
    names += [f"{home}/.condarc", *([f"{prefix}/.condarc", f"{prefix}/condarc"] if prefix else [])]
    names += [environ["CONDARC"]] if environ.get("CONDARC") else []
    return [path for name in dict.fromkeys(names) if (path := Path(name)).is_file()]


def _channels_of(environ: Mapping[str, str], conda: Condarc) -> tuple[str, ...]:
    """Return the channels of ``.condarc``, with ``default_channels`` in the place of ``defaults``."""
    variable = environ.get("CONDA_CHANNELS")
    names = [name.strip() for name in variable.split(",")] if variable else conda.channels or ()
    every = [n for name in names for n in ((conda.default_channels or ()) if name == "defaults" else (name,)) if n]
    return tuple(dict.fromkeys(every))


def _verify(environ: Mapping[str, str], conda: Condarc) -> bool | Path:
    value: bool | str | None = environ.get("CONDA_SSL_VERIFY", conda.ssl_verify)
    word = str(value).lower()
    if value is None or word in {"true", "yes", "1", "truststore", "<truststore>", ""}:
        return ca_bundle(environ) or True
    if word in {"false", "no", "0"}:
        return False
    return expand_home(str(value), environ)


def _slash(url: str) -> str:
    return url.rstrip("/") + "/"


def _address(url: str) -> str:
    """Return an address. conda takes it without a scheme too, and means https then."""
    return (url if "://" in url else f"https://{url}").rstrip("/")


def default_channels() -> tuple[str, ...]:
    """Return the channels of a user who names none: those of the configuration, else conda-forge."""
    named = read_settings().channels if importlib.util.find_spec("rattler") else ()
    return named or ("conda-forge",)


def with_channels(conda: CondaRequest) -> CondaRequest:
    """Return the request with the channels of this user's configuration where it names none."""
    return conda if conda.channels else dataclasses.replace(conda, channels=default_channels())


def base_url(channel: str, settings: ChannelSettings | None = None) -> str:
    """Return the address below which the channel's subdirs lie, without a slash at the end.

    ``UsageError`` for what is not a channel. A name means what ``settings`` (by default those of this user) say. An
    address and a folder need none.
    """
    text = channel.strip()
    if not text or any(ord(c) < 33 for c in text):
        raise UsageError(
            f"Cannot use the channel {clean(channel)!r}: it is not a name, a URL or a folder.",
            hint="Give a name (conda-forge), a URL or file:///path.",
        )
    if "://" not in text and (text.startswith(("/", "./", "../")) or text == "."):
        return Path(os.path.realpath(text)).as_uri()
    if "://" not in text:
        return _named(text, settings or read_settings())
    scheme = parts_of(text).scheme.lower()
    if scheme not in _SCHEMES:
        raise UsageError(
            f"Cannot use the channel {clean(public_url(text))}: its scheme is {scheme!r}.",
            hint="Use http, https or file.",
        )
    return text.rstrip("/")


def _named(text: str, settings: ChannelSettings) -> str:
    name, slash, path = text.partition("/")
    if name in settings.custom:
        return f"{settings.custom[name]}{slash}{path}".rstrip("/")
    rattler = require_rattler()
    config = rattler.ChannelConfig(channel_alias=f"{settings.alias}/") if settings.alias else rattler.ChannelConfig()
    try:
        return str(rattler.Channel(text, config).base_url).rstrip("/")
    except Exception as error:
        raise UsageError(f"Cannot use the channel {clean(text)!r}: {clean(scrub(str(error)))}.") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """The settings of rattler's client as plain values, so that the linker's process can have the same.

    ``mirrors`` go by prefix, ``logins`` are as rattler's file of credentials holds them, ``environ`` are the variables
    to set. ``unchecked`` is True where certificates are not to be checked.
    """

    mirrors: Mapping[str, tuple[str, ...]] = field(repr=False)
    logins: Mapping[str, Any] = field(repr=False)
    environ: Mapping[str, str] = field(repr=False)
    unchecked: bool = False

    def client(self) -> Any:
        """Return rattler's client. It asks mirrors first and then who the user is to the mirror.

        In rattler's own stack a login for the channel goes to whatever mirror it has. That stack is used where
        certificates are not checked, which nothing else can say.
        """
        rattler = require_rattler()
        from rattler.networking import AuthenticationMiddleware, Client, MirrorMiddleware, RetryMiddleware

        with scratch() as folder:
            environ = dict(self.environ)
            if self.logins:
                environ["RATTLER_AUTH_FILE"] = f"{folder}/credentials.json"
                (folder / "credentials.json").write_text(json.dumps(self.logins))
            with _environment(environ), _login_refusals():
                if self.unchecked:
                    lines = [f"{json.dumps(prefix)} = {json.dumps(urls)}" for prefix, urls in self.mirrors.items()]
                    return Client.from_config(
                        rattler.Config.from_toml("\n".join(["tls-no-verify = true", "[mirrors]", *lines]))
                    )
                mirrors = {prefix: list(urls) for prefix, urls in self.mirrors.items()}
                # A mirror that failed is asked last: one more try for each.
                tries = 1 + max((len(places) for places in self.mirrors.values()), default=0)
                return Client([RetryMiddleware(tries), MirrorMiddleware(mirrors), AuthenticationMiddleware()])


@contextmanager
def _login_refusals() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - rattler has no common family
        # What follows the first colon shows a part of the file.
        reason = clean(str(error).partition(": ")[0])
        raise DataError(
            f"Cannot read the logins for channels: {reason}.", hint="Write them again with pixi auth login."
        ) from None


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the moment in which rattler reads them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def access_to(channels: Sequence[str]) -> Access:
    """Return the client's settings for these channels. ``DataError`` for a file that does not parse."""
    settings = read_settings()
    logins = _stored(settings.auth_file or os.environ.get("RATTLER_AUTH_FILE"))
    places = dict(settings.mirrors)
    for channel in channels:
        base = _slash(base_url(channel, settings))
        if not base.startswith("file:"):
            places[public_url(base)] = settings.places(base)
    plain = {prefix: tuple(_without_user(url, logins) for url in urls) for prefix, urls in places.items()}
    return Access(
        mirrors={prefix: urls for prefix, urls in plain.items() if urls != (prefix,)},
        logins=logins,
        environ=_variables(settings),
        unchecked=settings.verify is False,
    )


def _without_user(url: str, logins: dict[str, Any]) -> str:
    parts = parts_of(url)
    if parts.username is not None and parts.hostname:
        pair = {"username": unquote(parts.username), "password": unquote(parts.password or "")}
        logins[parts.hostname] = {"BasicHTTP": pair}
    return urlunsplit(parts._replace(netloc=parts.netloc.rsplit("@", 1)[-1]))


def _stored(path: str | Path | None) -> dict[str, Any]:
    """Return what the file holds that rattler asks first."""
    if not path or not Path(path).exists():
        return {}
    try:
        logins = parse_json(read_bounded(Path(path), _MAX_BYTES))
    except ValueError:
        raise DataError(f"Cannot read {path}: it is not JSON.", hint="Write it again with pixi auth login.") from None
    if not isinstance(logins, dict):
        raise DataError(
            f"Cannot read {path}: it does not map hosts to credentials.", hint="Write it again with pixi auth login."
        )
    return logins


def _variables(settings: ChannelSettings) -> dict[str, str]:
    """Return proxies and authorities as rattler's client takes them from the environment."""
    variables = {}
    if isinstance(settings.verify, Path):
        if not settings.verify.exists():
            raise UsageError(
                f"Cannot use ssl_verify: {settings.verify} holds no certificates.",
                hint="Point it at a CA bundle or a folder of certificates.",
            )
        variables["SSL_CERT_DIR" if settings.verify.is_dir() else "SSL_CERT_FILE"] = str(settings.verify)
    for scheme, proxy in settings.proxies.items():
        if scheme in {"http", "https"}:
            variables[f"{scheme}_proxy"] = variables[f"{scheme.upper()}_PROXY"] = proxy
    if settings.no_proxy:
        variables["no_proxy"] = variables["NO_PROXY"] = ",".join(settings.no_proxy)
    return variables


@dataclass(slots=True)
class Channels:
    """The channels of a request: what they offer under a name, and the gateway that a solve asks.

    The first channel that has a name owns it (strict priority). ``bases`` are public addresses, ``labels`` what a
    message calls them. ``copies`` is where rattler keeps what it fetched.
    """

    bases: tuple[str, ...]
    labels: tuple[str, ...]
    subdirs: tuple[str, str]
    gateway: Any
    copies: Path
    exclude_newer: dt.datetime | None = None
    offers: dict[str, tuple[CondaPackage, ...]] = field(default_factory=dict)

    def __call__(self, name: str) -> tuple[CondaPackage, ...]:
        """Return every build of ``name``, or nothing when no channel has it."""
        if name not in self.offers:
            self.fetch([name])
        return self.offers[name]

    def fetch(self, names: Iterable[str]) -> None:
        """Fetch the records of many names at once. ``NetworkError`` when a channel gives none, or nonsense."""
        missing = sorted(set(names) - self.offers.keys())
        every: dict[str, tuple[CondaPackage, ...]] = {}
        for base, label in zip(self.bases, self.labels, strict=True):
            own: dict[str, list[CondaPackage]] = {}
            with sealed(self.copies):
                records = self._query(base, label, missing)
            for record in records:
                own.setdefault(record.name.normalized, []).append(to_package(record, label))
            every = {name: tuple(packages) for name, packages in own.items()} | every
        for name in missing:
            self.offers[name] = tuple(p for p in every.get(name, ()) if self._is_old_enough(p))

    def _query(self, base: str, label: str, names: Sequence[str]) -> list[Any]:
        """Return the records of one channel. A copy in the cache that cannot be used is fetched again."""
        rattler = require_rattler()
        channel = rattler.Channel(base)

        async def answer() -> list[Any]:
            results = await self.gateway.query(
                [channel], self.subdirs, names, recursive=False, channel_relations="disabled"
            )
            return [record for records in results for record in records]

        try:
            with refusals(label):
                return run_async(answer)
        except DamagedIndexError:
            self.gateway.clear_repodata_cache(channel, clear_disk=True)
            with refusals(label):
                return run_async(answer)

    def _is_old_enough(self, package: CondaPackage) -> bool:
        if self.exclude_newer is None or package.timestamp is None:
            return True
        return package.timestamp <= self.exclude_newer.timestamp() * 1000


def open_channels(conda: CondaRequest, platform: str, progress: Tell) -> Channels:
    """Open the channels of a request for a platform and ``noarch``, in order of priority."""
    rattler = require_rattler()
    settings = read_settings()
    bases = [base_url(channel, settings) for channel in conda.channels]
    labels = [
        public_url(b) if "://" in c or b.startswith("file:") else c for c, b in zip(conda.channels, bases, strict=True)
    ]
    if settings.verify is False:
        progress("certificates of channels are not checked: the configuration says so")
    for name in labels:
        progress(f"channel {name}: {platform}")
    client = access_to(conda.channels).client()  # what is wrong in the settings is said before anything is written
    copies = conda.cache_dir / "repodata"
    if not conda.offline:
        _prepare(copies)
    drop_changed(copies, offline=conda.offline)
    config = rattler.SourceConfig(cache_action="force-cache-only" if conda.offline else "cache-or-fetch")
    gateway = rattler.Gateway(
        cache_dir=copies,
        default_config=config,
        per_channel_config={"file://": rattler.SourceConfig()},
        max_concurrent_requests=16,
        client=client,
    )
    return Channels(
        bases=tuple(map(public_url, bases)),
        labels=tuple(labels),
        subdirs=(platform, "noarch"),
        gateway=gateway,
        copies=copies,
        exclude_newer=conda.end,
    )


def _prepare(copies: Path) -> None:
    """Make the cache of indexes. What rattler says of one that cannot be written reads like a damaged index."""
    try:
        copies.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=copies):
            pass
    except OSError as error:
        raise StorageError(
            f"Cannot write the cache {copies}: {error.strerror}.",
            hint="Free space there or give another folder: XDG_CACHE_HOME=DIR. Only the Conda lock needs it.",
        ) from error


def run_async(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a coroutine to its end, also when the caller's thread has a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, main()).result()


@contextmanager
def refusals(channel: str) -> Iterator[None]:
    """Turn what rattler says about a channel into one of our errors, with what to do."""
    from rattler.exceptions import SolverError

    try:
        yield
    except (EnvsmithError, SolverError):
        raise
    except Exception as error:
        raise _refusal(str(error), clean(channel)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise LockError(f"Cannot solve for this channel: the Conda solver crashed ({clean(str(error))}).") from error


def _refusal(text: str, channel: str) -> EnvsmithError:
    lines = [clean(scrub(line.removeprefix("Caused by: "))) for line in text.splitlines() if line.strip()]
    address = match[0] if (match := _ADDRESS.search(text)) else ""
    if "could not find subdir" in text:
        return NetworkError(
            f"Cannot read the channel {channel}: it has no index.",
            details=lines,
            hint="Check the name or address of the channel. Make an index for a folder with rattler-index or conda "
            "index.",
        )
    if "no usable repodata cache" in text:
        return NetworkError(
            f"Cannot read the channel {channel}: no copy of its index is in the cache, and --offline switches the "
            "network off.",
            details=lines,
            hint="Run once without --offline, or give a file:// channel.",
        )
    if status := re.search(r"HTTP status \w+ error \((\d+) ?([^)]*)\)", text):
        return NetworkError(
            f"Cannot read the channel index {clean(public_url(address))}: the server answers "
            f"{f'{status[1]} {status[2]}'.rstrip()}.",
            hint=_LOGIN if status[1] in {"401", "403", "407"} else None,
        )
    if "error sending request" in text:
        return NetworkError(
            f"Cannot reach the channel {channel}: {lines[-1]}.",
            details=lines[:-1],
            hint="Give --channel with a mirror or a file:// channel, or use --offline where a copy is in the "
            "cache. Only the Conda lock needs a channel.",
        )
    # What was cut never reached the cache; anything else lies there now.
    kind = NetworkError if "failed to download" in text else DamagedIndexError
    return kind(
        f"Cannot use the channel {channel}: its index is damaged ({'; '.join(lines)}).",
        hint="Try again, or use another channel: it is damaged, or the download was cut.",
    )


def to_package(record: Any, channel: str) -> CondaPackage:
    """Return a rattler record as a ``CondaRecord``. Its hashes may still be empty."""
    stamp, noarch = record.timestamp, record.noarch
    kind = None if noarch is None else "python" if noarch.python else "generic" if noarch.generic else None
    return CondaPackage(
        name=record.name.normalized,
        version=str(record.version),
        build=str(record.build),
        build_number=int(record.build_number),
        subdir=str(record.subdir),
        url=str(record.url),
        sha256=record.sha256.hex() if record.sha256 else "",
        md5=record.md5.hex() if record.md5 else "",
        channel=channel,
        size=record.size,
        depends=tuple(record.depends),
        constrains=tuple(record.constrains),
        noarch=kind,
        license=record.license,
        timestamp=int(stamp.timestamp() * 1000) if stamp else None,
        python_site_packages_path=record.python_site_packages_path,
    )
