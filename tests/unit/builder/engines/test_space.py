"""Free disk before a build: what counts is the fullest moment of each disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsmith.builder.engines.space import refuse_without_room
from envsmith.errors import StorageError
from envsmith.model.lock import Artifact, Pin

# No disk has so much: a cell of 2 PiB of wheels.
_BYTES = 1 << 51


@pytest.fixture
def pin() -> Pin:
    wheel = Artifact(filename="torch-2.9.1-cp311-cp311-linux_x86_64.whl", sha256="0" * 64, size=_BYTES)
    return Pin(name="torch", version="2.9.1", layer="torch", artifacts=(wheel,))


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder of another file system."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def needed(copies: int) -> str:
    return f"{copies * 2 * _BYTES / (1 << 30):.1f} GiB are needed on the disk of"


def test_copies_in_two_folders_of_one_disk_are_summed(pin: Pin, tmp_path: Path) -> None:
    moments = [{tmp_path / "engine": [pin] * 2, tmp_path / "layout": [pin] * 2}]

    with pytest.raises(StorageError, match=needed(4)):
        refuse_without_room("x", moments, hint="")


def test_moments_are_not_summed(pin: Pin, tmp_path: Path) -> None:
    moments = [{tmp_path / "engine": [pin] * 2}, {tmp_path / "engine": [pin] * 3}]

    with pytest.raises(StorageError, match=needed(3)):
        refuse_without_room("x", moments, hint="")


def test_each_disk_has_its_own_fullest_moment(pin: Pin, tmp_path: Path, memory: Path) -> None:
    if memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("temporary folders lie on the disk of /dev/shm here")

    with pytest.raises(StorageError, match=f"{needed(3)} {memory}"):
        refuse_without_room("x", [{memory: [pin] * 3, tmp_path: [pin] * 2}], hint="")
