"""Compiled files of a wheel, remote and local."""

from __future__ import annotations

import hashlib
import shutil
import subprocess

import pytest

from envsmith.errors import ContentError
from envsmith.python.compiled import read_needs

NAME = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
URL = f"https://index.test/{NAME}"


@pytest.fixture
def wheel(tmp_path, make_wheel):
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on this machine")
    source, library = tmp_path / "demo.c", tmp_path / "_C.so"
    source.write_text("extern int torch_second(void); int run(void) { return torch_second(); }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    return make_wheel({"demo/_C.so": library.read_bytes(), "demo/text.so": b"not one", "demo/a.py": b""})


def test_a_wheel_on_the_index_and_the_same_file_here_are_read_alike(tmp_path, fetcher, wheel):
    fetcher.files[URL] = wheel
    (tmp_path / NAME).write_bytes(wheel)
    digest = hashlib.sha256(wheel).hexdigest()

    remote = read_needs(f"{URL}#sha256={digest}", fetcher)
    local = read_needs(str(tmp_path / NAME), fetcher)

    assert remote == local
    assert remote.sha256 == digest
    assert remote.symbols == {"torch_second"}
    assert [member.name for member in remote.members] == ["demo/_C.so"]


def test_a_file_that_is_not_there_is_refused(tmp_path, fetcher):
    with pytest.raises(ContentError, match=r"Cannot read .*missing\.whl"):
        read_needs(str(tmp_path / "missing.whl"), fetcher)
