"""How a smoke test gets into a cell: the :class:`Target` seam, the local target, and command lines for torchrun and Slurm.

A target only has to start the cell's interpreter with arguments and give us its standard streams. The agent's source and the plan go
in through standard input, events come out of standard output: nothing is copied into the cell and nothing of envsmith is installed there.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from envsmith.errors import EnvsmithError

__all__ = [
    "BOOTSTRAP",
    "Explaining",
    "LocalTarget",
    "Target",
    "agent_arguments",
    "agent_input",
    "agent_source",
    "srun_argv",
    "torchrun_argv",
]

# Reads a line with the length of the source, the source, and runs it; the plan follows on the next line of the same stream.
BOOTSTRAP = (
    "import sys;b=sys.stdin.buffer;s=b.read(int(b.readline()));"
    "import linecache;linecache.cache['agent.py']=(len(s),None,s.decode().splitlines(True),'agent.py');"
    "exec(compile(s,'agent.py','exec'))"
)


class Target(Protocol):
    """A cell that can run its own Python."""

    def argv(self, args: Sequence[str]) -> list[str]:
        """The command that starts the cell's interpreter with ``args``; its three standard streams are ours (``docker run -i …``)."""

    def env(self) -> Mapping[str, str]:
        """Variables for that command, added to this process's environment."""

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """End the started command and whatever runs on its behalf (a container's processes do not die with ``docker exec``)."""


@runtime_checkable
class Explaining(Protocol):
    """A target with something between us and the interpreter that can refuse to start it: a container engine."""

    def refusal(self, status: int | None, words: str) -> EnvsmithError | None:
        """What was wrong before the interpreter ran, from the command's status and what it wrote; ``None`` when it did run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTarget:
    """A virtual environment (or any interpreter) on this machine.

    ``extra`` are further variables, ``TORCH_EXTENSIONS_DIR`` for example, where DeepSpeed's compiled ops of this cell are kept; without it
    every run compiles them anew in a directory that is removed.
    """

    python: Path
    extra: Mapping[str, str] = field(default_factory=dict)

    def argv(self, args: Sequence[str]) -> list[str]:
        """``[python, *args]``."""
        return [str(self.python), *args]

    def env(self) -> Mapping[str, str]:
        """The interpreter's own directory comes first on ``PATH`` (ninja lives there)."""
        here = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", os.defpath)])
        return {"PATH": here, **self.extra}

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """The agent ends its ranks when it is ended: they ask the kernel to be killed with their parent."""
        process.kill()


@cache
def agent_source() -> bytes:
    """The text of ``agent.py``, as shipped."""
    return Path(__file__).with_name("agent.py").read_bytes()


def agent_arguments() -> list[str]:
    """For ``Target.argv``: isolated (``-I``), writing no byte code into the cell (``-B``)."""
    return ["-I", "-B", "-c", BOOTSTRAP, "supervise"]


def agent_input(plan: bytes) -> bytes:
    """What the bootstrap and the agent read: length, source, one line of plan."""
    source = agent_source()
    return b"%d\n" % len(source) + source + plan.strip() + b"\n"


def torchrun_argv(
    *, python: str, agent: str, plan: str, events: str, ranks: int, nodes: int = 1, rendezvous: str | None = None
) -> list[str]:
    """A command for every node: one rank per process, no restarts. ``events`` may hold ``%r`` for the rank."""
    where = (
        ["--standalone"]
        if nodes == 1
        else ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", rendezvous or "localhost:29400"]
    )
    launcher = [python, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--max-restarts", "0", *where]
    return [*launcher, agent, "--plan", plan, "--events", events]


def srun_argv(
    *, python: str, agent: str, plan: str, events: str, nodes: int, ranks_per_node: int, gpus_per_node: int = 0
) -> list[str]:
    """Slurm starts every rank itself; rank and master are read from its variables (agent.discover)."""
    gpus = ["--gpus-per-node", str(gpus_per_node)] if gpus_per_node else []
    size = ["--nodes", str(nodes), "--ntasks-per-node", str(ranks_per_node)]
    return ["srun", "--kill-on-bad-exit=1", *size, *gpus, python, agent, "--plan", plan, "--events", events]
