"""The cache: believed only when it is whole, the user's own, and of the key that is looked for."""

from __future__ import annotations

import math
import os
import pickle
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import envsmith
from envsmith.base.cache import cache_folder, cached, entry_of, load_entry, read_cache, store_entry, write_cache
from envsmith.base.packed import pack

Numbers = Mapping[str, int]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _flipped(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def _linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _older(path: Path) -> None:
    path.write_bytes(b'{"schema": 3, "key": "key", "value": "content"}')


CHANGES: dict[str, Callable[[Path], object]] = {
    "one bit flipped": _flipped,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "cut to nothing": lambda path: path.write_bytes(b""),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "writable by the group": lambda path: path.chmod(0o620),
    "writable by all": lambda path: path.chmod(0o602),
    "a link": _linked,
    "a folder": _folder,
    "a pipe": _pipe,
    "of an older schema": _older,
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_entry_about_which_anything_is_off_is_not_believed_and_can_be_made_again(
    tmp_path: Path, change: str
) -> None:
    path = tmp_path / "entry"
    store_entry(path, "key", b"content")

    CHANGES[change](path)

    assert load_entry(path, "key") is None
    if not path.is_dir():
        store_entry(path, "key", b"content")
        entry = load_entry(path, "key")
        assert entry is not None
        assert entry.content == b"content"


def test_a_whole_entry_of_another_key_is_not_believed(tmp_path: Path) -> None:
    store_entry(tmp_path / "one", "one", b"content of one")
    store_entry(tmp_path / "two", "two", b"content of two")

    (tmp_path / "one").rename(tmp_path / "two")

    assert load_entry(tmp_path / "two", "two") is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")
def test_an_entry_of_another_user_is_not_believed(tmp_path: Path) -> None:
    store_entry(tmp_path / "entry", "key", b"content")

    os.chown(tmp_path / "entry", 12345, -1)

    assert load_entry(tmp_path / "entry", "key") is None


def test_an_entry_is_as_old_as_the_time_since_it_was_stored_and_one_from_the_future_older_than_any(
    tmp_path: Path,
) -> None:
    store_entry(tmp_path / "entry", "key", b"content", clock=lambda: 1000.0)

    read = [load_entry(tmp_path / "entry", "key", clock=lambda now=now: now) for now in (1000.0, 1007.0, 999.0)]

    assert [entry.age for entry in read if entry] == [0, 7, math.inf]


def test_an_entry_larger_than_the_reader_takes_is_not_read(tmp_path: Path) -> None:
    store_entry(tmp_path / "entry", "key", b"content")

    assert load_entry(tmp_path / "entry", "key", limit=7) is not None
    assert load_entry(tmp_path / "entry", "key", limit=6) is None


def test_an_entry_where_a_folder_stands_is_no_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "entry").mkdir()

    store_entry(tmp_path / "entry", "key", b"content")

    assert list(tmp_path.rglob("*")) == [tmp_path / "entry"]


def test_only_the_newest_entries_of_a_kind_stay() -> None:
    for number in range(20):
        write_cache("compiled", str(number), {})

    assert len(list(cache_folder().glob("compiled-*"))) == 12
    assert not list(cache_folder().glob(".envsmith-*"))


def test_files_from_the_future_do_not_push_out_what_is_written_now() -> None:
    for number in range(12):
        write_cache("compiled", str(number), {})
    for path in cache_folder().iterdir():
        os.utime(path, (4e9, 4e9))

    write_cache("compiled", "now", {"a": 1})

    assert read_cache("compiled", "now") == {"a": 1}


def test_facts_of_an_artifact_come_back_and_changed_ones_do_not(tmp_path: Path) -> None:
    sha256 = "a" * 64
    write_cache("torch", sha256, {"glibc": "2.17"}, tmp_path)
    before = read_cache("torch", sha256, tmp_path)
    (path,) = (tmp_path / "torch").iterdir()

    path.write_bytes(path.read_bytes().replace(b"2.17", b"2.28"))

    assert before == {"glibc": "2.17"}
    assert read_cache("torch", sha256, tmp_path) is None
    assert read_cache("release", sha256, tmp_path) is None


def test_the_cache_follows_xdg_and_falls_back_to_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/path")
    monkeypatch.setenv("HOME", "/home/someone")

    assert str(cache_folder()) == "/home/someone/.cache/envsmith"


@pytest.mark.parametrize(
    ("base", "place"), [("", "/home/someone/.cache/envsmith"), ("/var/tmp/x", "/var/tmp/x/envsmith")]
)
def test_the_cache_lies_in_the_folder_that_is_named_when_it_is_absolute(
    monkeypatch: pytest.MonkeyPatch, base: str, place: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    monkeypatch.setenv("HOME", "/home/someone")

    assert str(cache_folder()) == place


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644, 0o755])
def test_an_entry_that_others_may_only_read_is_believed(tmp_path: Path, mode: int) -> None:
    store_entry(tmp_path / "entry", "key", b"content")
    is_private = stat.S_IMODE((tmp_path / "entry").stat().st_mode) == 0o600

    (tmp_path / "entry").chmod(mode)

    assert is_private
    assert load_entry(tmp_path / "entry", "key") is not None


