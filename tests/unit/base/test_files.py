"""Files: whole writes, digests, and the present by which they are dated."""

from __future__ import annotations

import ast
import datetime as dt
import errno
import hashlib
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import envsmith
from envsmith.base.files import (
    MARK,
    HashedWriter,
    digest_of,
    expand_home,
    mark,
    now,
    open_input,
    read_bounded,
    scratch,
    sha256_of,
    sweep,
    write_folder,
    write_together,
    write_whole,
    writing,
)
from envsmith.errors import DataError, StorageError, UsageError


def test_an_open_file_has_the_hash_of_its_bytes() -> None:
    content = b"x" * (3 << 20)

    assert sha256_of(io.BytesIO(content)) == hashlib.sha256(content).digest()
    assert digest_of(content) == f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.mark.parametrize("pieces", [[], [b"a"], [b"a" * 5000, b"", b"b" * 70_000]])
def test_a_writer_knows_the_hash_and_the_length_of_what_it_wrote(pieces: list[bytes]) -> None:
    file, plain = io.BytesIO(), b"".join(pieces)
    out = HashedWriter(file)

    assert [out.write(piece) for piece in pieces] == [len(piece) for piece in pieces]
    assert file.getvalue() == plain
    assert (out.sha256, out.size, out.tell()) == (hashlib.sha256(plain).hexdigest(), len(plain), len(plain))


def test_source_date_epoch_sets_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1767225600")

    assert now() == dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def test_without_a_number_the_present_is_the_clock_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "soon")

    assert abs((now() - dt.datetime.now(dt.timezone.utc)).total_seconds()) < 60


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    write_whole(path, b"new", mode=0o600)

    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file, not a folder")

    with pytest.raises(StorageError, match=r"Cannot write .*b: .*a is not a folder\."):
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


