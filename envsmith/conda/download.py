"""Downloads one index of a channel into a file: unpacked on the fly, never more than allowed, whole or not at all."""

from __future__ import annotations

import functools
import hashlib
import http.client
import importlib
import importlib.util
import json
import os
import re
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from envsmith.conda.access import Access
from envsmith.conda.model import RepoLimits
from envsmith.conda.names import clean, public_url, require_rattler, scrub
from envsmith.errors import EnvsmithError, NetworkError, StorageError

_CHUNK = 1 << 20


class BadIndexError(Exception):
    """The index is not one; the text says why."""


def download(
    url: str, target: Path, meta: Mapping[str, Any], limits: RepoLimits, access: Access, *, packed: bool | None = None
) -> dict[str, Any] | None:
    """``None``: there is no such file. ``{"unchanged": True}``: the copy is the newest. Else what to ask with next time.

    ``packed``: the file is zstd's and is unpacked (True) or kept as it came (False); by default the packed form of ``url`` is asked
    for first. Mirrors are tried in order; one that cannot be reached or answers 5xx is passed over.
    """
    if url.startswith("file:"):
        return _copy_file(url, target, meta, limits)
    both = packed is None and _zstd() is not None
    *others, last = access.settings.places(url) or (url,)

    def ask(place: str) -> dict[str, Any] | None:
        if both and (told := _attempts(f"{place}.zst", target, meta, limits, access, packed=True)) is not None:
            return told
        return _attempts(place, target, meta, limits, access, packed=bool(packed))

    for place in others:
        try:
            return ask(place)
        except urllib.error.HTTPError as error:  # noqa: PERF203 - a handful of mirrors
            if error.code < 500:
                raise
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            continue
    return ask(last)


def _attempts(
    url: str, target: Path, meta: Mapping[str, Any], limits: RepoLimits, access: Access, *, packed: bool
) -> dict[str, Any] | None:
    """``None`` when the server says that there is no such file."""
    for attempt in range(limits.attempts):
        try:
            return _get(url, target, meta, limits, access, packed=packed)
        except urllib.error.HTTPError as error:
            if error.code in {404, 410} or (error.code == 403 and url.endswith(".zst")):
                return None
            if error.code < 500 or attempt + 1 == limits.attempts:
                raise
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            if attempt + 1 == limits.attempts:
                raise
        time.sleep(0.3 * (attempt + 1))
    return None


def _copy_file(url: str, target: Path, meta: Mapping[str, Any], limits: RepoLimits) -> dict[str, Any] | None:
    source = Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))
    try:
        state = source.stat()
        stamp = f"{state.st_size}-{state.st_mtime_ns}-{state.st_ino}"
        if meta.get("stamp") == stamp:
            return {"unchanged": True}
        with source.open("rb") as file, target.open("wb") as out:
            size = _pour(file, out, limits.index_bytes)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (PermissionError, IsADirectoryError) as error:
        raise BadIndexError(str(error.strerror)) from error
    return {"stamp": stamp, "size": size}


def _get(
    url: str, target: Path, meta: Mapping[str, Any], limits: RepoLimits, access: Access, *, packed: bool
) -> dict[str, Any]:
    headers = {"User-Agent": "envsmith", "Accept-Encoding": "identity"}
    if meta.get("url") == public_url(url):
        for name, key in (("If-None-Match", "etag"), ("If-Modified-Since", "modified")):
            if isinstance(meta.get(key), str):
                headers[name] = meta[key]
    try:
        with access.open(url, headers, limits.connect_seconds) as answer:
            size = _receive(answer, target, limits, packed=packed)
            told = {"etag": answer.headers.get("ETag"), "modified": answer.headers.get("Last-Modified")}
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 304:
            return {"unchanged": True}
        raise
    return {"url": public_url(url), "size": size, **{k: v for k, v in told.items() if v}}


