"""Channels over HTTP: caches, damaged answers, offline work, logins that never show."""

from __future__ import annotations

import base64
import dataclasses
import functools
import http.server
import json
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import pytest

from envsmith.errors import LockError, NetworkError, StorageError
from envsmith.lock.conda.lock import lock_conda
from envsmith.lock.conda.lock_files import files
from envsmith.lock.conda.model import CondaRequest
from envsmith.lock.conda.names import public_url


class Server:
    """A channel on loopback whose answers a test may bend: ``bend[path] = (status, headers, body)``."""

    def __init__(self, root: Path) -> None:
        self.bend: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.seen: list[tuple[str, int]] = []
        self.user: str | None = None
        outer = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_HEAD(self):
                path = urllib.parse.urlsplit(self.path).path
                if path in outer.bend:
                    self.send_response(outer.bend[path][0])
                    self.end_headers()
                    return
                super().do_HEAD()

            def do_GET(self):
                path = urllib.parse.urlsplit(self.path).path
                if (
                    outer.user
                    and self.headers.get("Authorization") != "Basic " + base64.b64encode(outer.user.encode()).decode()
                ):
                    self.send_error(401)
                    return
                if path in outer.bend:
                    status, headers, body = outer.bend[path]
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(body)
                    return
                super().do_GET()

            def log_request(self, code="-", size="-"):
                outer.seen.append((self.path, int(code)))

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(root)))
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def stop(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def server(channels):
    running = Server(channels)
    yield running
    running.stop()


REPODATA = "/conda-forge/linux-64/repodata.json"


def test_channel_over_http_gives_the_lock_of_the_folder(server, megatron, forge, tmp_path):
    by_http = lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path))
    by_file = lock_conda(*megatron, CondaRequest(channels=forge, cache_dir=tmp_path))
    assert [p.filename for p in by_http.platforms[0].packages] == [p.filename for p in by_file.platforms[0].packages]
    assert all(p.url.startswith(server.url) for p in by_http.platforms[0].packages)


def test_second_run_asks_whether_the_index_changed_and_transfers_nothing(server, megatron, tmp_path):
    channel = (server.url + "/conda-forge",)
    first = lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path))
    server.seen.clear()
    assert lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path)) == first
    codes = [code for path, code in server.seen if path.endswith("repodata.json")]
    assert codes == [304, 304]


def test_offline_works_from_the_cache_and_without_one_says_so(server, megatron, tmp_path):
    channel = (server.url + "/conda-forge",)
    first = lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path / "warm"))
    server.seen.clear()
    assert lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path / "warm", offline=True)) == first
    assert server.seen == []
    with pytest.raises(NetworkError, match="no copy of its index is in the cache"):
        lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path / "cold", offline=True))


def bent(body: bytes, *, status: int = 200, **headers: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Length": str(len(body)), **{k.replace("_", "-"): v for k, v in headers.items()}}, body


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (bent(b'{"packages": {"x-1-0.conda": {"name"'), "its index is damaged"),
        (bent(b"<html>blocked by the proxy</html>"), "its index is damaged"),
        (bent(b""), "its index is damaged"),
        (bent(b"\xff\xfe\x00"), "its index is damaged"),
        ((200, {"Content-Length": "900"}, b'{"packages": {}}'), "end of file before message length reached"),
        (bent(b"", status=500), "answers 500"),
        (bent(b"", status=403), "answers 403"),
        (bent(("[" * 200_000).encode()), "its index is damaged"),
    ],
)
def test_damaged_answer_is_told_and_not_kept(server, megatron, tmp_path, answer, said):
    request = CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path)
    first = lock_conda(*megatron, request)
    server.bend[REPODATA] = answer
    with pytest.raises(NetworkError) as caught:
        lock_conda(*megatron, request)
    assert said in caught.value.message
    assert caught.value.hint or "500" in said
    del server.bend[REPODATA]
    assert lock_conda(*megatron, request) == first


