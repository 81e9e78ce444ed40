"""What tests of several packages use: sample locks, a cell on an index in a folder, an index in memory and one on the loopback device."""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lock_helpers import component, fine, lock_of, uv_for
from tiny_index import TinyIndex, framework_index

from envsmith.errors import ContentError, NetworkError
from envsmith.http import NotFoundError, RangeReply, Reply
from envsmith.lock.resolve import Pinned, lock_pip
from envsmith.model.cell import Cell
from envsmith.model.component import ComponentTable, Role
from envsmith.model.lock import Lock
from envsmith.python.uv import Uv

MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the lock keeps about sdists does not come from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def table() -> ComponentTable:
    return ComponentTable.of(
        [
            component("deepspeed", Role.FRAMEWORK, "deepspeed"),
            component("python", Role.CORE),
            component("cuda", Role.CORE),
            component("torch", Role.CORE, "torch"),
            component("nccl", Role.CORE, "nvidia-nccl-cu12"),
            component("driver", Role.HOST),
            component("numpy", Role.COMPANION, "numpy"),
            component("apex", Role.COMPANION),
        ]
    )


@pytest.fixture(scope="session")
def cell() -> Cell:
    components = {"deepspeed": "0.18.5", "torch": "2.9.1+cu128", "cuda": "12.8", "python": MINOR, "nccl": "2.27.5"}
    return Cell(components=components, chosen=("deepspeed", "torch", "cuda", "python"))


@pytest.fixture
def index(tmp_path: Path) -> TinyIndex:
    return framework_index(tmp_path / "index")


@pytest.fixture
def uv(index: TinyIndex, tmp_path: Path) -> Uv:
    return uv_for(index.url, tmp_path / "uv-cache")


@pytest.fixture(scope="session")
def pinned(cell: Cell, table: ComponentTable, tmp_path_factory: pytest.TempPathFactory) -> Pinned:
    """Resolved once for all tests that only read it."""
    folder = tmp_path_factory.mktemp("shared")
    tool = uv_for(framework_index(folder / "index").url, folder / "uv-cache")
    return lock_pip(cell, exclude_newer="2026-11-20", table=table, uv=tool, judge=fine)


@pytest.fixture(scope="session")
def lock(cell: Cell, pinned: Pinned) -> Lock:
    return lock_of(cell, pinned)


@pytest.fixture(scope="session")
def locks(load_file):
    return load_file("tests/unit/sample_locks.py")


@pytest.fixture
def events():
    """A progress that remembers; ``events.seen`` are (kind, step, text)."""

    class Recorder:
        def __init__(self):
            self.seen = []

        def __call__(self, event):
            self.seen.append((event.kind.value, event.step, event.text))

        def kinds(self, step):
            return [kind for kind, s, _ in self.seen if s == step]

    return Recorder()


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
