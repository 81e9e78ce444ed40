"""What uv and pip were told about indexes, from files and variables: for the resolver, the image and our own client."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.base.files import read_toml
from envsmith.errors import UsageError
from envsmith.net.http import login_of
from envsmith.net.index_settings import as_toml, index_addresses, pip_files, pip_values, uv_settings


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


A, B = "https://a.example.invalid/simple", "https://b.example.invalid/simple"


def default(url: str) -> dict[str, object]:
    return {"url": url, "default": True}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, {}),
        ({"PIP_INDEX_URL": A}, {"index": [default(A)]}),
        (
            {"PIP_EXTRA_INDEX_URL": f"{A} {B}"},
            {"index": [{"url": A}, {"url": B}], "index-strategy": "unsafe-best-match"},
        ),
        ({"UV_DEFAULT_INDEX": A, "PIP_INDEX_URL": B}, {"index": [default(A)]}),
        ({"UV_INDEX_URL": A, "UV_EXTRA_INDEX_URL": B}, {"index": [default(A), {"url": B}]}),
        ({"UV_INDEX": f"corp={A}"}, {"index": [{"name": "corp", "url": A}]}),
        ({"UV_NO_INDEX": "1", "PIP_INDEX_URL": B}, {}),
        ({"PIP_TRUSTED_HOST": "a b"}, {"allow-insecure-host": ["a", "b"]}),
        ({"UV_INSECURE_HOST": "a", "PIP_TRUSTED_HOST": "b"}, {"allow-insecure-host": ["a"]}),
        ({"PIP_INDEX_URL": "file:///srv/simple", "PIP_EXTRA_INDEX_URL": "/srv https:///x"}, {}),
        (
            {"UV_DEFAULT_INDEX": A, "UV_INDEX_STRATEGY": "first-index"},
            {"index": [default(A)], "index-strategy": "first-index"},
        ),
    ],
)
def test_variables_of_uv_come_before_those_of_pip(tmp_path: Path, variables: dict[str, str], expected: object) -> None:
    assert uv_settings(env(tmp_path, PIP_CONFIG_FILE="/dev/null", **variables)) == expected


@pytest.mark.parametrize(
    ("text", "variables", "indexes"),
    [
        (f'[[index]]\nurl = "{A}"\n', {"PIP_INDEX_URL": B}, [A]),
        (f'index-url = "{A}"\n', {"PIP_INDEX_URL": B}, [A]),
        (f'[pip]\nindex-url = "{A}"\n', {"PIP_INDEX_URL": B}, [A]),
        ('cache-dir = "/c"\n', {"PIP_INDEX_URL": B}, [B]),
        (f'index-url = "{A}"\n', {"UV_DEFAULT_INDEX": B}, [B]),
        (f'[[index]]\nurl = "{A}"\ndefault = true\n', {"UV_DEFAULT_INDEX": B}, [B]),
        (f'[[index]]\nurl = "{A}"\ndefault = true\n', {"UV_INDEX": B}, [B, A]),
        (f'[[index]]\nurl = "{A}"\n', {"UV_NO_CONFIG": "1"}, []),
    ],
)
def test_the_settings_file_of_uv_stands_between_its_variables_and_pip(
    tmp_path: Path, text: str, variables: dict[str, str], indexes: list[str]
) -> None:
    (tmp_path / "config" / "uv").mkdir(parents=True)
    (tmp_path / "config" / "uv" / "uv.toml").write_text(text)
    assert index_addresses(uv_settings(env(tmp_path, PIP_CONFIG_FILE="/dev/null", **variables))) == indexes


def test_the_files_of_user_and_system_are_joined_as_uv_joins_them(tmp_path: Path) -> None:
    for folder, text in (
        ("config", f'offline = true\n[[index]]\nurl = "{A}"\n[pip]\nno-index = false\n'),
        ("etc", f'offline = false\n[[index]]\nurl = "{B}"\n[pip]\nno-index = true\nsystem = true\n'),
    ):
        (tmp_path / folder / "uv").mkdir(parents=True)
        (tmp_path / folder / "uv" / "uv.toml").write_text(text)
    assert uv_settings(env(tmp_path, PIP_CONFIG_FILE="/dev/null")) == {
        "offline": True,
        "index": [{"url": A}, {"url": B}],
        "pip": {"no-index": False, "system": True},
    }


@pytest.mark.parametrize(
    "text", ["index = [", "index = 1", "index = [1]", "pip = 1", 'index = "x"', "[pip]\nindex = [[]]"]
)
def test_a_settings_file_of_uv_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "uv.toml").write_text(text)
    with pytest.raises(UsageError, match=r"Cannot read .*uv\.toml"):
        uv_settings(env(tmp_path, UV_CONFIG_FILE=str(tmp_path / "uv.toml")))


def test_the_login_of_a_named_index_comes_into_its_address(tmp_path: Path) -> None:
    names = {"UV_INDEX": f"my-corp={A}", "UV_INDEX_MY_CORP_USERNAME": "ann", "UV_INDEX_MY_CORP_PASSWORD": "p@ss"}
    settings = uv_settings(env(tmp_path, PIP_CONFIG_FILE="/dev/null", **names))
    assert index_addresses(settings) == ["https://ann:p%40ss@a.example.invalid/simple"]


def test_settings_are_the_same_when_uv_reads_them() -> None:
    settings = {
        "index": [{"url": 'https://x.invalid/"\n[[index]]', "default": True}],
        "pip": {"a.b": [1, -2.5, False], "empty": []},
        "text": "\x00\x1b\x7f\u2028\U0001f600\\",
    }
    assert read_toml(as_toml(settings)) == settings


NETRC = "machine a.example.invalid login net password rc\n"


@pytest.mark.parametrize(
    ("url", "indexes", "login"),
    [
        ("https://bob:b@a.example.invalid/f", "https://ann:p@a.example.invalid/s", ("bob", "b")),
        ("https://a.example.invalid/f", "https://ann:p%40ss@a.example.invalid/s", ("ann", "p@ss")),
        ("https://a.example.invalid:8443/f", "https://ann:p@a.example.invalid/s", ("net", "rc")),
        ("http://a.example.invalid/f", "https://ann:p@a.example.invalid/s", ("net", "rc")),
        ("https://other.example.invalid/f", "https://ann:p@a.example.invalid/s", None),
        ("https://a.example.invalid.evil/f", "https://ann:p@a.example.invalid/s", None),
        ("https://a.example.invalid/f", "https://a.example.invalid/s", ("net", "rc")),
        (
            "https://a.example.invalid/two/f",
            "https://x:1@a.example.invalid/one https://y:2@a.example.invalid/two",
            ("y", "2"),
        ),
        ("https://a.example.invalid/f", "https://token@a.example.invalid/s", ("token", "")),
    ],
)
def test_a_file_gets_the_login_of_the_index_on_its_server_and_of_no_other(
    tmp_path: Path, url: str, indexes: str, login: object
) -> None:
    (tmp_path / ".netrc").write_text(NETRC)
    assert login_of(url, env(tmp_path, PIP_CONFIG_FILE="/dev/null", UV_INDEX=indexes)) == login
