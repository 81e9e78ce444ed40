"""pip's own settings, from files and variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.pip_settings import pip_files, pip_values


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "config" / "pip" / "pip.conf"
    path.parent.mkdir(parents=True)
    return path


def env(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_CONFIG_DIRS": str(tmp_path / "etc"),
        **more,
    }


def test_settings_come_from_global_and_install_sections(tmp_path: Path, conf: Path) -> None:
    conf.write_text(
        "[global]\nindex-url = https://a.example.invalid/simple\ncert = /ca.pem\n"
        "[install]\nextra-index-url =\n  https://b.example.invalid/simple\n  https://c.example.invalid/simple\n"
    )
    values = pip_values(env(tmp_path))
    assert values["index-url"] == "https://a.example.invalid/simple"
    assert values["extra-index-url"].split() == ["https://b.example.invalid/simple", "https://c.example.invalid/simple"]
    assert values["cert"] == "/ca.pem"


def test_a_variable_wins_over_a_file(tmp_path: Path, conf: Path) -> None:
    conf.write_text("[global]\nindex_url = https://a.example.invalid/simple\n")
    values = pip_values(env(tmp_path, PIP_INDEX_URL=" https://v.example.invalid/simple "))
    assert values["index-url"] == "https://v.example.invalid/simple"


@pytest.mark.parametrize("content", [b"\xff\xfe", b"no section = 1\n", b"[global\n", b""])
def test_a_broken_file_says_nothing(tmp_path: Path, conf: Path, content: bytes) -> None:
    conf.write_bytes(content)
    assert "index-url" not in pip_values(env(tmp_path, PIP_CONFIG_FILE=str(conf)))


def test_dev_null_switches_all_files_off(tmp_path: Path) -> None:
    assert pip_files(env(tmp_path, PIP_CONFIG_FILE="/dev/null")) == ()
