"""The archive of Horovod's main branch: the same bytes from the same files, whatever packs them, with its own version."""

from __future__ import annotations

import gzip
import io
import runpy
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

tool = SimpleNamespace(**runpy.run_path(str(Path(__file__).resolve().parents[3] / "tools" / "horovod_archive.py")))

FILES = {
    "setup.py": (b"print(1)\n", 0o644),
    "horovod/__init__.py": (b"from horovod.runner import run\n\n__version__ = '0.28.1'\n", 0o644),
    "bin/run": (b"#!/bin/sh\n", 0o755),
}


@pytest.mark.parametrize("size", [0, 1, 0xFFFF, 0x10000, 200_000])
def test_stored_data_is_a_gzip_file_that_holds_it(size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert gzip.decompress(tool.stored(data)) == data


def test_the_order_of_the_files_does_not_change_the_archive() -> None:
    other = dict(reversed(list(FILES.items())))
    assert tool.stored(tool.tar_of(FILES)) == tool.stored(tool.tar_of(other))


def test_the_archive_has_one_folder_and_states_the_version_of_the_commit() -> None:
    packed = tool.tar_of(tool.with_version(FILES))
    with tarfile.open(fileobj=io.BytesIO(packed)) as bundle:
        names = bundle.getnames()
        package = bundle.extractfile("horovod/horovod/__init__.py").read().decode()
        metadata = bundle.extractfile("horovod/PKG-INFO").read().decode()
    assert {name.split("/")[0] for name in names} == {"horovod"}
    assert f"__version__ = '{tool.VERSION}'" in package
    assert f"Version: {tool.VERSION}\n" in metadata


def test_files_of_another_release_are_refused() -> None:
    files = {**FILES, "horovod/__init__.py": (b"__version__ = '0.27.0'", 0o644)}
    with pytest.raises(SystemExit, match="does not state"):
        tool.with_version(files)
