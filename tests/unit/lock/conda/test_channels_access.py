"""What a user's machine says about channels is obeyed, and no secret of it comes out anywhere: over HTTP on loopback."""

from __future__ import annotations

import json
import time
import urllib.parse
from pathlib import Path

import pytest
from private_index import BASIC, SECRET, Guarded

from envsmith.cli.app import run
from envsmith.errors import DataError, EnvsmithError, NetworkError, UsageError
from envsmith.lock.conda.channels import access_to, base_url, default_channels, read_settings
from envsmith.lock.conda.lock import lock_conda
from envsmith.lock.conda.lock_files import files
from envsmith.lock.conda.model import CondaRequest
from envsmith.lock.conda.names import scrub


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A user without any configuration."""
    place = tmp_path / "home"
    place.mkdir()
    for name in ("RATTLER_AUTH_FILE", "NETRC", "CONDARC", "CONDA_PREFIX", "CONDA_ROOT", "CONDA_CHANNEL_ALIAS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("CONDA_CHANNELS", "CONDA_SSL_VERIFY", "PIXI_HOME", "RATTLER_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(place / "xdg"))
    return place


def config(home: Path, text: str, tool: str = "rattler") -> None:
    path = home / "xdg" / tool / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def store_file(home: Path, entry: object, host: str = "127.0.0.1") -> Path:
    path = home / ".rattler" / "credentials.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({host: entry}))
    return path


def by_auth_file(home, monkeypatch):
    path = home / "auth.json"
    path.write_text(json.dumps({"127.0.0.1": {"BearerToken": SECRET}}))
    monkeypatch.setenv("RATTLER_AUTH_FILE", str(path))
    return {"header": f"Bearer {SECRET}"}


def by_override(home, monkeypatch):
    path = home / "auth.json"
    path.write_text(json.dumps({"127.0.0.1": {"BearerToken": SECRET}}))
    store_file(home, {"BearerToken": "another"})
    config(home, f'authentication-override-file = "{path}"')
    return {"header": f"Bearer {SECRET}"}


def by_store(home, monkeypatch):
    store_file(home, {"BasicHTTP": {"username": "ann", "password": SECRET}})
    return {"header": BASIC}


def by_oauth(home, monkeypatch):
    store_file(
        home,
        {
            "OAuth": {
                "access_token": SECRET,
                "expires_at": int(time.time()) + 900,
                "token_endpoint": "",
                "client_id": "c",
            }
        },
    )
    return {"header": f"Bearer {SECRET}"}


def by_token(home, monkeypatch):
    store_file(home, {"CondaToken": SECRET})
    return {"token": SECRET}


def by_netrc(home, monkeypatch):
    (home / ".netrc").write_text(f"machine 127.0.0.1 login ann password {SECRET}\n")
    return {"header": BASIC}


def by_named_netrc(home, monkeypatch):
    (home / "own").write_text(f"machine 127.0.0.1\n  login ann\n  password {SECRET}\n")
    monkeypatch.setenv("NETRC", str(home / "own"))
    return {"header": BASIC}


@pytest.mark.parametrize("way", [by_auth_file, by_override, by_store, by_oauth, by_token, by_netrc, by_named_netrc])
def test_login_is_found_where_rattler_keeps_it_and_never_written(way, home, monkeypatch, channels, megatron, tmp_path):
    with Guarded(channels, **way(home, monkeypatch)).up() as server:
        channel = (server.url + "/conda-forge",)
        lock = lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path / "cache"))
        assert all(p.url.startswith(f"{server.url}/conda-forge/") for p in lock.platforms[0].packages)
        server.header, server.token = "Bearer other", ""
        with pytest.raises(NetworkError) as caught:
            lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path / "cold"))
    assert "the server answers 401" in caught.value.message
    assert SECRET not in str(caught.value)
    assert not any(SECRET in text for text in files(lock).values())
    assert not any(SECRET.encode() in p.read_bytes() for p in (tmp_path / "cache").rglob("*") if p.is_file())


@pytest.mark.parametrize("entry", [None, {"BearerToken": "old"}])
def test_refusal_says_where_a_login_is_stored(home, channels, megatron, tmp_path, entry):
    (home / ".netrc").write_text("gibberish here\n")
    if entry:
        store_file(home, entry)
    with Guarded(channels, header=BASIC).up() as server:
        with pytest.raises(NetworkError, match="the server answers 401") as caught:
            lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path))
        assert "pixi auth login" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "said"), [("{", "not JSON"), ("[]", "does not map hosts"), ('{"a": ' * 99_999, "not JSON")]
)
def test_broken_file_of_logins_is_named_and_not_shown(home, monkeypatch, text, said, megatron, tmp_path):
    by_auth_file(home, monkeypatch)
    (home / "auth.json").write_text(text)
    with pytest.raises(DataError) as caught:
        lock_conda(*megatron, CondaRequest(channels=("http://127.0.0.1:9/ch",), cache_dir=tmp_path))
    assert caught.value.message.startswith(f"Cannot read {home / 'auth.json'}: ")
    assert said in caught.value.message


def test_secret_does_not_follow_a_redirect_to_another_server(home, channels, megatron, tmp_path):
    with Guarded(channels).up() as other, Guarded(channels, header=BASIC).up() as server:
        place = urllib.parse.urlsplit(server.url).netloc
        server.move = {"moved": f"http://localhost:{other.http.server_port}"}
        channel = (f"http://ann:{SECRET}@{place}/moved/conda-forge",)
        lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path))
        assert {header for _, header in server.seen} == {BASIC}
        assert {header for _, header in other.seen} == {""}


def test_redirect_on_the_same_server_keeps_what_was_sent(home, channels, megatron, tmp_path):
    with Guarded(channels, header=BASIC).up() as server:
        place = urllib.parse.urlsplit(server.url).netloc
        server.move = {"moved": server.url}
        channel = (f"http://ann:{SECRET}@{place}/moved/conda-forge",)
        assert lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path)).platforms


@pytest.mark.parametrize("tool", ["rattler", "pixi"])
def test_dead_first_mirror_is_passed_over_and_the_lock_names_the_channel(
    home, channels, megatron, forge, tmp_path, tool
):
    store_file(home, {"BearerToken": SECRET})
    with Guarded(channels, header=f"Bearer {SECRET}").up() as server:
        up = "http://channel.invalid/conda-forge"
        config(home, f'[mirrors]\n"{up}" = ["http://127.0.0.1:9/x", "{server.url}/conda-forge"]\n', tool)
        lock = lock_conda(*megatron, CondaRequest(channels=(up,), cache_dir=tmp_path / "a"))
        assert server.seen
    by_file = lock_conda(*megatron, CondaRequest(channels=forge, cache_dir=tmp_path / "b"))
    assert [p.filename for p in lock.platforms[0].packages] == [p.filename for p in by_file.platforms[0].packages]
    assert {p.url.rsplit("/", 2)[0] for p in lock.platforms[0].packages} == {up}
    assert server.url not in files(lock)["conda-lock.yml"]
    with pytest.raises(NetworkError) as caught:
        lock_conda(*megatron, CondaRequest(channels=(up,), cache_dir=tmp_path / "c"))
    assert f"Cannot reach the channel {up}: " in caught.value.message


def test_mirror_that_wants_a_login_is_not_passed_over(home, channels, megatron, tmp_path):
    with Guarded(channels, header="Bearer x").up() as closed, Guarded(channels).up() as fine:
        config(home, f'[mirrors]\n"http://channel.invalid" = ["{closed.url}", "{fine.url}"]\n')
        with pytest.raises(NetworkError, match="the server answers 401"):
            lock_conda(
                *megatron,
                CondaRequest(channels=("http://channel.invalid/conda-forge",), cache_dir=tmp_path),
            )
        assert fine.seen == []


def test_condarc_names_channels_aliases_and_mirrors(home, channels, megatron, forge, tmp_path, monkeypatch):
    monkeypatch.setenv("CORP_TOKEN", SECRET)
    with Guarded(channels, token=SECRET).up() as server:
        (home / ".condarc").write_text(
            f"""channels: [conda-forge, defaults]
