"""What the channels offer, as the solver will see it: the first channel that has a name owns it (strict priority)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from envsmith.errors import EnvsmithError, NetworkError
from envsmith.lock.conda.channels import Index, require_rattler
from envsmith.lock.conda.model import CondaPackage
from envsmith.lock.conda.names import clean
from envsmith.lock.conda.shards import Shards, needed

__all__ = ["Offers", "opened", "to_package", "whole"]


@dataclass(slots=True)
class Offers:
    """The records of a name, newest first. Implements what :mod:`envsmith.lock.conda.plan` asks; tests pass a dictionary."""

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
