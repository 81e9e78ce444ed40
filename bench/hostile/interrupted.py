"""Commands that are interrupted at seeded moments by SIGINT, SIGTERM or SIGKILL, and what they leave.

Each runs as its own process in a world of its own: a package index in a folder, a library, records, an image. After the
signal no process of the command may run, no file that was whole may be half. What lies about under a temporary name is
counted after the same command ran again to its end: a killed process cannot tidy up, the next one does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from hostile import Tally

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "unit"), str(ROOT / "tests" / "unit" / "publish")]

import publish_kit  # noqa: E402 - from the tests
from tiny_index import TinyIndex, wheel  # noqa: E402

TITLE = "interrupted commands"
GOAL = 60
FAILURES = ("children", "half-written files", "temporary left", "tracebacks", "failed after")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_MARK = "ENVSMITH_ROBUST_RUN"
_PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
# Writes an image as an OCI layout, through the function that every engine exports by, as slowly as a real disk would.
_LAYOUT = """
import sys, time
from pathlib import Path
from envsmith.__main__ import main
from envsmith.cli import app
from envsmith.base.files import HashedWriter, scratch
from envsmith.net.oci.saved import Form, read_saved, to_layout
store = HashedWriter.write
HashedWriter.write = lambda self, data: (time.sleep(0.02), store(self, data))[1]
archive, folder = map(Path, sys.argv[1:])
def layout(_):
    with scratch(folder.parent) as staging:
        to_layout(read_saved([archive.read_bytes()], staging), folder, Form(base_layers=0, epoch=0))
    return 0
