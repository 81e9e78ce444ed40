"""What the HTTP client promises: cached, conditional, bounded, honest about failures, silent about secrets."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import ssl
import threading
import time

import pytest

from envsmith.errors import ContentError, NetworkError, UsageError
from envsmith.http import (
    RETRY,
    HttpClient,
    HttpWire,
    NotFoundError,
    Response,
    ask,
    ca_bundle,
    follow,
    pause,
    redact,
    ssl_context,
)


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
    client = HttpClient(cache=tmp_path, fresh_for=0)
    server.routes["/page"] = lambda h: (
        h.reply(304) if h.headers["If-None-Match"] == '"v1"' else h.reply(200, b"one", ETag='"v1"')
    )
    client.get(server.url + "/page", max_bytes=100)
    again = client.get(server.url + "/page", max_bytes=100)
    third = client.get(server.url + "/page", max_bytes=100)
    assert (again.body, again.cached, third.cached) == (b"one", True, True)
    assert [h.headers["If-None-Match"] for h in server.seen] == [None, '"v1"', '"v1"']


def test_a_changed_page_replaces_the_kept_one(server, tmp_path):
    client = HttpClient(cache=tmp_path, fresh_for=0)
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
    offline = HttpClient(cache=tmp_path, offline=True, fresh_for=0)
    assert offline.get(server.url + "/page", max_bytes=100).cached
    with pytest.raises(NetworkError, match="not in the cache"):
        offline.get(server.url + "/other", max_bytes=100)
    with pytest.raises(NetworkError, match="switched off"), offline.open_range(server.url + "/page", 0, 5):
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
    with pytest.raises(NetworkError, match="again and again"):
        client.get(server.url + "/page", max_bytes=100)


def test_a_redirect_to_an_unencrypted_address_is_refused(tls_server, client, tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_server.ca))
    tls_server.routes["/x"] = lambda h: h.reply(302, Location="http://localhost:9/x")
    with pytest.raises(NetworkError, match="unencrypted"):
        client.get(tls_server.url + "/x", max_bytes=100)


HERE, THERE = "https://index.test/simple/", "https://8.8.8.8/simple/"


@pytest.mark.parametrize(
    ("before", "location", "place"),
    [
        (HERE, "x/", "https://index.test/simple/x/"),
        (HERE, "//files.test/x", "https://files.test/x"),
        (THERE, "https://9.9.9.9/x", "https://9.9.9.9/x"),
        ("http://index.test/x", "http://files.test/x", "http://files.test/x"),
        ("http://index.test/x", "https://files.test/x", "https://files.test/x"),
        ("https://10.0.0.1/x", "https://192.168.0.2/x", "https://192.168.0.2/x"),
        ("https://10.0.0.1/x", "https://8.8.8.8/x", "https://8.8.8.8/x"),
        ("http://127.0.0.1:1/x", "http://localhost:2/x", "http://localhost:2/x"),
        ("http://127.0.0.1:1/x", "https://10.0.0.1/x", "https://10.0.0.1/x"),
        ("https://localhost/x", "https://[::1]/x", "https://[::1]/x"),
    ],
)
def test_a_server_may_lead_to_places_that_are_as_far_and_as_closed_as_its_own(before, location, place):
    assert follow(before, location) == place


@pytest.mark.parametrize(
    ("before", "location"),
    [
        (HERE, "file:///etc/passwd"),
        (HERE, "ftp://index.test/x"),
        (HERE, "javascript:x"),
        (HERE, "http://index.test/x"),
        (HERE, "http://localhost/x"),
        (HERE, "https://[nonsense/x"),
        (HERE, "https://index.test:port/x"),
        (HERE, "https://localhost/x"),
        (THERE, "https://127.0.0.1:8080/x"),
        (THERE, "https://[::1]/x"),
        (THERE, "https://[::ffff:127.0.0.1]/x"),
        (THERE, "https://0.0.0.0/x"),
        (THERE, "https://2130706433/x"),
        (THERE, "https://169.254.169.254/latest/meta-data"),
        (THERE, "https://[fe80::1]/x"),
        (THERE, "https://10.0.0.1/x"),
        (THERE, "https://[fd00::1]/x"),
        (THERE, "https://100.64.0.1/x"),
        ("https://10.0.0.1/x", "https://127.0.0.1/x"),
        ("https://10.0.0.1/x", "https://169.254.169.254/x"),
        ("http://10.0.0.1/x", "http://127.0.0.1/x"),
        ("http://127.0.0.1:1/x", "http://10.0.0.1/x"),
    ],
)
def test_a_server_may_not_lead_to_files_open_ways_or_closer_to_this_machine(before, location):
    with pytest.raises(NetworkError):
        follow(before, location)


def test_what_the_user_named_decides_and_not_the_stop_before():
    assert follow("https://8.8.8.8/x", "https://10.0.0.2/x", first="https://10.0.0.1/x") == "https://10.0.0.2/x"
    with pytest.raises(NetworkError, match="closer to this machine"):
        follow("https://10.0.0.1/x", "https://10.0.0.2/x", first="https://8.8.8.8/x")


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


def test_a_kept_connection_has_its_whole_patience_for_each_exchange(server):
    wire = HttpWire(timeout=0.4)

    def late(handler):
        time.sleep(0.15)
        handler.reply(200, b"late")

    server.routes["/late"] = late
    for _ in range(5):
        with wire("GET", server.url + "/late", {}) as response:
            assert response.body.read() == b"late"


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
    with pytest.raises(NetworkError, match="cannot be reached"):
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
    with pytest.raises(NetworkError, match="unknown encoding"):
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


def test_the_connection_is_kept_for_the_next_request(server):
    wire, connections = HttpWire(), set()

    def answer(handler):
        connections.add(handler.client_address)
        handler.reply(201 if handler.command == "PUT" else 200, b"" if handler.command == "PUT" else b"body")

    server.routes["/x"] = answer
    for method in ("HEAD", "PUT", "HEAD", "GET", "PUT"):
        with wire(method, server.url + "/x", {}) as response:
            response.body.read()
    for _ in range(3):
        with wire("PUT", server.url + "/x", {}):
            """Nobody reads what is empty."""
    assert len(connections) == 1


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


def test_the_first_bundle_that_is_there_counts_and_pips_setting_is_the_last(tmp_path):
    names = ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"]
    files = {name: tmp_path / f"{name}.pem" for name in names}
    conf = tmp_path / "pip.conf"
    conf.write_text(f"[global]\ncert = {tmp_path / 'conf.pem'}\n")
    (tmp_path / "conf.pem").write_text("x")
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(conf)}
    for name in names[:3]:
        environ[name] = str(tmp_path / "gone.pem")
        assert ca_bundle(environ) == tmp_path / "conf.pem"
    for name in reversed(names):
        files[name].write_text("x")
        environ[name] = str(files[name])
        assert ca_bundle(environ) == files[name]


def test_without_a_bundle_the_system_decides(tmp_path):
    assert ca_bundle({"HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}) is None


def test_a_bundle_without_a_certificate_is_a_usage_error_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "ca.pem").write_text("nothing")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with pytest.raises(UsageError, match=r"ca\.pem"):
        ssl_context()


def test_redact_keeps_what_identifies_and_drops_what_opens():
    assert redact("https://user:secret@index.test:8443/simple/x/#sha256=1") == "https://index.test:8443/simple/x/"


@pytest.mark.parametrize(
    ("attempt", "said", "seconds"),
    [
        (1, "", 0.5),
        (2, "", 1),
        (3, "", 2),
        (4, "", 4),
        (9, "", 30),
        (1, "7", 7),
        (1, "0", 0),
        (3, "31", 30),
        (2, "-1", 1),
        (2, "soon", 1),
    ],
)
def test_the_wait_doubles_unless_the_server_says_how_long_it_takes(attempt, said, seconds):
    assert pause(attempt, said) == seconds


class Wire:
    """Answers as the script says: a status with what the server says about waiting, or an error."""

    def __init__(self, *script):
        self.script, self.bodies = list(script), []

    def __call__(self, method, url, headers, body=None):
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        status, said = step if isinstance(step, tuple) else (step, "")
        self.bodies.append(io.BytesIO(b"x"))
        return Response(status=status, headers={"retry-after": said} if said else {}, body=self.bodies[-1])


@pytest.mark.parametrize(
    ("script", "status", "waits"),
    [
        ([200], 200, []),
        ([404], 404, []),
        *(([status, 200], 200, [0.5]) for status in sorted(RETRY)),
        ([503, 500, 429, 200], 200, [0.5, 1, 2]),
        ([503, 503, 503, 503, 200], 503, [0.5, 1, 2]),
        ([(503, "9"), 200], 200, [9]),
        ([ConnectionError("reset"), 503, 200], 200, [0.5, 1]),
        ([ConnectionError("reset")] * 3 + [200], 200, [0.5, 1, 2]),
    ],
)
def test_a_request_is_sent_four_times_at_most_and_each_answer_that_is_not_used_is_closed(script, status, waits):
    wire, waited = Wire(*script), []

    answer = ask(wire, "GET", "https://x.example/", {}, wait=waited.append)

    assert (answer.status, waited) == (status, waits)
    assert [body.closed for body in wire.bodies] == [True] * (len(wire.bodies) - 1) + [False]


@pytest.mark.parametrize(
    ("error", "asked"), [(ConnectionError("reset"), 4), (TimeoutError("late"), 1), (ssl.SSLError("not trusted"), 1)]
)
def test_an_error_is_passed_on_after_the_last_attempt_or_at_once_where_asking_again_is_of_no_use(error, asked):
    wire = Wire(*[error] * 9)

    with pytest.raises(type(error)):
        ask(wire, "GET", "https://x.example/", {}, wait=lambda _: None)

    assert 9 - len(wire.script) == asked
