"""How ranks find each other before (or beside) a process group: the launcher's store, one exchange, one collective."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any, TypedDict, TypeVar

from envsmith.agent.launchers import LaunchPlace, discover
from envsmith.agent.protocol import one_line
from envsmith.errors import SmokeError, UsageError
from envsmith.preflight.checks import version_key


class TrialAnswer(TypedDict, total=False):
    """How a rank came out of the collective: ``ok``, or where it stood and what was said there, as JSON."""

    ok: bool
    stage: str
    detail: str
    hang: bool


_Message = TypeVar("_Message")
Ask = Callable[..., TrialAnswer]

_CALLS = itertools.count()
_OWN: dict[tuple[str, int], Any] = {}  # stores that we host: they must outlive every rank's last question
# Longer than any deadline of a preflight: torch's watchdog must not end the process before we have named the rank.
_WATCHDOG = timedelta(hours=1)


@dataclass(frozen=True)
class JobPlace:
    """Where this process is in its job. ``backend`` is that of the default group, empty where there is none.

    ``store`` has a connection and a prefix of its own for one call; it is ``None`` when there is only one process.
    """

    rank: int
    world: int
    local: int
    host: str = ""
    store: Any = field(default=None, repr=False)
    backend: str = ""


def find_place(timeout: float) -> JobPlace:
    """Return rank, world and store: of the default group when there is one, else of the launcher, else alone.

    Raises :class:`SmokeError` when the store of the job cannot be reached, :class:`UsageError` for variables of the
    launcher that are not numbers.
    """
    import torch.distributed as dist

    number, available = next(_CALLS), dist.is_available()
    backend = str(dist.get_backend()) if available and dist.is_initialized() else ""
    try:
        local = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) or 0)
        launch = discover(os.environ, {}) if available and not backend else None
    except ValueError as error:
        hint = "Look at RANK, WORLD_SIZE, LOCAL_RANK and MASTER_PORT of this process."
        raise UsageError(f"Cannot read the launcher's variables: {error}.", hint=hint) from error
    if backend:
        base = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - torch has no public name for it
        rank, world = dist.get_rank(), dist.get_world_size()
    elif launch is not None:
        base, rank, world, local = None, launch.rank, launch.world, launch.local
    else:
        rank, world = 0, 1
    if world < 2:
        return JobPlace(rank=rank, world=world, local=local, backend=backend)
    base = _launcher_store(launch, timeout) if launch else _connection(base, world, timeout)
    run = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store = dist.PrefixStore(f"envsmith-preflight/{run}/{number}", base)
    host = getattr(base, "host", "")
    return JobPlace(rank=rank, world=world, local=local, host=host, store=store, backend=backend)


def _launcher_store(launch: LaunchPlace, timeout: float) -> Any:
    """Connect to the store of torchrun's agent. Under any other launcher rank 0 opens one beside the script's port."""
    host, port, owner = launch.master, launch.port, False
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and os.environ.get("MASTER_PORT"):
        port = int(os.environ["MASTER_PORT"])
    else:
        # The script's own init_process_group will listen on MASTER_PORT.
        port += 1 if str(port) == os.environ.get("MASTER_PORT") else 0
        owner = launch.rank == 0 and (host, port) not in _OWN
    try:
        store = _tcp_store(host, port, launch.world, timeout, owner=owner)
    except Exception as error:
        verb = "open" if owner else "reach"
        raise SmokeError(
            f"Cannot {verb} the store at {host}:{port}: rank {launch.rank} got {one_line(error).rstrip('.')}.",
            hint="Check this address on every node and the port between them. ENVSMITH_MASTER_PORT names another.",
        ) from error
    if owner:
        _OWN[host, port] = store
    return store


def _tcp_store(host: str, port: int, world: int, timeout: float, *, owner: bool = False) -> Any:
    import torch.distributed as dist

    return dist.TCPStore(host, port, world, owner, timedelta(seconds=timeout), wait_for_workers=False)


def _connection(store: Any, world: int, timeout: float) -> Any:
    """Return the same store through a connection of its own: one connection serves one thread at a time.

    A store without a server (a file) is shared.
    """
    import torch.distributed as dist

    inner = store
    while isinstance(inner, dist.PrefixStore):
        inner = inner.underlying_store
    return _tcp_store(inner.host, inner.port, world, timeout) if isinstance(inner, dist.TCPStore) else store


def agree(place: JobPlace, key: str, mine: _Message, timeout: float) -> tuple[dict[int, _Message], list[int]]:
    """Return everybody's value by rank, and the ranks that did not come within ``timeout`` seconds.

    The first rank that has seen all or has lost its patience decides for all, also for those that come later: no rank
    goes on to a collective that another one has given up.
    """
    store = place.store
    store.set(f"{key}/{place.rank}", json.dumps(mine))
    until, missing = time.monotonic() + timeout, []
    for rank in range(place.world):
        remaining = max(0.05, until - time.monotonic())
        try:
            store.wait([f"{key}/{rank}"], timedelta(seconds=remaining))
        except Exception:  # noqa: BLE001 - torch has raised several classes for a key that does not come
            missing.append(rank)
    missing = json.loads(store.compare_set(f"{key}/missing", "", json.dumps(missing)))
    present = [rank for rank in range(place.world) if rank not in missing]
    return {rank: json.loads(store.get(f"{key}/{rank}")) for rank in present}, missing


class CollectiveTrial:
    """One collective in a thread of its own: nothing in it can hold up the caller, whatever it waits for.

    ``collective`` is called with the trial. It names its ``stage`` and leaves its group in ``group`` and its store in
    ``store``, which :meth:`close` ends. Write the verdict before you close: an end may hang as the collective did.
    """

    def __init__(self, collective: Callable[[CollectiveTrial], TrialAnswer]) -> None:
        self.group: Any = None
        self.store: Any = None
        self.stage = "making a group"
        self.closed = threading.Event()
        self._collective = collective
        self._answer: TrialAnswer = {}
        self._ended = threading.Event()

    def run(self, timeout: float) -> TrialAnswer:
        """Return that it was right, or what happened, after ``timeout`` seconds at the latest."""
        threading.Thread(target=self._run, name="envsmith-preflight", daemon=True).start()
        if self._ended.wait(timeout):
            return self._answer
        return {"ok": False, "stage": self.stage, "detail": f"no end after {timeout:.0f} s", "hang": True}

    def _run(self) -> None:
        try:
            self._answer = self._collective(self)
        except Exception as error:  # noqa: BLE001 - whatever the backend says is the finding
            self._answer = {"ok": False, "stage": self.stage, "detail": one_line(error)}
        self._ended.set()

    def close(self, patience: float = 2.0) -> None:
        """End the group and wait ``patience`` seconds for it."""
        self.closed.set()
        thread = threading.Thread(target=self._abort, name="envsmith-preflight-close", daemon=True)
        thread.start()
        thread.join(patience)

    def _abort(self) -> None:
        """Stop what still runs. A shutdown would wait for it: it is ``ncclCommDestroy``, this is ``ncclCommAbort``.

        ``abort`` is there from torch 2.6 on. Before, ``_shutdown`` (2.2) and ``_abort`` (2.1) do the same, and in 2.0
        only the destructor does (ProcessGroupNCCL.hpp and distributed_c10d.py of the wheels, pytorch #96017, #111392).
        """
        group, self.group = self.group, None
        abort = next((getattr(group, name) for name in ("abort", "_shutdown", "_abort") if hasattr(group, name)), None)
        if abort is not None:
            with contextlib.suppress(Exception):  # gloo has none before torch 2.7
                abort()
        self.store = None


def all_reduce_trial(
    place: JobPlace, backend: str, device: int | None, timeout: float, ask: Ask | None = None
) -> CollectiveTrial:
    """Return the trial of one all_reduce whose value every rank knows: in this process, or where ``ask`` sends it."""

    def collective(trial: CollectiveTrial) -> TrialAnswer:
        place.store.set(f"entered/{place.rank}", "1")
        host, port = _open_group_store(trial, place, timeout)
        job = {"backend": backend, "device": device, "rank": place.rank, "world": place.world, "timeout": timeout}
        return (ask or partial(all_reduce, trial))(host=host, port=port, **job)

    return CollectiveTrial(collective)


def _open_group_store(trial: CollectiveTrial, place: JobPlace, timeout: float) -> tuple[str, int]:
    """Return the address of a store that serves this group alone, at rank 0.

    A watchdog of NCCL writes its alarms at the root of a store, where those of the script's own groups would read them.
    """
    key = "group/address"
    if place.rank == 0:
        trial.store = _tcp_store("localhost", 0, place.world, timeout, owner=True)
        place.store.set(key, json.dumps([place.host or socket.gethostname(), trial.store.port]))
        return "localhost", trial.store.port
    place.store.wait([key], timedelta(seconds=timeout))
    host, port = json.loads(place.store.get(key))
    return host, port


def all_reduce(
    trial: CollectiveTrial,
    *,
    backend: str,
    device: int | None,
    host: str,
    port: int,
    rank: int,
    world: int,
    timeout: float,
) -> TrialAnswer:
    """Sum a tensor over all ranks and compare the result.

    The group is a backend that torch does not register: the default group, its names and its counters stay as they are.
    """
    import torch
    import torch.distributed as dist

    limit = timedelta(seconds=2 * timeout)
    store = _tcp_store(host, port, world, 2 * timeout)
    where = torch.device("cpu") if device is None else torch.device("cuda", device)
    index = torch.arange(257, dtype=torch.int64)
    with contextlib.nullcontext() if device is None else torch.cuda.device(device):
        if backend == "gloo":
            trial.group = dist.ProcessGroupGloo(store, rank, world, timeout=limit)
        else:
            with unhandled_errors(version_key(torch.__version__)):
                trial.group = dist.ProcessGroupNCCL(store, rank, world, timeout=_WATCHDOG)
        trial.stage = "all_reduce"
        tensor = (index * (rank + 1)).to(where)
        work = trial.group.allreduce([tensor])
        while not work.is_completed():
            if trial.closed.wait(0.0005):
                return {}
        work.wait()
        result, due = tensor.cpu(), index * (world * (world + 1) // 2)
    if bool((result == due).all()):
        return {"ok": True}
    wrong = int((result != due).nonzero()[0])
    return {"ok": False, "stage": trial.stage, "detail": f"read {int(result[wrong])} where {int(due[wrong])} was due"}


@contextlib.contextmanager
def unhandled_errors(torch_version: tuple[int, ...], environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Make a group whose watchdog ends no process: it reads this when it is made (0 is ``NoHandling``).

    The variable has its prefix from torch 2.2 on (ProcessGroupNCCL.hpp of 2.1.2 and 2.2.2).
    """
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING" if torch_version >= (2, 2) else "NCCL_ASYNC_ERROR_HANDLING"
    before = environ.get(name)
    environ[name] = "0"
    try:
        yield
    finally:
        del environ[name]
        if before is not None:
            environ[name] = before


# A process of its own for the collective of a script that has no group yet.
#
# torch numbers the groups of a process and takes number 0 for the default group. After another one, ``split_group`` reads
# past the end of a list, and the flight recorder never writes (pytorch #191949, #191952).

# At the end of the path: what lies beside an installed envsmith must not hide the standard library.
_CODE = "import sys; sys.path.append(sys.argv[1]); from envsmith.preflight.group import be_child; be_child()"


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

    def ask(self, **job: Any) -> TrialAnswer:
        """Return its answer to :func:`all_reduce` with these arguments."""
        if not self._answers.readline():
            raise RuntimeError("the process for it could not import torch")
        self._questions.write(json.dumps(job).encode() + b"\n")
        answer: TrialAnswer = json.loads(self._answers.readline() or '{"detail": "the process for it died"}')
        return answer


def be_child() -> None:
    """Be the child: say when torch is imported, answer one job, and stay until the parent ends this or itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # NCCL and torch write to stdout what no parent can parse
    import torch.distributed  # noqa: F401 - the parent waits for this

    answers.write(b"{}\n")
    job = json.loads(sys.stdin.readline() or "null")
    if job is not None:
        # A little less than the parent waits: this side knows what the collective was doing.
        answer = CollectiveTrial(partial(all_reduce, **job)).run(0.9 * job["timeout"])
        answers.write(json.dumps(answer).encode() + b"\n")
        sys.stdin.read()
    os._exit(0)
