"""Start the agent in a cell, read its events, keep an outer deadline, hand the events to the judge.

A target only has to start the cell's interpreter with arguments and give us its standard streams. The agent's source
and the plan go in through standard input, events come out of standard output. Nothing is copied into the cell and
nothing of envsmith is installed there.

The agent supervises its ranks by itself (deadlines, evidence, exact kills), because this parent may stand outside of a
container and see none of their processes. What remains for this parent is an agent that itself stops answering.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from envsmith.agent.processes import KILL_SECONDS
from envsmith.base.programs import Conversation, Kept, Lines, close, converse, execute, still_running
from envsmith.base.schema import parse_json
from envsmith.errors import EnvsmithError, InterruptedRunError, SmokeError, os_errors
from envsmith.frameworks import added_frameworks
from envsmith.model.record import Verdict
from envsmith.smoke.bundle import bundle
from envsmith.smoke.events import (
    MAX_LINE,
    Bye,
    CaseRow,
    Events,
    HaltEvent,
    HaltReason,
    Hello,
    PlacementEvent,
    StepBegin,
    StepRow,
)
from envsmith.smoke.parse_events import EventReader
from envsmith.smoke.plan import Plan
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.verdict import judge_events

_MAX_WORDS = 64 << 10
_PROBE_SECONDS = 300.0
# An agent that is asked to end ends its ranks and tidies up.
_TIDYING = 4.0 + KILL_SECONDS
_HINT = "Give --python the interpreter of an environment, or its folder."
# Prints the versions that expectations depend on. Reads metadata, imports nothing.
_PROBED = ("torch", "numpy", *added_frameworks(), "transformer-engine", "flash-attn")
_PROBE = (
    "import json,sys\nfrom importlib import metadata as m\nf={'python':'%d.%d.%d'%sys.version_info[:3]}\n"
    f"for n in {_PROBED!r}:\n"
    " try:f[n]=m.version(n)\n except Exception:pass\n"
    "f.setdefault('numpy','none')\n"
    "for n in ('nvidia-nccl-cu11','nvidia-nccl-cu12','nvidia-nccl-cu13'):\n"
    " try:f['nccl']=m.version(n)\n except Exception:pass\n"
    "print(json.dumps(f))"
)


# Reads a line with the length of the source, the source, and runs it. The plan follows on the next line of the same
# stream. A rank that a framework's launcher starts gets the same text.
BOOTSTRAP = "import sys;b=sys.stdin.buffer;TEXT=b.read(int(b.readline()));exec(compile(TEXT,'agent.py','exec'))"


class SmokeTarget(Protocol):
    """A cell that can run its own Python."""

    def argv(self, args: Sequence[str]) -> list[str]:
        """Return the command that starts the cell's interpreter on our standard streams (``docker run -i …``)."""

    def env(self) -> Mapping[str, str]:
        """Return variables for that command, added to this process's environment."""

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the command and what runs for it (a container's processes do not die with ``docker exec``)."""


@runtime_checkable
class Explaining(Protocol):
    """A target with something between us and the interpreter that can refuse to start it: a container engine."""

    def refusal(self, status: int | None, words: str) -> EnvsmithError | None:
        """Return what was wrong before the interpreter ran, ``None`` when it did run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalTarget:
    """A virtual environment (or any interpreter) on this machine.

    ``extra`` are further variables, ``TORCH_EXTENSIONS_DIR`` for example, where DeepSpeed's compiled ops of this cell
    are kept. Without it every run compiles them anew in a directory that is removed. ``keeps_bytecode`` lets it write
    byte-code into an environment that is ours.
    """

    python: Path
    extra: Mapping[str, str] = field(default_factory=dict)
    keeps_bytecode: bool = False

    def argv(self, args: Sequence[str]) -> list[str]:
        """Return ``[python, *args]``."""
        return [str(self.python), *(a for a in args if a != "-B" or not self.keeps_bytecode)]

    def env(self) -> Mapping[str, str]:
        """Put the interpreter's own directory first on ``PATH`` (ninja lives there)."""
        path = os.pathsep.join([str(self.python.parent), os.environ.get("PATH", os.defpath)])
        return {"PATH": path, **self.extra}

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the agent. Its ranks ask the kernel to be killed with their parent."""
        process.kill()


def agent_arguments() -> list[str]:
    """Return the arguments for ``Target.argv``: isolated (``-I``), writing no byte code into the cell (``-B``)."""
    return ["-I", "-B", "-c", BOOTSTRAP, "supervise"]


def agent_input(plan: bytes) -> bytes:
    """Return what the bootstrap and the agent read: length, source, one line of plan."""
    source = bundle()
    return b"%d\n" % len(source) + source + plan.strip() + b"\n"


def torchrun_argv(
    *, python: str, agent: str, plan: str, events: str, ranks: int, nodes: int = 1, rendezvous: str | None = None
) -> list[str]:
    """Return a command for every node: one rank per process, no restarts. ``events`` may hold ``%r`` for the rank."""
    endpoint = rendezvous or "localhost:29400"
    across = ["--nnodes", str(nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint]
    launcher = [python, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--max-restarts", "0"]
    return [*launcher, *(["--standalone"] if nodes == 1 else across), agent, "--plan", plan, "--events", events]


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeProgress:
    """How far the run is: the ``phase`` (import, collectives, a step's name, done), cases finished and in all."""

    phase: str
    finished: int = 0
    total: int = 0
    text: str = ""

    @property
    def line(self) -> str:
        """Return how far the run is in one line."""
        count = f" {self.finished}/{self.total}" if self.total else ""
        return f"{self.phase}{count} {self.text}".strip()


def run(
    plan: Plan,
    target: SmokeTarget,
    *,
    progress: Callable[[SmokeProgress], None] | None = None,
    limit: float | None = None,
) -> SmokeResult:
    """Run the plan in the target and judge it. ``limit`` are seconds after which it is ended from outside.

    Raises :class:`SmokeError` when the cell's interpreter cannot be started at all. A test that ran and failed is a
    result with ``passed`` false. On ``KeyboardInterrupt`` the agent and its ranks are ended, and
    :class:`InterruptedRunError` says how far they came.
    """
    started = time.monotonic()
    agent = _Agent(plan, target, progress)
    try:
        status = agent.converse(min(plan.outer_deadline, limit or plan.outer_deadline))
    except KeyboardInterrupt:
        raise _interrupted(plan, agent.reader.events) from None
    words = agent.words.text
    result = judge_events(plan, agent.reader.events, agent_exit=status, words=words)
    if agent.reader.is_empty and status not in {0, None}:
        raise _not_started(target, status, words)
    return replace(result, seconds={**result.seconds, "wall": round(time.monotonic() - started, 3)})


def _interrupted(plan: Plan, log: Events) -> InterruptedRunError:
    """Say how far the run came, and what was wrong until then."""
    end = HaltEvent(reason=HaltReason.INTERRUPTED)
    result = judge_events(plan, replace(log, halts=(*log.halts, end)), agent_exit=None)
    cases = [case for case in result.cases if case.verdict is not Verdict.NOT_RUN]
    steps = [step for step in result.steps if step.verdict is not Verdict.NOT_RUN]
    bad = [case.blame or case.case for case in cases if not case.verdict.good and not case.is_known]
    bad += [f"{step.name}: {step.detail}" for step in steps if not step.verdict.good]
    reached = f"{len(cases)} of {len(result.cases)} cases and {len(steps)} of {len(result.steps)} steps"
    return InterruptedRunError(
        f"Cannot finish the smoke test: it was interrupted after {reached}, of which {len(bad) or 'none'} failed.",
        hint="Run the same command again. It begins anew.",
        details=bad[:5],
    )


def _not_started(target: SmokeTarget, status: int | None, words: str) -> EnvsmithError:
    if isinstance(target, Explaining) and (refused := target.refusal(status, words)):
        return refused
    return SmokeError(
        f"Cannot run the smoke test: that Python ended with status {status}.",
        hint="Check that it is a working Python of 3.9 or newer.",
        details=words.strip().splitlines()[-5:],
    )


def probe(target: SmokeTarget) -> dict[str, str]:
    """Return the versions that the cell's metadata names, for :meth:`Plan.build`. Raises :class:`SmokeError`."""
    command, env = target.argv(["-I", "-B", "-c", _PROBE]), {**os.environ, **target.env()}
    try:
        with os_errors(f"start {command[0]}", SmokeError, hint=_HINT):
            process = execute(command, seconds=_PROBE_SECONDS, env=env)
    except subprocess.TimeoutExpired:
        raise SmokeError(f"Cannot ask {command[0]}: it did not answer within {_PROBE_SECONDS:.0f} s.") from None
    try:
        versions = parse_json(process.stdout)
    except ValueError:
        versions = None
    if not isinstance(versions, dict):
        words = process.stderr.strip().splitlines()
        last = f": {words[-1][:300]}" if words else ""
        message = f"Cannot ask {command[0]}: no Python of 3.9 or newer answered (status {process.returncode}){last}."
        raise SmokeError(message, hint=_HINT)
    return {str(key): str(value) for key, value in versions.items()}


class _Agent:
    """The agent's process and what it wrote."""

    def __init__(self, plan: Plan, target: SmokeTarget, progress: Callable[[SmokeProgress], None] | None) -> None:
        self.plan, self.target, self.progress = plan, target, progress
        self.reader = EventReader()
        self.words = Kept(_MAX_WORDS)  # what it wrote on standard error, and what is not an event
        self._cases = 0
        command = target.argv(agent_arguments())
        with os_errors(f"start {command[0]}", SmokeError, hint=_HINT):
            self._talk = Conversation(
                command,
                out=Lines(self._receive, MAX_LINE).add,
                err=self.words.add,
                feed=agent_input(json.dumps(plan.to_json()).encode()),
                stays=True,
                env={**os.environ, **target.env()},
            )

    def converse(self, seconds: float) -> int | None:
        """Send source and plan, read until both streams end. Return the exit status, ``None`` after the deadline."""
        until = time.monotonic() + seconds
        try:
            converse(self._talk, is_over=lambda: time.monotonic() > until)
            still_running([self._talk.process], min(10.0, until - time.monotonic()))
            return self._talk.process.returncode
        finally:  # the agent ends its ranks and tidies up
            close(self._talk, grace=0.05, patience=_TIDYING, kill=self.target.kill)

    def _receive(self, line: str) -> None:
        """Take a line. What is not JSON is kept among the words."""
        try:
            event = parse_json(line) if line.strip() else None
        except ValueError:
            self.words.add(line[:2000].encode() + b"\n")
            return
        if isinstance(event, dict):
            self._report(self.reader.take(event))

    def _report(self, event: object) -> None:
        total = len(self.plan.cases)
        if isinstance(event, Hello):
            news = SmokeProgress(phase="import", total=total, text="importing torch")
        elif isinstance(event, PlacementEvent):
            news = SmokeProgress(phase="collectives", total=total, text=event.sentence)
        elif isinstance(event, CaseRow) and event.rank == 0:
            self._cases += 1
            if self._cases % 10 and self._cases != total:
                return
            news = SmokeProgress(phase="collectives", finished=self._cases, total=total)
        elif isinstance(event, StepBegin):
            news = SmokeProgress(phase=event.run, text="...")
        elif isinstance(event, StepRow) and event.rank == 0:
            news = SmokeProgress(phase=event.run, text=event.status.value)
        elif isinstance(event, Bye):
            news = SmokeProgress(phase="done", finished=total, total=total)
        else:
            return
        if self.progress:
            self.progress(news)
