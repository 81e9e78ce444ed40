"""Cache files that were damaged, moved, exchanged, forged by another user or dated by a wrong clock.

After each mutation the verbs that read the cache are run as a user would run them. Their answers and exit codes must be
those of an empty cache. The index of ``matrix refresh`` is one on the loopback device.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import os
import shutil
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

from envsmith.base import cache
from envsmith.base.cache import store_entry
from envsmith.cli.app import run
from envsmith.knowledge.graph.location import find_matrix
from envsmith.net import http
from hostile import Tally

TITLE = "mutations of the cache"
GOAL = 320
FAILURES = ("believed wrongly", "internal errors", "signals")

_INTERNAL = 70
_SECONDS = 300
_TEXT = """torch==2.5.1
deepspeed==0.16.0
Traceback (most recent call last):
  File "train.py", line 1, in <module>
    import torch
ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory
"""
_VERBS = {
    "check": ("check", "torch==2.5.1", "python==3.14", "--json"),
    "solve": ("solve", "--framework", "deepspeed", "--json"),
    "doctor": ("doctor", "--from", "{folder}/report.txt", "--json"),
    "refresh": ("matrix", "refresh", "--component", "numpy", "--matrix", "{folder}/matrix"),
}
# What is read by which verbs, and a lie of the same length. Those of _BITING change an answer when they are believed.
_KINDS = {
    "graph": (("check", "solve"), b"3.14", b"3.15"),
    "texts": (("check",), b"torch", b"lorch"),
    "signatures": (("doctor",), b"is not found: torch 2.4", b"is not found: torch 2.5"),
    "rules": (("doctor",), b"torch", b"lorch"),
    "words": (("doctor",), b"torch", b"lorch"),
    "variables": (("doctor",), b"NCCL", b"LCCN"),
    "http": (("refresh",), b'"filename": "numpy-99.0', b'"filename": "numpy-98.0'),
    "release": (("refresh",), b">=3.11", b">=3.12"),
}
_BITING = frozenset({"graph", "signatures", "http", "release"})
# The children share what these import. What they read is each child's own.
_MODULES = (
    "envsmith.cli.check",
    "envsmith.cli.solve",
    "envsmith.cli.doctor",
    "envsmith.cli.matrix",
    "envsmith.knowledge.graph.read",
    "envsmith.matrix.refresh.updates",
    "httpx",
    "yaml",
    "networkx",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache, by its place below it, and what it was made of."""

    place: str
    made_of: str
    raw: bytes

    @property
    def kind(self) -> str:
        """Return the first word of the place: ``graph``, ``signatures``, ``http``; ``release`` for facts."""
        parts = Path(self.place).parts
        return parts[1] if parts[0] == "facts" else parts[0].partition("-")[0]

    def lie(self) -> bytes:
        """Return the content with something else in it."""
        _, old, new = _KINDS[self.kind]
        return self.raw[40:].replace(old, new)


def attack(tally: Tally, count: int, random: Random, folder: Path) -> None:
    """Mutate one file of a full cache ``count`` times and compare the answers with those of an empty one."""
    shutil.copytree(find_matrix(), folder / "matrix", ignore=shutil.ignore_patterns("records"))
    (folder / "report.txt").write_text(_TEXT)
    for module in _MODULES:
        importlib.import_module(module)
    with _index() as url:
        os.environ |= {"ENVSMITH_MATRIX": str(folder / "matrix"), "UV_DEFAULT_INDEX": url, "NO_COLOR": "1"}
        honest = {name: _answers(folder, folder / "empty" / name, (name,))[0] for name in _VERBS}
        entries = _fill(folder)
        pristine = folder / "pristine" / "envsmith"
        _check_bite(folder, pristine, entries, honest)
        for number in range(count):
            entry = entries[number % len(entries)]
            name, mutate = random.choice(_MUTATIONS)
            tally.tried += 1
            _one(tally, name, mutate, Attack(random, folder, pristine, entry, entries), honest)


@dataclass(frozen=True, slots=True)
class Attack:
    """One mutation: its dice, the entry, and a copy of the full cache in which it happens."""

    random: Random
    folder: Path
    pristine: Path
    entry: Entry
    entries: Sequence[Entry]

    @property
    def cache(self) -> Path:
        """Return the folder of the mutated cache."""
        return self.folder / "mutated" / "envsmith"

    @property
    def path(self) -> Path:
        """Return the file that is mutated."""
        return self.cache / self.entry.place

    def forge(self, path: Path | None = None, *, made_of: str = "", ahead: float = 0.0) -> Path:
        """Write a lie as somebody who knows the format would, of this key unless ``made_of`` is another."""
        path = path or self.path
        clock = lambda: time.time() + ahead  # noqa: E731 - a clock is a function
        store_entry(path, made_of or self.entry.made_of, self.entry.lie(), clock=clock)
        return path


