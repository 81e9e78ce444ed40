"""Failures that a user can meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.errors import DataError, StorageError, UsageError, os_errors


def test_an_error_of_the_system_becomes_one_of_ours_with_its_reason(tmp_path: Path) -> None:
    missing = tmp_path / "missing"

    with pytest.raises(StorageError) as caught, os_errors(f"{missing}: cannot be read"):
        missing.read_bytes()

    assert caught.value.message == f"{missing}: cannot be read: No such file or directory"


def test_the_caller_chooses_the_kind_and_the_hint(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught, os_errors("--from x", UsageError, hint="give a file"):
        (tmp_path / "missing").read_bytes()

    assert caught.value.hint == "give a file"


def test_an_error_of_ours_passes_unchanged() -> None:
    with pytest.raises(DataError, match="as it was"), os_errors("x: cannot be read"):
        raise DataError("as it was")
