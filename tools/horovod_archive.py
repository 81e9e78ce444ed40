"""Make the source archive of Horovod's main branch, which no release has: ``horovod_archive.py OUT.tar.gz``.

A checkout lacks its submodules, which Horovod's newest release has in its source distribution: both name the same
commits of them. So the archive is the commit's own files, ``third_party`` of that source distribution, the version that
``git describe`` gives the commit, and ``PKG-INFO``. The same commit gives the same bytes on every machine: times and
owners are fixed, and nothing is packed, because two zlibs pack differently.

The commit comes from ``--repository`` by git, the source distribution from the package index by its sha256.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import struct
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from envsmith.base.files import write_whole
from envsmith.errors import EnvsmithError, NetworkError
from envsmith.lock.index.archives import MAX_ARCHIVE
from envsmith.lock.index.index import PackageIndex, find_index
from envsmith.net.http import HttpClient

REPOSITORY = "https://github.com/horovod/horovod.git"
COMMIT = "2626dc87a3a8eb8fb7d2216198ce45bce0f9e65a"
# `git describe --tags --long` of the commit is v0.28.1-25-g2626dc87: 25 commits on the way to the release after 0.28.1.
VERSION = "0.28.2.dev25"
RELEASE = "0.28.1"
RELEASE_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
# The day of the commit, 2026-06-20 15:05:53 UTC.
_TIME = 1781967953
# What the source distribution of a release has of the repository, and the notice of its licence.
_PARTS = ("CMakeLists.txt", "LICENSE", "MANIFEST.in", "NOTICE", "README.rst", "cmake", "horovod", "horovod.exp",
          "horovod.lds", "setup.cfg", "setup.py")  # fmt: skip
# `require_list` of setup.py, with PyTorch.
_REQUIRES = ("cffi>=1.4.0", "cloudpickle", "packaging", "psutil", "pyyaml")
_TOP = "horovod"
_STORED = 0xFFFF


def main_branch(repository: str) -> dict[str, tuple[bytes, int]]:
    """Return {path: (content, mode)} of the commit."""
    with tempfile.TemporaryDirectory(prefix="envsmith-horovod-") as folder:
        for words in (
            ["init", "-q", "--bare"],
            ["fetch", "-q", "--depth", "1", repository, COMMIT],
            ["archive", "--format=tar", "-o", "tree.tar", COMMIT, *_PARTS],
        ):
            subprocess.run(["git", "-C", folder, *words], check=True)
        return dict(_files((Path(folder) / "tree.tar").read_bytes()))


def third_party() -> dict[str, tuple[bytes, int]]:
    """Return {path: (content, mode)} of the submodules, from the release's source distribution."""
    client, name = HttpClient(), f"horovod-{RELEASE}.tar.gz"
    for file in PackageIndex(client, find_index()).project("horovod").files:
        if file.filename == name:
            data = client.get(file.url, max_bytes=MAX_ARCHIVE, sha256=RELEASE_SHA256, keep=False).body
            files = ((path.partition("/")[2], member) for path, member in _files(gzip.decompress(data)))
            return {path: member for path, member in files if path.startswith("third_party/")}
    raise NetworkError(f"Cannot make the archive: the package index has no {name}.")


def _files(tar: bytes) -> Iterator[tuple[str, tuple[bytes, int]]]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as bundle:
        for member in bundle:
            stream = bundle.extractfile(member) if member.isfile() else None
            if stream is not None:
                yield member.name, (stream.read(), 0o755 if member.mode & 0o100 else 0o644)


def with_version(files: Mapping[str, tuple[bytes, int]]) -> dict[str, tuple[bytes, int]]:
    """Return the files, where the version is this commit's: the repository states the last release's."""
    place, stated = "horovod/__init__.py", f"__version__ = '{RELEASE}'".encode()
    content, mode = files[place]
    if content.count(stated) != 1:
        raise SystemExit(f"{place} does not state {RELEASE} once")
    lines = ["Metadata-Version: 2.2", "Name: horovod", f"Version: {VERSION}", "Requires-Python: >=3.6"]
    lines += [f"Requires-Dist: {requirement}" for requirement in _REQUIRES]
    named = content.replace(stated, f"__version__ = '{VERSION}'".encode())
    return {**files, place: (named, mode), "PKG-INFO": (("\n".join(lines) + "\n").encode(), 0o644)}


def tar_of(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    """Return the files as a tar archive with one folder, sorted, of one time and of nobody."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as bundle:
        for path, (content, mode) in sorted(files.items()):
            member = tarfile.TarInfo(f"{_TOP}/{path}")
            member.size, member.mode, member.mtime = len(content), mode, _TIME
            bundle.addfile(member, io.BytesIO(content))
    return out.getvalue()


def stored(data: bytes) -> bytes:
    """Return a gzip file whose blocks are stored as they are (RFC 1951, 3.2.4), so that no library decides the bytes."""
    pieces = [data[at : at + _STORED] for at in range(0, len(data), _STORED)] or [b""]
    body = b"".join(
        struct.pack("<BHH", piece is pieces[-1], len(piece), len(piece) ^ 0xFFFF) + piece for piece in pieces
    )
    header = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
    return header + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def main() -> int:
    """Write the archive and print its sha256."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.tar.gz")
    parser.add_argument("--repository", default=REPOSITORY, help="where git fetches the commit: an address or a folder")
    options = parser.parse_args()
    try:
        archive = stored(tar_of(with_version({**main_branch(options.repository), **third_party()})))
    except (EnvsmithError, subprocess.CalledProcessError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    write_whole(options.out, archive)
    print(f"{hashlib.sha256(archive).hexdigest()}  {options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
