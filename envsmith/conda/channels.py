"""Brings the index of a channel (``repodata.json``) into the cache: bounded, atomic, and only when it parses.

A channel is a name, a URL or ``file://``; what it answers is hostile until rattler has read it. A copy that is already in the
cache stays as it is whatever happens to a new one. Nothing here knows the name of a host: names are resolved by rattler, or by what
the user configured (:mod:`envsmith.conda.access`). A server that offers its index in shards is asked for those.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import tempfile
import time
import urllib.error
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from envsmith.conda.access import Access, ChannelSettings, base_url, read_settings, user_access
from envsmith.conda.download import (
    SHARDS_FILE,
    SHARDS_URL,
    BadIndexError,
    Shards,
    ShardStore,
    download,
    needed,
    read_index,
    shards_readable,
)
from envsmith.conda.model import CondaPackage, RepoLimits, Tell
from envsmith.conda.names import clean, public_url, require_rattler, scrub
from envsmith.errors import DataError, EnvsmithError, NetworkError, StorageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """One subdir of one channel in the cache. ``base`` may hold credentials and is never written; ``channel`` may be shown.

    ``age`` is the number of seconds since the channel was asked. ``shards`` says where the rest is when ``path`` is an index of
    shards instead of the whole.
    """

    channel: str
    base: str
    subdir: str
    path: Path
    age: float
    shards: ShardStore | None = None


def fetch_indexes(
    channels: Sequence[str],
    subdirs: Sequence[str],
    *,
    cache_dir: Path,
    offline: bool,
    progress: Tell,
    limits: RepoLimits,
) -> tuple[Index, ...]:
    """The index of every channel and subdir (``noarch`` is always among them), channels in order of priority.

    A channel without one of the subdirs is fine; a channel with none of them, an unreachable or a damaged one raises
    ``NetworkError``.
    """
    access = user_access()
    if access.settings.verify is False:
        progress("certificates of channels are not checked: the configuration says so")
    found: list[Index] = []
    for channel in channels:
        base = base_url(channel, access.settings)
        before = len(found)
        for subdir in (*subdirs, "noarch"):
            index = _index(channel, base, subdir, cache_dir / "conda", access, offline, progress, limits)
            if index:
                found.append(index)
        if len(found) == before:
            tried = ", ".join(f"{public_url(base)}/{s}/repodata.json" for s in (*subdirs, "noarch"))
            raise NetworkError(
                f"channel {clean(public_url(base))} has no index: none of {tried} exists",
                hint="check the name or address of the channel; a folder becomes one by `rattler-index` or `conda index`",
            )
    return tuple(found)


def _index(  # noqa: PLR0917 - the circumstances of one question
    channel: str,
    base: str,
    subdir: str,
    cache: Path,
    access: Access,
    offline: bool,  # noqa: FBT001 - as above
    progress: Tell,
    limits: RepoLimits,
) -> Index | None:
    folder = cache / hashlib.sha256(base.encode()).hexdigest()[:24] / subdir
    shown = public_url(base) if "://" in channel or base.startswith("file:") else channel
    meta = _read_meta(folder / "meta.json")
    meta = meta if (folder / _name(meta)).exists() or meta.get("absent") else {}
    if not offline or base.startswith("file:"):
        progress(f"channel {shown}: {subdir}")
        meta = _refresh(base, subdir, folder, {} if meta.get("absent") else meta, limits, access)
    elif not meta:
        raise NetworkError(
            f"channel {shown}: no copy of its {subdir} index is in the cache, and the network is not used (--offline)",
            hint="run once without --offline, or give a file:// channel",
        )
    if meta.get("absent"):
        return None
    age = max(0.0, time.time() - float(meta.get("fetched", 0)))
    store = ShardStore(folder=cache / "shards", access=access, limits=limits, offline=offline)
    sharded = _name(meta) == SHARDS_FILE
    return Index(
        channel=shown,
        base=base,
        subdir=subdir,
        path=folder / _name(meta),
        age=age,
        shards=store if sharded else None,
    )


def _name(meta: Mapping[str, Any]) -> str:
    """The file of the cache that ``meta`` speaks of."""
    return SHARDS_FILE if meta.get("sharded") is True else "repodata.json"


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return meta if isinstance(meta, dict) and isinstance(meta.get("fetched", 0), (int, float)) else {}


def _refresh(  # noqa: PLR0917 - as above
    base: str, subdir: str, folder: Path, meta: dict[str, Any], limits: RepoLimits, access: Access
) -> dict[str, Any]:
    """Ask the channel; keep the copy when it says that nothing changed, replace it when the new one parses."""
    where = f"{public_url(base)}/{subdir}/repodata.json"
    kept = "; the copy in the cache is kept, --offline uses it" if meta.get("size") else ""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as scratch:
            fresh = _ask(base, subdir, Path(scratch), meta, limits, access)
            if (made := Path(scratch) / _name(fresh)).exists() and not fresh.get("absent"):
                made.replace(folder / made.name)
        _write_meta(folder, fresh)
        for name in {"repodata.json", SHARDS_FILE} - ({_name(fresh)} if not fresh.get("absent") else set()):
            (folder / name).unlink(missing_ok=True)
    except BadIndexError as error:
        raise NetworkError(
            f"channel index {where} is not usable: {error}{kept}",
            hint="the channel is damaged or the download was cut; try again, or use another channel",
        ) from error
    except urllib.error.HTTPError as error:
        raise _refused(f"{base}/{subdir}/repodata.json", error, kept, access) from error
    except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise NetworkError(
            f"channel {clean(public_url(base))} cannot be reached: {clean(scrub(str(reason)))}{kept}",
            hint="give --channel with a mirror or a file:// channel; the rest of the build needs no channel",
        ) from error
    except OSError as error:
        raise StorageError(f"channel index {where} cannot be kept in {folder}: {error}") from error
    return fresh


def _ask(  # noqa: PLR0917 - as above
    base: str, subdir: str, scratch: Path, meta: dict[str, Any], limits: RepoLimits, access: Access
) -> dict[str, Any]:
    """What is to be known next time; a new file, looked at, lies in ``scratch``. A folder of this machine is read whole at once."""
    now: dict[str, Any] = {"fetched": time.time()}
    if not base.startswith("file:") and shards_readable():
        there, target = f"{base}/{subdir}/{SHARDS_URL}", scratch / SHARDS_FILE
        new = download(there, target, meta if meta.get("sharded") else {}, limits, access, packed=True)
        if new is not None:
            if not new.get("unchanged"):
                read_index(target, subdir)
            return (meta if new.get("unchanged") else new) | now | {"sharded": True}
    old = {} if meta.get("sharded") else meta
    target = scratch / "repodata.json"
    new = download(f"{base}/{subdir}/repodata.json", target, old, limits, access)
    if new is None:
        return now | {"absent": True}
    if not new.get("unchanged"):
        _validate(base, subdir, target)
    return (old if new.get("unchanged") else new) | now


def _refused(url: str, error: urllib.error.HTTPError, kept: str, access: Access) -> NetworkError:
    """A server that says no; where it is about who asks, what was sent (by where it is from) and how to log in."""
    said = f"channel index {public_url(url)}: the server answers {error.code} {clean(str(error.reason))}{kept}"
    if error.code not in {401, 403, 407}:
        return NetworkError(said)
    sent = dict.fromkeys(f"{public_url(place)}: {access.told(place)}" for place in access.settings.places(url))
    return NetworkError(
        said,
        details=[*sent, *access.logins.problems],
        hint="store a login where rattler reads it: `pixi auth login`, RATTLER_AUTH_FILE, ~/.rattler/credentials.json or ~/.netrc",
    )


def _write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    new = folder / f".meta-{os.getpid()}.json"
    new.write_text(json.dumps(meta, sort_keys=True))
    new.replace(folder / "meta.json")


def _validate(base: str, subdir: str, path: Path) -> None:
    """Let rattler read the outline of the whole file; raises ``BadIndexError``."""
    rattler = require_rattler()
    try:
        sparse = rattler.SparseRepoData(rattler.Channel(base), subdir, path)
        sparse.record_count()
        sparse.close()
    except Exception as error:
        raise BadIndexError(clean(str(error))) from error
    told = _told_subdir(path)
    if told and told != subdir:
        raise BadIndexError(f"it says that it is the index of {clean(told, 40)!r}")


def _told_subdir(path: Path) -> str | None:
    """``info.subdir`` when it stands near either end of the file, where every indexer writes it."""
    with path.open("rb") as file:
        head = file.read(4096)
        file.seek(max(0, path.stat().st_size - 4096))
        tail = file.read()
    match = re.search(rb'"info"\s*:\s*\{[^{}]*"subdir"\s*:\s*"([^"]{1,80})"', head + tail)
    return match[1].decode("utf-8", "replace") if match else None


# What rattler's client is told when it fetches packages: mirrors, proxies, certificates, logins.
#
# A package keeps the address that the lock gives it, without any secret: that address is what rattler writes into the prefix and into its
# cache. A token in a channel's address reaches the client as a mirror of the channel, a password as a stored login.


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


# What the channels offer, as the solver will see it: the first channel that has a name owns it (strict priority).


@dataclass(slots=True)
class Offers:
    """The records of a name, newest first. Implements what :mod:`envsmith.conda.plan` asks; tests pass a dictionary."""

    sparse: Sequence[tuple[Index, Any]]
    exclude_newer: dt.datetime | None = None
    _seen: dict[str, tuple[CondaPackage, ...]] = field(default_factory=dict)

    def __call__(self, name: str) -> tuple[CondaPackage, ...]:
        """Every build of ``name`` on the channel that owns it; empty when no channel has it."""
        if name not in self._seen:
            self._seen[name] = self._load(name)
        return self._seen[name]

    def _load(self, name: str) -> tuple[CondaPackage, ...]:
        owner: str | None = None
        found: list[CondaPackage] = []
        for index, sparse in self.sparse:
            if owner not in {None, index.channel}:
                continue
            try:
                records = sparse.load_records(name)
            except EnvsmithError:
                raise
            except Exception as error:
                raise NetworkError(
                    f"channel {clean(index.channel)}: a record of {clean(name)!r} in {index.subdir} does not parse: {clean(str(error))}",
                    hint="the channel's index is damaged; use another channel",
                ) from error
            owner = index.channel if records else owner
            found += [to_package(r, index.channel) for r in records]
        if self.exclude_newer:
            limit = self.exclude_newer.timestamp() * 1000
            found = [p for p in found if p.timestamp is None or p.timestamp <= limit]
        return tuple(found)


def to_package(record: Any, channel: str) -> CondaPackage:
    """A rattler record as a value of ours; hashes may still be empty (they are asked for when it is locked)."""
    stamp = record.timestamp
    noarch = getattr(record, "noarch", None)
    kind = (
        "python"
        if noarch is not None and noarch.python
        else "generic"
        if noarch is not None and noarch.generic
        else None
    )
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


def whole(sparse: Sequence[tuple[Index, Any]], roots: Iterable[str]) -> list[Any]:
    """Rattler's own view of every index, with at least what a solve of ``roots`` can touch."""
    if not any(isinstance(data, Shards) for _, data in sparse):
        return [data for _, data in sparse]
    names = needed([data for _, data in sparse], roots)
    return [data.whole(names) if isinstance(data, Shards) else data for _, data in sparse]


@contextmanager
def opened(indexes: Sequence[Index]) -> Iterator[list[tuple[Index, Any]]]:
    """Rattler's view of each index, closed (unmapped) at the end; a channel in shards gives :class:`Shards`."""
    sparse: list[tuple[Index, Any]] = []
    try:
        sparse += ((index, _open(index)) for index in indexes)
        yield sparse
    finally:
        for _, data in sparse:
            data.close()


def _open(index: Index) -> Any:
    rattler = require_rattler()
    if index.shards is not None:
        return Shards(index.channel, index.base, index.subdir, index.path, index.shards)
    try:
        return rattler.SparseRepoData(rattler.Channel(index.base), index.subdir, index.path)
    except Exception as error:
        raise NetworkError(
            f"channel {clean(index.channel)}: the cached index of {index.subdir} does not parse: {clean(str(error))}",
            hint=f"remove {index.path} and run again without --offline",
        ) from error
