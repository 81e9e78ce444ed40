"""Brings the index of a channel (``repodata.json``) into the cache: bounded, atomic, and only when it parses.

A channel is a name, a URL or ``file://``; what it answers is hostile until rattler has read it. A copy that is already in the
cache stays as it is whatever happens to a new one. Nothing here knows the name of a host: names are resolved by rattler, or by what
the user configured (:mod:`envsmith.lock.conda.settings`). A server that offers its index in shards is asked for those.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
import urllib.error
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from envsmith.errors import NetworkError, StorageError, UsageError
from envsmith.lock.conda.access import Access, user_access
from envsmith.lock.conda.download import BadIndexError, download
from envsmith.lock.conda.model import RepoLimits, Tell
from envsmith.lock.conda.names import clean, public_url, scrub
from envsmith.lock.conda.settings import ChannelSettings, read_settings
from envsmith.lock.conda.shards import SHARDS_FILE, SHARDS_URL, ShardStore, read_index, shards_readable

__all__ = ["Index", "base_url", "fetch_indexes", "require_rattler"]

_SCHEMES = frozenset({"http", "https", "file"})


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


def require_rattler() -> Any:
    """The rattler module; ``UsageError`` says how to get it when it is not installed."""
    try:
        import rattler
    except ImportError as error:
        raise UsageError(
            "Conda locks need py-rattler, which is not installed",
            hint="pip install 'envsmith[conda]'  (or: pip install py-rattler)",
        ) from error
    _let_workers_end()
    return rattler


@cache
def _let_workers_end() -> None:
    """At exit, give rattler's workers the moment they need to let go of Python: py-rattler 0.28 crashes otherwise, now and then."""
    import atexit

    atexit.register(time.sleep, 0.1)


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
