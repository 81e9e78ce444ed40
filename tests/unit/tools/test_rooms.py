"""Rooms: what they have of the host and what not, when a root is believed, and what the end says."""

from __future__ import annotations

import os

import pytest

# Keyed by what apt accepts: one line, one line with options, a stanza.
SOURCES = {
    "deb http://mirror.test/debian bookworm main\n": "http://mirror.test/debian",
    "deb [signed-by=/usr/share/k.gpg] https://mirror.test/d/debian/ bookworm main\n": "https://mirror.test/d/debian/",
    "Types: deb\n# http://old.test/debian\nURIs: http://mirror.test/debian\nSuites: bookworm\n": "http://mirror.test/debian",
    "deb http://mirror.test/debian-security bookworm-security main\n": None,
    "# deb http://mirror.test/debian bookworm main\n": None,
    "": None,
}
BARE = {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}


@pytest.fixture
def tool(load_file):
    return load_file("tools/rooms.py")


@pytest.fixture
def debootstrap(tool, monkeypatch, tmp_path):
    """Stands in for the programs that make a root: each makes ``TARGET/etc``, and fails where it is told to."""
    calls = []

    def status(command, **_):
        words = [word for word in command if word not in tool._APART]
        calls.append(words[0])
        if words[0] == "debootstrap":
            (tmp_path / "trixie.partial" / "etc").mkdir(parents=True)
            (tmp_path / "trixie.log").write_text("I: one\nE: the mirror is silent\n")
        return 1 if words[0] == status.fails else 0

    status.fails, status.calls = None, calls
    monkeypatch.setattr(tool, "_status", status)
    return status


@pytest.mark.parametrize(("sources", "mirror"), SOURCES.items())
def test_the_mirror_is_the_one_that_apt_uses(tool, sources, mirror):
    assert tool.mirror_of(sources) == mirror


def test_who_is_not_root_is_told_so_before_anything(tool):
    assert "root" in tool.reason_not(which=lambda _: "/bin/true", user=1000)


def test_a_missing_program_is_named(tool):
    assert (
        tool.reason_not(which=lambda name: None if name == "debootstrap" else name, user=0)
        == "debootstrap cannot be found"
    )


def test_only_a_clone_can_be_cloned_into_a_room(tool, tmp_path):
    assert "no clone" in tool.reason_not(which=lambda name: name, user=0, checkout=tmp_path)
    (tmp_path / ".git").mkdir()
    assert tool.reason_not(which=lambda name: name, user=0, checkout=tmp_path) is None


def test_a_room_has_nothing_of_the_host_s_environment(tool):
    environment = tool.environment_of(
        {**BARE, "PATH": "/opt/cuda/bin", "CC": "gcc", "PYTHONPATH": "/x", "LD_LIBRARY_PATH": "/y"}
    )
    assert environment == {
        "HOME": "/home/newcomer",
        "USER": "newcomer",
        "LOGNAME": "newcomer",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "PATH": "/usr/bin:/bin",
    }


def test_proxies_and_authorities_of_the_host_reach_a_room(tool, tmp_path):
    bundle = tmp_path / "company.pem"
    bundle.touch()
    environment = tool.environment_of(
        {**BARE, "https_proxy": "http://proxy.test:3128", "NO_PROXY": "localhost", "PIP_CERT": str(bundle)}
    )
    assert environment["https_proxy"] == "http://proxy.test:3128"
    assert environment["NO_PROXY"] == "localhost"
    assert environment["SSL_CERT_FILE"] == "/etc/ssl/certs/ca-certificates.crt"


def test_the_index_of_pip_reaches_a_room_and_its_folders_do_not(tool):
    pip = {
        "PIP_INDEX_URL": "https://mirror.test/simple",
        "PIP_EXTRA_INDEX_URL": "file:///opt/simple",
        "PIP_FIND_LINKS": "/opt",
    }
    text = tool.pip_configuration({**BARE, **pip, "PIP_TIMEOUT": "180"})
    assert text.split() == ["[global]", "index-url", "=", "https://mirror.test/simple", "timeout", "=", "180"]


def test_the_indexes_of_uv_reach_a_room_and_pip_s_stand_in_pip_s_file_only(tool):
    environ = {**BARE, "UV_DEFAULT_INDEX": "https://uv.test/simple", "PIP_INDEX_URL": "https://pip.test/simple"}
    assert "https://uv.test/simple" in tool.uv_configuration(environ)
    assert "pip.test" not in tool.uv_configuration(environ)
    assert tool.uv_configuration({**BARE, "PIP_INDEX_URL": "https://pip.test/simple"}) == ""


