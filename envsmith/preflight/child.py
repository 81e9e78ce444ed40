"""A process of its own for the collective of a script that has no group yet.

torch numbers the groups of a process and takes number 0 for the default group. After another one, ``split_group`` reads
past the end of a list, and the flight recorder never writes (pytorch #191949, #191952).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import IO, Any

from envsmith.errors import SmokeError
from envsmith.preflight.group import Trial, all_reduce

# At the end of the path: what lies beside an installed envsmith must not hide the standard library.
_CODE = "import sys; sys.path.append(sys.argv[1]); from envsmith.preflight.child import main; main()"


class Child:
    """Imports torch while the parent looks at its machine, and runs one collective. A context manager."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", _CODE, str(Path(__file__).parents[2])]
        env, pipe = {**os.environ, "PYTHONSAFEPATH": "1"}, subprocess.PIPE
        try:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, env=env)
        except OSError as error:
            hint = "Call the preflight after init_process_group, or pass isolate=False."
            raise SmokeError(f"Cannot start a process for the collective: {error}.", hint=hint) from error
        self._questions: IO[bytes] = self._process.stdin  # type: ignore[assignment]
        self._answers: IO[bytes] = self._process.stdout  # type: ignore[assignment]

    def __enter__(self) -> Child:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._process.__exit__(None, None, None)

    def wait(self, seconds: float) -> None:
        """Wait until it has imported torch, or has ended."""
        select.select([self._answers], [], [], seconds)

    def ask(self, **job: Any) -> dict[str, Any]:
        """Return its answer to :func:`all_reduce` with these arguments."""
        if not self._answers.readline():
            raise RuntimeError("the process for it could not import torch")
        self._questions.write(json.dumps(job).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._answers.readline() or '{"detail": "the process for it died"}')
        return answer


def main() -> None:
    """Be the child: say when torch is imported, answer one job, and stay until the parent ends this or itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # NCCL and torch write to stdout what no parent can parse
    import torch.distributed  # noqa: F401 - the parent waits for this

    answers.write(b"{}\n")
    job = json.loads(sys.stdin.readline() or "null")
    if job is not None:
        # A little less than the parent waits: this side knows what the collective was doing.
        answer = Trial(partial(all_reduce, **job)).run(0.9 * job["timeout"])
        answers.write(json.dumps(answer).encode() + b"\n")
        sys.stdin.read()
    os._exit(0)
