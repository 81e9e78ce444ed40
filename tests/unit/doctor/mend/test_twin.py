"""The copy of an environment and the exchange."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.doctor.mend import owned
from envsmith.doctor.mend import twin as twins
from envsmith.doctor.mend.owned import packages_folders
from envsmith.doctor.mend.twin import earlier, exchange, store_of, twin, undo
from envsmith.errors import UsageError

SITE = "lib/python3.11/site-packages"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An environment of one package with a script, in which the user keeps a checkpoint."""
    root = tmp_path / "env"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "tool").write_text("old")
    (root / "pyvenv.cfg").write_text("version = 3.11.7\n")
    (root / "checkpoint.pt").write_text("mine")
    info = root / SITE / "tool-1.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text(
        "tool.py,,\n../../../bin/tool,,\n../../../share/tool.txt,,\ntool-1.dist-info/RECORD,,\n"
    )
    (root / SITE / "tool.py").write_text("old")
    return root


def install(copy: Path, name: str = "tool.py", text: str = "new") -> None:
    """Do as an installer: a file is replaced, not written over."""
    (copy / SITE / name).unlink(missing_ok=True)
    (copy / SITE / name).write_text(text)


def test_an_environment_of_another_user_is_left_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: user + 1)

    with pytest.raises(UsageError, match=r"it belongs to .*, and what is written would not") as refused, twin(folder):
        pass

    assert refused.value.hint.startswith("Run the same command as ")
    assert not store_of(folder).exists()


def test_the_copy_is_of_links_and_the_original_does_not_see_its_changes(folder: Path) -> None:
    with twin(folder) as copied:
        assert (copied.copy / "bin/tool").stat().st_ino == (folder / "bin/tool").stat().st_ino
        install(copied.copy)

    assert (folder / SITE / "tool.py").read_text() == "old"
    assert not store_of(folder).exists()


def test_two_mends_of_one_environment_do_not_meet(folder: Path) -> None:
    with twin(folder), pytest.raises(UsageError, match="another envsmith is changing it"), twin(folder):
        pass


def test_packages_change_places_and_the_folder_stays(folder: Path) -> None:
    inode, handle = folder.stat().st_ino, os.open(folder, os.O_RDONLY)
    with twin(folder) as copied:
        install(copied.copy)
        (copied.copy / "bin/tool").unlink()
        (copied.copy / "bin/tool").write_text("new")
        (copied.copy / "share").mkdir()
        (copied.copy / "share/tool.txt").write_text("new")
        exchange(copied, {})

    os.close(os.open("late.txt", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)
    assert folder.stat().st_ino == inode
    assert [(folder / name).read_text() for name in (f"{SITE}/tool.py", "bin/tool", "share/tool.txt")] == ["new"] * 3
    assert (folder / "checkpoint.pt").read_text() == "mine"
    assert (folder / "late.txt").exists()
    assert not (copied.copy / "checkpoint.pt").exists()

    with earlier(folder) as former:
        undo(former)

    assert [(folder / name).read_text() for name in (f"{SITE}/tool.py", "bin/tool")] == ["old"] * 2
    assert not (folder / "share/tool.txt").exists()
    assert (folder / "late.txt").exists()
    assert not store_of(folder).exists()


def test_what_somebody_writes_among_the_packages_is_carried_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned, "_QUIET_SECONDS", -60.0)
    mine = folder / SITE / "mine"
    mine.mkdir()
    (mine / "a").write_text("first")
    with twin(folder) as copied:
        install(copied.copy)
        (mine / "b").write_text("during the mend")
        (mine / "new").write_text("replaced")
        (mine / "new").replace(mine / "a")
        exchange(copied, {})
    (copied.copy / SITE / "mine/late").write_text("after the exchange, into the old folder")
    with twin(folder) as again:
        exchange(again, {})

    assert (mine / "a").read_text() == "replaced"
    assert (mine / "b").read_text() == "during the mend"
    assert (mine / "late").exists()
    assert (folder / SITE / "tool.py").read_text() == "new"
    assert [path.name for path in store_of(folder).iterdir()] == [again.folder.name]


def test_who_writes_among_the_packages_right_now_keeps_them_from_being_changed(folder: Path) -> None:
    with twin(folder) as copied:
        install(copied.copy)
        (folder / SITE / "checkpoint.pt").write_text("mine")
        with pytest.raises(UsageError) as caught:
            exchange(copied, {})

    assert caught.value.message == f"Cannot change {folder}: another program writes among its packages."
    assert caught.value.details == (str(folder / SITE / "checkpoint.pt"),)
    assert (folder / SITE / "tool.py").read_text() == "old"


