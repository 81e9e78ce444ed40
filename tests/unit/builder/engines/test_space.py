"""Free disk before a build: what counts is the fullest moment of each disk."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from envsmith.builder.engines.space import Moment, refuse_without_room
from envsmith.errors import StorageError
from envsmith.model.lock import Artifact, Pin

_BYTES = 20 << 30


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


def refuse(moments: Sequence[Moment], *, free: int = 1 << 30) -> None:
    """The check on a machine whose every disk has ``free`` bytes."""
    refuse_without_room("x", moments, hint="", free_bytes=lambda _folder: free)


def test_copies_in_two_folders_of_one_disk_are_summed(pin: Pin, tmp_path: Path) -> None:
    moments = [{tmp_path / "engine": [pin] * 2, tmp_path / "layout": [pin] * 2}]

    with pytest.raises(StorageError, match=needed(4)):
        refuse(moments)


def test_moments_are_not_summed(pin: Pin, tmp_path: Path) -> None:
    moments = [{tmp_path / "engine": [pin] * 2}, {tmp_path / "engine": [pin] * 3}]

    with pytest.raises(StorageError, match=needed(3)):
        refuse(moments)


def test_each_disk_has_its_own_fullest_moment(pin: Pin, tmp_path: Path, memory: Path) -> None:
    if memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("temporary folders lie on the disk of /dev/shm here")

    with pytest.raises(StorageError, match=f"{needed(3)} {memory}"):
        refuse([{memory: [pin] * 3, tmp_path: [pin] * 2}])


def test_a_disk_with_room_for_the_fullest_moment_is_taken(pin: Pin, tmp_path: Path) -> None:
    small = dataclasses.replace(pin, artifacts=(dataclasses.replace(pin.artifacts[0], size=1 << 30),))
    moments = [{tmp_path: [small]}, {tmp_path: [small] * 2}]

    refuse(moments, free=4 << 30)

    with pytest.raises(StorageError, match=r"4\.0 GiB are needed"):
        refuse(moments, free=(4 << 30) - 1)
