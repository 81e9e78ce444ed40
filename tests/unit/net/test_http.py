"""What the HTTP client promises: cached, conditional, bounded, honest about failures, silent about secrets."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import itertools
import random
import socket
import threading
import time

import pytest

from envsmith import __version__
from envsmith.errors import ContentError, NetworkError, UsageError
from envsmith.net.http import HttpClient, NotFoundError
from envsmith.net.wire import HttpWire, Response


def _hours():
    """Return a clock that goes on by an hour whenever it is read, so that nothing stays fresh."""
    return itertools.count(1e9, 3600.0).__next__


@pytest.fixture
def client(tmp_path):
    return HttpClient(cache=tmp_path, timeout=5, wait=lambda _: None)


def test_a_fresh_page_is_not_asked_for_again(server, client):
    server.routes["/page"] = lambda h: h.reply(200, b"hello")
    first = client.get(server.url + "/page", max_bytes=100)
    second = client.get(server.url + "/page", max_bytes=100)
    assert (first.body, first.cached, second.body, second.cached) == (b"hello", False, b"hello", True)
    assert len(server.seen) == 1


def test_a_stale_page_is_asked_for_with_its_validator_and_304_keeps_it(server, tmp_path):
    client = HttpClient(cache=tmp_path, clock=_hours())
    server.routes["/page"] = lambda h: (
        h.reply(304) if h.headers["If-None-Match"] == '"v1"' else h.reply(200, b"one", ETag='"v1"')
    )
    client.get(server.url + "/page", max_bytes=100)
    again = client.get(server.url + "/page", max_bytes=100)
    third = client.get(server.url + "/page", max_bytes=100)
    assert (again.body, again.cached, third.cached) == (b"one", True, True)
    assert [h.headers["If-None-Match"] for h in server.seen] == [None, '"v1"', '"v1"']


def test_a_changed_page_replaces_the_kept_one(server, tmp_path):
    client = HttpClient(cache=tmp_path, clock=_hours())
    bodies = iter([b"one", b"two"])
    server.routes["/page"] = lambda h: h.reply(200, next(bodies))
    assert [client.get(server.url + "/page", max_bytes=100).body for _ in range(2)] == [b"one", b"two"]


def test_a_damaged_cache_entry_is_fetched_again(server, client, tmp_path):
    server.routes["/page"] = lambda h: h.reply(200, b"hello")
    client.get(server.url + "/page", max_bytes=100)
    (entry,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    entry.write_bytes(entry.read_bytes()[:-1] + b"X")
    assert client.get(server.url + "/page", max_bytes=100).body == b"hello"
    assert len(server.seen) == 2


def test_a_kept_page_that_a_wrong_clock_dated_ahead_is_asked_for_again(server, tmp_path):
    server.routes["/page"] = lambda h: h.reply(200, b"hello")
    HttpClient(cache=tmp_path, clock=lambda: 4e9).get(server.url + "/page", max_bytes=100)
    again = HttpClient(cache=tmp_path).get(server.url + "/page", max_bytes=100)
    third = HttpClient(cache=tmp_path).get(server.url + "/page", max_bytes=100)
    assert (again.cached, third.cached) == (False, True)


def test_a_kept_page_is_not_believed_for_another_address(server, client, tmp_path):
    server.routes |= {"/one": lambda h: h.reply(200, b"one"), "/two": lambda h: h.reply(200, b"two")}
    client.get(server.url + "/one", max_bytes=100)
    (one,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    content = one.read_bytes()
    client.get(server.url + "/two", max_bytes=100)
    (two,) = [p for p in tmp_path.rglob("*") if p.is_file() and p != one]
    two.write_bytes(content)
    assert client.get(server.url + "/two", max_bytes=100).body == b"two"


def test_a_kept_page_whose_type_was_changed_is_asked_for_again(server, client, tmp_path):
    server.routes["/page"] = lambda h: h.reply(200, b"{}", Content_Type="application/json")
    client.get(server.url + "/page", max_bytes=100)
    (entry,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    entry.write_bytes(entry.read_bytes().replace(b"application/json", b"application/html"))
    assert client.get(server.url + "/page", max_bytes=100).content_type == "application/json"


def test_a_kept_body_with_another_hash_than_the_one_named_is_fetched_again(server, client, tmp_path):
    bodies = iter([b"old", b"good"])
    server.routes["/file"] = lambda h: h.reply(200, next(bodies))
    client.get(server.url + "/file", max_bytes=100)
    named = hashlib.sha256(b"good").hexdigest()
    with pytest.raises(NetworkError, match="not in the cache"):
        HttpClient(cache=tmp_path, offline=True).get(server.url + "/file", max_bytes=100, sha256=named)
    assert client.get(server.url + "/file", max_bytes=100, sha256=named).body == b"good"


def test_a_body_with_another_hash_is_refused_and_not_kept(server, client, tmp_path):
    server.routes["/file"] = lambda h: h.reply(200, b"evil")
    with pytest.raises(ContentError, match="sha256"):
        client.get(server.url + "/file", max_bytes=100, sha256=hashlib.sha256(b"good").hexdigest())
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_an_artifact_is_kept_only_when_wanted(server, client, tmp_path):
    server.routes["/file"] = lambda h: h.reply(200, b"good")
    digest = hashlib.sha256(b"good").hexdigest()
    client.get(server.url + "/file", max_bytes=100, sha256=digest, keep=False)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.mark.parametrize("encode", [lambda b: (b, {}), lambda b: (gzip.compress(b), {"Content_Encoding": "gzip"})])
def test_a_body_longer_than_allowed_is_refused(server, client, encode):
    body, headers = encode(b"\0" * 50_000_000)
    server.routes["/bomb"] = lambda h: h.reply(200, body, **headers)
    with pytest.raises(NetworkError, match="longer than 1000 bytes"):
        client.get(server.url + "/bomb", max_bytes=1000)


def test_a_compressed_body_is_unpacked(server, client):
    server.routes["/page"] = lambda h: h.reply(200, gzip.compress(b"hello"), Content_Encoding="gzip")
    assert client.get(server.url + "/page", max_bytes=100).body == b"hello"


@pytest.mark.parametrize("status", [404, 410])
def test_a_missing_thing_is_told_apart(server, client, status):
    server.routes["/page"] = lambda h: h.reply(status)
    with pytest.raises(NotFoundError):
        client.get(server.url + "/page", max_bytes=100)


def test_a_busy_server_is_asked_again(server, client):
    answers = iter([503, 429, 200])
    server.routes["/page"] = lambda h: h.reply(next(answers), b"late", Retry_After="1")
    assert client.get(server.url + "/page", max_bytes=100).body == b"late"
    assert len(server.seen) == 3


def test_a_server_that_stays_broken_is_given_up(server, client):
    server.routes["/page"] = lambda h: h.reply(500)
    with pytest.raises(NetworkError, match="status 500"):
        client.get(server.url + "/page", max_bytes=100)
    assert len(server.seen) == 4


def test_offline_answers_from_the_cache_and_refuses_the_rest(server, client, tmp_path):
    server.routes["/page"] = lambda h: h.reply(200, b"hello")
    client.get(server.url + "/page", max_bytes=100)
    offline = HttpClient(cache=tmp_path, offline=True, clock=_hours())
    assert offline.get(server.url + "/page", max_bytes=100).cached
    with pytest.raises(NetworkError, match="not in the cache"):
        offline.get(server.url + "/other", max_bytes=100)
    with pytest.raises(NetworkError, match="switches the network off"), offline.open_range(server.url + "/page", 0, 5):
        pass
    assert len(server.seen) == 1


def test_credentials_are_sent_but_never_told(server, client):
    server.routes["/page"] = lambda h: h.reply(401)
    with pytest.raises(NetworkError) as caught:
        client.get(server.url.replace("//", "//user:hunter2@") + "/page", max_bytes=100)
    assert server.seen[0].headers["Authorization"].startswith("Basic ")
    assert "hunter2" not in str(caught.value)


def test_credentials_do_not_follow_a_redirect(server, client):
    server.routes["/page"] = lambda h: h.reply(302, Location=f"http://localhost:{server.server_port}/there")
    server.routes["/there"] = lambda h: h.reply(200, b"ok")
    client.get(server.url.replace("//", "//user:hunter2@") + "/page", max_bytes=100)
    assert server.seen[1].headers["Authorization"] is None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_every_kind_of_redirect_is_followed(server, client, status):
    server.routes["/page"] = lambda h: h.reply(status, Location="/there")
    server.routes["/there"] = lambda h: h.reply(200, b"ok")

    assert client.get(server.url + "/page", max_bytes=100).body == b"ok"


def test_credentials_follow_a_redirect_on_the_same_server(server, client):
    server.routes["/page"] = lambda h: h.reply(302, Location="/there")
    server.routes["/there"] = lambda h: h.reply(200, b"ok")
    client.get(server.url.replace("//", "//user:hunter2@") + "/page", max_bytes=100)
    assert server.seen[1].headers["Authorization"].startswith("Basic ")


def test_a_login_of_netrc_is_sent(server, client, tmp_path, monkeypatch):
    (tmp_path / "logins").write_text("machine 127.0.0.1 login user password hunter2\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "logins"))
    server.routes["/page"] = lambda h: h.reply(200, b"ok")
    client.get(server.url + "/page", max_bytes=100)
    assert server.seen[0].headers["Authorization"] == "Basic dXNlcjpodW50ZXIy"


def test_redirects_end(server, client):
    server.routes["/page"] = lambda h: h.reply(302, Location="/page")
    with pytest.raises(NetworkError, match="redirects more than"):
        client.get(server.url + "/page", max_bytes=100)


def test_a_redirect_to_an_unencrypted_address_is_refused(tls_server, client, tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_server.ca))
    tls_server.routes["/x"] = lambda h: h.reply(302, Location="http://localhost:9/x")
    with pytest.raises(NetworkError, match="unencrypted"):
        client.get(tls_server.url + "/x", max_bytes=100)


def test_a_redirect_from_outside_to_this_machine_is_refused(tls_proxy, server, client, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_proxy.ca))
    tls_proxy.routes["index.corp.invalid/x"] = lambda h: h.reply(302, Location="https://127.0.0.1:9/x")
    with pytest.raises(NetworkError, match=r"index\.corp\.invalid/x: it leads to .* closer to this machine"):
        client.get("https://index.corp.invalid/x", max_bytes=100)


def test_a_malformed_redirect_is_refused(server, client):
    server.routes["/x"] = lambda h: h.reply(302, Location="http://[nonsense/")
    with pytest.raises(NetworkError, match="malformed"):
        client.get(server.url + "/x", max_bytes=100)


def _dripping(head, body):
    """Sends a byte at a time until the client has gone."""

    def answer(handler):
        handler.close_connection = True
        with contextlib.suppress(OSError):
            handler.wfile.write(head)
            while True:
                handler.wfile.write(body)
                time.sleep(0.02)

    return answer


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 60000, b"x"),
    ],
    ids=["body", "chunks", "the size of a chunk", "headers", "body after a fast start"],
)
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(server, tmp_path, head, body):
    server.routes["/slow"] = _dripping(head, body)
    client = HttpClient(cache=tmp_path, timeout=0.3, wait=lambda _: None)
    with pytest.raises(NetworkError) as caught:
        client.get(server.url + "/slow", max_bytes=200000)
    assert "the server is silent or too slow" in caught.value.message
    assert caught.value.hint
    assert len(server.seen) == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("change", [lambda b: b[:-9], lambda b: b + b"more", lambda b: b[:30]])
def test_a_compressed_body_that_is_cut_or_grown_is_refused_and_not_kept(server, client, tmp_path, change):
    body = change(gzip.compress(bytes(range(256)) * 8))
    server.routes["/page"] = lambda h: h.reply(200, body, Content_Encoding="gzip")
    with pytest.raises(NetworkError, match="compress"):
        client.get(server.url + "/page", max_bytes=10000)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_what_the_reader_refuses_is_not_kept(server, client, tmp_path):
    server.routes["/page"] = lambda h: h.reply(200, b"log in first")

    def refuse(reply):
        raise NetworkError(f"no page: {reply.body.decode()}")

    with pytest.raises(NetworkError, match="no page: log in first"):
        client.get(server.url + "/page", max_bytes=100, check=refuse)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_stretch_of_a_compressed_file_is_refused(server, client):
    server.routes["/file"] = lambda h: h.reply(206, b"012", Content_Range="bytes 0-2/10", Content_Encoding="gzip")
    with pytest.raises(NetworkError), client.open_range(server.url + "/file", 0, 3):
        pass


def test_a_redirect_to_a_file_is_refused(server, client):
    server.routes["/x"] = lambda h: h.reply(302, Location="file:///etc/passwd")
    with pytest.raises(NetworkError, match="not an http address"):
        client.get(server.url + "/x", max_bytes=100)


def test_a_server_that_is_not_trusted_is_asked_once(tls_server, tmp_path, clean_trust):
    waits = []
    with pytest.raises(NetworkError, match="certificate"):
        HttpClient(cache=tmp_path, wait=waits.append).get(tls_server.url + "/x", max_bytes=100)
    assert waits == []


def test_the_proxy_of_the_environment_is_used_but_not_for_this_machine(tls_proxy, server, client, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_proxy.ca))
    tls_proxy.routes["index.corp.invalid/x"] = lambda h: h.reply(200, b"far")
    server.routes["/x"] = lambda h: h.reply(200, b"near")
    assert client.get("https://index.corp.invalid/x", max_bytes=100).body == b"far"
    assert client.get(server.url + "/x", max_bytes=100).body == b"near"


def test_the_proxy_of_pip_is_used_where_none_is_set(tls_proxy, client, monkeypatch):
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_PROXY", tls_proxy.url)
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_proxy.ca))
    tls_proxy.routes["index.corp.invalid/x"] = lambda h: h.reply(200, b"far")
    assert client.get("https://index.corp.invalid/x", max_bytes=100).body == b"far"


@pytest.mark.parametrize(
    "exceptions",
    ["index.corp.invalid", ".corp.invalid", "fd00::/8,[::1],10.0.0.0/8,corp.invalid", "*", "a,index.corp.invalid:443"],
)
def test_what_no_proxy_names_is_not_asked_through_the_proxy(tls_proxy, client, monkeypatch, exceptions):
    monkeypatch.setenv("NO_PROXY", exceptions)
    with pytest.raises(NetworkError, match="Cannot reach"):
        client.get("https://index.corp.invalid:443/x", max_bytes=100)
    assert tls_proxy.seen == []


def test_a_network_in_no_proxy_does_no_harm(tls_proxy, client, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_proxy.ca))
    monkeypatch.setenv("NO_PROXY", "fd00::/8,[::1],10.0.0.0/8")
    tls_proxy.routes["index.corp.invalid/x"] = lambda h: h.reply(200, b"far")
    assert client.get("https://index.corp.invalid/x", max_bytes=100).body == b"far"


def test_a_proxy_that_is_none_is_a_usage_error(client, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://proxy:1")
    with pytest.raises(UsageError, match="proxy"):
        client.get("https://index.invalid/x", max_bytes=100)


def test_a_connection_that_breaks_in_the_body_is_told(server, client):
    def broken(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"half")
        handler.close_connection = True

    server.routes["/page"] = broken
    with pytest.raises(NetworkError, match="connection broke"):
        client.get(server.url + "/page", max_bytes=1000)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "deflate"])
def test_an_encoding_that_was_not_offered_is_refused(server, client, encoding):
    server.routes["/page"] = lambda h: h.reply(200, b"xx", Content_Encoding=encoding)
    with pytest.raises(NetworkError, match="is unknown"):
        client.get(server.url + "/page", max_bytes=1000)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://index.test/x", "https:///nohost"])
def test_only_http_addresses_are_opened(client, url):
    with pytest.raises(NetworkError, match="not an http address"):
        client.get(url, max_bytes=10)


def _ranges(body):
    def answer(handler):
        first, _, last = handler.headers["Range"].removeprefix("bytes=").partition("-")
        start = int(first) if first else len(body) - int(last)
        stop = int(last) + 1 if first and last else len(body)
        handler.reply(206, body[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{len(body)}")

    return answer


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 3, b"012"), (7, None, b"789"), (-2, None, b"89"), (-1, None, b"9"), (1, 2, b"1")],
)
def test_a_stretch_of_a_file_is_read(server, client, start, stop, expected):
    server.routes["/file"] = _ranges(b"0123456789")
    with client.open_range(server.url + "/file", start, stop) as reply:
        assert (reply.stream.read(), reply.total, reply.start) == (expected, 10, b"0123456789".index(expected))


def test_a_server_without_ranges_is_refused(server, client):
    server.routes["/file"] = lambda h: h.reply(200, b"0123456789")
    with pytest.raises(NetworkError, match="ignores range requests"), client.open_range(server.url + "/file", 0, 3):
        pass


@pytest.mark.parametrize(
    "told", ["bytes 5-7/10", "bytes 0-2/" + "9" * 5000, "lines 0-2/10", "bytes 0-2/*", "", "bytes x"]
)
def test_a_range_that_was_not_asked_for_is_refused(server, client, told):
    server.routes["/file"] = lambda h: h.reply(206, b"012", Content_Range=told)
    with pytest.raises(NetworkError), client.open_range(server.url + "/file", 0, 3):
        pass


def test_no_more_requests_run_at_once_than_allowed(server, tmp_path):
    client = HttpClient(cache=tmp_path, jobs=2)
    open_now, most, lock, go = 0, 0, threading.Lock(), threading.Event()

    def slow(handler):
        nonlocal open_now, most
        with lock:
            open_now += 1
            most = max(most, open_now)
        go.wait(0.05)
        with lock:
            open_now -= 1
        handler.reply(200, b"x")

    server.routes.update({f"/{i}": slow for i in range(6)})
    threads = [
        threading.Thread(target=client.get, args=(f"{server.url}/{i}",), kwargs={"max_bytes": 9}) for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 2


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"])
def test_a_bundle_in_any_of_the_variables_is_trusted(tls_server, tmp_path, monkeypatch, clean_trust, name):
    tls_server.routes["/page"] = lambda h: h.reply(200, b"hello")
    with pytest.raises(NetworkError, match="certificate"):
        HttpClient(cache=tmp_path / "before").get(tls_server.url + "/page", max_bytes=10)
    monkeypatch.setenv(name, str(tls_server.ca))
    assert HttpClient(cache=tmp_path / "after").get(tls_server.url + "/page", max_bytes=10).body == b"hello"


def test_a_server_that_is_not_there_is_named_with_what_the_system_says(client):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NetworkError, match=r"Cannot reach .*refused") as caught:
        client.get(f"http://user:hunter2@127.0.0.1:{port}/x", max_bytes=10)
    assert caught.value.message.startswith(f"Cannot reach http://127.0.0.1:{port}/x: ")
    assert caught.value.hint == "Check the network, the proxy and the CA settings."


def test_every_request_says_who_asks_and_for_what(server, client, tmp_path):
    server.routes["/x"] = _ranges(b"0123456789")
    server.routes["/y"] = lambda h: h.reply(200)
    with HttpWire()("GET", server.url + "/x", {"Range": "bytes=0-1"}):
        pass
    with client.open_range(server.url + "/x", 0, 3):
        pass
    client.get(server.url + "/y", max_bytes=9)
    client.get(server.url + "/y", max_bytes=9, accept="text/html")
    rows = [(h.headers["Accept-Encoding"], h.headers["Accept"], h.headers["Range"]) for h in server.seen]
    assert rows == [
        ("identity", "*/*", "bytes=0-1"),
        ("identity", "*/*", "bytes=0-2"),
        ("gzip", "*/*", None),
        ("gzip", "text/html", None),
    ]
    assert {h.headers["User-Agent"] for h in server.seen} == {f"envsmith/{__version__}"}


def test_a_client_of_no_jobs_has_one(server, tmp_path):
    server.routes["/x"] = lambda h: h.reply(200, b"ok")
    client, replies = HttpClient(cache=tmp_path, jobs=0), []
    thread = threading.Thread(
        target=lambda: replies.append(client.get(server.url + "/x", max_bytes=9).body), daemon=True
    )
    thread.start()
    thread.join(10)
    assert replies == [b"ok"]


FAR = "https://8.8.8.8/x"


class Script:
    """Answers each request with the next status, headers and body, and remembers what was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def __call__(self, method, url, headers, body=None):
        self.asked.append((url, dict(headers)))
        answer = self.answers.pop(0)
        status, fields, content = answer + (0, {}, b"")[len(answer) :]
        return Response(status=status, headers=fields, body=io.BytesIO(content))


