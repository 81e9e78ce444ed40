"""``check --wheel`` on the command line, over the committed table of symbols."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess

import pytest

from envsmith.cli.app import run

# The string of the old C++ ABI: exported up to torch 2.6.0 for x86-64.
SYMBOL = "_ZN3c105ErrorC2ENS_14SourceLocationESs"


@pytest.fixture
def wheel(tmp_path, make_wheel):
    if shutil.which("gcc") is None or platform.machine() != "x86_64":
        pytest.skip("no gcc for x86-64 on this machine")
    library, source = tmp_path / "_C.so", tmp_path / "demo.c"
    source.write_text(f"extern int {SYMBOL}(void); int run(void) {{ return {SYMBOL}(); }}")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    path = tmp_path / "demo-1.0-cp311-cp311-linux_x86_64.whl"
    path.write_bytes(make_wheel({"demo/_C.so": library.read_bytes()}))
    return path


def test_a_wheel_that_lacks_a_symbol_is_bad_and_the_releases_that_have_it_are_named(wheel, capsys):
    assert run(["check", "--wheel", str(wheel), "--with", "torch==2.13.0", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    (finding,) = [f for f in answer["findings"] if f["rule"] == "wheel"]
    assert SYMBOL in finding["message"]
    assert finding["needs"] == {"torch": "<=2.6.0"}
    assert finding["evidence"][0]["kind"] == "measured"


def test_a_wheel_that_links_is_not_bad(wheel, capsys):
    assert run(["check", "torch==2.5.1", "--wheel", str(wheel)]) == 0
    assert "torch 2.5.1+cu124 exports the symbol that it needs" in capsys.readouterr().out


def test_a_wheel_alone_lists_what_it_links_with(wheel, capsys):
    assert run(["check", "--wheel", str(wheel)]) == 0
    assert "links with torch <=2.6.0" in capsys.readouterr().out


def test_a_build_that_was_not_measured_is_unknown(wheel, capsys):
    assert run(["check", "torch==2.5.1+cu121", "--wheel", str(wheel), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["status"] == "unknown"
    assert any("2.5.1+cu121: that build was not measured" in reason for reason in answer["unknown"])


def test_a_file_that_is_not_a_wheel_is_refused(tmp_path, capsys):
    path = tmp_path / "demo-1.0-py3-none-any.whl"
    path.write_bytes(b"no archive")
    assert run(["check", "--wheel", str(path)]) > 1
    assert "not a wheel" in capsys.readouterr().err
