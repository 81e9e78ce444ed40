"""Ranks that a framework's own launcher starts: the process of the launcher, and how a rank finds its job."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from typing import Any

from envsmith.agent.launchers import discover
from envsmith.agent.processes import fork_bound, read_text, reaped
from envsmith.agent.protocol import Board, Exit, JobJson, Row
from envsmith.agent.rank import rank_process
from envsmith.agent.steps import LAUNCHERS
from envsmith.agent.steps.launch import RankJob

# Stands where a rank's number stands.
LAUNCHER = -1
# A cell's interpreter runs isolated. A launcher starts others, which hear this by variables alone.
_ISOLATED = {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
_NOT_ISOLATED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")
# How faulthandler names the signal that ended a process.
_FATAL = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating-point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}


def run_launcher(job: JobJson, path: str) -> int:
    """Run the job's launcher in this process, or replace this process by it. Return its exit code."""
    output = os.open(job["output"] % LAUNCHER, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in _NOT_ISOLATED:
        os.environ.pop(name, None)
    os.environ.update({**_ISOLATED, **job["env"]})
    os.chdir(job["directory"])
    agent = os.path.join(job["directory"], "agent.py")
    if not os.path.exists(agent):
        with open(agent, "wb") as file:
            file.write(_own_text())
    try:
        LAUNCHERS[job["launcher"]](RankJob(job=job, job_file=path, agent=agent))
    except BaseException:
        traceback.print_exc()
        return Exit.ERROR
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return Exit.OK


def _own_text() -> bytes:
    """Return the text that the agent runs from: what its bootstrap read, or its file."""
    main: Any = sys.modules["__main__"]
    text = getattr(main, "TEXT", None)
    if text is None:
        with open(main.__file__, "rb") as file:
            text = file.read()
    return bytes(text)


def run_launched(path: str) -> int:
    """Be the rank that the launcher's variables name. A child does the work, and its end has a witness."""
    job = _job(path)
    place = discover(os.environ, {})
    if place is None:
        sys.stderr.write("agent: the launcher set no variables that name a rank\n")
        return Exit.CONFIGURATION
    board, rank = Board(job["board"]), place.rank
    pid = fork_bound()
    if pid == 0:
        os._exit(run_as_rank(path, rank))
    status = None
    while status is None:
        status = reaped(pid, 60.0)
    code = os.waitstatus_to_exitcode(status)
    board.leave(rank, code)
    return code if code >= 0 else Exit.CRASH


def run_as_rank(path: str, rank: int) -> int:
    """Be this rank of the job in this process, and say so on the board."""
    job = _job(path)
    board = Board(job["board"])
    board.enter(rank, os.getpid())
    code: int = Exit.ERROR
    try:
        code = rank_process(job, rank, board)
    finally:
        board.leave(rank, code)
    return code


def _job(path: str) -> Row:
    with open(path) as file:
        return dict(json.load(file))


def signal_in(stack: str) -> int:
    """Return how a process ended that wrote no code: minus the signal that faulthandler wrote, or CRASH."""
    fatal = re.search(r"^Fatal Python error: (.+)", read_text(stack), re.MULTILINE)
    return -_FATAL[fatal[1]] if fatal and fatal[1] in _FATAL else Exit.CRASH