def _client(folder, *answers, **options):
    client = HttpClient(cache=folder, wait=lambda _: None, **options)
    client.wire = Script(*answers)
    return client


@pytest.mark.parametrize(
    ("status", "kind", "hint"),
    [
        (300, NetworkError, None),
        (305, NetworkError, None),
        (400, NetworkError, None),
        (401, NetworkError, "Check the credentials of the index in the settings of uv or pip."),
        (402, NetworkError, None),
        (403, NetworkError, "Check the credentials of the index in the settings of uv or pip."),
        (404, NotFoundError, None),
        (405, NetworkError, None),
        (409, NetworkError, None),
        (410, NotFoundError, None),
        (411, NetworkError, None),
        (416, NetworkError, None),
        (501, NetworkError, None),
    ],
)
def test_a_refusal_says_its_status_and_what_to_do(tmp_path, status, kind, hint):
    with pytest.raises(NetworkError) as caught:
        _client(tmp_path, (status,)).get(FAR, max_bytes=9)
    text = f"does not exist (status {status})." if kind is NotFoundError else f"server answers with status {status}."
    assert (type(caught.value), caught.value.hint) == (kind, hint)
    assert caught.value.message.startswith(f"Cannot read {FAR}: ")
    assert caught.value.message.endswith(text)


