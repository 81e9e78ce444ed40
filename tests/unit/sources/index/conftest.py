"""A package index in memory and one on the loopback device; no test of this folder leaves the machine."""

from __future__ import annotations

import contextlib
import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from envsmith.errors import ContentError, NetworkError
from envsmith.http import NotFoundError, RangeReply, Reply


class MemoryFetcher:
    """A Fetcher over a dict; counts what is asked."""

    def __init__(self):
        self.files = {}
        self.types = {}
        self.asked = []

    def get(self, url, *, max_bytes, accept=None, sha256=None, keep=True):
        self.asked.append(url)
        if url not in self.files:
            raise NotFoundError(f"{url} does not exist")
        body = self.files[url]
        if len(body) > max_bytes:
            raise NetworkError("too long")
        if sha256 and hashlib.sha256(body).hexdigest() != sha256:
            raise ContentError("another file")
        return Reply(body=body, url=url, content_type=self.types.get(url, "text/html"))

    @contextlib.contextmanager
    def open_range(self, url, start, stop=None):
        self.asked.append(f"{url} {start} {stop}")
        if url not in self.files:
            raise NotFoundError(f"{url} does not exist")
        body = self.files[url]
        first = max(0, len(body) + start) if start < 0 else start
        yield RangeReply(stream=io.BytesIO(body[first:stop]), start=first, total=len(body))


@pytest.fixture
def fetcher():
    return MemoryFetcher()


@pytest.fixture
def make_wheel():
    def build(members, compression=zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", compression) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return buffer.getvalue()

    return build


@pytest.fixture
def server():
    """``server.routes[path] = callable(handler)``; ``server.seen`` are the requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.seen.append(self)
            self.server.routes.get(self.path, lambda h: h.reply(404))(self)

        def reply(self, status, body=b"", **headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_):
            """A client that hangs up on a body that is too long is what some tests want."""

    running = Server(("127.0.0.1", 0), Handler)
    running.routes = {}
    running.seen = []
    running.url = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()