@pytest.mark.parametrize(("size", "is_read"), [(0, True), (2 << 20, True), (64 << 20, True), ((64 << 20) + 1, False)])
def test_an_entry_is_read_up_to_64_mb(tmp_path: Path, size: int, is_read: bool) -> None:
    store_entry(tmp_path / "entry", "key", bytes(size))

    assert (load_entry(tmp_path / "entry", "key") is not None) is is_read


def test_a_value_is_made_once_for_each_thing_that_it_is_made_of() -> None:
    made = []

    def make() -> dict[str, int]:
        made.append(1)
        return {"number": len(made)}

    values = [cached("compiled", made_of, make, shape=Numbers) for made_of in ("one", "one", "two", "one", "two")]

    assert [value["number"] for value in values] == [1, 1, 2, 1, 2]


def test_a_value_that_cannot_be_kept_is_returned_and_made_again() -> None:
    made = []

    def make() -> object:
        made.append(len)
        return made[-1]

    values = [cached("compiled", "one", make, shape=dict) for _ in range(2)]

    assert values == [len, len]
    assert len(made) == 2


@pytest.mark.parametrize("content", [b"", b"[", b"[]\n", b"\xff\n", b"[{},[9],[],{}]\n", pickle.dumps({"number": 7})])
def test_a_whole_entry_that_is_no_such_value_is_made_again(content: bytes) -> None:
    cached("compiled", "one", lambda: {"number": 1}, shape=Numbers)
    (path,) = cache_folder().iterdir()
    store_entry(path, "one", content)

    value = cached("compiled", "one", lambda: {"number": 2}, shape=Numbers)

    assert value == {"number": 2}


@pytest.mark.parametrize(
    ("brought", "number"),
    [(pack(Mapping[str, int], {"number": 2}), 2), (None, 1), (b"not packed", 1)],
)
def test_what_the_program_brings_is_taken_where_it_can_be_read_and_kept(brought: bytes | None, number: int) -> None:
    first = cached("compiled", "one", lambda: {"number": 1}, shape=Numbers, brought=lambda: brought)

    again = cached("compiled", "one", lambda: {"number": 3}, shape=Numbers)

    assert first == again == {"number": number}


def test_a_file_that_the_program_brings_need_not_be_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "entry").write_bytes(entry_of("key", b"content", at=0))
    (tmp_path / "entry").chmod(0o664)

    entries = [
        load_entry(tmp_path / "entry", key, own=own) for key, own in (("key", False), ("key", True), ("x", False))
    ]

    assert [entry and entry.content for entry in entries] == [b"content", None, None]


def test_the_oldest_entries_of_a_kind_go_first_and_other_kinds_stay() -> None:
    for number in range(12):
        write_cache("compiled", str(number), number)
        (path,) = [p for p in cache_folder().glob("compiled-*") if p.stat().st_mtime > 1e9]
        os.utime(path, (1000 + number, 1000 + number))
    write_cache("other", "0", 0)

    cached("compiled", "value", dict, shape=Numbers)
    write_cache("compiled", "now", 99)

    kept = [number for number in range(12) if read_cache("compiled", str(number)) == number]
    assert kept == list(range(2, 12))
    assert (read_cache("compiled", "now"), read_cache("other", "0")) == (99, 0)


def test_all_entries_in_a_folder_of_the_caller_stay(tmp_path: Path) -> None:
    for number in range(14):
        write_cache("facts", str(number), number, tmp_path)

    assert [read_cache("facts", str(number), tmp_path) for number in range(14)] == list(range(14))
    assert {len(path.name) for path in (tmp_path / "facts").iterdir()} == {64}


def test_the_name_of_an_entry_tells_its_kind_and_nothing_of_its_key() -> None:
    write_cache("compiled", "secret", [1, {"a": 2}])

    (path,) = cache_folder().iterdir()

    assert re.fullmatch(r"compiled-[0-9a-f]{32}", path.name)
    assert path.read_bytes().endswith(b'[1,{"a":2}]')
    assert read_cache("compiled", "other") is None


def test_only_modules_that_check_what_they_read_know_where_the_cache_lies() -> None:
    package = Path(envsmith.__file__).parent

    modules = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"\bcache_folder\b", path.read_text("utf-8"))
    }

    assert modules == {
        "base/cache.py",
        "lock/conda/model.py",  # conda/copies.py checks what rattler keeps below it
        "builder/engines/conda.py",  # hands it to rattler
        "builder/engines/conda_content.py",  # reads the linked files after the fact
        "net/http.py",
        "matrix/refresh/updates.py",
    }


def test_where_the_cache_cannot_be_written_a_folder_of_the_user_in_tmpdir_takes_its_place(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    write_cache("kind", "key", "content")

    assert read_cache("kind", "key") == "content"
    (entry,) = (tmp_path / f"envsmith-{os.getuid()}").iterdir()
    assert stat.S_IMODE(entry.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o777])
def test_a_substitute_that_others_may_write_is_not_used(tmp_path, monkeypatch, mode):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    substitute = tmp_path / f"envsmith-{os.getuid()}"
    substitute.mkdir()
    substitute.chmod(mode)

    write_cache("kind", "key", "content")

    assert read_cache("kind", "key") is None
    assert not list(substitute.iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_root_leaves_no_file_of_its_own_in_the_home_of_another_user(tmp_path, monkeypatch):
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    os.chown(home, 12345, -1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    write_cache("kind", "key", "content")

    assert read_cache("kind", "key") == "content"
    assert not list(home.iterdir())
