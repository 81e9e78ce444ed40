from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.image.context import context_folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_next_build_has_the_same_path_and_nothing_of_the_last(tmp_path):
    with context_folder(tmp_path) as first:
        (first / "Dockerfile").write_text("FROM x")
        (first / "sources").mkdir()
        (first / "sources" / "a").write_text("a")
    with context_folder(tmp_path) as second:
        assert second == first
        assert list(second.iterdir()) == []


def test_two_builds_at_a_time_have_two_folders(tmp_path):
    with context_folder(tmp_path) as first, context_folder(tmp_path) as second:
        assert first != second
        (first / "Dockerfile").write_text("FROM x")
        assert list(second.iterdir()) == []


def test_what_a_killed_build_left_is_gone_and_no_link_is_followed(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    with context_folder(tmp_path) as folder:
        pass
    (folder / "left").symlink_to(kept)
    with context_folder(tmp_path) as again:
        assert list(again.iterdir()) == []
    assert (kept / "file").exists()


def test_a_link_in_the_place_of_the_folder_is_not_emptied(tmp_path):
    documents = tmp_path / "documents"
    documents.mkdir()
    (documents / "file").write_text("x")
    with context_folder(tmp_path) as folder:
        pass
    folder.rmdir()
    folder.symlink_to(documents)

    with context_folder(tmp_path) as again:
        assert again == folder

    assert (documents / "file").exists()


def test_a_failed_build_leaves_nothing_and_gives_the_folder_back(tmp_path):
    seen = []

    def fail():
        with context_folder(tmp_path) as first:
            seen.append(first)
            (first / "uv").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with context_folder(tmp_path) as second:
        assert seen == [second]
        assert list(second.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(tmp_path, cache, monkeypatch):
    cache.write_text("a file where the folder should be")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with context_folder(scratch) as folder:
        assert folder == scratch / "context"


def test_only_this_user_can_look_into_it(tmp_path):
    with context_folder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o077 == 0
        assert folder.parent.stat().st_mode & 0o077 == 0


def test_uv_keeps_its_time_so_that_it_is_sent_once(tmp_path, locks):
    from envsmith.image.context import write_context
    from envsmith.python.uv import find_uv

    with context_folder(tmp_path) as folder:
        write_context(locks.megatron(), folder)
        assert (folder / "uv").stat().st_mtime_ns == Path(find_uv()).stat().st_mtime_ns