@pytest.mark.parametrize("answer", [bent(b"", status=500), bent(b"", status=403)])
def test_copy_in_the_cache_stays_when_the_server_refuses(server, megatron, tmp_path, answer):
    request = CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path)
    first = lock_conda(*megatron, request)
    server.bend[REPODATA] = answer
    with pytest.raises(NetworkError):
        lock_conda(*megatron, request)
    assert lock_conda(*megatron, dataclasses.replace(request, offline=True)) == first


def test_packages_of_another_platform_are_refused(server, channels, megatron, tmp_path):
    data = (channels / "conda-forge/linux-64/repodata.json").read_text()
    server.bend[REPODATA] = bent(data.replace('"subdir": "linux-64"', '"subdir": "osx-arm64"').encode())
    with pytest.raises(LockError, match="is for 'osx-arm64', which is not a platform of this request"):
        lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path))


def test_unreachable_channel_is_one_sentence(megatron, tmp_path):
    with pytest.raises(NetworkError) as caught:
        lock_conda(*megatron, CondaRequest(channels=("http://127.0.0.1:9/ch",), cache_dir=tmp_path))
    assert caught.value.message.startswith("Cannot reach the channel http://127.0.0.1:9/ch: ")
    assert "Only the Conda lock needs a channel" in caught.value.hint


def test_channel_without_the_platform_but_with_noarch_is_read(server, local, megatron, tmp_path):
    server.bend[REPODATA] = bent(b"", status=404)
    with pytest.raises(LockError) as caught:
        lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path))
    assert "the channel has no pytorch for linux-64" in caught.value.details[0]


def test_password_and_token_are_used_and_never_written(server, megatron, tmp_path, channels):
    server.user = "ann:s3cret"
    place = urllib.parse.urlsplit(server.url).netloc
    with pytest.raises(NetworkError) as caught:
        lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path))
    assert "401" in caught.value.message
    lock = lock_conda(*megatron, CondaRequest(channels=(f"http://ann:s3cret@{place}/conda-forge",), cache_dir=tmp_path))
    assert not any("s3cret" in text for text in files(lock).values())
    assert not any(b"s3cret" in p.read_bytes() for p in tmp_path.rglob("meta.json"))
    assert public_url("https://user:pa%40ss@host.example/t/tk-1/ch/x?q=1") == "https://host.example/ch/x"


def test_token_in_the_address_is_left_out_of_the_lock(server, megatron, tmp_path, channels):
    for subdir in ("linux-64", "noarch"):
        body = (channels / "conda-forge" / subdir / "repodata.json").read_bytes()
        server.bend[f"/t/tk-s3cret/conda-forge/{subdir}/repodata.json"] = bent(body)
    lock = lock_conda(*megatron, CondaRequest(channels=(server.url + "/t/tk-s3cret/conda-forge",), cache_dir=tmp_path))
    assert not any("s3cret" in text for text in files(lock).values())
    assert all(p.url.startswith(server.url + "/conda-forge/") for p in lock.platforms[0].packages)


def zst(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return zstandard.ZstdCompressor().compress(data)


def test_packed_index_is_preferred_and_a_damaged_one_refused(server, megatron, tmp_path, channels):
    body = (channels / "conda-forge/linux-64/repodata.json").read_bytes()
    channel = (server.url + "/conda-forge",)
    server.bend[REPODATA + ".zst"] = bent(zst(body))
    server.bend[REPODATA] = bent(b"", status=500)
    lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path))
    server.bend[REPODATA + ".zst"] = bent(b"this is not a zstd")
    with pytest.raises(NetworkError, match="its index is damaged"):
        lock_conda(*megatron, CondaRequest(channels=channel, cache_dir=tmp_path))


