"""The scripts beside a Dockerfile: clean for shellcheck's like, and apt from a mirror or from a dated archive."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from envsmith.builder.image.dockerfile import IN, step_files

LIVE = """Types: deb
# http://archive.example/archive/debian/20250520T000000Z
URIs: http://live.example/debian
Suites: bookworm
Signed-By: /x.gpg

Types: deb
# http://archive.example/archive/debian-security/20250520T000000Z
URIs: http://live.example/debian-security
Suites: s
"""
# An apt-get that has a version only where the archive is among its sources.
APT = """#!/bin/sh
echo "$@" >> {log}
case "$*" in *{dated}*|*" update"*) ;; *) echo "E: Version '1' for 'x' was not found" >&2; exit {live} ;; esac
"""


@pytest.fixture
def scripts(locks, tmp_path):
    """The scripts, moved to a folder of the test."""
    texts = step_files(locks.deepspeed())
    for name in ("cell.sh", "base.sh"):
        text = texts[f"steps/{name}"].replace(IN, str(tmp_path / "in")).replace("/etc/apt", str(tmp_path / "apt"))
        (tmp_path / name).write_text(text.replace("export PATH=", f"export PATH={tmp_path}:"))
    (tmp_path / "apt" / "sources.list.d").mkdir(parents=True)
    (tmp_path / "apt" / "sources.list.d" / "debian.sources").write_text(LIVE)
    (tmp_path / "in").mkdir()
    return tmp_path


def pinned(scripts, *words, live_has_it):
    apt = scripts / "apt-get"
    apt.write_text(APT.format(log=scripts / "log", dated=scripts / "in" / "dated", live=0 if live_has_it else 100))
    apt.chmod(0o755)
    done = subprocess.run(
        ["sh", str(scripts / "cell.sh"), "pinned", *words], capture_output=True, text=True, check=False
    )
    return done, (scripts / "log").read_text().splitlines()


def test_the_live_mirror_is_asked_first_and_alone_where_it_has_the_versions(scripts):
    done, calls = pinned(scripts, "2026-11-21", "download", "x=1", live_has_it=True)
    assert done.returncode == 0
    assert [call.split()[-2:] for call in calls] == [["APT::Sandbox::User=root", "update"], ["download", "x=1"]]


@pytest.mark.parametrize(
    ("day", "asked"), [("2026-11-21", "20261121T235959Z"), ("20260805T000000Z", "20260805T000000Z")]
)
def test_a_version_that_left_the_mirror_comes_from_the_archive_that_the_sources_name_of_the_lock_s_day(
    day, asked, scripts
):
    done, calls = pinned(scripts, day, "install", "--yes", "x=1", live_has_it=False)
    assert done.returncode == 0, done.stderr
    assert len(calls) == 4
    assert all("Check-Valid-Until=false" in call for call in calls[2:])
    lines = (scripts / "in" / "dated" / "debian.sources").read_text().splitlines()
    assert [line for line in lines if line.startswith("URIs")] == [
        f"URIs: http://archive.example/archive/debian/{asked}",
        f"URIs: http://archive.example/archive/debian-security/{asked}",
    ]
    assert "Signed-By: /x.gpg" in lines


def test_the_sources_of_the_tool_serve_where_it_lends_them(scripts):
    shutil.copytree(scripts / "apt", scripts / "in" / "apt")
    _, calls = pinned(scripts, "2026-11-21", "download", "x=1", live_has_it=True)
    assert all(f"Dir::Etc={scripts / 'in' / 'apt'}" in call for call in calls)


def test_the_bundle_of_authorities_is_apt_s_too(scripts):
    (scripts / "in" / "ca").write_text("x")
    _, calls = pinned(scripts, "2026-11-21", "download", "x=1", live_has_it=True)
    assert all(f"CaInfo={scripts / 'in' / 'ca'}" in call for call in calls)


@pytest.mark.parametrize("name", ["cell.sh", "base.sh"])
@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "busybox sh"])
def test_every_shell_reads_the_scripts(name, shell, scripts):
    if shutil.which(shell.split()[0]) is None:
        pytest.skip(f"{shell} is not installed")
    assert subprocess.run([*shell.split(), "-n", str(scripts / name)], check=False).returncode == 0


def test_the_tool_must_be_of_the_distribution_and_architecture_of_the_base(scripts):
    done = subprocess.run(
        ["sh", str(scripts / "base.sh"), "nowhere", "amd64", "2026-11-21"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0


def test_every_command_of_a_dockerfile_is_a_function_of_the_script(locks):
    from envsmith.builder.image.dockerfile import render, render_builder

    functions = set(re.findall(r"^(\w+)\(\) \{", step_files(locks.compiled())["steps/cell.sh"], re.MULTILINE))
    texts = [render(locks.compiled()), render_builder(locks.deepspeed()), render(locks.megatron())]
    commands = set(re.findall(r"cell\.sh (\w+)", "".join(texts)))
    assert {"get_uv", "environment", "install", "build_wheels", "compile"} <= commands <= functions


def test_no_address_of_a_server_stands_in_the_scripts():
    folder = Path(__file__).parents[4] / "envsmith" / "builder" / "image" / "steps"
    assert not [path.name for path in folder.iterdir() if path.is_file() and re.search(r"://[a-z]", path.read_text())]