def test_a_root_is_made_once(tool, debootstrap, tmp_path):
    first = tool.make_root("trixie", tmp_path, None)
    assert tool.make_root("trixie", tmp_path, None) == first == tmp_path / "trixie"
    assert debootstrap.calls == ["debootstrap", "chroot"]


def test_what_an_interrupted_debootstrap_has_left_is_not_believed(tool, debootstrap, tmp_path):
    (tmp_path / "trixie.partial/half").mkdir(parents=True)
    root = tool.make_root("trixie", tmp_path, None)
    assert [path.name for path in root.iterdir()] == ["etc"]


@pytest.mark.parametrize("step", ["debootstrap", "chroot"])
def test_a_root_that_could_not_be_made_is_no_root_and_the_last_lines_are_shown(tool, debootstrap, tmp_path, step):
    debootstrap.fails = step
    with pytest.raises(tool.RoomError, match="the mirror is silent"):
        tool.make_root("trixie", tmp_path, None)
    assert not (tmp_path / "trixie").exists()
    assert debootstrap.calls[-1] == step


def test_a_command_that_fails_ends_its_room_and_not_the_others(tool, monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "make_root", lambda suite, store, _mirror: store / suite)
    monkeypatch.setattr(tool, "furnish", lambda *_: None)
    room = tool.Room(root=tmp_path, layer=tmp_path / "layer", work=tmp_path, place=tmp_path)
    monkeypatch.setattr(tool, "room_of", lambda *_: tool.contextlib.nullcontext(room))
    monkeypatch.setattr(
        tool,
        "run_in",
        lambda _room, suite, command: tool.Run(suite=suite, command=command, status=int(suite == "a"), seconds=1.0),
    )
    runs = tool.visit(["a", "b"], lambda _suite: ["one", "two"], tmp_path, keep=False)
    assert [(run.suite, run.command) for run in runs] == [("a", "one"), ("b", "one"), ("b", "two")]
    assert list(tmp_path.glob("visit-*")) == []


def test_downloads_of_uv_go_on_to_the_next_room_and_nothing_else_does(tool, monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "make_root", lambda suite, store, _mirror: store / suite)
    monkeypatch.setattr(tool, "_clone", lambda _: None)
    monkeypatch.setattr(tool.os, "chown", lambda *_: None)
    seen = []

    def room_of(root, folder):
        (folder / "layer").mkdir(parents=True)
        return tool.contextlib.nullcontext(tool.Room(root=root, layer=folder / "layer", work=folder, place=folder))

    def run_in(room, suite, command):
        home = room.layer / tool.HOME
        seen.append(sorted(str(path.relative_to(home)) for path in home.rglob("*")))
        for cache in ("uv", "envsmith"):
            (home / ".cache" / cache).mkdir(exist_ok=True)
        return tool.Run(suite=suite, command=command, status=0, seconds=1.0)

    monkeypatch.setattr(tool, "room_of", room_of)
    monkeypatch.setattr(tool, "run_in", run_in)
    tool.visit(["a", "b"], lambda _suite: ["one"], tmp_path, keep=False)
    assert seen == [[".cache"], [".cache", ".cache/uv"]]


def test_what_a_killed_visit_has_left_is_removed_and_a_visit_that_runs_is_not_touched(tool, tmp_path):
    (tmp_path / "visit-killed/layer").mkdir(parents=True)
    with tool.visit_folder(tmp_path) as running:
        with tool.visit_folder(tmp_path) as mine:
            assert sorted(tmp_path.glob("visit-*")) == sorted((running, mine))
        assert list(tmp_path.glob("visit-*")) == [running]
    assert list(tmp_path.glob("visit-*")) == []


def test_the_table_says_room_status_time_and_command(tool):
    runs = [
        tool.Run(suite="trixie", command="make build", status=0, seconds=185.4),
        tool.Run(suite="bookworm", command="make test", status=2, seconds=59.6),
    ]
    assert tool.table(runs) == "trixie    exit 0      3:05  make build\nbookworm  exit 2      1:00  make test\n"


def test_commands_stand_after_two_dashes(tool):
    arguments = tool.parser().parse_args(
        ["--suite", "bookworm", "--first-only", "trixie", "--", "make build", "make test"]
    )
    assert (arguments.suite, arguments.first_only, arguments.commands) == (
        ["bookworm"],
        ["trixie"],
        ["make build", "make test"],
    )