def _receive(answer: Any, target: Path, limits: RepoLimits, *, packed: bool) -> int:
    """Write the body to ``target``; a body shorter than announced, or larger than allowed, is refused."""
    announced = answer.headers.get("Content-Length")
    raw = target.with_suffix(".raw") if packed else target
    try:
        with raw.open("wb") as out:
            got = _pour(answer, out, limits.download_bytes if packed else limits.index_bytes)
    except http.client.HTTPException as error:
        raise BadIndexError(f"the download was cut ({clean(str(error))})") from error
    if announced and announced.isdecimal() and int(announced) != got:
        raise BadIndexError(f"the download was cut: {got} of {announced} bytes came")
    if not packed:
        return got
    size = unpacked(raw, target, limits.index_bytes)
    raw.unlink()
    return size


def unpacked(source: Path, target: Path, limit: int) -> int:
    """Unpack a zstd file of at most ``limit`` bytes; ``BadIndexError`` when it is larger or damaged."""
    with source.open("rb") as file, _unpacked(file) as body, target.open("wb") as out:
        return _pour(body, out, limit)


def _pour(source: Any, out: IO[bytes], limit: int) -> int:
    total = 0
    while chunk := source.read(_CHUNK):
        total += len(chunk)
        if total > limit:
            raise BadIndexError(f"it is larger than {limit >> 20} MiB")
        out.write(chunk)
    return total


