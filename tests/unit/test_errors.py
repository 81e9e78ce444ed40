"""Failures that a user can meet."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from envsmith.errors import (
    DataError,
    StorageError,
    UsageError,
    os_errors,
    refusal_of_disk,
    refusal_of_machine,
    storage_error,
)


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


@pytest.mark.parametrize(
    ("text", "sentence", "is_full"),
    [
        ("error: failed to write: No space left on device (os error 28)", "the disk is full", True),
        ("OSError: [Errno 122] Disk quota exceeded", "the disk quota is used up", True),
        ("Read-only file system (os error 30)", "the file system is read-only", False),
        ("failed to create directory: Permission denied (os error 13)", "permission is denied", False),
    ],
)
def test_what_a_program_says_of_the_disk_is_one_sentence(text: str, sentence: str, is_full: bool) -> None:
    refusal = refusal_of_disk(text)

    assert refusal is not None
    assert (refusal.sentence, refusal.is_full) == (sentence, is_full)


def test_the_number_and_the_words_of_a_refusal_are_one_sentence() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
        error = OSError(number, os.strerror(number), "/some/file")

        refusal = refusal_of_disk(error.strerror)

        assert refusal is not None
        assert storage_error(error, "it").message == f"Cannot write it: {refusal.sentence}."


def test_a_missing_permission_may_be_the_fault_of_what_was_run() -> None:
    assert refusal_of_machine("Permission denied (os error 13)") is None
    assert refusal_of_machine("Permission denied (os error 13)\nbind: Address already in use") is not None