@pytest.mark.parametrize("status", [200, 203, 299])
def test_every_answer_of_success_is_taken(tmp_path, status):
    assert _client(tmp_path, (status, {}, b"ok")).get(FAR, max_bytes=9).body == b"ok"


def test_nine_redirects_are_followed_and_a_tenth_is_not(tmp_path):
    steps = [(302, {"location": f"/{number}"}) for number in range(10)]
    client = _client(tmp_path / "nine", *steps[:9], (200, {"content-type": "text/x"}, b"end"))
    reply = client.get(FAR, max_bytes=9)
    assert (reply.body, reply.url, reply.content_type) == (b"end", "https://8.8.8.8/8", "text/x")
    client = _client(tmp_path / "ten", *steps, (200, {}, b"end"))
    with pytest.raises(NetworkError, match=r"https://8\.8\.8\.8/x: the server redirects more than"):
        client.get(FAR, max_bytes=9)
    assert len(client.wire.asked) == 10


@pytest.mark.parametrize(
    ("place", "is_sent"),
    [
        ("/y", True),
        ("https://8.8.8.8/y", True),
        ("https://8.8.8.8:8443/y", False),
        ("https://9.9.9.9/y", False),
        ("https://1.1.1.1/y", False),
    ],
)
def test_a_login_is_good_for_the_scheme_host_and_port_that_it_was_named_with(tmp_path, place, is_sent):
    client = _client(tmp_path, (302, {"location": place}), (302, {"location": FAR}), (200, {}, b"ok"))
    client.get("https://user:word@8.8.8.8/x#part", max_bytes=9)
    assert client.wire.asked[0][0] == FAR
    assert ["Authorization" in headers for _, headers in client.wire.asked] == [True, is_sent, is_sent]


