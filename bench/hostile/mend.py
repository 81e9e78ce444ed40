"""Environments that are mended while somebody writes in them, through links, with odd METADATA, and killed at any moment.

Each is a stand-in: a package with a script, and what a user keeps in the folder and among the packages. A child exchanges
it and is killed by SIGKILL before a seeded one of its steps, while this process writes files by their path and through an open
folder. Then the next call puts it right. Every file must be where it was written, the package whole in one release.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from envsmith.doctor.mend.environment import read_environment
from envsmith.doctor.mend.twin import earlier, exchange, twin, undo
from envsmith.errors import EnvsmithError
from hostile import Tally

TITLE = "environments mended among writers, links, odd METADATA and kills"
GOAL = 300
FAILURES = ("lost", "wrong target", "half mended", "internal errors")

_SITE = "lib/python3.11/site-packages"
_EVENTS = 260  # a whole exchange has about so many that may change something
# Where somebody writes: beside the packages, among them too, and only the same file again and again.
_PLACES = (("{}.pt", "last.pt"), ("{}.pt", f"{_SITE}/mine/{{}}.pt"), (f"{_SITE}/mine/last.pt",))
_LINES = (
    "Requires-Dist: b; python_version ~= 'x'",
    "Requires-Dist: b; 'x' in extras",
    "Requires-Dist: b; " + "(" * 4000 + "os_name > '3'" + ")" * 4000,
    "Requires-Dist: caf\xe9 @ \xff",
    "Version: today",
    "Name: ../../etc",
    "Requires-Dist: b>=1e400,<" + "9" * 5000,
    "",
)


def attack(tally: Tally, count: int, random: Random, folder: Path) -> None:
    """Mend ``count`` environments."""
    for number in range(count):
        tally.tried += 1
        root = folder / f"env{number}"
        _make(root, random)
        link = folder / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(root)
        given = random.choice((root, link))
        moment = random.randrange(1, _EVENTS) if random.random() < 0.8 else 0
        with _writer(root, number, random.choice(_PLACES)) as written:
            status = _mend(given, moment)
        where = f"env {number}, killed before step {moment}"
        try:
            if status not in {0, signal.SIGKILL}:
                tally.fail("internal errors", f"{where}: status {status}")
            with twin(root):
                pass
            _look(tally, root, written, where)
            if random.random() < 0.5 and (root / "envsmith-mend.json").exists():
                with earlier(root) as former:
                    undo(former)
                _look(tally, root, written, f"{where}, undone")
        except EnvsmithError as error:
            tally.fail("internal errors", f"{where}: {error}")
        if not link.is_symlink():
            tally.fail("wrong target", where)
        shutil.rmtree(root)


def _make(root: Path, random: Random) -> None:
    info = root / _SITE / "tool-1.dist-info"
    info.mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "bin" / "tool").write_text("old")
    (root / _SITE / "tool.py").write_text("old")
    (root / _SITE / "mine").mkdir()
    (root / "pyvenv.cfg").write_text("version = 3.11.7\n")
    (info / "RECORD").write_text("tool.py,,\n../../../bin/tool,,\ntool-1.dist-info/RECORD,,\n")
    lines = ["Metadata-Version: 2.1", "Name: tool", "Version: 1", random.choice(_LINES), random.choice(_LINES)]
    random.shuffle(lines)
    (info / "METADATA").write_bytes("\n".join(lines).encode("latin-1"))


def _mend(root: Path, moment: int) -> int:
    """Mend in a child and return the signal or the status that ended it."""
    child = os.fork()
    if child:
        status = os.waitpid(child, 0)[1]
        return status & 0x7F or status >> 8
    events = 0

    def count(event: str, _arguments: object) -> None:
        nonlocal events
        if event.startswith(("os.", "open", "shutil.", "ctypes.")):
            events += 1
            if events == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    code = 0
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        environment = read_environment(root)
        sys.addaudithook(count)
        with twin(environment.root) as copied:
            for name in (f"{_SITE}/tool.py", "bin/tool"):
                (copied.copy / name).unlink()
                (copied.copy / name).write_text("new")
            exchange(copied, {})
    except EnvsmithError:
        pass  # refused: nothing was changed
    except BaseException:  # noqa: BLE001 - this is what is looked for
        code = 70
    os._exit(code)


@contextmanager
def _writer(root: Path, seed: int, places: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Write files into the folder and among the packages until the block ends. Yield what was written where."""
    written: dict[str, str] = {}
    random, stop, handle = Random(seed), threading.Event(), os.open(root, os.O_RDONLY)

    def write() -> None:
        number = 0
        while not stop.wait(random.uniform(0.0005, 0.004)):
            number += 1
            text = f"{seed} {number}"
            name = random.choice(places).format(number)
            place = root / name
            if number % 3:
                place.with_suffix(".part").write_text(text)
                place.with_suffix(".part").replace(place)
            else:
                name = f"{number}.log"
                log = os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=handle)
                os.write(log, text.encode())
                os.close(log)
            written[name] = text

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()
        os.close(handle)


def _look(tally: Tally, root: Path, written: dict[str, str], where: str) -> None:
    missing = [name for name, text in written.items() if not _holds(root / name, text)]
    if missing:
        tally.fail("lost", f"{where}: {missing[:4]}")
    releases = {(root / name).read_text() for name in (f"{_SITE}/tool.py", "bin/tool")}
    if len(releases) > 1:
        tally.fail("half mended", where)


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text