channel_alias: {server.url}/t/${{CORP_TOKEN}}
custom_channels:
  pytorch: {server.url}/t/${{CORP_TOKEN}}
mirrored_channels:
  nvidia: ["http://127.0.0.1:9/none", "{server.url}/t/${{CORP_TOKEN}}/nvidia"]
"""
        )
        assert default_channels() == ("conda-forge",)
        assert base_url("conda-forge") == f"{server.url}/t/{SECRET}/conda-forge"
        assert base_url("pytorch") == f"{server.url}/t/{SECRET}/pytorch"
        assert read_settings().places(f"{base_url('nvidia')}/noarch/x")[1].endswith("/nvidia/noarch/x")
        lock = lock_conda(*megatron, CondaRequest(channels=default_channels(), cache_dir=tmp_path))
        assert lock.channels == ("conda-forge",)
        assert not any(SECRET in text for text in files(lock).values())
        assert all(p.url.startswith(f"{server.url}/conda-forge/") for p in lock.platforms[0].packages)
        assert SECRET not in repr(read_settings())


def test_later_condarc_wins_and_a_variable_of_the_environment_over_it(home, monkeypatch):
    (home / ".conda").mkdir()
    (home / ".conda" / ".condarc").write_text("channels: [one]\nchannel_alias: https://one.example\nssl_verify: no\n")
    (home / ".condarc").write_text("channels: [two]\nproxy_servers: {https: 'http://ann:pw@proxy.example:3128'}\n")
    settings = read_settings()
    assert (settings.channels, settings.alias, settings.verify) == (("two",), "https://one.example", False)
    assert settings.proxies == {"https": "http://ann:pw@proxy.example:3128"}
    monkeypatch.setenv("CONDA_CHANNELS", "three,four")
    monkeypatch.setenv("CONDA_CHANNEL_ALIAS", "https://alias.example/conda")
    monkeypatch.setenv("CONDA_SSL_VERIFY", "/etc/ca.pem")
    settings = read_settings()
    assert settings.channels == ("three", "four")
    assert base_url("three", settings) == "https://alias.example/conda/three"
    assert settings.verify == Path("/etc/ca.pem")
    config(home, 'default-channels = ["five"]')
    assert default_channels() == ("five",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("channels: {a: 1}", "channels[0]: text belongs here"),
        ("channels: [1]", "channels[0]: `1`: text belongs here"),
        (
            "channel_alias: https://x/t/${NO_SUCH_VARIABLE}",
            "channel_alias: `https://x/t/${NO_SUCH_VARIABLE}`: the variable ${NO_SUCH_VARIABLE} is not set",
        ),
        ("custom_channels: [a]", "custom_channels: a mapping (key: value) belongs here"),
        ("mirrored_channels: {a: {b: c}}", "mirrored_channels.a[0]: text belongs here"),
        ("channel_alias: [", "not valid YAML: did not find expected node content"),
        ("just text", "`just text`: a mapping (key: value) belongs here"),
    ],
)
def test_broken_condarc_is_named_by_file_and_key(home, text, said):
    (home / ".condarc").write_text(text)
    with pytest.raises(DataError) as caught:
        read_settings()
    assert caught.value.message.startswith(f"Cannot read {home / '.condarc'}: ")
    assert caught.value.details[0].startswith(f"{home / '.condarc'}: {said}")


def test_no_secret_of_a_broken_condarc_is_shown(home):
    (home / ".condarc").write_text(
        f"proxy_servers: http://ann:{SECRET}@proxy.example\nchannel_alias: [https://x/t/{SECRET}/y]\n"
    )
    with pytest.raises(DataError) as caught:
        read_settings()
    assert "proxy_servers: " in str(caught.value)
    assert "channel_alias: " in str(caught.value)
    assert SECRET not in str(caught.value)


def test_store_that_rattler_cannot_read_is_named_and_not_shown(home, megatron, tmp_path):
    store_file(home, SECRET)
    with pytest.raises(DataError) as caught:
        lock_conda(*megatron, CondaRequest(channels=("http://127.0.0.1:9/ch",), cache_dir=tmp_path))
    assert str(home / ".rattler" / "credentials.json") in caught.value.message
    assert SECRET not in str(caught.value)


def test_broken_configuration_of_rattler_is_named_and_not_shown(home):
    config(home, f'default-channels = ["{SECRET}"')
    with pytest.raises(DataError) as caught:
        read_settings()
    assert caught.value.message.startswith(f"Cannot read {home / 'xdg' / 'rattler' / 'config.toml'}: ")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"])
def test_channel_is_trusted_by_the_bundle_that_every_other_client_reads(
    home, channels, megatron, tmp_path, monkeypatch, authority, name
):
    bundle, context = authority
    for variable in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"):
        monkeypatch.delenv(variable, raising=False)
    guarded = Guarded(channels)
    guarded.http.socket = context.wrap_socket(guarded.http.socket, server_side=True, do_handshake_on_connect=False)
    with guarded.up() as server:
        address = server.url.replace("http://", "https://") + "/conda-forge"
        with pytest.raises(NetworkError, match=r"Cannot reach .*: invalid peer certificate"):
            lock_conda(*megatron, CondaRequest(channels=(address,), cache_dir=tmp_path))
        monkeypatch.setenv(name, str(bundle))
        assert lock_conda(*megatron, CondaRequest(channels=(address,), cache_dir=tmp_path)).platforms


def test_certificates_that_are_none_are_a_usage_error(home, megatron, tmp_path, monkeypatch):
    monkeypatch.setenv("CONDA_SSL_VERIFY", str(home / "none.pem"))
    with pytest.raises(UsageError, match="holds no certificates"):
        lock_conda(*megatron, CondaRequest(channels=("https://127.0.0.1:9/ch",), cache_dir=tmp_path))


def test_proxy_is_asked_but_for_the_hosts_that_need_none(home, channels, megatron, tmp_path):
    with Guarded(channels).up() as server, Guarded(channels).up() as proxy:
        config(home, f'[proxy-config]\nhttp = "{proxy.url}"\nnon-proxy-hosts = ["127.0.0.1"]\n')
        lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path))
        assert (bool(server.seen), proxy.seen) == (True, [])
        with pytest.raises(EnvsmithError):
            lock_conda(*megatron, CondaRequest(channels=("http://far.invalid/conda-forge",), cache_dir=tmp_path))
        assert proxy.seen[0][0].startswith("http://far.invalid/conda-forge/")


def test_broken_condarc_ends_no_build_that_can_do_without_conda(home, capsys):
    (home / ".condarc").write_text("channels: 7")
    assert run(["check", "torch==2.8.0"]) in {0, 1}
    assert "condarc" not in capsys.readouterr().err


def test_packages_are_fetched_by_public_addresses_with_logins_beside_them(home):
    (home / "auth.json").write_text(json.dumps({"other.example": {"BearerToken": "kept"}}))
    config(
        home,
        f'authentication-override-file = "{home / "auth.json"}"\n[mirrors]\n"https://up.example" = ["https://m.example/x"]\n',
    )
    channels = ("https://ann:p%40w@private.example/ch", f"https://host.example/t/{SECRET}/corp", "plain", "/folder")
    access = access_to(channels)
    assert access.mirrors == {
        "https://up.example/": ("https://m.example/x/",),
        "https://host.example/corp/": (f"https://host.example/t/{SECRET}/corp/",),
    }
    assert access.logins == {
        "other.example": {"BearerToken": "kept"},
        "private.example": {"BasicHTTP": {"username": "ann", "password": "p@w"}},
    }
    assert not access.unchecked
    assert SECRET not in repr(access)


def test_scrub_takes_users_and_tokens_out_of_a_message():
    said = "GET https://ann:pa@ss@host.example/t/tk-1/ch/x failed, also (http://u:p@b/t/z/y)"
    assert scrub(said) == "GET https://host.example/ch/x failed, also (http://b/y)"
