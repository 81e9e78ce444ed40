"""Index, proxy and certificate settings of this host become build secrets and nothing else."""

from __future__ import annotations

import sys

import pytest

from envsmith.image.context import read_host_settings

if sys.version_info >= (3, 11):
    import tomllib


def read(tmp_path, monkeypatch=None, **env):
    return read_host_settings({"HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null", **env}, tmp_path)


def pip_conf(tmp_path, text):
    path = tmp_path / "pip.conf"
    path.write_text(text)
    return str(path)


def test_a_host_without_settings_passes_none(tmp_path):
    settings = read(tmp_path)
    assert settings.uv_toml == ""
    assert settings.proxies == ()


def test_the_bundle_that_tools_are_told_is_taken(tmp_path):
    bundle = tmp_path / "corp.pem"
    bundle.write_text("x")
    assert read(tmp_path, SSL_CERT_FILE=str(tmp_path / "gone.pem"), PIP_CERT=str(bundle)).ca == bundle


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs tomllib")
def test_pip_settings_become_uv_settings(tmp_path):
    path = pip_conf(
        tmp_path,
        "[global]\nindex-url = https://user:p%40ss@mirror.invalid/simple\n[install]\ntrusted-host = mirror.invalid\n",
    )
    settings = read(tmp_path, PIP_CONFIG_FILE=path, PIP_EXTRA_INDEX_URL="https://a.invalid https://b.invalid")
    assert tomllib.loads(settings.uv_toml) == {
        "index-url": "https://user:p%40ss@mirror.invalid/simple",
        "extra-index-url": ["https://a.invalid", "https://b.invalid"],
        "allow-insecure-host": ["mirror.invalid"],
    }


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs tomllib")
def test_a_hostile_value_stays_inside_its_string(tmp_path):
    settings = read(tmp_path, UV_DEFAULT_INDEX='https://x.invalid/"\nindex-url="https://evil.invalid"')
    assert set(tomllib.loads(settings.uv_toml)) == {"index-url"}


def test_a_variable_of_uv_wins_over_pip(tmp_path):
    settings = read(tmp_path, UV_DEFAULT_INDEX="https://uv.invalid/simple", PIP_INDEX_URL="https://pip.invalid/simple")
    assert "uv.invalid" in settings.uv_toml
    assert "pip.invalid" not in settings.uv_toml


def test_names_of_uv_indexes_are_left_out(tmp_path):
    assert '["https://a.invalid/simple"]' in read(tmp_path, UV_INDEX="corp=https://a.invalid/simple").uv_toml


def test_the_user_s_own_uv_configuration_is_passed_word_for_word(tmp_path):
    folder = tmp_path / ".config" / "uv"
    folder.mkdir(parents=True)
    (folder / "uv.toml").write_text('# mine\nindex-url = "https://own.invalid"\n')
    assert read(tmp_path, PIP_INDEX_URL="https://pip.invalid").uv_toml == '# mine\nindex-url = "https://own.invalid"\n'


def test_folders_of_the_host_are_named_not_passed(tmp_path):
    settings = read(tmp_path, PIP_FIND_LINKS="/opt/wheels", PIP_EXTRA_INDEX_URL="file:///srv/simple https://a.invalid")
    assert settings.unreachable == ("extra-index-url file:///srv/simple", "find-links /opt/wheels")
    assert "/opt/wheels" not in settings.uv_toml
    assert "https://a.invalid" in settings.uv_toml


def test_proxies_are_collected_in_both_spellings(tmp_path):
    assert read(tmp_path, https_proxy="http://p.invalid", NO_PROXY="localhost").proxies == (
        ("https_proxy", "http://p.invalid"),
        ("NO_PROXY", "localhost"),
    )


def test_a_broken_pip_configuration_is_not_fatal(tmp_path):
    assert read(tmp_path, PIP_CONFIG_FILE=pip_conf(tmp_path, "index-url = no section\n\x00")).uv_toml == ""
