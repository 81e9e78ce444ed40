"""Rehearse the preflight of a training script where one of two ranks has stopped: the other one must name it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from envsmith.programs import execute
from envsmith.smoke.agent.placement import sharing_env
from envsmith.smoke.run import Target
from envsmith.smoke.verdict import SmokeResult

# The preflight needs what stands in the checkout or beside the package, the standard library and torch.
_SOURCES = Path(__file__).parents[2]
_BLAME = "rank 1"


def rehearse(target: Target, backend: str, limit: float, *, nccl: str = "") -> SmokeResult:
    """Run the preflight on two ranks, of which rank 1 is stopped, for ``limit`` seconds at most.

    ``nccl`` is the release, where both ranks share a GPU.
    """
    wait = max(3.0, min(10.0, limit / 3))
    command = target.argv(["-B", "-m", "envsmith.preflight", "--backend", backend, "--timeout", f"{wait:.0f}"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [_environment(target, rank, port, nccl) for rank in range(2)]
    quiet = subprocess.DEVNULL
    stopped = subprocess.Popen(command, env=ranks[1], stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        stopped.send_signal(signal.SIGSTOP)
        run = execute(command, env=ranks[0], seconds=limit)
        status, words = run.returncode, run.stderr.strip()
    except subprocess.TimeoutExpired:
        status, words = None, f"the preflight did not end within {limit:.0f} s"
    finally:
        stopped.kill()
        stopped.wait()
    last = words.splitlines()[-1] if words else "the preflight said nothing"
    passed = status == 1 and _BLAME in last
    return SmokeResult(
        passed=passed, exit_code=0 if passed else 1, summary=last[:300], backend=backend, ranks=2, placement=""
    )


def _environment(target: Target, rank: int, port: int, nccl: str) -> Mapping[str, str]:
    sharing = sharing_env(nccl, rank)[0] if nccl else {}
    place = {"RANK": str(rank), "LOCAL_RANK": "0" if nccl else str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(_SOURCES)}
    return {**os.environ, **target.env(), **sharing, **place, **store}
