"""What a user's machine says about channels is obeyed, and no secret of it comes out anywhere: over HTTP on loopback."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import json
import sys
import threading
import time
import types
import urllib.parse
from pathlib import Path

import pytest

from envsmith.cli.app import run
from envsmith.conda import access
from envsmith.conda.access import base_url, default_channels, find_logins, read_settings
from envsmith.conda.channels import network_for
from envsmith.conda.files import files
from envsmith.conda.lock import lock_conda
from envsmith.conda.model import CondaRequest, RepoLimits
from envsmith.conda.names import scrub
from envsmith.errors import DataError, EnvsmithError, NetworkError, UsageError

QUICK = RepoLimits(attempts=1, connect_seconds=5)
SECRET = "s3cr3t-Tok3n"
BASIC = "Basic " + base64.b64encode(f"ann:{SECRET}".encode()).decode()


class Guarded:
    """A channel that wants a header or a token; it notes what came."""

    def __init__(self, root: Path, *, header: str = "", token: str = "") -> None:
        self.seen: list[tuple[str, str]] = []
        self.header, self.token = header, token
        self.move: dict[str, str] = {}
        outer = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self):
                outer.seen.append((self.path, self.headers.get("Authorization", "")))
                if self.path.split("/")[1] in outer.move:
                    first = self.path.split("/")[1]
                    self.send_response(302)
                    self.send_header("Location", outer.move[first] + self.path[len(first) + 1 :])
                    self.end_headers()
                    return
                if outer.token:
                    head = f"/t/{outer.token}"
                    if not self.path.startswith(head + "/"):
                        self.send_error(403)
                        return
                    self.path = self.path[len(head) :]
                if outer.header and self.headers.get("Authorization") != outer.header:
                    self.send_error(401)
                    return
                super().do_GET()

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    @contextlib.contextmanager
    def up(self):
        thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self.http.shutdown()
            thread.join()
            self.http.server_close()


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
    store_file(home, {"OAuth": {"access_token": SECRET, "expires_at": time.time() + 900, "token_endpoint": ""}})
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


def by_keyring(home, monkeypatch):
    entries = {("rattler", "127.0.0.1"): json.dumps({"BearerToken": SECRET})}
    fake = types.SimpleNamespace(get_password=lambda service, host: entries.get((service, host)))
    monkeypatch.setitem(sys.modules, "keyring", fake)
    access._backend.cache_clear()
    return {"header": f"Bearer {SECRET}"}


@pytest.fixture(autouse=True)
def no_keyring():
    access._backend.cache_clear()
    yield
    access._backend.cache_clear()


@pytest.mark.parametrize(
    "way", [by_auth_file, by_override, by_store, by_oauth, by_token, by_netrc, by_named_netrc, by_keyring]
)
def test_login_is_found_where_rattler_keeps_it_and_never_written(way, home, monkeypatch, channels, megatron, tmp_path):
    with Guarded(channels, **way(home, monkeypatch)).up() as server:
        channel = (server.url + "/conda-forge",)
        lock = lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path / "cache", limits=QUICK))
        assert all(p.url.startswith(f"{server.url}/conda-forge/") for p in lock.platforms[0].packages)
        server.header, server.token = "Bearer other", ""
        with pytest.raises(NetworkError) as caught:
            lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path / "cold", limits=QUICK))
    assert "the server answers 401" in caught.value.message
    assert SECRET not in str(caught.value)
    assert not any(SECRET in text for text in files(lock).values())
    assert not any(SECRET.encode() in p.read_bytes() for p in tmp_path.rglob("meta.json"))
    assert SECRET not in repr(find_logins())


def test_refusal_says_what_was_sent_and_what_could_not_be_read(home, channels, megatron, tmp_path):
    (home / ".netrc").write_text("gibberish here\n")
    with Guarded(channels, header=BASIC).up() as server:
        for entry, said in ((None, "no credentials are known"), ({"BearerToken": "old"}, "credentials.json were sent")):
            if entry:
                store_file(home, entry)
            with pytest.raises(NetworkError) as caught:
                lock_conda(
                    *megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path, limits=QUICK)
                )
            assert said in caught.value.details[0]
            assert "not readable as a netrc" in caught.value.details[1]
            assert "pixi auth login" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a mapping"),
        ('{"127.0.0.1": "s3cr3t-Tok3n"}', "127.0.0.1: expected one of"),
        ('{"127.0.0.1": {"BearerToken": 3}}', "BearerToken: not usable"),
        ('{"127.0.0.1": {"BearerToken": "s3cr3t-Tok3n\\r\\nHost: evil"}}', "BearerToken: not usable"),
        ('{"127.0.0.1": {"CondaToken": "a/../s3cr3t-Tok3n"}}', "CondaToken: not usable"),
        ('{"127.0.0.1": {"BasicHTTP": {"username": "ann"}}}', "BasicHTTP.password: not usable"),
        ('{"127.0.0.1": {"OAuth": {"access_token": "s3cr3t-Tok3n", "expires_at": 5}}}', "the login has expired"),
        ('{"127.0.0.1": {"Kerberos": "s3cr3t-Tok3n"}}', "not known here"),
    ],
)
def test_broken_store_is_named_by_file_and_host_and_shows_nothing(home, text, said, megatron, tmp_path):
    path = store_file(home, {})
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        lock_conda(*megatron, CondaRequest(channels=("http://127.0.0.1:9/ch",), cache_dir=tmp_path, limits=QUICK))
    assert caught.value.message.startswith(str(path))
    assert said in caught.value.message
    assert SECRET not in str(caught.value)


def test_wildcard_reaches_hosts_below_it_only(home):
    store_file(home, {"BearerToken": SECRET}, host="*.corp.example")
    logins = find_logins()
    for host in ("corp.example", "conda.corp.example", "a.b.corp.example"):
        login = logins.find(f"https://{host}/ch/noarch/repodata.json")
        assert login is not None
        assert login.header == f"Bearer {SECRET}"
    assert logins.find("https://notcorp.example/x") is None
    assert logins.find("https://corp.example.evil.test/x") is None


def test_secret_does_not_follow_a_redirect_to_another_server(home, channels, megatron, tmp_path):
    with Guarded(channels).up() as other, Guarded(channels, header=BASIC).up() as server:
        place = urllib.parse.urlsplit(server.url).netloc
        server.move = {"moved": f"http://localhost:{other.http.server_port}"}
        channel = (f"http://ann:{SECRET}@{place}/moved/conda-forge",)
        lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path, limits=QUICK))
        assert {header for _, header in server.seen} == {BASIC}
        assert {header for _, header in other.seen} == {""}


def test_redirect_on_the_same_server_keeps_what_was_sent(home, channels, megatron, tmp_path):
    with Guarded(channels, header=BASIC).up() as server:
        place = urllib.parse.urlsplit(server.url).netloc
        server.move = {"moved": server.url}
        channel = (f"http://ann:{SECRET}@{place}/moved/conda-forge",)
        assert lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path, limits=QUICK)).platforms


@pytest.mark.parametrize("tool", ["rattler", "pixi"])
def test_dead_first_mirror_is_passed_over_and_the_lock_names_the_channel(
    home, channels, megatron, forge, tmp_path, tool
):
    store_file(home, {"BearerToken": SECRET})
    with Guarded(channels, header=f"Bearer {SECRET}").up() as server:
        up = "http://channel.invalid/conda-forge"
        config(home, f'[mirrors]\n"{up}" = ["http://127.0.0.1:9/x", "{server.url}/conda-forge"]\n', tool)
        lock = lock_conda(*megatron, CondaRequest(channels=(up,), cache_dir=tmp_path / "a", limits=QUICK))
        assert server.seen
    by_file = lock_conda(*megatron, CondaRequest(channels=forge, cache_dir=tmp_path / "b", limits=QUICK))
    assert [p.filename for p in lock.platforms[0].packages] == [p.filename for p in by_file.platforms[0].packages]
    assert {p.url.rsplit("/", 2)[0] for p in lock.platforms[0].packages} == {up}
    assert server.url not in files(lock)["conda-lock.yml"]
    with pytest.raises(NetworkError) as caught:
        lock_conda(*megatron, CondaRequest(channels=(up,), cache_dir=tmp_path / "c", limits=QUICK))
    assert f"channel {up} cannot be reached" in caught.value.message


def test_mirror_that_wants_a_login_is_not_passed_over(home, channels, megatron, tmp_path):
    with Guarded(channels, header="Bearer x").up() as closed, Guarded(channels).up() as fine:
        config(home, f'[mirrors]\n"http://channel.invalid" = ["{closed.url}", "{fine.url}"]\n')
        with pytest.raises(NetworkError, match="the server answers 401") as caught:
            lock_conda(
                *megatron,
                CondaRequest(channels=("http://channel.invalid/conda-forge",), cache_dir=tmp_path, limits=QUICK),
            )
        assert closed.url in caught.value.details[0]
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
        lock = lock_conda(*megatron, CondaRequest(channels=default_channels(), cache_dir=tmp_path, limits=QUICK))
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
    assert 'https = "http://ann:pw@proxy.example:3128"' in settings.for_rattler({})
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
        ("channels: {a: 1}", "channels: expected a list"),
        ("channels: [1]", "channels[0]: expected text"),
        (
            "channel_alias: https://x/t/${NO_SUCH_VARIABLE}",
            "channel_alias: the variable ${NO_SUCH_VARIABLE} is not set",
        ),
        ("custom_channels: [a]", "custom_channels: expected a mapping"),
        ("mirrored_channels: {a: {b: c}}", "mirrored_channels.a: expected a list"),
        ("channel_alias: [", "not YAML (line 1)"),
        ("just text", "not a mapping"),
    ],
)
def test_broken_condarc_is_named_by_file_and_key(home, text, said):
    (home / ".condarc").write_text(text)
    with pytest.raises(DataError) as caught:
        read_settings()
    assert caught.value.message.startswith(f"{home / '.condarc'}: {said}")


def test_broken_configuration_of_rattler_is_named_and_not_shown(home):
    config(home, f'default-channels = ["{SECRET}"')
    with pytest.raises(DataError) as caught:
        read_settings()
    assert caught.value.message.startswith(str(home / "xdg" / "rattler" / "config.toml"))
    assert SECRET not in str(caught.value)


def test_certificates_that_are_none_are_a_usage_error(home, megatron, tmp_path, monkeypatch):
    monkeypatch.setenv("CONDA_SSL_VERIFY", str(home / "none.pem"))
    with pytest.raises(UsageError, match="holds no certificates"):
        lock_conda(*megatron, CondaRequest(channels=("https://127.0.0.1:9/ch",), cache_dir=tmp_path, limits=QUICK))


def test_proxy_is_asked_but_for_the_hosts_that_need_none(home, channels, megatron, tmp_path):
    with Guarded(channels).up() as server, Guarded(channels).up() as proxy:
        config(home, f'[proxy-config]\nhttp = "{proxy.url}"\nnon-proxy-hosts = ["127.0.0.1"]\n')
        lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path, limits=QUICK))
        assert (bool(server.seen), proxy.seen) == (True, [])
        with pytest.raises(EnvsmithError):
            lock_conda(
                *megatron, CondaRequest(channels=("http://far.invalid/conda-forge",), cache_dir=tmp_path, limits=QUICK)
            )
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
    told = network_for(channels).told()
    assert told["mirrors"] == {
        "https://up.example/": ("https://m.example/x/",),
        "https://host.example/corp/": (f"https://host.example/t/{SECRET}/corp/",),
    }
    assert told["logins"] == {
        "other.example": {"BearerToken": "kept"},
        "private.example": {"BasicHTTP": {"username": "ann", "password": "p@w"}},
    }
    assert told["config"] == ""
    assert SECRET not in repr(network_for(channels))


def test_scrub_takes_users_and_tokens_out_of_a_message():
    said = "GET https://ann:pa@ss@host.example/t/tk-1/ch/x failed, also (http://u:p@b/t/z/y)"
    assert scrub(said) == "GET https://host.example/ch/x failed, also (http://b/y)"