def _limited(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process that may write no byte to any file, as on a full disk. The cache is filled."""
    code = (
        "import resource, sys; from envsmith.cli.app import run; import envsmith.cli.ci, envsmith.cli.doctor; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); sys.exit(run(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("init lib --force", "lib/envsmith.yaml"),
        ("doctor --save good.json", "good.json"),
        ("ci matrix lib --format json -o good.json", "good.json"),
        ("ci check lib -o good.json", "good.json"),
    ],
)
def test_a_full_disk_leaves_the_earlier_file_of_every_output(tmp_path: Path, command: str, name: str) -> None:
    (tmp_path / "lib").mkdir()
    declared = '[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.12"\ndependencies = ["torch>=2.12"]\n'
    (tmp_path / "lib" / "pyproject.toml").write_text(declared)
    (tmp_path / "good.json").write_text("earlier")
    (tmp_path / "lib" / "envsmith.yaml").write_text("axes: [python, torch]\n")
    before = (tmp_path / name).read_text()

    finished = _limited(command.split(), tmp_path)

    assert finished.returncode == 10, finished.stderr
    assert f"{name}: a file may not be as large as it must be (ulimit -f)" in finished.stderr
    assert "hint: Raise the limit" in finished.stderr
    assert (tmp_path / name).read_text() == before
    assert not list(tmp_path.rglob(".envsmith-*"))


def test_a_container_s_user_without_a_home_has_the_root_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", dict[int, None]().__getitem__)

    assert expand_home("~/.cache") == Path("/.cache")
    assert expand_home("~/.cache", {"HOME": "/home/me"}) == Path("/home/me/.cache")
    assert expand_home("cell/~") == Path("cell/~")


def test_a_replaced_file_keeps_its_mode_and_a_link_its_place(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)

    write_whole(link, "new")

    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_new_file_has_the_mode_that_the_user_s_mask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a", "x")
    finally:
        os.umask(before)

    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_and_not_replaced() -> None:
    write_whole(Path("/dev/null"), "x")

    assert Path("/dev/null").is_char_device()


def test_a_pipe_gets_what_is_written(tmp_path: Path) -> None:
    reading, write_end = os.pipe()

    write_whole(Path(f"/dev/fd/{write_end}"), "text")

    os.close(write_end)
    assert os.read(reading, 100) == b"text"
    os.close(reading)


def test_what_fails_while_a_file_is_written_leaves_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def interrupted() -> None:
        with writing(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "block",
    [
        "with files.writing(folder / 'a') as file: file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)",
        "with files.scratch(folder) as inner: (inner / 'x').write_text('y'); os.kill(os.getpid(), 9)",
    ],
)
def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path, block: str) -> None:
    code = f"import os, pathlib; from envsmith.base import files; folder = pathlib.Path({str(tmp_path)!r})\n{block}"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(list(tmp_path.glob(".envsmith-*"))) == 1

    write_whole(tmp_path / "b", "x")

    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_what_a_living_writer_has_open_is_not_removed(tmp_path: Path) -> None:
    with scratch(tmp_path) as folder, writing(tmp_path / "a"):
        before = sorted(tmp_path.iterdir())
        sweep.__wrapped__(tmp_path)

        assert sorted(tmp_path.iterdir()) == before
        assert folder in before


def test_a_folder_is_made_while_other_runs_sweep_all_the_time(tmp_path: Path) -> None:
    ended = threading.Event()

    def sweep_on() -> None:
        while not ended.is_set():
            sweep.__wrapped__(tmp_path)

    others = threading.Thread(target=sweep_on)
    others.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(500):
            with scratch(tmp_path) as folder:
                assert folder.is_dir()
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        others.join()


def test_what_only_looks_like_a_temporary_name_is_not_removed(tmp_path: Path) -> None:
    names = [".envsmith", ".envsmith-notes", ".envsmith-0123456789abcdef", "envsmith-0123456789ab"]
    for name in names:
        (tmp_path / name).touch()

    sweep.__wrapped__(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_a_folder_of_somebody_else_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")

    with pytest.raises(UsageError, match=r"Cannot replace .*not empty") as caught:
        write_folder(tmp_path, "a site", {"index.html": "ours"})

    assert caught.value.hint is not None
    assert caught.value.hint.startswith("Choose an empty folder")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("index.html", "mine")]


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, "a site", {"index.html": "ours"})

    with pytest.raises(UsageError, match="has not marked it as an export"):
        write_folder(tmp_path, "an export", {"matrix.json": "{}"})


def test_a_folder_is_written_again_and_foreign_files_in_it_survive(tmp_path: Path) -> None:
    write_folder(tmp_path, "a site", {"a": "1", "cells/b": "1", "cells/old": "1"})
    (tmp_path / "cells" / "foreign").write_text("mine")

    write_folder(tmp_path, "a site", {"a": "2", "cells/b": "1"})

    files = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*") if path.is_file()}
    assert files.keys() == {MARK, "a", "cells/b", "cells/foreign"}
    assert files["a"].read_text() == "2"


def test_a_foreign_file_in_the_way_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    write_folder(tmp_path, "a site", {"a": "1"})
    (tmp_path / "b").write_text("mine")

    with pytest.raises(UsageError, match="b: envsmith did not write it"):
        write_folder(tmp_path, "a site", {"a": "2", "b": "2"})

    assert (tmp_path / "a").read_text() == "1"
    assert (tmp_path / "b").read_text() == "mine"


def test_a_mark_that_names_files_elsewhere_removes_none_of_them(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a").write_text("mine")
    write_folder(folder, "a site", {"x": "1"})
    (folder / "link").symlink_to(elsewhere)
    mark(folder, "a site", ["x", "../elsewhere/a", str(elsewhere / "a"), "link/a"])

    write_folder(folder, "a site", {"x": "1"})

    assert (elsewhere / "a").read_text() == "mine"


# What opens a file for writing, or makes a temporary one, outside of envsmith/base/files.py: place -> why it may.
_WRITERS = {
    "__main__.py": "the null device in place of a closed stream",
    "doctor/bisect/journal.py": "appends a line for each trial, so that a kill loses one trial at most",
    "cli/ci.py": "appends to the file of a CI runner, which others append to as well",
    "lock/query.py": "in a scratch folder",
    "project/ci/since.py": "in a scratch folder",
    "project/ci/local.py": "in a scratch folder",
    "lock/conda/channels.py": "in a scratch folder",
    "lock/conda/install.py": "in a scratch folder, and the old environment is renamed, then put back or removed",
    "builder/engines/venv.py": "in a scratch folder",
    "doctor/mend/owned.py": "links of files that stand beside their place until they take it",
    "doctor/mend/twin.py": "links of an environment's files in a folder of its own, which takes the environment's name or goes",
    "builder/engines/compiling.py": "in a scratch folder",
    "builder/image/context.py": "in the folder of one build, which is emptied before and after",
    "matrix/campaign/ground.py": "a file that is only locked",
    "matrix/campaign/local.py": "appends to the log of a job",
    "net/oci/layout.py": "in a scratch folder, from which the layout is moved",
    "net/oci/image.py": "a nameless file",
    "net/oci/saved.py": "in a scratch folder, from which the layout is moved",
    "net/oci/canonical.py": "in a scratch folder, from which the layout is moved",
    "launch/ranks/stored.py": "the evidence of one launch, appended while it runs, in a folder of its own",
    "launch/run/hook/sitecustomize.py": "in the folder of one launch, which its watcher made",
    "launch/run/start.py": "the folder of one launch: it stays where the launch failed; copies into the user's folder",
    "smoke/nodes.py": "in a scratch folder",
    "builder/engines/podman.py": "in a scratch folder",
    "builder/pack/archive.py": "in a scratch folder",
    "lock/index/compiled.py": "a nameless file",
}
_WRITING = {"write_text", "write_bytes", "touch", "copyfile", "copy", "copy2", "copytree", "move", "fdopen", "rename"}
_TEMPORARY = {"mkstemp", "mkdtemp", "TemporaryFile", "NamedTemporaryFile", "TemporaryDirectory"}


def _writes(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    modes = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    opens = name == "open" and getattr(owner, "id", "") != "tarfile" and any(set(m) & set("wax+") for m in modes[-1:])
    is_copy = name in {"copy", "move"} and getattr(owner, "id", "") != "shutil"
    return (name in _WRITING and not is_copy) or name in _TEMPORARY or opens


def _reads(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
    parses = f"{owner}.{call.func.attr}" in {"json.loads", "json.load", "yaml.load", "tomllib.loads", "tomllib.load"}
    return parses or (call.func.attr in {"read_bytes", "read_text"} and not call.args)


def _modules_that_call(names: set[str], is_meant: Callable[[ast.Call], bool]) -> set[str]:
    """Return the modules with such a call. Only a module that calls one of ``names`` is parsed."""
    package, called = Path(envsmith.__file__).parent, re.compile(rf"\b(?:{'|'.join(sorted(names))})\(")
    sources = ((path, path.read_text()) for path in package.rglob("*.py"))
    return {
        path.relative_to(package).as_posix()
        for path, source in sources
        if called.search(source)
        if any(is_meant(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    }


def test_nothing_else_in_envsmith_opens_a_file_for_writing_without_a_reason() -> None:
    writers = _modules_that_call({"open", *_WRITING, *_TEMPORARY}, _writes)
    apart = {place for place in writers if place == "base/files.py" or place.startswith(("agent/", "preflight/"))}

    why = "write through envsmith.base.files (write_whole, writing, scratch), or say here why this one may not"
    assert writers - apart == _WRITERS.keys(), why


# Who reads or parses without the readers of envsmith.base.files and envsmith.base.schema, and what makes that safe.
_OWN_READERS = {
    "base/cache.py": "an entry that is bounded and carries its digest",
    "cli/console.py": "the kernel's counters of network interfaces",
    "lock/conda/copies.py": "an entry of the cache",
    "lock/conda/linker.py": "the order that envsmith itself gives",
    "builder/engines/buildkit.py": "the digest that the builder was asked to write into our scratch folder",
    "builder/engines/conda.py": "the lock in the user's own folder, which the engine has just written",
    "builder/engines/container.py": "a wheel that was downloaded with its hash",
    "builder/engines/podman.py": "what the builder writes into our scratch folder, and scripts of the folder that is built",
    "builder/engines/venv.py": "RECORD of an environment that envsmith has made",
    "builder/engines/stamps.py": "stamps of an environment that envsmith has made",
    "builder/engines/compiling.py": "the wheel that was just compiled in a scratch folder",
    "base/os_packages.py": "os-release of this host",
    "base/programs.py": "what the kernel says of a process",
    "base/packed.py": "what envsmith has packed itself, by the types that it is given",
    "base/files.py": "the mark, bounded, and a file that is compared with its new content",
    "knowledge/graph/load.py": "the knowledge that comes with envsmith",
    "net/http.py": "the head of an entry of the cache",
    "builder/image/steps/default_index.py": "runs inside a build, on the user's own settings",
    "lock/build_requires.py": "a file whose size was looked at",
    "lock/query.py": "the lock that uv has just written into our scratch folder",
    "matrix/campaign/drive.py": "the record that a worker has just written, for one line of talk",
    "matrix/refresh/measured_names.py": "the maintainer's own files, and what envsmith has written into its own cache",
    "matrix/refresh/updates.py": "the maintainer's own files",
    "matrix/site/page.py": "files that come with envsmith",
    "matrix/tables.py": "files that come with envsmith",
    "knowledge/names/names_file.py": "files that come with envsmith",
    "launch/run/hook/sitecustomize.py": "questions of the watcher that started the launch",
    "base/schema.py": "the one parser",
    "smoke/bundle.py": "files that come with envsmith",
    "knowledge/symbols/symbols_file.py": "files that come with envsmith",
}


def test_what_comes_from_outside_is_read_and_parsed_in_one_place() -> None:
    readers = _modules_that_call({"read_bytes", "read_text", "load", "loads"}, _reads)
    apart = {place for place in readers if place.startswith(("agent/", "preflight/"))}

    why = "use read_bounded, read_text and parse_json, or say here what makes this one safe"
    assert readers - apart == _OWN_READERS.keys(), why


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(StorageError, match="Cannot write"):
        write_whole(tmp_path / "pipe", "x")


def test_what_is_there_is_left_alone_when_nothing_changed(tmp_path: Path) -> None:
    write_together(tmp_path, {"a": "1"})
    before = (tmp_path / "a").stat()
    write_together(tmp_path, {"a": "1"})
    assert (tmp_path / "a").stat().st_ino == before.st_ino


def test_only_a_plain_name_or_one_in_a_folder_below_is_written(tmp_path: Path) -> None:
    write_together(tmp_path, {"b/c": "x"})
    assert (tmp_path / "b" / "c").read_text() == "x"
    for name in ("../a", "b/../c", "b/c/d", "/a", "b//c", "", ".."):
        with pytest.raises(StorageError, match="plain file name"):
            write_together(tmp_path, {name: "x"})


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_write_that_fails_half_way_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fails_at: int
) -> None:
    write_together(tmp_path, {"a": "old a", "b": "old b"})
    calls = [0]
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        calls[0] += 1
        if calls[0] == fails_at + 1:
            raise OSError(number, os.strerror(number))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(StorageError, match="Cannot write") as caught:
        write_together(tmp_path, {"a": "new a", "b": "new b", "lock.json": "{}"})
    assert caught.value.exit_code == 10
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "old a", "b": "old b"}


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Cannot write"):
        write_together(tmp_path / "file" / "cell", {"a": "1"})


def test_a_link_in_place_of_a_folder_leads_nothing_out_of_the_cell_s_folder(tmp_path):
    cell, elsewhere = tmp_path / "cell", tmp_path / "elsewhere"
    cell.mkdir()
    elsewhere.mkdir()
    (elsewhere / "cell.sh").write_text("mine")
    (cell / "steps").symlink_to(elsewhere)

    with pytest.raises(StorageError, match=r"steps is a link"):
        write_together(cell, {"lock.json": "{}", "steps/cell.sh": "new"})

    assert (elsewhere / "cell.sh").read_text() == "mine"
    assert not (cell / "lock.json").exists()
