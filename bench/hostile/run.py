"""Launches under watch on hosts that are broken, compared with the same launch alone.

A host is broken by what its shell did before: limits, folders, signals, variables, a rank that spoils what it leaves. What the
launch prints and how it ends must be what it is without a watch, nothing may run on, and few folders may stay.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from hostile import Tally
from hostile.interrupted import living

TITLE = "launches watched on broken hosts"
GOAL = 220
FAILURES = ("ended or changed", "processes left", "folders left")

_ROOT = Path(__file__).parents[2]
_MARK = "ENVSMITH_ROBUST_RUN"
_HOSTS = (
    "true",
    "ulimit -n {files}",
    "ulimit -f 0",
    "ulimit -v {memory}",
    "ulimit -u {processes}",
    "export TMPDIR=/nowhere/at/all",
    "export TMPDIR={long}",
    "export TMPDIR=/proc",
    "unset HOME",
    "export HOME=/nowhere",
    "exec 2>&-",
    "exec 2>/dev/full",
    "exec <&-",
    "umask 000",
    "umask 777",
    "export PYTHONPATH=/nowhere",
    "export PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1",
    "export LC_ALL=C COLUMNS=20 TERM=dumb",
    "cd {gone} && rmdir {gone}",
)
_IGNORING = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
# What a rank does, with what it prints and how it ends.
_RANKS = (
    "print('done', flush=True)",
    "print('done', flush=True); sys.exit({status})",
    "print('done', flush=True); os._exit({status})",
    "print('done', flush=True); os.kill(os.getpid(), 9)",
    "raise ValueError('label 7')",
    "[os.rename(n, n + '.x') for n in glob.glob(F + '/*') if F]; print('renamed')",
    "[(os.unlink(n), os.mkfifo(n)) for n in glob.glob(F + '/*.marks') if F]; sys.exit({status})",
    "shutil.rmtree(F, True) if F else None; print('removed')",
    "os.close(3) if F else None; os.closerange(3, 64); print('closed')",
)
_WORLD = """
import os, subprocess, sys
rank = ["-c", "import glob, os, shutil, sys; F = os.environ.get('ENVSMITH_RUN_FOLDER', ''); " + sys.argv[1]]
env = lambda each: dict(os.environ, RANK=str(each), LOCAL_RANK=str(each), WORLD_SIZE="2")
codes = [subprocess.Popen([sys.executable, *rank], env=env(each)).wait() for each in range(2)]
sys.exit(max(abs(code) for code in codes))
"""


def attack(tally: Tally, count: int, random: Random, folder: Path) -> None:
    """Watch ``count`` launches."""
    temporary = folder / "temporary"
    temporary.mkdir()
    (folder / "world.py").write_text(_WORLD)
    for number in range(count):
        tally.tried += 1
        rank = random.choice(_RANKS).format(status=random.choice((0, 1, 3, 42)))
        gone = folder / f"gone{number}"
        host = random.choice(_HOSTS).format(
            files=random.randrange(8, 40),
            memory=random.choice((200_000, 400_000, 4_000_000)),
            processes=random.choice((200_000,)),
            long=_long(folder),
            gone=gone,
        )
        where = f"{host}; {rank}"
        launch = [sys.executable, str(folder / "world.py"), rank]
        if random.random() < 0.1:
            host, launch = "true", _program(folder, random)
            where = str(launch)
        before = [sys.executable, "-c", _IGNORING] if random.random() < 0.15 and launch[0] == sys.executable else []
        variables = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(_ROOT), _MARK: f"run {number}"}
        results = []
        for prefix in ([], [sys.executable, "-m", "envsmith", "run", "--"]):
            gone.mkdir(exist_ok=True)
            # A word that cannot be started has the code of the shell that tries.
            command = ["bash", "-c", f"{host}; {'exec ' if before or prefix else ''}" + '"$@"', "bash"]
            ran = subprocess.run(
                [*command, *before, *prefix, *launch],
                env=variables,
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=60,
                check=False,
            )
            results.append((_code(ran.returncode), ran.stdout))
        if results[0] != results[1] and not _is_of_the_interpreter(results[1], host):
            tally.fail("ended or changed", f"{where}: {results}")
        time.sleep(0.01)
        if left := living(f"run {number}"):
            tally.fail("processes left", f"{where}: {left}")
    if (kept := len(list(temporary.glob("envsmith-run-*")))) > 16:
        tally.fail("folders left", str(kept))


def _code(status: int) -> int:
    """Return a status as a shell says it."""
    return 128 - status if status < 0 else status


def _is_of_the_interpreter(result: tuple[int, bytes], host: str) -> bool:
    """Tell whether Python itself could not start, which is before us."""
    return host.startswith(("ulimit -v", "ulimit -n")) and result == (1, b"")


def _long(folder: Path) -> Path:
    path = folder / ("x" * 90)
    path.mkdir(exist_ok=True)
    return path


def _program(folder: Path, random: Random) -> list[str]:
    """Return a program that a shell starts in its own way, or not at all."""
    path = folder / "program"
    path.write_text(random.choice(("echo hello; exit 3\n", "#!/bin/sh\nexit 4\n", "")))
    path.chmod(random.choice((0o755, 0o644)))
    return random.choice(([str(path)], ["no-such-launcher"], [str(folder)], ["/bin/sh", "-c", "kill -15 $$"]))
