"""An index that wants a login: however the user gives it, what is locked is what an open index gives, and no build sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from lock_helpers import fine
from private_index import BASIC, SECRET, USER, Guarded, hunting_sdist
from tiny_index import framework_index

from envsmith.lock.index.uv import Uv
from envsmith.lock.resolve import Resolver, lock_pip
from envsmith.net.http import HttpClient


def own(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    (folder / name).chmod(0o600)
    return str(folder / name)


Way = Callable[[Path, Guarded], dict[str, str]]
# Where the login is nowhere but in variables, not even the host's own user can read it in a build.
VARIABLES: dict[str, Way] = {
    "PIP_INDEX_URL": lambda _, server: {"PIP_INDEX_URL": server.url_with_login},
    "PIP_EXTRA_INDEX_URL": lambda _, server: {
        "PIP_INDEX_URL": f"{server.url}/none",
        "PIP_EXTRA_INDEX_URL": server.url_with_login,
    },
    "UV_DEFAULT_INDEX": lambda _, server: {"UV_DEFAULT_INDEX": server.url_with_login},
    "UV_INDEX": lambda _, server: {"UV_INDEX": f"corp={server.url_with_login}", "UV_DEFAULT_INDEX": server.url},
    "UV_INDEX_NAME_PASSWORD": lambda _, server: {
        "UV_DEFAULT_INDEX": f"corp={server.url}",
        "UV_INDEX_CORP_USERNAME": USER,
        "UV_INDEX_CORP_PASSWORD": SECRET,
    },
}
FILES: dict[str, Way] = {
    "pip.conf": lambda folder, server: {
        "PIP_CONFIG_FILE": own(folder, "pip.conf", f"[global]\nindex-url = {server.url_with_login}\n")
    },
    "uv.toml": lambda folder, server: {
        "UV_CONFIG_FILE": own(folder, "uv.toml", f'[[index]]\nurl = "{server.url_with_login}"\ndefault = true\n')
    },
    "netrc": lambda folder, server: {
        "PIP_INDEX_URL": server.url,
        "NETRC": own(folder, "netrc", f"machine 127.0.0.1 login {USER} password {SECRET}\n"),
    },
}


@pytest.mark.parametrize("name", [*VARIABLES, *FILES])
def test_a_framework_that_is_a_source_distribution_is_locked_with_the_login_of_the_user(
    tmp_path, monkeypatch, cell, table, name
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own-cache"))
    index = framework_index(tmp_path / "index")
    if name in VARIABLES:
        index.files.pop("deepspeed")
        index.add("deepspeed", hunting_sdist())
    ways: dict[str, Way] = {**VARIABLES, **FILES}
    with Guarded(tmp_path / "index", header=BASIC).up() as server:
        bare = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
        environ = {
            **bare,
            "HOME": str(tmp_path / "home"),
            "XDG_CONFIG_HOME": str(tmp_path / "none"),
            "PIP_CONFIG_FILE": os.devnull,
            "UV_HTTP_RETRIES": "0",
            "PYTHONDONTWRITEBYTECODE": "1",  # byte-code joins the parts in which the hunter names the secret
            **ways[name](tmp_path, server),
        }
        client = HttpClient(environ=environ, cache=tmp_path / "http")
        resolver = Resolver(table=table, uv=Uv(environ=environ, cache=tmp_path / "uv"), judge=fine, fetcher=client)
        lock = lock_pip(cell, exclude_newer="2026-11-20", resolver=resolver)
    assert [pin.name for pin in lock.build_pins] == ["tiny-backend"]
    assert SECRET not in lock.text()
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent != tmp_path]
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]


def test_the_hunter_of_these_tests_finds_a_login_that_is_in_the_environment(tmp_path):
    import tarfile

    name, content = hunting_sdist()
    (tmp_path / name).write_bytes(content)
    with tarfile.open(tmp_path / name) as archive:
        archive.extractall(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", "import hunting; hunting.hunt()"],
        cwd=tmp_path / "deepspeed-0.18.5",
        env={**os.environ, "UV_DEFAULT_INDEX": f"https://{USER}:{SECRET}@index.example.invalid"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "the build reads a login in UV_DEFAULT_INDEX" in ran.stderr
