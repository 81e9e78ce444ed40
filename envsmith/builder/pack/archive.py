"""One archive that installs and proves a lock on a host without a network."""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast
from urllib.request import url2pathname

from packaging.utils import parse_wheel_filename

from envsmith.base.files import HashedWriter, read_text, scratch, writing
from envsmith.base.progress import Clock
from envsmith.builder.pack.local_wheels import UserPackage, own_requirements, own_wheel, project_wheel
from envsmith.errors import ContentError, LockError, UsageError
from envsmith.lock.cell_query import glibc_of, uv_platform
from envsmith.lock.days import cutoff, last_day
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.lock.index.interpreters import running_interpreter
from envsmith.lock.index.uv import Uv
from envsmith.lock.index.wheel_tags import best_artifact, wheel_tags
from envsmith.lock.pip_files import ALL_FILE, BUILD_FILE, layer_text, pylock_text
from envsmith.lock.query import Query, resolve
from envsmith.lock.uv_output import to_pins
from envsmith.model.lock import LOCK_FILE, Artifact, Lock, Pin
from envsmith.model.version import minor_of
from envsmith.net.address import parts_of
from envsmith.net.http import HttpClient

if TYPE_CHECKING:
    from envsmith.net.http import Fetcher

# (file name, sha256) -> address.
Addresses = Mapping[tuple[str, str], str]
OWN_FILE = "requirements-envsmith.txt"
_SUMS = "SHA256SUMS"
_WHEELS = "wheels"
# The oldest Python that envsmith runs on.
_OLDEST = (3, 10)


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """An archive that was written."""

    path: Path
    sha256: str
    size: int
    files: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Packer:
    """Who resolves what envsmith itself needs, who fetches files, and who knows where the files of a project are."""

    uv: Uv = field(default_factory=Uv)
    fetcher: Fetcher = field(default_factory=HttpClient)
    addresses: Callable[[str], Addresses] | None = None

    def pack(self, lock: Lock, output: Path, clock: Clock, *, project: UserPackage | None = None) -> Packed:
        """Write the archive of a lock, and of a package of the user, whose requirements the lock meets.

        The same lock, day and envsmith give the same bytes, and the same project if its backend does so.

        Raises ``UsageError`` for a lock that no wheels can install, ``ContentError`` for a file that is not the lock's.
        """
        _refuse(lock)
        local = [own_wheel()]
        if project is not None:
            clock.start("build", f"a wheel of {project.folder}, by its own build backend")
            local.append(project_wheel(project, lock, _tags(lock), self.uv))
            clock.done("build", local[-1].filename)
        clock.start("resolve", "what envsmith itself needs")
        own = self._own_pins(lock)
        clock.done("resolve", f"{len(own)} distributions")
        pins = tuple(map(_by_name, lock.pins))
        artifacts = _artifacts(lock, (*pins, *map(self._located, lock.build_pins), *own))
        mine, *projects = [wheel.pin for wheel in local]
        texts = _texts(lock, (*pins, *projects), (*own, mine), [pin.name for pin in projects])
        clock.start("download", f"{len(artifacts)} files")
        with writing(output) as file:
            out = HashedWriter(file)
            with tarfile.open(fileobj=cast("IO[bytes]", out), mode="w|", format=tarfile.PAX_FORMAT) as tar:
                archive = _Archive(tar, lock.name)
                for artifact in artifacts:
                    clock.line("download", artifact.filename)
                    with self._fetched(artifact, output.parent) as path:
                        archive.add_file(f"{_WHEELS}/{artifact.filename}", path, artifact.sha256)
                for wheel in local:
                    archive.add(f"{_WHEELS}/{wheel.filename}", wheel.data)
                for name, text in texts.items():
                    archive.add(name, text.encode())
                archive.finish()
        clock.done("download", f"{out.size / 1e9:.2f} GB")
        return Packed(path=output, sha256=out.sha256, size=out.size, files=len(artifacts) + len(local))

    def _own_pins(self, lock: Lock) -> tuple[Pin, ...]:
        query = Query(
            requirements=own_requirements(),
            python=minor_of(lock.python_version),
            platform=uv_platform(lock.cell.platform, glibc_of(lock)),
            newest=cutoff(last_day()),
            interpreter=running_interpreter().path,
            wheels_only=True,
            edges=False,
        )
        return to_pins(resolve(query, self.uv, work="resolve what envsmith needs").packages, {})

    def _located(self, pin: Pin) -> Pin:
        """Return a pin with the addresses of its files. A lock that was read again has none for what builds."""
        if all(artifact.url for artifact in pin.artifacts):
            return pin
        urls = (self.addresses or self._of_index)(pin.name)
        located = (replace(a, url=a.url or urls.get((a.filename, a.sha256))) for a in pin.artifacts)
        return replace(pin, artifacts=tuple(located))

    def _of_index(self, name: str) -> Addresses:
        files = PackageIndex(self.fetcher, find_index(self.uv.environ)).project(name).files
        return {(file.filename, file.sha256 or ""): file.url for file in files}

    @contextmanager
    def _fetched(self, artifact: Artifact, folder: Path) -> Iterator[Path]:
        """Yield a file whose hash was checked, piece by piece: a wheel may have gigabytes."""
        if artifact.url is None:
            raise LockError(
                f"Cannot fetch {artifact.filename}: its address is not known.",
                hint="Lock again, and keep pylock.toml beside lock.json.",
            )
        with scratch(folder) as place:
            path = place / artifact.filename
            with path.open("wb") as file, self._opened(artifact.url) as stream:
                copy = HashedWriter(file)
                shutil.copyfileobj(stream, copy, 1 << 20)
            if copy.sha256 != artifact.sha256:
                raise ContentError(
                    f"Cannot pack {artifact.filename}: it is not the file of the lock.",
                    hint="Check the index or proxy: it serves another file than the one that was locked.",
                )
            yield path

    @contextmanager
    def _opened(self, url: str) -> Iterator[IO[bytes]]:
        if url.startswith("file:"):
            with Path(url2pathname(parts_of(url).path)).open("rb") as file:
                yield file
            return
        with self.fetcher.open_range(url, 0) as reply:
            yield reply.stream