def hostile(local, root: Path, name: str, **change) -> tuple[str, ...]:
    """The real channel, where the records of one name are changed."""
    records = [{**r, **change} if r["name"] == name else r for r in local.real_records()]
    local.write_index(root, records)
    return ((root / "conda-forge").as_uri(),)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"version": "!!..x y"}, NetworkError, "its index is damaged"),
        ({"depends": 3}, NetworkError, "its index is damaged"),
        ({"sha256": "zz"}, NetworkError, "its index is damaged"),
        ({"version": "9" * 6000}, NetworkError, "its index is damaged"),
        ({"depends": ["]][[ \x1b[31m"]}, LockError, ""),
    ],
)
def test_hostile_record_of_a_component_is_an_error_not_a_crash(local, megatron, tmp_path, change, error, said):
    with pytest.raises(error) as caught:
        lock_conda(
            *megatron, CondaRequest(channels=hostile(local, tmp_path / "ch", "nccl", **change), cache_dir=tmp_path)
        )
    assert said in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_record_without_a_hash_is_refused(local, megatron, tmp_path):
    records = [{k: v for k, v in r.items() if r["name"] != "nccl" or k != "md5"} for r in local.real_records()]
    root = local.write_index(tmp_path / "ch", records)
    with pytest.raises(LockError, match=r"nccl 2\.28\.9\.1 of .*: it has no md5"):
        lock_conda(*megatron, CondaRequest(channels=((root / "conda-forge").as_uri(),), cache_dir=tmp_path))


def test_record_that_points_into_this_machine_is_refused(server, channels, megatron, tmp_path):
    data = json.loads((channels / "conda-forge/linux-64/repodata.json").read_text())
    data["info"]["base_url"] = "file:///etc/"
    server.bend[REPODATA] = bent(json.dumps(data).encode())
    with pytest.raises((LockError, NetworkError), match="outside the channel"):
        lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=tmp_path))


def test_file_name_that_climbs_is_refused(local, megatron, tmp_path):
    records = [{**r, "file": "nccl-../../../etc-0.conda"} if r["name"] == "nccl" else r for r in local.real_records()]
    root = local.write_index(tmp_path / "ch", records)
    with pytest.raises(LockError, match="which is not that package's"):
        lock_conda(*megatron, CondaRequest(channels=((root / "conda-forge").as_uri(),), cache_dir=tmp_path))


def test_changed_folder_is_read_again(local, megatron, tmp_path):
    cell, pins = megatron
    root = local.write_index(tmp_path / "ch", local.real_records())
    channel = ((root / "conda-forge").as_uri(),)
    lock_conda(cell, pins, CondaRequest(channels=channel, cache_dir=tmp_path))
    local.write_index(
        tmp_path / "ch",
        [r for r in local.real_records() if r["name"] != "nccl" or not r["version"].startswith("2.28.9")],
    )
    with pytest.raises(LockError) as caught:
        lock_conda(cell, pins, CondaRequest(channels=channel, cache_dir=tmp_path))
    assert caught.value.details[0].startswith("nccl 2.28.9: the channel has nccl 2.28.7")


LOCKS = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("local", sys.argv[1])
local = sys.modules["local"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(local)
from envsmith.lock.conda.lock import lock_conda
from envsmith.lock.conda.model import CondaRequest
request = CondaRequest(channels=(sys.argv[2],), cache_dir=pathlib.Path(sys.argv[3]))
print(len(lock_conda(local.cell(**local.MEGATRON), local.pins_for(local.MEGATRON), request).platforms))
"""


@pytest.mark.parametrize("scheme", ["file", "http"])
def test_process_that_read_a_channel_ends_in_peace(server, forge, tmp_path, scheme):
    channel = forge[0] if scheme == "file" else server.url + "/conda-forge"
    helpers = str(Path(__file__).parent / "localchannel.py")
    for number in range(4):
        command = [sys.executable, "-c", LOCKS, helpers, channel, str(tmp_path / str(number))]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (run.returncode, run.stdout, run.stderr) == (0, "1\n", "")


def test_a_cache_that_cannot_be_written_is_not_called_a_damaged_index(server, megatron, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "repodata").write_text("a file where a folder should be")
    with pytest.raises(StorageError, match=r"Cannot write the cache .*: ") as caught:
        lock_conda(*megatron, CondaRequest(channels=(server.url + "/conda-forge",), cache_dir=cache))
    assert "damaged" not in caught.value.message