@pytest.mark.parametrize(
    ("user", "logins", "sent"),
    [
        ("", "", None),
        ("", "machine 9.9.9.9 login a password b", None),
        ("", "machine 8.8.8.8 login a password b", "a:b"),
        ("", "default login a password b", "a:b"),
        ("", "machine 8.8.8.8 nonsense", None),
        ("user:word@", "machine 8.8.8.8 login a password b", "user:word"),
        ("user@", "machine 8.8.8.8 login a password b", "user:"),
        (":token@", "", ":token"),
        ("us%40er:w%3Ard%25@", "", "us@er:w:rd%"),
        ("", "machine 8.8.8.8 login us%40er password w%3Ard%25", "us%40er:w%3Ard%25"),
    ],
)
def test_a_login_is_of_the_address_or_else_of_netrc(tmp_path, monkeypatch, user, logins, sent):
    (tmp_path / "logins").write_text(logins + "\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "logins"))
    client = _client(tmp_path, (200,))
    client.get(f"https://{user}8.8.8.8/x", max_bytes=9)
    expected = None if sent is None else "Basic " + base64.b64encode(sent.encode()).decode()
    assert client.wire.asked[0][1].get("Authorization") == expected


def test_a_netrc_that_is_not_there_is_no_login(tmp_path, monkeypatch):
    monkeypatch.setenv("NETRC", str(tmp_path / "gone"))
    client = _client(tmp_path, (200,))
    client.get(FAR, max_bytes=9)
    assert "Authorization" not in client.wire.asked[0][1]


@pytest.mark.parametrize(
    ("seconds", "is_kept"),
    [(0, True), (599.5, True), (600, False), (-1, False)],
)
def test_a_page_is_fresh_for_ten_minutes(tmp_path, seconds, is_kept):
    _client(tmp_path, (200, {"content-type": "text/x"}, b"one"), clock=lambda: 5000.0).get(FAR, max_bytes=9)
    client = _client(tmp_path, (200, {}, b"two"), clock=lambda: 5000.0 + seconds)
    reply = client.get(FAR, max_bytes=9)
    expected = (b"one", True, "text/x", FAR) if is_kept else (b"two", False, "", FAR)
    assert (reply.body, reply.cached, reply.content_type, reply.url) == expected


def test_a_body_with_the_hash_that_is_named_is_kept_for_ever(tmp_path):
    digest = hashlib.sha256(b"one").hexdigest()
    _client(tmp_path, (200, {}, b"one"), clock=lambda: 1.0).get(FAR, max_bytes=9, sha256=digest)
    reply = _client(tmp_path, clock=lambda: 4e9).get(FAR, max_bytes=9, sha256=digest)
    assert (reply.body, reply.cached) == (b"one", True)


@pytest.mark.parametrize(
    ("fields", "conditions"),
    [
        ({}, {}),
        ({"etag": ""}, {}),
        ({"etag": '"1"'}, {"If-None-Match": '"1"'}),
        ({"last-modified": "Mon"}, {"If-Modified-Since": "Mon"}),
        ({"etag": '"1"', "last-modified": "Mon"}, {"If-None-Match": '"1"', "If-Modified-Since": "Mon"}),
    ],
)
def test_a_kept_page_is_asked_for_with_every_validator_that_the_server_named(tmp_path, fields, conditions):
    client = _client(tmp_path, (200, fields, b"one"), (200, {}, b"two"), clock=_hours())
    assert [client.get(FAR, max_bytes=9).body for _ in range(2)] == [b"one", b"two"]
    first, second = (headers for _, headers in client.wire.asked)
    assert {key: value for key, value in second.items() if key not in first} == conditions


def test_a_304_renews_the_time_and_the_validators_and_keeps_the_rest(tmp_path):
    now = [0.0]
    answers = [(200, {"etag": '"1"', "content-type": "text/x"}, b"one"), (304, {"etag": '"2"'}), (304,)]
    client = _client(tmp_path, *answers, clock=lambda: now[0])
    replies = []
    for now[0] in (0.0, 700.0, 1200.0, 1400.0):
        replies.append(client.get(FAR, max_bytes=9))
    assert [(reply.body, reply.content_type, reply.cached) for reply in replies] == [
        (b"one", "text/x", False),
        *[(b"one", "text/x", True)] * 3,
    ]
    assert [headers.get("If-None-Match") for _, headers in client.wire.asked] == [None, '"1"', '"2"']


def test_a_page_is_kept_for_each_form_that_was_asked_for(tmp_path):
    client = _client(tmp_path, (200, {}, b"json"), (200, {}, b"html"))
    forms = ["json", "html", "json", "html"]
    assert [client.get(FAR, max_bytes=9, accept=form).body.decode() for form in forms] == forms


def test_no_login_is_kept(tmp_path):
    client = _client(tmp_path, (200, {}, b"one"))
    for _ in range(2):
        reply = client.get("https://user:hunter2@8.8.8.8/x", max_bytes=9)
    assert reply.url == FAR
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]


