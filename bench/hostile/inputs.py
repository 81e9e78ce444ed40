"""Hostile inputs to every verb: files, folders, stdin, arguments and environment variables.

Verbs and options are read from the command line itself, so that a new one is attacked without a change here. Each try is
a child of its own, so that a signal, a hang or a leak is the child's.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import click

from hostile import Tally

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "fuzz")]

TITLE = "hostile inputs, all verbs"
GOAL = 5000
FAILURES = ("internal error", "signal", "too slow", "unknown exit code")
_CPU_SECONDS, _WALL_SECONDS, _MEMORY, _OUTPUT = 25, 150, 8 << 30, 256 << 20
# The verbs that judge every cell take half a minute each, whatever they are given.
_LONG, _LONG_CPU_SECONDS = {"site", "export"}, 100

# What stands beside the attacked option, so that the verb gets as far as reading it, without a network and within the folder.
_BASES: dict[str, dict[str, list[str]]] = {
    "solve": {"--framework": ["deepspeed"]},
    "lock": {"--framework": ["deepspeed"], "--offline": [], "--output": ["out"]},
    "build": {"--framework": ["deepspeed"], "--offline": [], "--output": ["out"], "--engine": ["venv"]},
    "smoke": {"--emit": ["kubernetes"], "--image": ["x.example/y:z"], "--gpus": ["1"], "--output": ["out"]},
    "check": {"pairs": ["torch==2.6.0", "deepspeed==0.16.0"]},
    "doctor": {"--from": ["seed.txt"]},
    "explain": {"subject": ["deepspeed"]},
    "publish": {"cell": ["cell"], "--bundle": ["bundle.tar"]},
    "verify": {"--bundle": ["layout"]},
    "completion": {"shell": ["bash"]},
    "init": {"directory": ["library"]},
    "matrix refresh": {"--component": ["torch"], "--matrix": ["matrix"]},
    "matrix run": {"file": ["campaign.yaml"], "--state": ["state"]},
    "matrix merge": {"sources": ["records"], "--matrix": ["matrix"]},
    "matrix show": {"cell": ["ds0.19.8-torch2.13.0-cu130-py312"]},
    "matrix export": {"--output": ["out"]},
    "matrix site": {"--output": ["out"]},
    "ci check": {"directory": ["library"]},
    "ci matrix": {"directory": ["library"]},
    "ci run": {"job": ["x"], "directory": ["library"]},
}
# Options that exclude those of the base.
_ALONE = {"--cells": ("--framework",), "--read-logs": ("--emit", "--image", "--gpus"), "--compare": ("--from",)}
# What a verb reads in a folder that it is given.
_FOLDERS = {
    "library": ("envsmith.yaml", "pyproject.toml", "setup.cfg", "requirements.txt", "environment.yml", "METADATA"),
    "cell": ("lock.json", "pylock.toml", "requirements.txt", "record.json", "conda-lock.yml", "image.json"),
    "layout": ("index.json", "oci-layout", "blobs/sha256/" + "0" * 64),
    "records": ("a.json", "record.json", "cell/record.json"),
    "matrix": ("components.yaml", "rules/deepspeed.yaml", "releases/torch.yaml", "expiry.yaml", "collectives.yaml"),
    "home": (".netrc", ".docker/config.json", ".config/pip/pip.conf", ".config/uv/uv.toml", ".condarc"),
}
_TEXTS = [
    "", " ", "-", "--", "=", "==", "*", "[]", "{}", "{0}", "%s%n", "²", "٣", "\x1b[31mred\x1b[0m", "\x9b31m", "\x80", "\udcff\udc80", "a\nb",
    "a\r\nb", "[bold]x[/]", "[/]", "9" * 5000, "1" * 400, "1." * 3000, "9" * 20, "-1", "0", "1e309", "nan", "inf", "0x10", "1_0", "a" * 100_000,
    "2026-99-99", "0000-00-00", "9999-12-31", "none", "cpu", "null", "true", "../..", "a/../b", "~nobody", "\u202e", "\ufeff", "\U0010ffff",
    "torch==" + "9" * 5000, ">=1,<", ">=" + "9" * 4400, "1!2.0", "2.0.dev" + "9" * 4400, "sm_" + "9" * 300, "torch==2.6.0; rm", "x" * 300 + "==1",
    "deepspeed", "deepspeed>=0.16", "torch==2.6.0", "gpu==h100", "gpus=" + "9" * 5000, "limit.shm=" + "9" * 4000 + "M", "config.a.b=" + "[" * 500, "ranks=²",
    "x@a.tar.gz#sha256=" + "0" * 64, "x==1.0@seed.txt#sha256=" + "0" * 64, "deepspeed:A=" + "$(x)", "host:99999", "[::1]:1", "10.0.0.1:" + "9" * 30,
    "ds0.19.8-torch2.13.0-cu130-py312", "ds9-torch9-cu9-py9", "oci://x", "http://[", "https://127.0.0.1:9/x", "registry.example/x@sha256:" + "0" * 64,
]  # fmt: skip
_BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"b%d: &b%d [%s]\n" % (i, i, b",".join([b"*b%d" % (i - 1) if i else b"*a"] * 9)) for i in range(12)
)
CONTENTS = [
    b"", b"\n", b"[" * 30_000, b"{" * 30_000, b'{"a":' * 30_000, b"[" * 900 + b"]" * 900, b'{"a":' * 99 + b"1" + b"}" * 99, b"- " * 30_000, b"? " * 30_000,
    b"[a, " * 30_000, b"(" * 30_000, b"a.b." * 30_000, b"-" * 30_000, b"~" * 30_000, _BOMB, b"&a [*a]", b"9" * 5000, b'{"schema": ' + b"9" * 5000 + b"}", b"schema: 0x" + b"f" * 5000,
    b'{"schema": 1e999}', b'{"schema": NaN}', b'{"schema": -Infinity}', b"schema: .inf", b"a = " + b"9" * 5000, b"a = " + b"[" * 5000, b"a" + b".a" * 5000 + b" = 1",
    b"\0" * 5000, b"\xff\xfe\0", b"\xff" * 5000, b"\xef\xbb\xbf{}", b"\xfe\xff\0{", b'{\r"a"\r:1}\r', b"\x9b31m\x85\x1b]0;x\x07", rb'{"kind": "\ud800"}', b'"\xed\xa0\x80"',
    b"!!python/object/apply:os.abort []", b'!!int ""', b"!!bool x", b"!!timestamp 9999-99-99", b"!!set {a}", b"!!binary 9", b"<<: *a", b"<<: [a]", b"? [a]\n: b", b"{[a]: b}", b"a: 1\na: 2",
    b"a" * 3_000_000, b"a\n" * 300_000, b" " * 300_000, b"\t" * 300_000 + b"x", b"=" * 100_000, b"torch==2.6.0\n" * 30_000, b"torch==" * 30_000, b"a-" * 50_000 + b"!", b"1." * 50_000, b"@EXPLICIT\n" * 9000,
    b"Traceback (most recent call last):\n" * 9000, b'  File "a.py", line 9, in a\n' * 9000, b"ImportError: " * 9000, b"undefined symbol: " * 9000, b"NCCL WARN " * 9000, b"nvcc: release " * 9000,
    b'{"event":"hello"' + b'{"event":' * 9000, b"dependencies:\n" + b"  - pip:\n" * 9000, b"[project]\n" * 9000, b"-r requirements.txt\n" * 9000, b"FROM x\n" * 9000, b"null", b"[]", b"{}", b"0", b'""', b"[null]", b"[[]]", b"[{}]",
]  # fmt: skip
_VALUES: list[Any] = [None, True, 0, -1, 1 << 70, 10**250, 1e308, "", "*", "²", "a\nb", "../..", "x" * 5000, "9" * 5000, [], {}, [[]], [None], [{}], {"": None}, {"a": {"b": []}}, "2026-99-99", "9999-12-31", ">=1,<"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Try:
    """One command line with what it is attacked with."""

    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    # Where in its folder the bytes are put. "-" is stdin.
    place: str = ""
    content: bytes = b""
    # pipe, loop, folder, device, unreadable: what stands at the place instead of a file.
    kind: str = "file"

    def text(self) -> str:
        words = " ".join(repr(word[:60]) for word in self.argv)
        variables = " ".join(f"{name}={value[:40]!r}" for name, value in self.environment)
        return f"{variables} envsmith {words} with {self.kind} {self.place} {self.content[:60]!r} of {len(self.content)} bytes"


@cache
def _is_long(what: Try) -> bool:
    return bool(_LONG & set(what.argv[:2]))


def _seeds() -> tuple[bytes, ...]:
    """Real documents: what the fuzzer starts from, what once broke a reader, files of this repository."""
    from fuzz_readers import READERS, seeds

    texts = [text.encode("utf-8", "surrogatepass") for name in READERS for text in seeds(name) if len(text) < 200_000]
    patterns = (
        "pyproject.toml",
        "matrix/*.yaml",
        "matrix/campaigns/*.yaml",
        "tests/cases/*/*",
        "images/*/*/*.json",
        "images/*/*.json",
    )
    paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file())
    return (*texts, *(path.read_bytes()[:200_000] for path in paths[:150]))


def _content(random: random.Random) -> bytes:
    choice = random.random()
    if choice < 0.45:
        return random.choice(CONTENTS)
    seed = random.choice(_seeds())
    if choice < 0.7:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(seed)
            for _ in range(random.randint(1, 4)):
                value = _spoilt(value, random)
            return json.dumps(value).encode()
    data = bytearray(seed)
    for _ in range(random.randint(1, 6)):
        at, length = random.randrange(len(data) + 1), random.choice((1, 1, 4, 64, 4000))
        match random.randrange(5):
            case 0:
                del data[at : at + length]
            case 1:
                data[at:at] = data[at : at + length] * random.choice((1, 2, 200))
            case 2:
                data[at:at] = random.choice(CONTENTS)[:6000]
            case 3:
                data[at : at + 1] = bytes([random.randrange(256)])
            case _:
                data[at:at] = random.choice(_TEXTS).encode("utf-8", "surrogatepass")[:6000]
    return bytes(data[: random.choice((len(data), at))])


def _spoilt(value: Any, random: random.Random) -> Any:
    """Return a document in which one place, reached by walking down, is another value."""
    if not isinstance(value, (dict, list)) or not value or random.random() < 0.15:
        return random.choice(_VALUES)
    key = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
    value[key] = _spoilt(value[key], random)
    return value


def _commands(
    command: click.Command, context: click.Context, path: str = ""
) -> Iterator[tuple[str, list[click.Parameter]]]:
    """Give every verb with its parameters."""
    if not isinstance(command, click.Group):
        yield path, [each for each in command.params if not getattr(each, "is_flag", False)]
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from _commands(inner, click.Context(inner, info_name=name, parent=context), f"{path} {name}".strip())


def _line(verb: str, name: str, values: list[str]) -> tuple[str, ...]:
    """Return a command line in which ``name`` has ``values`` and everything else is that of the base."""
    base = {key: value for key, value in _BASES.get(verb, {}).items() if key not in _ALONE.get(name, ())} | {
        name: values
    }
    words = [word for key, value in base.items() if key.startswith("-") for word in (key, *value)]
    return (*verb.split(), *words, "--", *(word for key, value in base.items() if key[0] not in "-!" for word in value))


Maker = Callable[[random.Random], Try]


def _makers() -> list[Maker]:
    """Return the ways to attack: every option by text and as a file, every folder, stdin, every variable."""
    from envsmith.cli.app import cli
    from envsmith.cli.variables import VARIABLES

    makers: list[Maker] = []
    for verb, parameters in _commands(cli, click.Context(cli)):
        for parameter in parameters:
            name = parameter.opts[0] if isinstance(parameter, click.Option) else str(parameter.name)
            count = max(parameter.nargs, 1)
            makers.append(
                lambda r, v=verb, n=name, c=count: Try(
                    _line(v, n, [r.choice(_TEXTS).replace("\0", "") for _ in range(c)])
                )
            )
            if isinstance(parameter.type, click.Path) or name in {
                "--from",
                "image",
                "cell",
                "--source",
                "--python",
            }:
                makers += [lambda r, v=verb, n=name, c=count: _file(r, v, n, c)] * 4
        makers.append(lambda r, v=verb: Try(_line(v, "!", []), environment=(_variable(r, v),)))
    for verb, folder in [
        (v, value[0]) for v, base in _BASES.items() for value in base.values() if value and value[0] in _FOLDERS
    ]:
        makers += [
            lambda r, v=verb, f=folder: Try(
                _line(v, "!", []), place=f"{f}/{r.choice(_FOLDERS[f])}", content=_content(r)
            )
        ] * 4
    for verb, option in (("doctor", "--from"), ("check", "--from"), ("smoke", "--read-logs")):
        makers.append(lambda r, v=verb, o=option: Try(_line(v, o, ["-"]), place="-", content=_content(r)))
    for name in sorted(VARIABLES):
        for verb in ("solve", "lock", "verify", "doctor", "check"):
            makers.append(lambda r, n=name, v=verb: Try(_line(v, "!", []), environment=((n, r.choice(_TEXTS)),)))
        makers.append(
            lambda r, n=name: Try(_line("lock", "!", []), ((n, "hostile.json"),), "hostile.json", _content(r))
        )
    makers += [
        lambda r: Try(
            _line(r.choice(("lock", "verify", "build")), "!", []),
            (("HOME", "home"),),
            f"home/{r.choice(_FOLDERS['home'])}",
            _content(r),
        )
    ] * 4
    return makers


def _file(random: random.Random, verb: str, name: str, count: int) -> Try:
    place = "hostile" + random.choice(("", ".json", ".yaml", ".yml", ".toml", ".txt"))
    made = Try(_line(verb, name, [place] * count), place=place, content=_content(random))
    if random.random() < 0.15:
        return replace(made, kind=random.choice(("pipe", "loop", "folder", "device", "gone")), content=b"")
    return made


def _variable(random: random.Random, verb: str) -> tuple[str, str]:
    """Return an option of a verb as an environment variable."""
    option = random.choice(
        ("TORCH", "FRAMEWORK", "PLATFORM", "LIMIT", "JOBS", "RANKS", "FORMAT", "OUTPUT", "FROM", "MATRIX", "BASE")
    )
    return f"ENVSMITH_{verb.upper().replace(' ', '_')}_{option}", random.choice(_TEXTS)


def attack(tally: Tally, count: int, random: random.Random, folder: Path) -> None:
    """Try ``count`` inputs, as many at once as there are processors."""
    template = _template(folder)
    makers = _makers()
    random.shuffle(makers)
    light = [make for make in makers if not _is_long(make(random))]  # once a way is enough for the others
    running: dict[int, _Child] = {}
    for number, make in zip(range(count), itertools.chain(makers, itertools.cycle(light)), strict=False):
        while len(running) >= (os.cpu_count() or 1):
            _reap(running, tally)
        child = _Child(make(random), folder / str(number), template)
        running[child.handle] = child
    while running:
        _reap(running, tally)


def _template(folder: Path) -> Path:
    """Return a folder with everything that the bases name, and warm what every verb reads."""
    from fuzz_readers import SHAPES, TEXTS

    from envsmith.base.files import now
    from envsmith.cli.app import run

    template = folder / "template"
    for name in ("library", "cell", "layout/blobs/sha256", "records", "home"):
        (template / name).mkdir(parents=True)
    (template / "library" / "requirements.txt").write_text("torch>=2.4\ndeepspeed>=0.15\n")
    (template / "seed.txt").write_text(TEXTS["report"][0])
    (template / "campaign.yaml").write_text("schema: 1\nname: n\ncells: [{ids: [no-cell]}]\n")
    (template / "records" / "a.json").write_text(json.dumps(SHAPES["record"][0]))
    (template / "cell" / "lock.json").write_text(json.dumps(SHAPES["lock"][0]))
    (template / "cell" / "record.json").write_text(json.dumps(SHAPES["record"][0]))
    (template / "layout" / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (template / "layout" / "index.json").write_text('{"schemaVersion": 2, "manifests": []}')
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    os.environ.update(proxies, XDG_CACHE_HOME=str(folder / "cache"), NO_COLOR="1", PYTHONPATH=str(ROOT))
    now()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for words in (
            "solve -f deepspeed",
            "check torch==2.6.0",
            f"doctor --from {template}/seed.txt",
            "explain deepspeed",
            "matrix list",
        ):
            run(words.split())
    return template


class _Child:
    """One try in a process of its own, in a folder of its own."""

    def __init__(self, what: Try, folder: Path, template: Path) -> None:
        self.what, self.folder, self.start = what, folder, time.monotonic()
        shutil.copytree(template, folder)
        if any(word == "matrix" for word in what.argv[2:]) or what.place.startswith("matrix/"):
            shutil.copytree(ROOT / "matrix", folder / "matrix")
        if what.place not in {"", "-"}:
            _put(folder / what.place, what)
        (folder / ".stdin").write_bytes(what.content if what.place == "-" else b"")
        self.pid = os.fork()
        if not self.pid:
            self._run()
        self.handle = os.pidfd_open(self.pid)

    def _run(self) -> None:
        code = 71
        try:
            os.setsid()
            os.chdir(self.folder)
            for number, name in enumerate((".stdin", ".stdout", ".stderr")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
            sys.stdin, sys.stdout = (
                os.fdopen(0, encoding="utf-8", errors="surrogateescape"),
                os.fdopen(1, "w", encoding="utf-8"),
            )
            sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
            for limit, most in (
                (resource.RLIMIT_CPU, _LONG_CPU_SECONDS if _is_long(self.what) else _CPU_SECONDS),
                (resource.RLIMIT_AS, _MEMORY),
                (resource.RLIMIT_FSIZE, _OUTPUT),
                (resource.RLIMIT_CORE, 0),
            ):
                resource.setrlimit(limit, (most, most))
            os.environ.update(self.what.environment)
            from envsmith.cli.app import run

            code = run([os.fsdecode(os.fsencode(word)) for word in self.what.argv])
            sys.stdout.flush()
        except BaseException:  # noqa: BLE001 - whatever leaves the command line is counted
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(code)

    def judge(self, status: int, tally: Tally) -> None:
        """Count how it ended."""
        from envsmith.errors import EXIT_CODES

        tally.tried += 1
        code = os.waitstatus_to_exitcode(status)
        words = (
            (self.folder / ".stderr").read_bytes()[-3000:].decode(errors="replace")
            if (self.folder / ".stderr").exists()
            else ""
        )
        last = " | ".join(words.strip().splitlines()[-3:])[-400:]
        if -code in {signal.SIGXCPU, signal.SIGKILL}:
            tally.fail("too slow", f"{self.what.text()}: {time.monotonic() - self.start:.0f} s")
        elif code < 0:
            tally.fail("signal", f"{signal.Signals(-code).name}: {self.what.text()}")
        elif code in {70, 71} or "\nTraceback (most recent call last)" in "\n" + words:
            tally.fail("internal error", f"{self.what.text()}: {last[:150]} … {last[-150:]}")
        elif code not in EXIT_CODES:
            tally.fail("unknown exit code", f"{code}: {last}: {self.what.text()}")
        shutil.rmtree(self.folder, ignore_errors=True)


def _put(path: Path, what: Try) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    match what.kind:
        case "pipe":
            os.mkfifo(path)
        case "loop":
            path.symlink_to(path)
        case "folder":
            path.mkdir()
        case "device":  # never where something is written: a link is replaced, not followed
            path.symlink_to("/dev/zero")
        case "file":
            path.write_bytes(what.content)


def _reap(running: dict[int, _Child], tally: Tally) -> None:
    """Wait for a child to end, and end those that hang."""
    ready, _, _ = select.select(list(running), [], [], 1.0)
    for handle, child in list(running.items()):
        if handle in ready:
            _, status = os.waitpid(child.pid, 0)
        elif time.monotonic() - child.start > _WALL_SECONDS:
            os.killpg(child.pid, signal.SIGKILL)
            _, status = os.waitpid(child.pid, 0)
        else:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what it may have started
        os.close(handle)
        del running[handle]
        child.judge(status, tally)
