"""The outer parent of a smoke test: starts the agent in a cell, reads its events, keeps an outer deadline, hands the events to the judge.

The agent inside the cell supervises its ranks by itself (deadlines, evidence, exact kills), because this parent may stand outside of a
container and see none of their processes. What is left for us is an agent that itself stops answering.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol, runtime_checkable

from envsmith.errors import EnvsmithError, SmokeError
from envsmith.frameworks import FRAMEWORKS
from envsmith.smoke.bundle import bundle
from envsmith.smoke.plan import Plan
from envsmith.smoke.verdict import SmokeResult, judge

# A line of events is never longer than a few hundred kilobytes; a stream of nonsense must not fill the memory.
_MAX_LINE = 8 << 20
_MAX_WORDS = 64 << 10
_PROBE_SECONDS = 300.0
# The versions that expectations depend on, asked of a cell that nobody has told us about. Reads metadata, imports nothing.
_PROBED = ("torch", "numpy", *FRAMEWORKS, "transformer-engine", "flash-attn")
_PROBE = (
    "import json,sys\nfrom importlib import metadata as m\nf={'python':'%d.%d.%d'%sys.version_info[:3]}\n"
    f"for n in {_PROBED!r}:\n"
    " try:f[n]=m.version(n)\n except Exception:pass\n"
    "for n in ('nvidia-nccl-cu11','nvidia-nccl-cu12','nvidia-nccl-cu13'):\n"
    " try:f['nccl']=m.version(n)\n except Exception:pass\n"
    "print(json.dumps(f))"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far the run is: ``phase`` (import, collectives, a step's name, done), cases finished on all ranks, cases in all, a line for people."""

    phase: str
    done: int = 0
    total: int = 0
    text: str = ""


@dataclass(slots=True)
class _Stream:
    """What is still to be sent, events so far, what the agent said on standard error, and the seconds that it may take in all."""

    limit: float
    pending: memoryview = field(default_factory=lambda: memoryview(b""))
    events: list[object] = field(default_factory=list)
    rest: bytearray = field(default_factory=bytearray)
    words: bytearray = field(default_factory=bytearray)
    finished: dict[int, int] = field(default_factory=dict)

    def feed(self, data: bytes) -> list[Mapping[str, object]]:
        """The whole events in ``data``; what is no JSON object is kept among the words."""
        self.rest += data
        *lines, rest = bytes(self.rest).split(b"\n")
        self.rest = bytearray(rest[-_MAX_LINE:])
        found: list[Mapping[str, object]] = []
        for line in lines:
            try:
                event = json.loads(line) if line.strip() else None
            except ValueError:
                event = None
                self.words += line[:2000] + b"\n"
            if isinstance(event, dict):
                found.append(event)
        self.events.extend(found)
        return found


def run(
    plan: Plan, target: Target, *, progress: Callable[[Progress], None] | None = None, limit: float | None = None
) -> SmokeResult:
    """Run the plan in the target and judge it; ``limit`` are seconds after which it is ended if its own deadlines have not done so.

    Raises :class:`SmokeError` when the cell's interpreter cannot be started at all; a test that ran and failed is a result with
    ``passed`` false. On ``KeyboardInterrupt`` the agent and its ranks are ended before it is passed on.
    """
    started = time.monotonic()
    process = _start(target)
    stream = _Stream(limit=min(plan.outer_deadline, limit or plan.outer_deadline))
    try:
        status = _converse(process, stream, plan, target, progress)
    except BaseException:
        _end(process, target)
        raise
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
    result = judge(plan, stream.events, agent_exit=status, words=stream.words.decode(errors="replace"))
    if not stream.events and status not in {0, None}:
        raise _not_started(target, status, stream.words.decode(errors="replace"))
    seconds = {**result.seconds, "wall": round(time.monotonic() - started, 3)}
    return replace(result, seconds=seconds)


def _not_started(target: Target, status: int | None, words: str) -> EnvsmithError:
    if isinstance(target, Explaining) and (refused := target.refusal(status, words)):
        return refused
    return SmokeError(
        f"that Python could not run the smoke test (status {status})",
        hint="is it a working Python of 3.9 or newer?",
        details=words.strip().splitlines()[-5:],
    )


def probe(target: Target) -> dict[str, str]:
    """Versions of torch and the frameworks that the cell's metadata names, for :meth:`Plan.build`. Raises :class:`SmokeError`."""
    command = target.argv(["-I", "-B", "-c", _PROBE])
    try:
        done = subprocess.run(
            command, env={**os.environ, **target.env()}, capture_output=True, timeout=_PROBE_SECONDS, check=False
        )
    except OSError as error:
        raise SmokeError(
            f"{command[0]} cannot be started: {error.strerror or error}",
            hint="--python names an environment's interpreter, or its folder",
        ) from error
    except subprocess.TimeoutExpired:
        raise SmokeError(f"{command[0]} did not answer within {_PROBE_SECONDS:.0f} s") from None
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        words = done.stderr.decode(errors="replace").strip().splitlines()
        last = f": {words[-1][:300]}" if words else ""
        raise SmokeError(
            f"no Python of 3.9 or newer answered to {command[0]} (status {done.returncode}){last}",
            hint="--python names an environment's interpreter, or its folder",
        )
    return {str(key): str(value) for key, value in found.items()}


