"""Files: whole writes, digests, and the present by which they are dated."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
from pathlib import Path

import pytest

from envsmith.errors import DataError, StorageError
from envsmith.files import digest_of, now, read_bounded, replace_file, sha256_of, write_whole


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