@functools.cache
def _zstd() -> Any:
    """A function that opens a zstd stream for reading, or ``None``: then only the unpacked index is asked for."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name).ZstdFile
        except ImportError:  # noqa: PERF203 - two names
            continue
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        return None
    return lambda file: zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file, read_across_frames=True)


def can_unpack() -> bool:
    """True when some zstd is installed."""
    return _zstd() is not None


@contextmanager
def _unpacked(file: IO[bytes]) -> Iterator[Any]:
    """The unpacked stream; whatever the decompressor raises becomes ``BadIndexError`` (each has its own family)."""
    try:
        with _zstd()(file) as body:
            yield body
    except (EnvsmithError, BadIndexError):
        raise
    except OSError as error:
        if error.errno is not None:
            raise
        raise BadIndexError(f"its zstd stream is damaged: {error}") from error
    except Exception as error:
        raise BadIndexError(f"its zstd stream is damaged: {clean(str(error))}") from error


# Sharded repodata (CEP 16): an index of names, and one small file a name, called by its own sha256.
#
# What a solve can touch is brought, checked against its hash and kept for ever (the name is the hash); then it is one ordinary index
# for rattler, so that the same channel gives the same lock either way.


SHARDS_URL = "repodata_shards.msgpack.zst"
SHARDS_FILE = "repodata_shards.msgpack"
_AT_ONCE = 16  # requests; rattler's gateway takes up to 50 of one server
_NAME = re.compile(r"(?:[^\s\[]*::)?([A-Za-z0-9_.-]+)")
_KINDS = ("packages", "packages.conda")


def shards_readable() -> bool:
    """True when msgpack and zstd are installed (``envsmith[conda]`` brings them); else the whole index is read."""
    return importlib.util.find_spec("msgpack") is not None and can_unpack()


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardStore:
    """Where shards are kept and how they are fetched."""

    folder: Path
    access: Access = field(repr=False)
    limits: RepoLimits
    offline: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardIndex:
    """``hashes`` is name → 64 hex digits; both addresses are as the channel wrote them, relative to its subdir."""

    hashes: Mapping[str, str]
    base_url: str
    shards_url: str


def read_index(path: Path, subdir: str) -> ShardIndex:
    """The index of a subdir; ``BadIndexError`` says what is wrong with it."""
    data = _unpack(path.read_bytes())
    info, shards = data.get("info"), data.get("shards")
    if not isinstance(info, dict) or not isinstance(shards, dict) or data.get("version", 1) != 1:
        raise BadIndexError("it is not an index of shards, or of a version that is not known here")
    if info.get("subdir") != subdir:
        raise BadIndexError(f"it says that it is the index of {clean(str(info.get('subdir')), 40)!r}")
    told = [info.get("base_url", ""), info.get("shards_base_url", "")]
    if not all(isinstance(t, str) for t in told):
        raise BadIndexError("info.base_url and info.shards_base_url are no addresses")
    for name, digest in shards.items():
        if not isinstance(name, str) or not isinstance(digest, bytes) or len(digest) != 32:
            raise BadIndexError(f"shards.{clean(str(name), 60)}: not a sha256")
    return ShardIndex(hashes={n: d.hex() for n, d in shards.items()}, base_url=told[0], shards_url=told[1])


def _unpack(data: bytes) -> dict[Any, Any]:
    import msgpack

    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except Exception as error:
        raise BadIndexError(f"its msgpack is damaged: {clean(str(error))}") from error
    if not isinstance(value, dict):
        raise BadIndexError("it is no mapping")
    return value


class Shards:
    """One subdir by its shards: what rattler's ``SparseRepoData`` is for a whole index."""

    def __init__(self, channel: str, base: str, subdir: str, path: Path, store: ShardStore) -> None:
        self.shown, self.base, self.subdir, self.store = channel, base, subdir, store
        try:
            self.index = read_index(path, subdir)
        except (OSError, BadIndexError) as error:
            raise NetworkError(
                f"channel {clean(channel)}: the cached index of {subdir} does not parse: {clean(str(error))}",
                hint=f"remove {path} and run again without --offline",
            ) from error
        self._read: dict[str, dict[str, dict[str, Any]]] = {}
        self._open: dict[frozenset[str], Any] = {}
        self._scratch = tempfile.TemporaryDirectory(prefix="envsmith-shards-")

    def close(self) -> None:
        """Let go of the files."""
        for data in self._open.values():
            data.close()
        self._scratch.cleanup()

    def load_records(self, name: str) -> list[Any]:
        """Every record of a name, as rattler reads it."""
        records: list[Any] = self.whole([name]).load_records(name) if name in self.index.hashes else []
        return records

    def depends(self, name: str) -> set[str]:
        """What any build of ``name`` depends on."""
        records = (r for kind in self._shard(name).values() for r in kind.values())
        return {d for record in records for d in record["depends"]}

    def fetch(self, names: Iterable[str]) -> None:
        """Bring the shards of many names at once."""
        wanted = [n for n in names if n in self.index.hashes and n not in self._read]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for name, shard in zip(wanted, pool.map(self._bring, wanted), strict=True):
                self._read[name] = shard

    def whole(self, names: Iterable[str]) -> Any:
        """Rattler's view of an ordinary index that holds just these names."""
        key = frozenset(n for n in names if n in self.index.hashes)
        if key not in self._open:
            rattler = require_rattler()
            path = Path(self._scratch.name) / f"{len(self._open)}.json"
            path.write_text(json.dumps(self._repodata(sorted(key)), sort_keys=True), encoding="utf-8")
            try:
                self._open[key] = rattler.SparseRepoData(rattler.Channel(self.base), self.subdir, path)
            except Exception as error:
                raise self._bad(f"a shard does not parse: {clean(str(error))}") from error
        return self._open[key]

    def _repodata(self, names: Sequence[str]) -> dict[str, Any]:
        info = {"subdir": self.subdir} | ({"base_url": self.index.base_url} if self.index.base_url else {})
        data: dict[str, Any] = {"info": info, "repodata_version": 2, **{kind: {} for kind in _KINDS}}
        for name in names:
            for kind, records in self._shard(name).items():
                data[kind] |= records
        return data

    def _shard(self, name: str) -> dict[str, dict[str, dict[str, Any]]]:
        if name not in self._read:
            self._read[name] = self._bring(name)
        return self._read[name]

    def _bring(self, name: str) -> dict[str, dict[str, dict[str, Any]]]:
        digest = self.index.hashes[name]
        path = self.store.folder / digest[:2] / f"{digest}.msgpack.zst"
        try:
            if not path.is_file():
                self._download(name, digest, path)
            return self._parse(name, path)
        except BadIndexError as error:
            path.unlink(missing_ok=True)
            raise self._bad(f"the shard of {clean(name, 60)} is not usable: {error}") from error
        except urllib.error.HTTPError as error:
            raise self._bad(f"the shard of {clean(name, 60)}: the server answers {error.code}") from error
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            said = clean(scrub(str(getattr(error, "reason", error))))
            raise self._bad(f"the shard of {clean(name, 60)} cannot be fetched: {said}") from error
        except OSError as error:
            raise StorageError(f"the shard of {clean(name, 60)} cannot be kept in {path.parent}: {error}") from error

    def _bad(self, what: str) -> NetworkError:
        return NetworkError(
            f"channel {clean(self.shown)}, {self.subdir}: {what}",
            hint="the channel is damaged or was indexed just now; try again, or use another channel",
        )

    def _download(self, name: str, digest: str, path: Path) -> None:
        """Into the cache when its hash is what the index says, nowhere else."""
        if self.store.offline:
            raise NetworkError(
                f"channel {clean(self.shown)}: no copy of what it says about {clean(name, 60)} is in the cache, and the network is not used (--offline)",
                hint="run once without --offline, or give a file:// channel",
            )
        url = urljoin(f"{self.base}/{self.subdir}/", self.index.shards_url.rstrip("/") + "/") + f"{digest}.msgpack.zst"
        if urlsplit(url).scheme not in {"http", "https"}:
            raise BadIndexError(f"its address is {clean(public_url(url))}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=path.parent) as scratch:
            fresh = Path(scratch) / "shard"
            limits = self.store.limits.for_shard()
            if download(url, fresh, {}, limits, self.store.access, packed=False) is None:
                raise BadIndexError("the channel does not have it")
            have = hashlib.sha256(fresh.read_bytes()).hexdigest()
            if have != digest:
                raise BadIndexError(f"its sha256 is {have}, the index says {digest}")
            fresh.replace(path)

    def _parse(self, name: str, path: Path) -> dict[str, dict[str, dict[str, Any]]]:
        limits = self.store.limits.for_shard()
        plain = Path(self._scratch.name) / f"{os.urandom(8).hex()}.msgpack"
        unpacked(path, plain, limits.index_bytes)
        data = _unpack(plain.read_bytes())
        plain.unlink()
        return {kind: _records(name, data.get(kind, {})) for kind in _KINDS}


def _records(name: str, records: Any) -> dict[str, dict[str, Any]]:
    """The records of one name by file, hashes in hex as JSON has them."""
    if not isinstance(records, dict):
        raise BadIndexError("its packages are no mapping")
    told = {}
    for file, record in records.items():
        if not isinstance(file, str) or not isinstance(record, dict) or record.get("name") != name:
            raise BadIndexError(f"{clean(str(file), 80)} is not a record of {clean(name, 60)}")
        depends = record.setdefault("depends", [])
        if not isinstance(depends, list) or not all(isinstance(d, str) for d in depends):
            raise BadIndexError(f"{clean(file, 80)}: depends is no list of specs")
        told[file] = _plain(record)
    return told


def _plain(value: Any) -> Any:
    """Msgpack's values as JSON's: bytes become hex digits; keys are text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise BadIndexError(f"a value of type {type(value).__name__} has no place in it")


def needed(readers: Sequence[Any], roots: Iterable[str]) -> frozenset[str]:
    """Every name that a solve of ``roots`` over these indexes can touch. ``readers`` are rattler's or :class:`Shards`."""
    seen: set[str] = set()
    front = set(roots)
    while front:
        seen |= front
        reached: set[str] = set()
        for reader in readers:
            if isinstance(reader, Shards):
                reader.fetch(front)
                specs = (d for n in front if n in reader.index.hashes for d in reader.depends(n))
            else:
                specs = (d for n in front for record in reader.load_records(n) for d in record.depends)
            reached |= {found[1].lower() for d in specs if (found := _NAME.match(d.strip()))}
        front = {n for n in reached if not n.startswith("__")} - seen
    return frozenset(seen)