class _Archive:
    """Members of one folder, with nothing of this machine in their heads, and the hash of each."""

    def __init__(self, tar: tarfile.TarFile, folder: str) -> None:
        self._tar, self._folder = tar, folder
        self._sums: dict[str, str] = {}

    def add(self, name: str, data: bytes) -> None:
        """Add a file of a few bytes."""
        self._put(name, io.BytesIO(data), len(data), hashlib.sha256(data).hexdigest())

    def add_file(self, name: str, path: Path, sha256: str) -> None:
        """Add a file of the disk whose hash is known."""
        with path.open("rb") as file:
            self._put(name, file, path.stat().st_size, sha256)

    def finish(self) -> None:
        """Add the list of hashes."""
        lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(self._sums.items()))
        self.add(_SUMS, lines.encode())

    def _put(self, name: str, file: IO[bytes], size: int, sha256: str) -> None:
        member = tarfile.TarInfo(f"{self._folder}/{name}")
        member.size, member.mode = size, 0o755 if name.endswith(".sh") else 0o644
        self._tar.addfile(member, file)
        self._sums[name] = sha256


def _refuse(lock: Lock) -> None:
    if lock.compiled:
        names = ", ".join(source.name for source in lock.compiled)
        raise UsageError(
            f"Cannot pack {lock.cell.id}: {names} is compiled in the pinned builder of an image.",
            hint="Take a ready wheel of it (--wheels listed), or carry an image: envsmith build --oci.",
        )
    if tuple(map(int, minor_of(lock.python_version).split("."))) < _OLDEST:
        raise UsageError(
            f"Cannot pack {lock.cell.id}: envsmith, which proves it there, needs Python 3.10 or newer.",
            hint="Choose a newer --python.",
        )


def _by_name(pin: Pin) -> Pin:
    """Return a ready wheel under the version of its file: it comes from the archive, not from its address."""
    if not pin.address:
        return pin
    return replace(pin, address="", version=str(parse_wheel_filename(pin.artifacts[0].filename)[1]))


def _tags(lock: Lock) -> list[str]:
    """Return the tags of wheels that the host of a lock installs, best first."""
    return list(wheel_tags(lock.cell.platform, minor_of(lock.python_version), glibc_of(lock)))


def _artifacts(lock: Lock, pins: Iterable[Pin]) -> list[Artifact]:
    """Return the one file of each pin that the host installs."""
    tags = _tags(lock)
    chosen: dict[str, Artifact] = {}
    for pin in pins:
        artifact = best_artifact(pin, tags)
        if artifact is None:
            raise LockError(
                f"Cannot pack {pin.name} {pin.version}: none of its files is for {lock.cell.platform.value}.",
                hint="Choose another --python or another release.",
            )
        chosen[artifact.filename] = artifact
    return [chosen[name] for name in sorted(chosen)]


def _texts(lock: Lock, pins: tuple[Pin, ...], own: tuple[Pin, ...], projects: list[str]) -> Mapping[str, str]:
    """Return the text files by name. ``own`` is envsmith with what it needs, ``projects`` are packages of the user."""
    texts = {
        "install.sh": _script(lock, projects),
        LOCK_FILE: lock.text(),
        "pylock.toml": pylock_text(lock),
        ALL_FILE: layer_text(pins),
        OWN_FILE: layer_text(own),
    }
    if lock.build_pins or any(pin.sdist for pin in pins):
        texts[BUILD_FILE] = layer_text(lock.build_pins)
    return texts


def _script(lock: Lock, projects: list[str]) -> str:
    names = sorted({*projects, *lock.cell.further_names})
    words = {
        "@MINOR@": minor_of(lock.python_version),
        "@MACHINE@": lock.cell.platform.machine,
        "@GLIBC@": glibc_of(lock),
        "@IMPORTS@": "".join(f" --import {name}" for name in names),
    }
    text = read_text(Path(__file__).with_name("install.sh"))
    for word, value in words.items():
        text = text.replace(word, value)
    return text
