"""Files: whole writes, digests, and the present by which they are dated."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import os
import threading
from pathlib import Path

import pytest

from envsmith.errors import DataError, StorageError
from envsmith.files import digest_of, now, open_input, read_bounded, replace_file, sha256_of, write_whole


def test_an_open_file_has_the_hash_of_its_bytes() -> None:
    content = b"x" * (3 << 20)

    assert sha256_of(io.BytesIO(content)) == hashlib.sha256(content).digest()
    assert digest_of(content) == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_source_date_epoch_sets_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")

    assert now() == dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def test_without_a_number_the_present_is_the_clock_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")

    assert abs((now() - dt.datetime.now(dt.timezone.utc)).total_seconds()) < 60


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    replace_file(path, b"new")

    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file, not a folder")

    with pytest.raises(StorageError, match="b: cannot be written: "):
        write_whole(tmp_path / "a" / "b", "x")


def test_a_file_above_the_bound_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")

    assert read_bounded(tmp_path / "a", 5) == b"12345"
    with pytest.raises(DataError, match="larger than 4 bytes"):
        read_bounded(tmp_path / "a", 4)


@pytest.mark.parametrize("epoch", ["9" * 20, "²", "-1", "1e9", "0x10"])
def test_an_epoch_that_is_not_a_time_is_ignored(epoch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)

    assert abs(now() - dt.datetime.now(dt.timezone.utc)) < dt.timedelta(hours=1)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"x" * 200_000))
    writer.start()

    assert read_bounded(pipe, 200_000) == b"x" * 200_000
    writer.join()


def test_a_pipe_whose_writer_never_ends_is_given_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    os.write(writer, b"begun")

    with pytest.raises(DataError, match="did not end in time"), open_input(pipe, DataError, seconds=0.1) as file:
        file.read(10)
    os.close(writer)


def test_a_pipe_without_a_writer_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    assert read_bounded(tmp_path / "pipe", 10) == b""


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full", "/"])
def test_a_device_or_a_folder_is_not_read(path: str) -> None:
    with pytest.raises(DataError, match=r"neither a file nor a pipe|Is a directory"):
        read_bounded(Path(path), 10)


def test_the_null_device_is_an_empty_file() -> None:
    assert read_bounded(Path(os.devnull), 10) == b""
