"""The Python sources of one release on the package index: of a wheel by range requests, of a source distribution as a whole.

Only ``.py`` and ``.pyi`` are taken, and of compiled modules the names; a release is read once and kept in the cache.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.cache import load_entry, store_entry
from envsmith.errors import NetworkError
from envsmith.http import Fetcher
from envsmith.python.index import IndexFile, PackageIndex

__all__ = ["Sources", "choose", "read_sources"]

MAX_SDIST = 96 << 20
MAX_MEMBER = 8 << 20
MAX_UNPACKED = 1 << 29
# A torch wheel has about 10 MiB of compressed Python, a transformers wheel 12.
BUDGET = 128 << 20
_COMPILED = "compiled.txt"
_LAYOUTS = ("src/",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """``files``: path below the folder that is on ``sys.path`` -> source. ``compiled``: dotted names of modules without a source."""

    distribution: str
    version: str
    sha256: str
    files: Mapping[str, bytes]
    compiled: frozenset[str] = field(default_factory=frozenset)


def choose(files: tuple[IndexFile, ...], python: str | None = None) -> IndexFile | None:
    """The file that is read: a wheel for x86-64 Linux or for every platform (of ``python``, cp312, if there is one), else the source distribution."""
    wheels = [f for f in files if f.is_wheel and (f.filename.endswith("-any.whl") or _linux(f.filename))]
    wheels.sort(key=lambda f: (python is None or f"-{python}-" not in f.filename, f.size or 0, f.filename))
    rest = [f for f in files if f.filename.endswith((".tar.gz", ".zip"))]
    return next(iter((*wheels, *rest)), None)


def _linux(filename: str) -> bool:
    return "linux" in filename and "x86_64" in filename


def read_sources(index: PackageIndex, distribution: str, file: IndexFile, cache: Path) -> Sources:
    """Out of the cache, or from the index and then into the cache. Raises ``NetworkError`` for what cannot be read."""
    place = cache / f"{distribution}-{file.version}-{(file.sha256 or 'unhashed')[:12]}"
    made_of = f"{file.filename} {file.sha256}"
    entry = load_entry(place, made_of, limit=MAX_UNPACKED)
    content = entry.content if entry else b""
    if not content:
        members = dict(_wheel(index, file) if file.is_wheel else _sdist(index.fetcher, file))
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as out:
            for name, data in sorted(members.items()):
                out.writestr(name, data)
        content = buffer.getvalue()
        store_entry(place, made_of, content)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    compiled = files.pop(_COMPILED, b"").decode().split()
    return Sources(
        distribution=distribution,
        version=file.version,
        sha256=file.sha256 or "",
        files=files,
        compiled=frozenset(compiled),
    )


def _wheel(index: PackageIndex, file: IndexFile) -> Iterator[tuple[str, bytes]]:
    from envsmith.python.remote_wheel import RemoteWheel

    with RemoteWheel(index.fetcher, file.url, budget=BUDGET) as wheel:
        names = wheel.names()
        yield _COMPILED, "\n".join(_compiled(names)).encode()
        yield from wheel.read_all(sorted(n for n in names if _is_source(n)), max_bytes=MAX_MEMBER)


def _sdist(fetcher: Fetcher, file: IndexFile) -> Iterator[tuple[str, bytes]]:
    data = fetcher.get(file.url, max_bytes=MAX_SDIST, sha256=file.sha256, keep=False).body
    left = MAX_UNPACKED
    try:
        for name, content in _members(file.filename, data):
            inner = name.removeprefix("./").partition("/")[2]
            inner = next((inner.removeprefix(p) for p in _LAYOUTS if inner.startswith(p)), inner)
            left -= len(content)
            if left < 0:
                raise NetworkError(f"{file.filename} unpacks to more than {MAX_UNPACKED} bytes: refused")
            if _is_source(inner):
                yield inner, content
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
        raise NetworkError(f"{file.filename} is not an archive that can be read: {error}") from None


def _members(filename: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    if filename.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                if info.file_size <= MAX_MEMBER:
                    yield info.filename, archive.read(info)
        return
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        for member in archive:
            opened = archive.extractfile(member) if member.isfile() and member.size <= MAX_MEMBER else None
            if opened is not None:
                yield member.name, opened.read()


def _is_source(name: str) -> bool:
    return name.endswith((".py", ".pyi")) and ".data/" not in name and not name.startswith(("/", "../"))


def _compiled(names: list[str]) -> list[str]:
    """``torch/_C.cpython-312-x86_64-linux-gnu.so`` -> ``torch._C``."""
    found = (n.rpartition("/") for n in names if n.endswith(".so") and "/lib" not in n)
    return sorted({f"{folder}/{last.split('.')[0]}".replace("/", ".") for folder, _, last in found if folder})