def test_what_a_package_no_longer_has_is_not_carried_over(folder: Path) -> None:
    with twin(folder) as copied:
        (copied.copy / SITE / "tool.py").unlink()
        exchange(copied, {})

    assert not (folder / SITE / "tool.py").exists()


def test_a_process_that_stands_among_the_packages_is_named(folder: Path) -> None:
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, cwd=folder / SITE, stdin=subprocess.PIPE) as process:
        with pytest.raises(UsageError) as caught, twin(folder):
            pass
        process.communicate(b"\n")

    assert caught.value.message == f"Cannot change {folder}: other processes work in it."
    assert caught.value.details[0].startswith(f"process {process.pid} stands in it: ")


def test_a_process_that_writes_among_the_packages_is_named_before_the_exchange(folder: Path) -> None:
    program = f"file = open({str(folder / SITE / 'log')!r}, 'w'); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with twin(folder) as copied:
        install(copied.copy)
        with subprocess.Popen([sys.executable, "-c", program], cwd="/", **pipes) as process:
            assert process.stdout
            process.stdout.readline()
            with pytest.raises(UsageError) as caught:
                exchange(copied, {})
            process.communicate(b"\n")

    assert caught.value.details[0].startswith(f"process {process.pid} has {folder / SITE / 'log'} open: ")
    assert (folder / SITE / "tool.py").read_text() == "old"


def test_packages_that_another_program_changes_meanwhile_stay(folder: Path) -> None:
    with twin(folder) as copied:
        install(copied.copy)
        (folder / SITE / "other-2.dist-info").mkdir()
        with pytest.raises(UsageError) as caught:
            exchange(copied, {})

    assert caught.value.details == ("other-2",)
    assert (folder / SITE / "tool.py").read_text() == "old"


@pytest.mark.parametrize("name", ["lib", "lib/python3.11/site-packages", "bin"])
def test_an_environment_whose_parts_lie_elsewhere_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).rename(tmp_path / "real")
    (folder / name).symlink_to(tmp_path / "real")

    with pytest.raises(UsageError, match=r"a link leads to .*real.*, which lies outside it"), twin(folder):
        pass


def test_a_package_whose_files_lie_behind_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (folder / SITE / "linked").symlink_to(tmp_path / "source")
    with (folder / SITE / "tool-1.dist-info/RECORD").open("a") as file:
        file.write("linked/__init__.py,,\n")

    with pytest.raises(UsageError) as caught, twin(folder):
        pass

    assert caught.value.details == (f"{folder / SITE / 'linked'} leads to {tmp_path / 'source'}",)


def test_a_lib64_of_a_whole_path_leads_into_the_copy(folder: Path) -> None:
    (folder / "lib64").symlink_to(folder / "lib")

    with twin(folder) as copied:
        assert packages_folders(copied.copy) == (SITE,)


def test_three_renames_do_the_same_where_the_kernel_cannot_exchange(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.write_text("old")
    there.write_text("new")

    twins._swap_by_renames(here, there, tmp_path / "aside")

    assert (here.read_text(), there.read_text()) == ("new", "old")


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_an_exchange_that_was_killed_is_finished_by_the_next_call(tmp_path: Path, done: int) -> None:
    here, there, aside = (tmp_path / name for name in ("here", "there", "aside"))
    here.write_text("old")
    there.write_text("new")
    step = twins._Step("here", there.stat().st_ino)
    for source, target in [(here, aside), (there, here), (aside, there)][:done]:
        source.rename(target)

    twins._exchange(step, here, there, aside)
    twins._exchange(step, here, there, aside)

    assert (here.read_text(), there.read_text()) == ("new", "old")
    assert not aside.exists()


def test_an_exchange_that_fails_in_its_middle_is_taken_back(folder: Path) -> None:
    with twin(folder) as copied:
        install(copied.copy)
        (copied.copy / "share").mkdir()
        (copied.copy / "share/tool.txt").write_text("new")
        (folder / "share").write_text("a file of the user where a package wants a folder")
        with pytest.raises(Exception, match="Cannot"):
            exchange(copied, {})

    assert (folder / SITE / "tool.py").read_text() == "old"
    assert not store_of(folder).exists()
