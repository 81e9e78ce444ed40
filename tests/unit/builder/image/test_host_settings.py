"""Index, proxy and certificate settings of this host become build secrets and nothing else."""

from __future__ import annotations

from envsmith.base.files import read_toml
from envsmith.builder.image.context import HostSettings, read_host_settings, write_secrets


def read(tmp_path, **env):
    return read_host_settings({"HOME": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null", **env})


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


def test_pip_settings_become_uv_settings(tmp_path):
    path = pip_conf(
        tmp_path,
        "[global]\nindex-url = https://user:p%40ss@mirror.invalid/simple\n[install]\ntrusted-host = mirror.invalid\n",
    )
    settings = read(tmp_path, PIP_CONFIG_FILE=path, PIP_EXTRA_INDEX_URL="https://a.invalid https://b.invalid")
    assert read_toml(settings.uv_toml) == {
        "index": [
            {"url": "https://user:p%40ss@mirror.invalid/simple", "default": True},
            {"url": "https://a.invalid"},
            {"url": "https://b.invalid"},
        ],
        "index-strategy": "unsafe-best-match",
        "allow-insecure-host": ["mirror.invalid"],
    }


def test_a_hostile_value_stays_inside_its_string(tmp_path):
    settings = read(tmp_path, UV_DEFAULT_INDEX='https://x.invalid/"\nindex-url="https://evil.invalid"')
    assert set(read_toml(settings.uv_toml)) == {"index"}


def test_a_variable_of_uv_wins_over_pip(tmp_path):
    settings = read(tmp_path, UV_DEFAULT_INDEX="https://uv.invalid/simple", PIP_INDEX_URL="https://pip.invalid/simple")
    assert "uv.invalid" in settings.uv_toml
    assert "pip.invalid" not in settings.uv_toml


def test_the_user_s_own_uv_configuration_is_passed_with_all_that_it_says(tmp_path):
    folder = tmp_path / ".config" / "uv"
    folder.mkdir(parents=True)
    (folder / "uv.toml").write_text('# mine\nindex-url = "https://own.invalid"\n[pip]\nstrict = true\n')
    settings = read_toml(read(tmp_path, PIP_INDEX_URL="https://pip.invalid").uv_toml)
    assert settings == {"index-url": "https://own.invalid", "pip": {"strict": True}}


def test_folders_of_the_host_are_named_not_passed(tmp_path):
    settings = read(tmp_path, PIP_EXTRA_INDEX_URL="file:///srv/simple https://a.invalid", UV_FIND_LINKS="/opt/wheels")
    assert settings.unreachable == ("file:///srv/simple",)
    assert read(tmp_path, UV_INDEX="/srv/a https://b.invalid").unreachable == ("/srv/a",)
    assert "/opt/wheels" not in settings.uv_toml
    assert "https://a.invalid" in settings.uv_toml


def test_logins_are_files_that_only_their_owner_reads(tmp_path):
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine a.invalid login ann password secret\n")
    settings = read(tmp_path, PIP_INDEX_URL="https://ann:secret@a.invalid/simple")
    assert "secret" not in str(settings.proxies)
    private = tmp_path / "private"
    private.mkdir()
    files = write_secrets(settings, private)
    assert files["netrc"].read_text() == netrc.read_text()
    assert {name: path.stat().st_mode & 0o777 for name, path in files.items() if name in {"uv", "netrc"}} == {
        "uv": 0o600,
        "netrc": 0o600,
    }
    assert not {"uv", "netrc"} & write_secrets(HostSettings(ca=settings.ca), private).keys()


def test_proxies_are_collected_in_both_spellings(tmp_path):
    assert read(tmp_path, https_proxy="http://p.invalid", NO_PROXY="localhost").proxies == (
        ("https_proxy", "http://p.invalid"),
        ("NO_PROXY", "localhost"),
    )


def test_a_broken_pip_configuration_is_not_fatal(tmp_path):
    assert read(tmp_path, PIP_CONFIG_FILE=pip_conf(tmp_path, "index-url = no section\n\x00")).uv_toml == ""