def _start(target: Target) -> subprocess.Popen[bytes]:
    command = target.argv(agent_arguments())
    try:
        return subprocess.Popen(
            command,
            env={**os.environ, **target.env()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise SmokeError(
            f"{command[0]} cannot be started: {error.strerror or error}",
            hint="--python names an environment's interpreter, or its folder",
        ) from error


def _converse(
    process: subprocess.Popen[bytes],
    stream: _Stream,
    plan: Plan,
    target: Target,
    progress: Callable[[Progress], None] | None,
) -> int | None:
    """Send source and plan, read until both streams end; ``None`` when the outer deadline had to end it."""
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    if not (stdin and stdout and stderr):
        raise SmokeError("the cell's Python was started without its standard streams")
    stream.pending = memoryview(agent_input(json.dumps(plan.to_json()).encode()))
    limit = time.monotonic() + stream.limit
    with selectors.DefaultSelector() as selector:

        def hear() -> None:
            for event in _receive(stdout, selector, stream):
                if progress:
                    _report(event, stream, plan, progress)

        # Each pipe with what is to be done when it is ready.
        for pipe, mode, serve in (
            (stdout, selectors.EVENT_READ, hear),
            (stderr, selectors.EVENT_READ, lambda: _listen(stderr, selector, stream)),
            (stdin, selectors.EVENT_WRITE, lambda: _send(stdin, selector, stream)),
        ):
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, mode, serve)
        while any(key.events & selectors.EVENT_READ for key in selector.get_map().values()):
            if time.monotonic() > limit:
                _end(process, target)
                return None
            for key, _ in selector.select(timeout=0.2):
                key.data()
    return _wait(process, target, limit)


def _send(stdin: IO[bytes], selector: selectors.BaseSelector, stream: _Stream) -> None:
    """The input stays open after the plan: its end tells the agent that we are gone."""
    try:
        stream.pending = stream.pending[os.write(stdin.fileno(), stream.pending[: 1 << 16]) :]
    except BlockingIOError:
        return
    except BrokenPipeError:
        stream.pending = stream.pending[:0]
    if not stream.pending:
        selector.unregister(stdin)


def _receive(stdout: IO[bytes], selector: selectors.BaseSelector, stream: _Stream) -> list[Mapping[str, object]]:
    data = os.read(stdout.fileno(), 1 << 18)
    if not data:
        selector.unregister(stdout)
    return stream.feed(data)


def _listen(stderr: IO[bytes], selector: selectors.BaseSelector, stream: _Stream) -> None:
    data = os.read(stderr.fileno(), 1 << 16)
    if not data:
        selector.unregister(stderr)
    stream.words += data
    del stream.words[:-_MAX_WORDS]


def _report(event: Mapping[str, object], stream: _Stream, plan: Plan, progress: Callable[[Progress], None]) -> None:
    total, kind = len(plan.cases), event.get("event")
    if kind == "hello":
        progress(Progress(phase="import", total=total, text="importing torch"))
    elif kind == "placement":
        progress(Progress(phase="collectives", total=total, text=str(event.get("sentence", ""))))
    elif kind == "row" and event.get("row") == "case" and event.get("rank") == 0:
        stream.finished[0] = stream.finished.get(0, 0) + 1
        if stream.finished[0] % 10 == 0 or stream.finished[0] == total:
            progress(Progress(phase="collectives", done=stream.finished[0], total=total))
    elif kind == "row" and event.get("row") == "step" and event.get("rank") == 0:
        progress(Progress(phase=str(event.get("run")), done=total, total=total, text=str(event.get("status"))))
    elif kind == "bye":
        progress(Progress(phase="done", done=total, total=total))


def _wait(process: subprocess.Popen[bytes], target: Target, limit: float) -> int | None:
    try:
        return process.wait(timeout=max(1.0, min(10.0, limit - time.monotonic())))
    except subprocess.TimeoutExpired:
        _end(process, target)
        return None


def _end(process: subprocess.Popen[bytes], target: Target) -> None:
    """Ask, wait two seconds (the agent ends its ranks and tidies up), then insist."""
    if process.stdin:
        with contextlib.suppress(OSError):
            process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0.05)
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout=4.0)
    except subprocess.TimeoutExpired:
        target.kill(process)
        process.wait(timeout=10.0)


# How a smoke test gets into a cell: the :class:`Target` seam, the local target, and command lines for torchrun and Slurm.
#
# A target only has to start the cell's interpreter with arguments and give us its standard streams. The agent's source and the plan go
# in through standard input, events come out of standard output: nothing is copied into the cell and nothing of envsmith is installed there.


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


def agent_source() -> bytes:
    """Return the text of ``agent.py``, as it is sent."""
    return bundle()


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
