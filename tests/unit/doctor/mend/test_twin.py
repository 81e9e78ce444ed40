"""The copy of an environment and the exchange."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.doctor.mend import twin as twins
from envsmith.doctor.mend.twin import exchange, recover, store_of, twin
from envsmith.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "env"
    (root / "bin").mkdir(parents=True)
    (root / "pyvenv.cfg").write_text("version = 3.11.7\n")
    (root / "a").write_text("old")
    return root


def test_the_copy_is_of_links_and_the_original_does_not_see_its_changes(folder: Path) -> None:
    with twin(folder) as copied:
        assert (copied.copy / "a").stat().st_ino == (folder / "a").stat().st_ino
        (copied.copy / "a").unlink()
        (copied.copy / "a").write_text("new")

    assert (folder / "a").read_text() == "old"
    assert not store_of(folder).exists()


def test_two_mends_of_one_environment_do_not_meet(folder: Path) -> None:
    with twin(folder), pytest.raises(UsageError, match="another envsmith is changing it"), twin(folder):
        pass


def test_three_renames_do_the_same_where_the_kernel_cannot_exchange(folder: Path) -> None:
    with twin(folder) as copied:
        (copied.copy / "b").write_text("new")
        (copied.copy / twins.MARKER).write_text(f'{{"id": "{copied.folder.name}"}}')
        twins._swap_by_renames(copied)

    assert (folder / "b").read_text() == "new"
    assert not (copied.copy / "b").exists()


def test_a_kill_between_two_renames_is_put_right_by_the_next_call(folder: Path) -> None:
    copy = store_of(folder) / "0123456789ab"
    (copy / "env").mkdir(parents=True)
    folder.rename(copy / "aside")

    recover(folder)

    assert (folder / "a").read_text() == "old"
    assert not store_of(folder).exists()


def test_the_environment_of_two_mends_ago_is_removed(folder: Path) -> None:
    for _ in range(2):
        with twin(folder) as copied:
            exchange(copied, {})

    assert [path.name for path in store_of(folder).iterdir()] == [copied.folder.name]
