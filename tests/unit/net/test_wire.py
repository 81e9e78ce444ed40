"""One request: sent as often as is sensible, its body whole, its patience bounded, its failure in plain words."""

from __future__ import annotations

import io
import ssl
import time

import httpcore
import httpx
import pytest

from envsmith.net.wire import RETRY, HttpWire, Response, _Paced, ask, pause


def test_a_kept_connection_has_its_whole_patience_for_each_exchange(server):
    wire = HttpWire(timeout=0.4)

    def late(handler):
        time.sleep(0.15)
        handler.reply(200, b"late")

    server.routes["/late"] = late
    for _ in range(5):
        with wire("GET", server.url + "/late", {}) as response:
            assert response.body.read() == b"late"


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


@pytest.mark.parametrize("status", [*range(200, 209), *range(300, 309), *range(400, 432), 451, *range(500, 512)])
def test_only_answers_that_may_come_right_by_themselves_are_asked_for_again(status):
    waited = []

    ask(Wire(status, 200), "GET", "https://x.example/", {}, wait=waited.append)

    assert len(waited) == (status in {408, 425, 429, 500, 502, 503, 504})


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
def test_a_caller_may_name_how_often_a_request_is_sent(attempts):
    wire, waited = Wire(*[503] * 9), []

    answer = ask(wire, "GET", "https://x.example/", {}, attempts=attempts, wait=waited.append)

    assert (answer.status, len(wire.bodies), len(waited)) == (503, attempts, attempts - 1)
    with pytest.raises(ConnectionError):
        ask(
            Wire(*[ConnectionError("reset")] * attempts, 200),
            "GET",
            "https://x.example/",
            {},
            attempts=attempts,
            wait=id,
        )


def test_a_request_without_a_waiter_sleeps():
    start = time.monotonic()

    assert ask(Wire(503, (503, "0"), 200), "GET", "https://x.example/", {}).status == 200

    assert time.monotonic() - start >= 0.5


def _failing(error, context=None, cause=None):
    """Return a body that breaks a request off with ``error``, which came of ``context``, which came of ``cause``."""
    error.__context__ = context
    if context:
        context.__cause__ = cause
    yield b"x"
    raise error


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (_failing(httpx.ReadError("the peer left")), ConnectionError, "the peer left"),
        (_failing(httpx.ReadError("")), ConnectionError, "ReadError"),
        (_failing(httpx.InvalidURL("no host")), ConnectionError, "no host"),
        (_failing(httpx.ConnectTimeout("timed out")), ConnectionError, "timed out"),
        (_failing(httpx.ReadTimeout("x")), TimeoutError, "the server is silent or too slow"),
        (_failing(httpx.WriteTimeout("")), TimeoutError, "the server is silent or too slow"),
        (_failing(httpx.ConnectError("x"), ssl.SSLError("not trusted")), ssl.SSLError, "not trusted"),
        (_failing(httpx.ConnectError("x"), OSError("y"), ssl.SSLError("deeper")), ssl.SSLError, "deeper"),
        (_failing(httpx.ConnectError("x"), OSError("y"), OSError("z")), ConnectionError, "x"),
    ],
)
def test_what_stopped_a_request_is_told_in_the_words_of_the_lowest_layer_that_has_some(server, body, kind, text):
    server.routes["/x"] = lambda h: h.reply(200)

    with pytest.raises(OSError) as caught:
        HttpWire()("PUT", server.url + "/x", {"Content-Length": "9"}, body)

    assert (type(caught.value), caught.value.args[-1]) == (kind, text)


class Stream:
    """A connection that gives what is asked for at once and remembers how long it might have waited."""

    def __init__(self):
        self.waits = []

    def read(self, max_bytes, timeout=None):
        self.waits.append(timeout)
        return bytes(max_bytes)

    def write(self, buffer, timeout=None):
        self.waits.append(timeout)

    def start_tls(self, ssl_context, server_hostname, timeout):
        self.waits.append(timeout)
        return self


@pytest.mark.parametrize(
    ("steps", "waits"),
    [
        (["read 1", "read 1"], [60, 60]),
        (["tls", "write 1", "read 1"], [60, 60, 60]),
        (["read 65536", "read 1"], [60, 60]),
        (["spend 50", "read 1", "read 1"], [10, 10]),
        (["spend 50", "tls", "read 1"], [10, 10]),
        (["spend 50", "read 65536", "read 1"], [10, 18]),
        (["spend 50", "read 16384", "read 1"], [10, 12]),
        (["spend 50", "write 1", "write 1"], [10, 18]),
        (["spend 50", "write 65536", "read 1"], [10, 18]),
        (["spend 50", "write 65537", "read 1"], [10, 18, 26]),
        (["spend 50", "read 1", "write 1", "read 1"], [10, 60, 60]),
        (["read 1", "write 1", "spend 50", "write 1", "read 1"], [60, 60, 10, 18]),
        (["spend 50", "read 1", "spend 11"], [10, "given up"]),
        (["spend 50", "write 1", "spend 30"], [10, "given up"]),
        (["read 1", "spend 60"], [60, "given up"]),
        (["spend 59", "read 1"], [1]),
        (["spend 61"], ["given up"]),
    ],
)
@pytest.mark.parametrize("bound", [None, 5, 100])
def test_an_exchange_has_its_patience_and_what_the_bytes_need_at_the_slowest(steps, waits, bound):
    inner = Stream()
    stream, ends = _Paced(inner, 60), []
    for step in steps:
        kind, _, number = step.partition(" ")
        try:
            if kind == "spend":
                stream.spend(time.monotonic() - int(number))
            elif kind == "read":
                assert len(stream.read(int(number), bound)) == int(number)
            elif kind == "write":
                stream.write(bytes(int(number)), bound)
            else:
                assert stream.start_tls(None, "x.example", bound) is stream
        except httpcore.ReadTimeout:
            ends.append("given up")
    expected = [wait if wait == "given up" else min(wait, bound or wait) for wait in waits]
    assert [*(round(wait) for wait in inner.waits), *ends] == expected


@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 200_001])
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_body_that_is_sent_arrives_whole_and_in_order(server, size, is_stream):
    arrived, body = [], (bytes(range(251)) * 800)[:size]

    def take(handler):
        arrived.append(handler.rfile.read(int(handler.headers["Content-Length"])))
        handler.reply(201)

    server.routes["/x"] = take

    with HttpWire(timeout=5)(
        "PUT", server.url + "/x", {"Content-Length": str(size)}, iter([body[:7], body[7:]]) if is_stream else body
    ) as response:
        assert response.status == 201

    assert arrived == [body]


@pytest.mark.parametrize("size", [1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 200_001])
def test_a_body_that_is_read_in_pieces_is_whole_and_counted(server, size):
    wire, body = HttpWire(timeout=5), (bytes(range(251)) * 800)[:size]
    server.routes["/x"] = lambda h: h.reply(200, body)

    with wire("GET", server.url + "/x", {}) as response:
        first, rest = response.body.read(10), response.body.read()

    assert first + rest == body
    assert (wire.requests, wire.bytes_read, response.body.closed) == (1, size, True)


def test_a_server_that_refuses_is_told_without_the_number_of_the_error():
    with pytest.raises(ConnectionError, match=r"^Connection refused$"):
        HttpWire()("GET", "http://127.0.0.1:9/", {})