@pytest.mark.parametrize("encoding", ["", "identity", "gzip", "x-gzip", "GZIP"])
@pytest.mark.parametrize("limit", [0, 1, 10, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 200_000])
def test_a_body_may_be_as_long_as_the_limit_and_no_byte_longer(tmp_path, encoding, limit):
    def answer(size):
        body = random.Random(size).randbytes(size)
        return (200, {"content-encoding": encoding}, gzip.compress(body) if "gzip" in encoding.lower() else body)

    client = _client(tmp_path, answer(limit), answer(limit + 1))
    assert len(client.get(FAR, max_bytes=limit, keep=False).body) == limit
    with pytest.raises(NetworkError, match=rf"^Cannot read https://8\.8\.8\.8/x: it is longer than {limit} bytes\.$"):
        client.get(FAR, max_bytes=limit, keep=False)


def test_a_kept_body_as_long_as_the_limit_is_found_again(tmp_path):
    client = _client(tmp_path, (200, {"etag": "x" * 999}, b"x" * 100_000))
    assert [client.get(FAR, max_bytes=100_000).cached for _ in range(2)] == [False, True]


def test_a_kept_body_that_is_longer_than_the_caller_allows_is_not_returned(tmp_path):
    client = _client(tmp_path, (200, {}, b"x" * 11), (200, {}, b"x" * 10))
    client.get(FAR, max_bytes=11)

    reply = client.get(FAR, max_bytes=10)

    assert (len(reply.body), reply.cached) == (10, False)


