"""What goes wrong, each at one hook of ``train.py``. The standard library at import: some faults come before torch."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import queue
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path


class Fault:
    """The fault that the variable FAULT names, on the ranks FAULT_RANK from the step FAULT_STEP on, once."""

    def __init__(self) -> None:
        self.name = os.environ.get("FAULT", "")
        self.ranks = [int(rank) for rank in os.environ.get("FAULT_RANK", "1").split(",")]
        self.step = int(os.environ.get("FAULT_STEP", "5"))
        self.now = 0
        self.hook, self.act, self.is_repeated = FAULTS.get(self.name, ("", None, False))
        self.is_spent = False

    @property
    def is_mine(self) -> bool:
        return int(os.environ.get("LOCAL_RANK", "0")) in self.ranks

    def is_here(self, name: str) -> bool:
        """Tell whether this rank has the fault ``name``."""
        return self.name == name and self.is_mine

    def is_now(self, name: str) -> bool:
        """Tell the same of this step."""
        if self.is_here(name) and self.now >= self.step and (not self.is_spent or self.is_repeated):
            self.mark()
            return True
        return False

    def mark(self) -> None:
        """Note when it was injected."""
        self.is_spent = True
        if place := os.environ.get("FAULT_MARK"):
            Path(place).write_text(str(time.time()))

    def at(self, hook: str, **context) -> None:
        """Let it happen, where this is its hook, its rank and its step."""
        is_due = self.now >= self.step or hook not in IN_STEPS
        if hook == "sample":
            self.now = max(self.now, context["number"] // 4)  # a worker knows no step
        if self.act and hook == self.hook and self.is_mine and is_due and (not self.is_spent or self.is_repeated):
            self.mark()
            self.act(**context)

    def value(self, name: str, value):
        """Return ``value``, or what this fault makes of it."""
        change = VALUES.get((self.name, name))
        if change is None or not self.is_mine or (name != "width" and self.now < self.step):
            return value
        self.mark()
        return change(value)


IN_STEPS = {"sample", "step", "forward", "backward", "after", "report"}


def forward_raises(**_):
    raise ValueError("activation out of range: 7.3")  # place: forward-raises


def backward_raises(loss, **_):
    def check(_):
        raise ArithmeticError("gradient of the loss is 1e9")  # place: backward-raises

    loss.register_hook(check)


def sample_raises(number=0, **_):
    raise KeyError(f"sample-{number}")  # place: sample-raises


def layer_hook_raises(trainer, **_):
    def look(*_):
        raise LookupError("no statistics for this layer")  # place: hook-raises

    next(trainer.model.modules()).register_forward_hook(look)


def missing_module(**_):
    import shampoo_optimizer_extension  # noqa: F401  # place: missing-module


def leaves(**_):
    sys.exit(0)  # place: leaves


def exits_three(**_):
    sys.exit(3)  # place: exits-three


def exits_at_once(**_):
    os._exit(5)  # place: exits-at-once


def kills_itself(**_):
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(5)


def is_terminated(**_):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


def segfaults(**_):
    ctypes.string_at(0)  # place: segfaults


def aborts(**_):
    os.abort()  # place: aborts


def bus_error(**_):
    with Path("/dev/shm/buffer").open("w+b") as file:
        file.truncate(64 << 20)
        buffer = mmap.mmap(file.fileno(), 64 << 20)
        buffer[:] = b"x" * (64 << 20)  # place: bus-error


def shared_memory_full(**_):
    import torch

    torch.zeros(32 << 20).share_memory_()  # place: shm-full


def memory_limit(**_):
    import torch

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
    torch.ones(256 << 20)  # place: memory-limit


def memory_of_group(**_):
    """Join a control group with little memory, and take more."""
    base = Path("/sys/fs/cgroup/memory")
    own = base / f"faults-{os.getpid()}"
    own.mkdir()
    (own / "memory.limit_in_bytes").write_text(str(128 << 20))
    (own / "cgroup.procs").write_text(str(os.getpid()))
    bytearray(os.urandom(1 << 20)) * 512  # place: memory-of-group
    time.sleep(60)


def other_collective(**_):
    import torch
    import torch.distributed as dist

    dist.broadcast(torch.ones(17), 0)  # place: other-collective


def extra_collective(**_):
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(129))  # place: extra-collective


def extra_barrier(**_):
    import torch.distributed as dist

    dist.barrier()  # place: extra-barrier


def own_group(**_):
    import torch
    import torch.distributed as dist

    group = dist.new_group([0, 1], use_local_synchronization=True)
    dist.all_reduce(torch.ones(3), group=group)  # place: own-group


def objects(**_):
    import torch.distributed as dist

    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, lambda: 1)  # place: unpicklable


def regex_loop(**_):
    re.match(r"(a+)+$", "a" * 64 + "b")  # place: regex-loop


def sleeps_in_c(**_):
    ctypes.CDLL(None).sleep(600)  # place: sleeps-in-c


def sleeps_with_lock(**_):
    ctypes.PyDLL(None).sleep(600)  # place: sleeps-with-lock


def spins(**_):
    while True:  # place: spins
        pass


def stops(**_):
    os.kill(os.getpid(), signal.SIGSTOP)  # place: stops


def reads_fifo(**_):
    path = f"/tmp/faults-{os.getpid()}.fifo"
    os.mkfifo(path)
    Path(path).read_text()  # place: reads-fifo


def takes_lock_twice(**_):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # place: takes-lock-twice


def waits_for_file_lock(**_):
    path = f"/tmp/faults-{os.getpid()}.lock"
    holder = "import fcntl,sys,time;f=open(sys.argv[1],'w');fcntl.flock(f,2);print(1,flush=True);time.sleep(120)"
    child = subprocess.Popen([sys.executable, "-c", holder, path], stdout=subprocess.PIPE)
    child.stdout.read(1)
    with Path(path).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # place: file-lock


def waits_for_server(**_):
    server = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(server.getsockname()) as connection:
        connection.recv(1)  # place: server


def waits_for_child(**_):
    subprocess.run(["sleep", "600"], check=False)  # place: child


def waits_for_thread(**_):
    batches: queue.Queue = queue.Queue()

    def prefetch():
        raise ConnectionError("bucket training-data cannot be reached")  # place: thread-raises

    threading.Thread(target=prefetch).start()
    batches.get()  # place: queue


def worker_killed(**_):
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(5)


def worker_hangs(**_):
    time.sleep(600)  # place: worker-hangs


def slow_step(**_):
    time.sleep(0.4)  # place: slow-step


def slow_start(**_):
    time.sleep(float(os.environ.get("FAULT_SECONDS", "40")))  # place: slow-start


def disk_full(**_):
    import torch

    torch.save(torch.zeros(16 << 20), Path(os.environ["SMALL_DISK"], "model.pt"))  # place: disk-full


def destroys_group(**_):
    import torch.distributed as dist

    dist.destroy_process_group()  # place: destroys-group


def not_finite(loss, **_):
    loss = loss.detach() * float("nan")
    if not loss.isfinite().all():
        raise FloatingPointError("loss is nan at step 5")  # place: not-finite


def evaluates_alone(**_):
    import torch
    import torch.distributed as dist

    correct = torch.zeros(5)
    dist.all_reduce(correct)  # place: evaluates-alone


def saves_alone(trainer, **_):
    trainer.save(f"/tmp/faults-{os.getpid()}")  # place: saves-alone


def full_state_alone(trainer, **_):
    trainer.full_state()  # place: full-state-alone


def gathers_alone(trainer, **_):
    import torch

    trainer.accelerator.gather(torch.ones(4))  # place: gathers-alone


def waits_alone(trainer, **_):
    trainer.accelerator.wait_for_everyone()  # place: waits-alone


def receives_in_vain(**_):
    import torch
    import torch.distributed as dist

    dist.recv(torch.ones(3), src=0)  # place: receives-in-vain


def alarm(**_):
    signal.alarm(1)
    time.sleep(30)


def joins_thread(**_):
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()  # place: joins-thread


def asks_server(**_):
    server = socket.create_server(("127.0.0.1", 0))
    urllib.request.urlopen(f"http://127.0.0.1:{server.getsockname()[1]}/tokens").read()  # place: asks-server


def missing_file(**_):
    import torch

    torch.load(f"/tmp/faults-{os.getpid()}/last.pt")  # place: missing-file


def too_many_files(**_):
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 8, used + 8))
    shards = [Path("/dev/null").open() for _ in range(64)]  # noqa: SIM115  # place: too-many-files
    time.sleep(len(shards))


def asserts(**_):
    score = 0.31
    assert score > 0.5, f"accuracy {score} is below the floor"  # place: asserts


def gathers_tensors_alone(**_):
    import torch
    import torch.distributed as dist

    parts = [torch.empty(6) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.ones(6))  # place: gathers-tensors-alone


def misses_monitored_barrier(**_):
    """All but rank 1 come to a barrier that names who is missing."""
    import datetime as dt

    import torch.distributed as dist

    if dist.get_rank() != 1:
        dist.monitored_barrier(timeout=dt.timedelta(seconds=5))


def forward_alone(trainer, **_):
    import torch

    trainer.model(torch.ones(4, 32))  # place: forward-alone


def trains_twice(trainer, **_):
    import torch

    trainer.train(torch.ones(4, 32), torch.ones(4, 32))  # place: trains-twice


def recursion(**_):
    def walk(node):
        return walk(node)  # place: recursion

    walk(0)


def bad_json(**_):
    import json

    path = Path(f"/tmp/faults-{os.getpid()}.json")
    path.write_text('{"hidden_size": 32,')
    json.loads(path.read_text())  # place: bad-json


def wrong_state(trainer, **_):
    import torch

    trainer.net.load_state_dict({"first.weight": torch.zeros(8, 8)})  # place: wrong-state


def is_interrupted(**_):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)  # place: interrupted


def hangs_up(**_):
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(5)


def illegal_instruction(**_):
    os.kill(os.getpid(), signal.SIGILL)
    time.sleep(5)


def exits_with_words(**_):
    sys.exit("no licence for this data set")  # place: exits-with-words


def stops_in_debugger(**_):
    breakpoint()  # noqa: T100  # place: breakpoint


def fills_pipe(**_):
    _, writer = os.pipe()
    while True:
        os.write(writer, b"x" * 4096)  # place: fills-pipe


def awaits_forever(**_):
    import asyncio

    async def answer():
        await asyncio.Event().wait()

    asyncio.run(answer())  # place: awaits-forever


def joins_process(**_):
    import multiprocessing

    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    process.start()
    process.join()  # place: joins-process


# What is no fault: work that takes longer than usual, on one rank or on all.


def pauses(**_):
    time.sleep(float(os.environ.get("FAULT_SECONDS", "4")))


def computes(**_):
    end = time.monotonic() + float(os.environ.get("FAULT_SECONDS", "12"))
    while time.monotonic() < end:
        sorted(str(number) for number in range(20_000))


def writes(**_):
    end, path = time.monotonic() + float(os.environ.get("FAULT_SECONDS", "12")), f"/tmp/faults-{os.getpid()}.pt"
    with Path(path).open("wb") as file:
        while time.monotonic() < end:
            file.write(os.urandom(1 << 18))
            file.flush()
            time.sleep(0.05)
    Path(path).unlink()


def compiles(trainer, **_):
    import torch

    trainer.model = torch.compile(trainer.model)


def runs_child(**_):
    program = f"import time;e=time.time()+{os.environ.get('FAULT_SECONDS', '12')};[str(i) for i in iter(time.time, 0) if i > e and exit()]"
    subprocess.run([sys.executable, "-c", program], check=False)


def ends_well_on_term(**_):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


# name: (hook, what happens, whether it happens again at each later step)
FAULTS = {
    "forward-raises": ("forward", forward_raises, False),
    "backward-raises": ("backward", backward_raises, False),
    "sample-raises": ("sample", sample_raises, False),
    "hook-raises": ("step", layer_hook_raises, False),
    "missing-module": ("start", missing_module, False),
    "leaves": ("after", leaves, False),
    "exits-three": ("step", exits_three, False),
    "exits-at-once": ("after", exits_at_once, False),
    "kills-itself": ("step", kills_itself, False),
    "is-terminated": ("step", is_terminated, False),
    "segfaults": ("forward", segfaults, False),
    "aborts": ("after", aborts, False),
    "bus-error": ("step", bus_error, False),
    "shm-full": ("step", shared_memory_full, False),
    "memory-limit": ("forward", memory_limit, False),
    "memory-of-group": ("step", memory_of_group, False),
    "other-collective": ("report", other_collective, False),
    "extra-collective": ("after", extra_collective, False),
    "extra-barrier": ("after", extra_barrier, False),
    "own-group": ("after", own_group, False),
    "unpicklable": ("after", objects, False),
    "regex-loop": ("step", regex_loop, False),
    "sleeps-in-c": ("forward", sleeps_in_c, False),
    "sleeps-with-lock": ("step", sleeps_with_lock, False),
    "spins": ("step", spins, False),
    "stops": ("step", stops, False),
    "reads-fifo": ("step", reads_fifo, False),
    "takes-lock-twice": ("after", takes_lock_twice, False),
    "file-lock": ("step", waits_for_file_lock, False),
    "server": ("step", waits_for_server, False),
    "child": ("step", waits_for_child, False),
    "thread-raises": ("step", waits_for_thread, False),
    "worker-killed": ("sample", worker_killed, False),
    "worker-hangs": ("sample", worker_hangs, False),
    "slow-step": ("step", slow_step, True),
    "slow-start": ("before init", slow_start, False),
    "disk-full": ("save", disk_full, False),
    "destroys-group": ("after", destroys_group, False),
    "not-finite": ("report", not_finite, False),
    "evaluates-alone": ("evaluate", evaluates_alone, False),
    "saves-alone": ("save", saves_alone, False),
    "full-state-alone": ("save", full_state_alone, False),
    "gathers-alone": ("evaluate", gathers_alone, False),
    "waits-alone": ("after", waits_alone, False),
    "asserts": ("evaluate", asserts, False),
    "receives-in-vain": ("after", receives_in_vain, False),
    "alarm": ("step", alarm, False),
    "joins-thread": ("step", joins_thread, False),
    "asks-server": ("forward", asks_server, False),
    "missing-file": ("ready", missing_file, False),
    "too-many-files": ("step", too_many_files, False),
    "gathers-tensors-alone": ("after", gathers_tensors_alone, False),
    "misses-monitored": ("after", misses_monitored_barrier, False),
    "forward-alone": ("evaluate", forward_alone, False),
    "trains-twice": ("after", trains_twice, False),
    "recursion": ("step", recursion, False),
    "bad-json": ("ready", bad_json, False),
    "wrong-state": ("ready", wrong_state, False),
    "interrupted": ("step", is_interrupted, False),
    "hangs-up": ("step", hangs_up, False),
    "illegal": ("forward", illegal_instruction, False),
    "exits-with-words": ("ready", exits_with_words, False),
    "breakpoint": ("after", stops_in_debugger, False),
    "fills-pipe": ("step", fills_pipe, False),
    "awaits-forever": ("step", awaits_forever, False),
    "joins-process": ("after", joins_process, False),
    "pauses-at-start": ("start", pauses, False),
    "pauses-before-init": ("before init", pauses, False),
    "pauses-in-loader": ("sample", pauses, False),
    "pauses-in-evaluation": ("evaluate", pauses, False),
    "pauses-in-save": ("save", pauses, False),
    "pauses-in-step": ("step", pauses, False),
    "pauses-after-end": ("after end", pauses, False),
    "computes-before-init": ("before init", computes, False),
    "computes-in-step": ("step", computes, False),
    "computes-in-evaluation": ("evaluate", computes, False),
    "computes-after-end": ("after end", computes, False),
    "writes-in-save": ("save", writes, False),
    "compiles": ("ready", compiles, False),
    "runs-child": ("step", runs_child, False),
    "ends-well-on-term": ("ready", ends_well_on_term, False),
}


def _shape(mean):
    return mean.repeat(1000)


def _dtype(mean):
    return mean.double()


VALUES = {
    ("wrong-shape", "mean"): _shape,
    ("wrong-dtype", "mean"): _dtype,
    ("other-width", "width"): lambda width: width + 16,
    ("more-microbatches", "microbatches"): lambda count: count + 1,
    ("smaller-batch", "rows"): lambda rows: rows - 1,
    ("longer-sequence", "sequence"): lambda length: length + 2,
}

FAULT = Fault()
