"""A package index in memory: the releases of one project as wheels that are read by ranges."""

from __future__ import annotations

import io
import zipfile
from contextlib import nullcontext
from dataclasses import dataclass, field

from envsmith.errors import NetworkError
from envsmith.lock.index.index import IndexFile, IndexProject
from envsmith.net.http import NotFoundError, RangeReply


def wheel(sources: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in sources.items():
            archive.writestr(path, text)
    return buffer.getvalue()


@dataclass
class Ranges:
    """A server of wheels that counts the bytes it sends. ``broken`` is how often it does not answer for a file."""

    files: dict[str, bytes] = field(default_factory=dict)
    broken: dict[str, int] = field(default_factory=dict)
    sent: list[tuple[str, int]] = field(default_factory=list)

    def open_range(self, url, start, stop=None):
        if self.broken.get(url):
            self.broken[url] -= 1
            raise NetworkError(f"Cannot read {url}: the server does not answer.")
        data = self.files[url]
        begin = max(0, len(data) + start) if start < 0 else start
        part = data[begin:stop]
        self.sent.append((url, len(part)))
        return nullcontext(RangeReply(start=begin, total=len(data), stream=io.BytesIO(part)))


@dataclass
class Index:
    """A package index of wheels in memory."""

    fetcher: Ranges = field(default_factory=Ranges)
    days: dict[str, str] = field(default_factory=dict)
    yanked: dict[str, str] = field(default_factory=dict)

    def release(self, version: str, sources: dict[str, str], day: str = "2024-01-02") -> None:
        self.fetcher.files[f"pkg-{version}-py3-none-any.whl"] = wheel(sources)
        self.days[version] = day

    def project(self, name: str) -> IndexProject:
        if not self.days:
            raise NotFoundError(f"The package index has no project {name}.")
        names = {v: f"{name.replace('-', '_')}-{v}-py3-none-any.whl" for v in self.days}
        return IndexProject(
            name=name,
            files=tuple(
                IndexFile(
                    filename=f,
                    url=f"pkg-{v}-py3-none-any.whl",
                    version=v,
                    sha256=f"{v:0<64}",
                    uploaded=self.days[v],
                    yanked=self.yanked.get(v),
                )
                for v, f in names.items()
            ),
        )