def test_an_unknown_encoding_is_told_shortly(tmp_path):
    with pytest.raises(NetworkError) as caught:
        _client(tmp_path, (200, {"content-encoding": "A" * 99}, b"x")).get(FAR, max_bytes=9)
    assert caught.value.message == f"Cannot read {FAR}: its encoding '{'a' * 20}' is unknown."


@pytest.mark.parametrize(
    ("start", "stop", "span", "answered", "first"),
    [
        (0, 1, "bytes=0-0", "bytes 0-0/10", 0),
        (0, None, "bytes=0-", "bytes 0-9/10", 0),
        (5, 6, "bytes=5-5", "bytes 5-5/10", 5),
        (-1, None, "bytes=-1", "bytes 9-9/10", 9),
        (-10, None, "bytes=-10", "bytes 0-9/10", 0),
        (-20, None, "bytes=-20", "bytes 0-9/10", 0),
        (0, 2, "bytes=0-1", f"bytes 0-1/{'9' * 18}", 0),
        (0, 2, "bytes=0-1", f"bytes 0-1/{'9' * 19}", None),
        (0, 2, "bytes=0-1", "bytes 0-1/١٢", None),
        (0, 2, "bytes=0-1", "bytes 1-2/10", None),
        (1, 2, "bytes=1-1", "bytes 0-1/10", None),
        (-2, None, "bytes=-2", "bytes 7-9/10", None),
        (-2, None, "bytes=-2", "bytes 9-9/10", None),
        (-20, None, "bytes=-20", "bytes 1-9/10", None),
    ],
)
def test_a_stretch_is_the_one_that_was_asked_for_or_refused(tmp_path, start, stop, span, answered, first):
    client = _client(tmp_path, (206, {"content-range": answered, "content-encoding": "identity"}, b"x"))
    with (
        pytest.raises(NetworkError) if first is None else contextlib.nullcontext(),
        client.open_range(FAR, start, stop) as reply,
    ):
        assert (reply.start, reply.stream.read()) == (first, b"x")
    assert client.wire.asked[0][1]["Range"] == span