def _one(
    tally: Tally, name: str, mutate: Callable[[Attack], object], attack: Attack, honest: dict[str, list[object]]
) -> None:
    shutil.rmtree(attack.cache.parent, ignore_errors=True)
    shutil.copytree(attack.pristine, attack.cache, copy_function=shutil.copy2)
    mutate(attack)
    verbs = _KINDS[attack.entry.kind][0]
    for verb, answer in zip(verbs, _answers(attack.folder, attack.cache.parent, verbs), strict=True):
        what = f"{name} of {attack.entry.kind}, {verb}"
        if answer[0] == _INTERNAL:
            tally.fail("internal errors", what)
        elif answer[0] == "signal":
            tally.fail("signals", what)
        elif answer != honest[verb]:
            tally.fail("believed wrongly", f"{what}: {str(answer)[:120]}")


def _check_bite(folder: Path, pristine: Path, entries: Sequence[Entry], honest: dict[str, list[object]]) -> None:
    """Raise ``RuntimeError`` when a lie of the right key, written by the user, would not change an answer."""
    for entry in (entry for entry in entries if entry.kind in _BITING):
        attack = Attack(Random(0), folder, pristine, entry, entries)
        shutil.rmtree(attack.cache.parent, ignore_errors=True)
        shutil.copytree(pristine, attack.cache)
        attack.forge()
        verbs = _KINDS[entry.kind][0]
        if all(a == honest[v] for v, a in zip(verbs, _answers(folder, attack.cache.parent, verbs), strict=True)):
            raise RuntimeError(f"the lie in {entry.place} changes nothing: choose another")


# -- mutations ---------------------------------------------------------------------------------------------------------


def _flip(attack: Attack) -> None:
    content = bytearray(attack.entry.raw)
    for _ in range(attack.random.randint(1, 8)):
        content[attack.random.randrange(len(content))] ^= 1 << attack.random.randrange(8)
    attack.path.write_bytes(content)


def _zero(attack: Attack) -> None:
    content, start = bytearray(attack.entry.raw), attack.random.randrange(len(attack.entry.raw))
    content[start : start + 4096] = bytes(len(content[start : start + 4096]))
    attack.path.write_bytes(content)


def _cut(attack: Attack) -> None:
    attack.path.write_bytes(attack.entry.raw[: attack.random.randrange(len(attack.entry.raw))])


def _grow(attack: Attack) -> None:
    attack.path.write_bytes(attack.entry.raw + attack.random.randbytes(attack.random.randint(1, 99)))


def _changed(attack: Attack) -> None:
    attack.path.write_bytes(attack.entry.raw[:40] + attack.entry.lie())


def _of_another_key(attack: Attack) -> None:
    attack.forge(made_of="another state of the files")


def _swapped(attack: Attack) -> None:
    attack.path.write_bytes(attack.random.choice([e for e in attack.entries if e != attack.entry]).raw)


def _writable_by_others(attack: Attack) -> None:
    attack.forge().chmod(attack.random.choice([0o666, 0o622, 0o660, 0o602]))


def _of_another_user(attack: Attack) -> None:
    if os.getuid() == 0:
        os.chown(attack.forge(), 12345, -1)
    else:
        _writable_by_others(attack)


def _linked(attack: Attack) -> None:
    place = attack.forge(attack.folder / "elsewhere")
    attack.path.unlink()
    attack.path.symlink_to(place)


def _folder(attack: Attack) -> None:
    attack.path.unlink()
    attack.path.mkdir()


def _pipe(attack: Attack) -> None:
    attack.path.unlink()
    os.mkfifo(attack.path)


def _older_schema(attack: Attack) -> None:
    lie = attack.entry.lie()
    head = {"url": "", "stored": time.time(), "fields": {}, "sha256": hashlib.sha256(lie).hexdigest()}
    older = [
        hashlib.sha256(lie).digest() + lie,
        json.dumps({"schema": 3, "key": attack.entry.made_of, "value": "whole"}).encode(),
        json.dumps({"version": 2, "facts": {}}).encode(),
        json.dumps(head).encode() + b"\n" + lie,
    ]
    attack.path.write_bytes(attack.random.choice(older))


