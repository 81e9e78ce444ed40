"""Faults of the host: a real smoke test, a real campaign's climb and real commands on a machine that refuses something.

The machine is made short of one thing at a time by the kernel's own means (``RLIMIT_*``, a signal, a folder that cannot be
written, a program that is gone). Nothing that comes of it may stand against a cell, and no file that was there may be lost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from envsmith.errors import EnvsmithError, is_of_the_system
from envsmith.model.record import Fault
from envsmith.smoke import run
from envsmith.smoke.plan import Plan
from hostile import Tally

TITLE = "faults of the host"
GOAL = 60
FAILURES = ("booked against the cell", "files lost")

_ROOT = Path(__file__).parents[2]


def attack(tally: Tally, count: int, random: Random, folder: Path) -> None:
    """Half of the faults meet a smoke test, the others a command that replaces a file.

    ``ROBUST_PYTHON`` names an interpreter with torch. Without one all of them meet a command.
    """
    python = os.environ.get("ROBUST_PYTHON", "")
    for number in range(count):
        tally.tried += 1
        if number % 2 or not python:
            _write(tally, random, folder / f"w{number}")
        else:
            _smoke(tally, random, python, folder)


# -- a smoke test ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Short:
    """An interpreter that the kernel keeps short of something, behind ``prlimit`` or in a namespace."""

    python: str
    limit: Sequence[str]
    folder: str

    def argv(self, args: Sequence[str]) -> list[str]:
        """Return the interpreter behind its limit."""
        return [*self.limit, self.python, *args]

    def env(self) -> Mapping[str, str]:
        """Return the folder for temporary files."""
        return {"TMPDIR": self.folder}

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the agent."""
        process.kill()


def _shortages(random: Random) -> dict[str, list[str]]:
    files, size = random.randrange(12, 40), random.randrange(1, 1500)
    memory, tmpfs = random.randrange(120, 700) << 20, random.choice((4, 8, 12, 16))
    mounted = f'mount -t tmpfs -o size={tmpfs}k tmpfs /tmp && exec "$0" "$@"'
    no_ipv4 = 'ip link set lo up; ip addr del 127.0.0.1/8 dev lo; exec "$0" "$@"'
    return {
        "files": ["prlimit", f"--nofile={files}"],
        "size": ["prlimit", f"--fsize={size}"],
        "memory": ["prlimit", f"--as={memory}"],
        "tmp": ["unshare", "-m", "sh", "-c", mounted],
        "no network": ["unshare", "-n"],
        "no IPv4": ["unshare", "-n", "sh", "-c", no_ipv4],
        "crowd": [],
        "killed": [],
        "stopped": [],
    }


def _smoke(tally: Tally, random: Random, python: str, folder: Path) -> None:
    """Run the quick tier where something is short. It may pass; what fails is not the cell's."""
    shortages = _shortages(random)
    kind = random.choice(list(shortages))
    plan = Plan.build({}, ranks=48 if kind == "crowd" else 2, backend="gloo", steps=False)
    target = _Short(python, shortages[kind], "/tmp" if kind == "tmp" else str(folder))
    killer = _killer(kind, random) if kind in {"killed", "stopped"} else None
    try:
        result = run.run(plan, target, limit=40.0)
    except EnvsmithError as error:
        if not is_of_the_system(error):
            tally.fail("booked against the cell", f"{kind} {shortages[kind]}: {error.message}")
        return
    finally:
        if killer:
            killer.kill()
            killer.wait()
    if not result.passed and result.cause.fault is Fault.CELL:
        tally.fail("booked against the cell", f"{kind} {shortages[kind]}: {result.summary}")


def _killer(kind: str, random: Random) -> subprocess.Popen[bytes]:
    """Start a process that after a moment sends a signal to a grandchild of this one: the agent, its nursery or a rank."""
    number = int(signal.SIGSTOP if kind == "stopped" else random.choice((signal.SIGKILL, signal.SIGTERM)))
    code = (
        "import os,random,sys,time\n"
        "top,number,delay,seed=int(sys.argv[1]),int(sys.argv[2]),float(sys.argv[3]),sys.argv[4]\n"
        "def below(pid):\n"
        " try: own=[int(x) for x in open(f'/proc/{pid}/task/{pid}/children').read().split() if int(x)!=os.getpid()]\n"
        " except OSError: own=[]\n"
        " return own+[x for child in own for x in below(child)]\n"
        "time.sleep(delay); found=below(top)\n"
        "found and os.kill(random.Random(seed).choice(found),number)\n"
        "time.sleep(600)\n"
    )
    arguments = [str(os.getpid()), str(number), f"{random.uniform(0.5, 6):.2f}", str(random.random())]
    return subprocess.Popen([sys.executable, "-c", code, *arguments])


# -- a command that replaces a file ------------------------------------------------------------------------------------


def _write(tally: Tally, random: Random, folder: Path) -> None:
    """Let a command replace a file where the file cannot be written whole. The old one stays."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\ndependencies = ["torch>=2.1"]\n')
    good = folder / random.choice(("envsmith.yaml", "report.json"))
    before = b"# what was there before\n" + random.randbytes(64).hex().encode() * 40
    good.write_bytes(before)
    verb = ["init", "--force", str(folder)] if good.name == "envsmith.yaml" else ["doctor", "--save", str(good)]
    size = random.choice((1, 16, 64, 256))
    command = ["prlimit", f"--fsize={size}", sys.executable, "-B", "-m", "envsmith", *verb]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONPATH": str(_ROOT)}
        subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=120, check=False)
    after = good.read_bytes() if good.exists() else b""
    if after != before:
        tally.fail(
            "files lost", f"{verb[0]} with files of {size} bytes at most: {json.dumps(after[:80].decode('latin-1'))}"
        )
