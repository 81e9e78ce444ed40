"""Failures that a user can meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.errors import DataError, StorageError, UsageError, os_errors


def test_an_error_of_the_system_becomes_one_of_ours_with_its_reason(tmp_path: Path) -> None:
    missing = tmp_path / "missing"

    with pytest.raises(StorageError) as caught, os_errors(f"read {missing}"):
        missing.read_bytes()

    assert caught.value.message == f"Cannot read {missing}: No such file or directory."


def test_the_caller_chooses_the_kind_and_the_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught, os_errors("use --from x", UsageError, hint="give a file"):
        (tmp_path / "missing").read_bytes()

    assert caught.value.hint == "give a file"


def test_an_error_of_ours_passes_unchanged() -> None:
    with pytest.raises(DataError, match="as it was"), os_errors("read x"):
        raise DataError("as it was")