def _from_the_future(attack: Attack) -> None:
    """Date a page ahead that a server gave before it changed. Other entries are true whatever their time."""
    if attack.entry.kind == "http":
        attack.forge(ahead=10.0 ** attack.random.randint(3, 9))
    moment = time.time() + 10.0 ** attack.random.randint(3, 9)
    os.utime(attack.path, (moment, moment))


def _crowded(attack: Attack) -> None:
    """Fill the folder with files of the same kind from the future."""
    _cut(attack)
    for number in range(15):
        other = attack.path.with_name(f"{attack.path.name.partition('-')[0]}-{number}")
        other.write_bytes(b"x")
        os.utime(other, (4e9, 4e9))


def _no_folder(attack: Attack) -> None:
    shutil.rmtree(attack.cache)
    attack.cache.write_text("a file where the cache was")


_MUTATIONS: Sequence[tuple[str, Callable[[Attack], object]]] = (
    ("bits flipped", _flip),
    ("a block of zeros", _zero),
    ("cut", _cut),
    ("grown", _grow),
    ("changed", _changed),
    ("a lie of another key", _of_another_key),
    ("swapped with another entry", _swapped),
    ("forged, writable by others", _writable_by_others),
    ("forged by another user", _of_another_user),
    ("a link to a forged entry", _linked),
    ("a folder", _folder),
    ("a pipe", _pipe),
    ("an older schema", _older_schema),
    ("from the future", _from_the_future),
    ("crowded out", _crowded),
    ("a file instead of the cache", _no_folder),
)


# -- the verbs, each run in a child of its own -------------------------------------------------------------------------


def _answers(folder: Path, cache_home: Path, verbs: Sequence[str]) -> list[list[object]]:
    """Return exit code and standard output of each verb, run in one child with this cache."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        signal.alarm(_SECONDS)
        with os.fdopen(write_end, "w") as pipe:
            os.environ["XDG_CACHE_HOME"] = str(cache_home)
            json.dump([_run(folder, verb) for verb in verbs], pipe)
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    answers: list[list[object]] = json.loads(text) if status == 0 else [["signal", str(status)]] * len(verbs)
    return answers


def _run(folder: Path, verb: str) -> list[object]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
        code = run([word.format(folder=folder) for word in _VERBS[verb]])
    return [code, output.getvalue()]


def _fill(folder: Path) -> list[Entry]:
    """Fill a cache and return its entries that matter, with their keys."""
    log = folder / "keys.jsonl"
    child = os.fork()
    if child == 0:
        os.environ["XDG_CACHE_HOME"] = str(folder / "pristine")

        def recorded(path: Path, made_of: str, content: bytes, **_options: object) -> None:
            store_entry(path, made_of, content)
            with log.open("a") as file:
                file.write(json.dumps([str(path), made_of]) + "\n")

        cache.store_entry = http.store_entry = recorded  # type: ignore[assignment]
        for verb in _VERBS:
            _run(folder, verb)
        os._exit(0)
    os.waitpid(child, 0)
    root = folder / "pristine" / "envsmith"
    keys = dict(json.loads(line) for line in log.read_text().splitlines())
    entries = [Entry(str(Path(p).relative_to(root)), key, Path(p).read_bytes()) for p, key in keys.items()]
    return [entry for entry in entries if entry.kind in _KINDS and entry.lie() != entry.raw[40:]]


@contextlib.contextmanager
def _index() -> Iterator[str]:
    """Serve a package index with one release of one project."""
    metadata = b"Metadata-Version: 2.1\nName: numpy\nVersion: 99.0\nRequires-Python: >=3.11\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        wheel.writestr("numpy-99.0.dist-info/METADATA", metadata)
    name, body = "numpy-99.0-py3-none-any.whl", buffer.getvalue()
    file = {
        "filename": name,
        "url": name,
        "size": len(body),
        "upload-time": "2026-11-01T00:00:00Z",
        "hashes": {"sha256": hashlib.sha256(body).hexdigest()},
        "core-metadata": True,
    }
    page = json.dumps({"meta": {"api-version": "1.1"}, "name": "numpy", "files": [file]}).encode()
    routes = {"/simple/numpy/": page, f"/simple/numpy/{name}": body, f"/simple/numpy/{name}.metadata": metadata}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = routes.get(self.path)
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Type", "application/json" if content is page else "application/octet-stream")
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