@pytest.mark.parametrize("status", [200, 204, 205, 207])
def test_a_server_that_answers_a_range_with_another_success_is_refused_with_what_to_do(tmp_path, status):
    client = _client(tmp_path, (status, {"content-range": "bytes 0-1/10"}, b"xx"))
    with (
        pytest.raises(NetworkError, match=rf"ignores range requests \(status {status}\)") as caught,
        client.open_range(FAR, 0, 2),
    ):
        pass
    assert caught.value.hint


@pytest.mark.parametrize(
    ("variable", "scheme", "is_used"),
    [
        ("HTTPS_PROXY", "https", True),
        ("HTTPS_PROXY", "http", False),
        ("HTTP_PROXY", "http", True),
        ("HTTP_PROXY", "https", False),
        ("ALL_PROXY", "http", True),
        ("ALL_PROXY", "https", True),
    ],
)
@pytest.mark.parametrize("prefix", ["http://", ""])
def test_each_variable_names_the_proxy_of_its_scheme(tls_proxy, client, monkeypatch, variable, scheme, is_used, prefix):
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name)
    monkeypatch.setenv(variable, prefix + tls_proxy.url.removeprefix("http://"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_proxy.ca))
    host = "index.corp.invalid"
    tls_proxy.routes |= {f"{place}{host}/x": lambda h: h.reply(200, b"far") for place in ("", "http://")}
    if is_used:
        assert client.get(f"{scheme}://{host}/x", max_bytes=9).body == b"far"
        return
    with pytest.raises(NetworkError, match="Cannot reach"):
        client.get(f"{scheme}://{host}/x", max_bytes=9)
    assert tls_proxy.seen == []
