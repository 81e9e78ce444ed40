"""The Python sources of one release on the package index: of a wheel by range requests, of an sdist as a whole.

A member is known by its path, its CRC-32 and its size. The directory of an archive holds all three, so that a member
that did not change since the release before need not be read.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from envsmith.errors import NetworkError
from envsmith.lock.index.index import IndexFile
from envsmith.lock.index.remote_wheel import RemoteWheel
from envsmith.net.http import Fetcher

MAX_SDIST = 96 << 20
MAX_MEMBER = 8 << 20
MAX_UNPACKED = 1 << 29
# A torch wheel has about 10 MiB of compressed Python, a transformers wheel 12.
_BUDGET = 128 << 20
# What becomes a compiled module where an sdist is built.
_TO_COMPILE = ".pyx"
_LAYOUTS = ("src/", "lib/", "python/")


class SourceMember(NamedTuple):
    """One source of an archive. ``path`` is relative to the folder that is on ``sys.path``."""

    path: str
    crc: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """An open archive: its sources, the dotted names of its compiled modules, and a reader of chosen paths.

    ``binaries`` are the files of compiled modules.
    """

    members: tuple[SourceMember, ...]
    compiled: frozenset[str]
    binaries: Mapping[str, SourceMember] = field(default_factory=dict)
    read: Callable[[Iterable[str]], Iterator[tuple[str, bytes]]]


def choose_file(files: Iterable[IndexFile]) -> IndexFile | None:
    """Return the file to read: the smallest wheel for x86-64 Linux or any platform, else the sdist."""
    files = tuple(files)
    wheels = [f for f in files if f.is_wheel and (f.filename.endswith("-any.whl") or _linux(f.filename))]
    wheels.sort(key=lambda f: (f.size or 0, f.filename))
    sdists = [f for f in files if not f.is_wheel]
    return next(iter((*wheels, *sdists)), None)


def _linux(filename: str) -> bool:
    return "linux" in filename and "x86_64" in filename


@contextlib.contextmanager
def open_archive(fetcher: Fetcher, file: IndexFile) -> Iterator[Archive]:
    """Open a release where it lies. ``NetworkError`` when it cannot be read or is not an archive."""
    if not file.is_wheel:
        yield _sdist(fetcher, file)
        return
    with RemoteWheel(fetcher, file.url, budget=_BUDGET, size=file.size) as wheel:
        entries = {_purelib(name): (name, crc, size) for name, crc, size in wheel.entries()}
        yield Archive(
            members=tuple(SourceMember(p, crc, size) for p, (_, crc, size) in entries.items() if is_source(p)),
            compiled=compiled_modules(entries),
            binaries={
                m: SourceMember(p, crc, size) for p, (_, crc, size) in entries.items() for m in compiled_modules([p])
            },
            read=lambda paths: _named(wheel, {entries[p][0]: p for p in paths}),
        )


def _named(wheel: RemoteWheel, names: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    for name, data in wheel.read_all(names, max_bytes=MAX_MEMBER):
        yield names[name], data


def _purelib(name: str) -> str:
    """Return the path below ``site-packages``: some wheels keep their modules below ``X.data/purelib``."""
    first, _, inner = name.partition("/")
    scheme, _, path = inner.partition("/")
    return path if first.endswith(".data") and scheme in {"purelib", "platlib"} else name


def _sdist(fetcher: Fetcher, file: IndexFile) -> Archive:
    data = fetcher.get(file.url, max_bytes=MAX_SDIST, sha256=file.sha256, keep=False).body
    sources: dict[str, bytes] = {}
    to_compile: list[str] = []
    unpacked = 0
    try:
        for name, content in _unpack(file.filename, data):
            inner = name.removeprefix("./").partition("/")[2]
            inner = next((inner.removeprefix(p) for p in _LAYOUTS if inner.startswith(p)), inner)
            unpacked += len(content)
            if unpacked > MAX_UNPACKED:
                raise NetworkError(f"Cannot read {file.filename}: it unpacks to more than {MAX_UNPACKED} bytes.")
            if is_source(inner):
                sources[inner] = content
            elif inner.endswith(_TO_COMPILE):
                to_compile.append(f"{inner.rpartition('.')[0]}.so")
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError, zlib.error) as error:
        raise NetworkError(f"Cannot read {file.filename}: it is not a valid archive ({error}).") from None
    return Archive(
        members=tuple(SourceMember(p, zlib.crc32(s), len(s)) for p, s in sources.items()),
        compiled=compiled_modules(to_compile),
        read=lambda paths: ((p, sources[p]) for p in paths),
    )


def _unpack(filename: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    if filename.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for info in archive.infolist():
                if info.file_size <= MAX_MEMBER:
                    yield info.filename, archive.read(info)
        return
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as bundle:
        for member in bundle:
            readable = member.isfile() or member.issym() or member.islnk()
            stream = _extracted(bundle, member) if readable and member.size <= MAX_MEMBER else None
            if stream is not None:
                yield member.name, stream.read(MAX_MEMBER)


def _extracted(bundle: tarfile.TarFile, member: tarfile.TarInfo) -> io.BufferedReader | None:
    """Return the content of a file or of the file that a link names. A link out of the archive has none."""
    with contextlib.suppress(KeyError):
        return bundle.extractfile(member)  # type: ignore[return-value]
    return None


def is_source(path: str) -> bool:
    """Return whether a member is a module or a stub that can be imported by its path."""
    parts = path.removesuffix(".pyi").removesuffix(".py").split("/")
    return path.endswith((".py", ".pyi")) and all(p.isidentifier() for p in parts)


def compiled_modules(names: Iterable[str]) -> frozenset[str]:
    """Return ``torch._C`` for ``torch/_C.cpython-312-x86_64-linux-gnu.so``."""
    parts = (n.rpartition("/") for n in names if n.endswith(".so"))
    modules = ((f"{folder}/" if folder else "") + last.split(".")[0] for folder, _, last in parts)
    return frozenset(m.replace("/", ".") for m in modules if all(p.isidentifier() for p in m.split("/")))