app._invoke = layout
main()
"""


@dataclass(frozen=True, slots=True)
class _Command:
    """A command line, the files that it writes, and a folder that is removed before each run so that it has work."""

    name: str
    argv: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    fresh: str = ""


def attack(tally: Tally, count: int, random: Random, folder: Path) -> None:
    """Interrupt ``count`` runs of every kind of command in turn."""
    world = _World(folder)
    commands = list(world.commands())
    seconds = {command.name: world.whole(command) for command in commands}
    for number in range(count):
        command, sent = commands[number % len(commands)], _SIGNALS[number // len(commands) % len(_SIGNALS)]
        moment = random.uniform(0.15, 1.0) * max(0.4, seconds[command.name])
        tally.tried += 1
        world.interrupt(tally, command, sent, moment, f"{number}")


class _World:
    """Everything that the commands need, below one folder, and nothing of this user's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        index = TinyIndex(folder / "index")
        index.add("torch", wheel("torch", "2.9.1"))
        (folder / "temporary").mkdir()
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_", "ENVSMITH"))},
            "UV_DEFAULT_INDEX": index.url,
            "UV_CACHE_DIR": str(folder / "uv"),
            "PIP_CONFIG_FILE": os.devnull,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TMPDIR": str(folder / "temporary"),
            "PYTHONPATH": str(ROOT),
            "CI": "1",
        }
        (folder / "merged").mkdir()
        library = folder / "library"
        library.mkdir()
        (library / "requirements.txt").write_text("torch==2.9.1\n")
        (library / "envsmith.yaml").write_text("smoke: (sleep 3 & sleep 2); python -c 'import torch'\n")
        lock = publish_kit.make_lock()
        cell = folder / "cell"
        publish_kit.make_layout(cell / "image", lock)
        (cell / "lock.json").write_text(lock.text())
        _archive(folder)

    def commands(self) -> Iterator[_Command]:
        """Yield each kind of command."""
        job = self._job()
        records = str(ROOT / "matrix" / "records")

        def verb(name: str, *words: str, outputs: tuple[str, ...] = (), fresh: str = "") -> _Command:
            return _Command(name, (sys.executable, "-m", "envsmith", *words), outputs, fresh)

        yield verb("ci run", "ci", "run", job, "library", "--record", "run.json", outputs=("run.json",))
        yield verb("ci run --environment", "ci", "run", job, "library", "--environment", "env")
        yield verb("matrix export", "matrix", "export", "-o", "export", outputs=("export/matrix.json",))
        yield verb("matrix merge", "matrix", "merge", records, "--matrix", "merged", fresh="merged/records")
        yield verb("doctor --save", "doctor", "--save", "host.json", outputs=("host.json",))
        yield verb("ci matrix -o", "ci", "matrix", "library", "--format", "json", "-o", "m.json", outputs=("m.json",))
        layout = (sys.executable, "-c", _LAYOUT, "image.tar", "layouts/cell/image")
        yield _Command("an OCI layout", layout, ("layouts/cell/image/index.json",))
        if python := os.environ.get("ROBUST_TORCH"):
            yield verb("smoke", "smoke", "--python", python, "--ranks", "2")
            yield verb("matrix site", "matrix", "site", "-o", "site", outputs=("site/matrix.json",))

    def _job(self) -> str:
        argv = [sys.executable, "-m", "envsmith", "ci", "matrix", "library", "--format", "json"]
        text = subprocess.run(argv, cwd=self.folder, env=self.environment, capture_output=True, check=True).stdout
        return next(job["id"] for job in json.loads(text)["jobs"] if job["python"] == _PYTHON)

    def whole(self, command: _Command) -> float:
        """Run a command to its end and return its seconds."""
        start = time.monotonic()
        self._finish(command)
        return time.monotonic() - start

    def _finish(self, command: _Command) -> None:
        ran = subprocess.run(command.argv, cwd=self.folder, env=self.environment, capture_output=True, check=False)
        if ran.returncode not in {0, 1}:
            raise RuntimeError(f"{command.name} ended with {ran.returncode}: {ran.stderr.decode()[-400:]}")

    def interrupt(self, tally: Tally, command: _Command, sent: signal.Signals, moment: float, run: str) -> None:
        """Start a command, send the signal, look at what is left, run it again, look once more."""
        where = f"{command.name}, {sent.name} after {moment:.2f} s"
        if command.fresh:
            shutil.rmtree(self.folder / command.fresh, ignore_errors=True)
        process = subprocess.Popen(
            command.argv,
            cwd=self.folder,
            env={**self.environment, _MARK: run},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        time.sleep(moment)
        process.send_signal(sent)
        words = b""
        try:
            words = process.communicate(timeout=60)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            tally.fail("children", f"{where}: it did not end")
        if b"Traceback" in words and b"envsmith" in words:
            tally.fail("tracebacks", f"{where}: {words.decode()[-200:]}")
        if children := _lasting(run):
            tally.fail("children", f"{where}: {children}")
        if half := [name for name in command.outputs if not self._is_whole(name)]:
            tally.fail("half-written files", f"{where}: {half}")
        if sent != signal.SIGKILL and (left := self._temporary()):
            tally.fail("temporary left", f"{where}: {left}")
        try:
            self._finish(command)
        except RuntimeError as error:
            tally.fail("failed after", f"{where}: {error}")
        if left := self._temporary():
            tally.fail("temporary left", f"{where}, and it ran again: {left}")

    def _is_whole(self, name: str) -> bool:
        """Return whether a file, which a whole run has written before, is whole."""
        try:
            json.loads((self.folder / name).read_bytes())
        except (OSError, ValueError):
            return False
        return True

    def _temporary(self) -> list[str]:
        names = [*self.folder.rglob(".envsmith-*"), *(self.folder / "temporary").iterdir()]
        return [str(path.relative_to(self.folder)) for path in names]


def _archive(folder: Path) -> None:
    """Write what ``docker save`` writes of an image of two layers."""
    layers = [publish_kit.tar_of(**{f"file{n}": os.urandom(1) * (1 << 20) for n in range(6)}) for _ in range(2)]
    config = {"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}}
    manifest = [{"Config": "config.json", "Layers": ["0.tar", "1.tar"]}]
    names = {"config.json": json.dumps(config).encode(), "manifest.json": json.dumps(manifest).encode()}
    (folder / "image.tar").write_bytes(publish_kit.tar_of(**names, **{"0.tar": layers[0], "1.tar": layers[1]}))


def _lasting(run: str) -> list[str]:
    """Return the processes of a run that still live after a moment, by the variable that all of them inherit."""
    deadline = time.monotonic() + 8
    while (left := living(run)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid, _ in left:
        os.kill(pid, signal.SIGKILL)
    return [name for _, name in left]


def living(run: str) -> list[tuple[int, str]]:
    """Return the processes of a run, by the variable that all of them inherit."""
    mark, living = f"{_MARK}={run}\0".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                living.append((int(folder.name), (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]))
    return living
