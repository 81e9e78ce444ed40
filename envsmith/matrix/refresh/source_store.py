"""The sources of measured releases, kept between runs: each distinct file once, and what every release consists of."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from envsmith.python.release_sources import Archive, Member

_TABLES = """
create table if not exists release (version text primary key, sha256 text, members text, compiled text);
create table if not exists source (path text, crc int, size int, data blob, primary key (path, crc, size));
"""


class SourceStore:
    """A file of one distribution's sources below the cache. A context manager."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._database = sqlite3.connect(path)
        self._database.executescript(_TABLES)

    def __enter__(self) -> SourceStore:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def has(self, version: str, sha256: str) -> bool:
        """Return whether a release is complete and was read from this very file."""
        row = self._database.execute("select sha256 from release where version = ?", (version,)).fetchone()
        return row is not None and row[0] == sha256

    def add(self, version: str, sha256: str, archive: Archive, members: Iterable[Member]) -> int:
        """Store the sources of a release and return how many were read: those that no other release has."""
        members = tuple(members)
        new = {m.path: m for m in members if not self._holds(m)}
        for path, data in archive.read(new):
            member = new[path]
            row = (path, member.crc, member.size, zlib.compress(data, 6))
            self._database.execute("insert or replace into source values (?, ?, ?, ?)", row)
        listed = json.dumps([list(m) for m in members]), json.dumps(sorted(archive.compiled))
        self._database.execute("insert or replace into release values (?, ?, ?, ?)", (version, sha256, *listed))
        self._database.commit()
        return len(new)

    def _holds(self, member: Member) -> bool:
        query = "select 1 from source where path = ? and crc = ? and size = ?"
        return self._database.execute(query, member).fetchone() is not None

    def members(self, version: str) -> tuple[tuple[Member, ...], frozenset[str]]:
        """Return the sources of a release and its compiled modules."""
        query = "select members, compiled from release where version = ?"
        members, compiled = self._database.execute(query, (version,)).fetchone()
        return tuple(Member(*m) for m in json.loads(members)), frozenset(json.loads(compiled))

    def read(self, member: Member) -> bytes:
        """Return one source."""
        query = "select data from source where path = ? and crc = ? and size = ?"
        return zlib.decompress(self._database.execute(query, member).fetchone()[0])

    def versions(self) -> Iterator[str]:
        """Yield the releases that are complete."""
        yield from (row[0] for row in self._database.execute("select version from release"))
