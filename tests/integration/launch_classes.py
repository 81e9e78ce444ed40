"""Launches of the classes that the review of launches found, each a script of a few lines and what is to be said of it."""

from __future__ import annotations

from dataclasses import dataclass

_HEAD = """
import atexit, ctypes, datetime, os, queue, signal, subprocess, sys, threading, time, urllib.request
import torch
import torch.distributed as dist

def join(seconds=40):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))
    for _ in range(6):
        dist.all_reduce(torch.ones(8))

"""


@dataclass(frozen=True)
class LaunchClass:
    """One launch. ``cause`` is empty where nothing may be called a hang and no rank be blamed.

    ``words`` have to stand in the block, ``place`` is the function in which the rank stands or failed.
    """

    name: str
    body: str
    ranks: int = 2
    blamed: tuple[int, ...] = (1,)
    cause: str = ""
    words: str = ""
    place: str = ""
    launcher: tuple[str, ...] = ()
    is_spawned: bool = False
    stall: int = 4

    @property
    def script(self) -> str:
        """Return the text of the script."""
        return _HEAD + self.body


def _on_one(fault: str, rest: str = "", seconds: int = 40) -> str:
    """Return a script in which rank 1 does ``fault`` while the others are in a collective."""
    lines = "\n    ".join(fault.strip("\n").splitlines())
    return f"""
def fault():
    {lines}

join({seconds})
if dist.get_rank() == 1:
    fault()
dist.all_reduce(torch.ones(8))
{rest}
"""


CLASSES = (
    # 1: the order of ends is the kernel's.
    LaunchClass(
        name="crash-at-exit",
        ranks=3,
        cause="crashed",
        body="join()\nif dist.get_rank() == 1:\n    atexit.register(ctypes.string_at, 0)\ndist.barrier()\n",
    ),
    LaunchClass(
        name="killed-among-terminated",
        ranks=4,
        blamed=(2,),
        cause="killed",
        body="join()\nif dist.get_rank() == 2:\n    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(20)\n",
    ),
    # 2: decided by the frame that raised, not by words.
    LaunchClass(
        name="url-refused",
        cause="raised",
        words="URLError",
        place="fault",
        body=_on_one('urllib.request.urlopen("http://127.0.0.1:9/data")'),
    ),
    LaunchClass(
        name="broken-pipe",
        cause="raised",
        words="BrokenPipeError",
        place="fault",
        body=_on_one("reader, writer = os.pipe()\nos.close(reader)\nos.write(writer, b'x')"),
    ),
    LaunchClass(
        name="own-store-key",
        cause="raised",
        words="batch-7",
        place="fault",
        body=_on_one(
            "store = dist.distributed_c10d._get_default_store()\n"
            "store.wait(['batch-7'], datetime.timedelta(seconds=2))"
        ),
    ),
    LaunchClass(
        name="consequence-in-an-error-of-ours",
        cause="killed",
        blamed=(1,),
        body="""
join()
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(8))
except RuntimeError as error:
    raise ValueError("the step failed") from error
""",
    ),
    # 4: what was raised is known before a stall is judged.
    LaunchClass(
        name="raised-and-stays",
        cause="raised",
        words="ValueError: label 7",
        place="fault",
        body=_on_one("atexit.register(ctypes.PyDLL(None).sleep, 30)\nraise ValueError('label 7')"),
    ),
    # 5: ranks that no launcher names.
    LaunchClass(
        name="spawn-raises",
        cause="raised",
        words="ValueError: label 7",
        place="work",
        is_spawned=True,
        body="""
import torch.multiprocessing as mp

def work(rank, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["SPAWN_PORT"])
    dist.init_process_group("gloo", rank=rank, world_size=size)
    dist.all_reduce(torch.ones(8))
    if rank == 1:
        raise ValueError("label 7")
    dist.all_reduce(torch.ones(8))

if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
""",
    ),
    LaunchClass(
        name="spawn-hangs",
        cause="blocked",
        place="work",
        is_spawned=True,
        body="""
import torch.multiprocessing as mp

def work(rank, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["SPAWN_PORT"])
    dist.init_process_group("gloo", rank=rank, world_size=size)
    dist.all_reduce(torch.ones(8))
    if rank == 1:
        threading.Event().wait()
    dist.all_reduce(torch.ones(8))

if __name__ == "__main__":
    mp.spawn(work, args=(2,), nprocs=2)
""",
    ),
    # 6: a line for each attempt.
    LaunchClass(
        name="restarts",
        cause="killed",
        blamed=(0,),
        words="attempt 0: Rank 1",
        launcher=("--max-restarts=1",),
        # On a busy machine gloo may fail to connect the ranks of a second attempt: they do not join.
        body="""
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    if os.environ["RANK"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(200)
join()
if dist.get_rank() == 1:
    raise ValueError("first attempt")
dist.all_reduce(torch.ones(8))
""",
    ),
    # 7: roots, peers and the order of groups.
    LaunchClass(
        name="other-root",
        ranks=3,
        blamed=(0, 1),  # rank 2 has given its part and is past it
        cause="different-calls",
        words="root 1",
        body="join()\nroot = 1 if dist.get_rank() == 1 else 0\n"
        "for _ in range(50):\n    dist.gather(torch.ones(8), [torch.ones(8) for _ in range(3)] if dist.get_rank() == root "
        "else None, dst=root)\n    dist.barrier()\n",
    ),
    LaunchClass(
        name="other-peer",
        ranks=3,
        cause="different-calls",
        words="from rank 2",
        body="""
join()
rank = dist.get_rank()
if rank == 0:
    dist.send(torch.ones(8), 1)
    dist.recv(torch.ones(8), 1)
elif rank == 1:
    dist.recv(torch.ones(8), 2)
else:
    dist.recv(torch.ones(8), 1)
""",
    ),
    LaunchClass(
        name="order-of-groups",
        ranks=3,
        cause="different-groups",
        body="""
join()
pairs = [[0, 1], [1, 2]]
for pair in pairs[::-1] if dist.get_rank() == 1 else pairs:
    dist.new_group(pair)
dist.barrier()
""",
    ),
    # 8: collectives from threads.
    LaunchClass(
        name="second-thread",
        ranks=3,
        cause="different-calls",
        words="thread",
        body="""
join()
def log():
    dist.all_reduce(torch.ones(8, dtype=torch.int32))
    dist.all_reduce(torch.ones(8, dtype=torch.int32))
if dist.get_rank() == 1:
    thread = threading.Thread(target=log, name="logger")
    thread.start()
    time.sleep(1)
else:
    time.sleep(0.5)
for _ in range(4):
    dist.all_reduce(torch.ones(8))
""",
    ),
    # 9: as deep as the evidence is.
    LaunchClass(
        name="loader-worker",
        cause="raised",
        words="KeyError: 'sample-5'",
        place="__getitem__",
        body="""
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, number):
        if number == 5 and dist.get_rank() == 1:
            raise KeyError("sample-5")
        return torch.ones(4)

join()
for batch in torch.utils.data.DataLoader(Samples(), batch_size=4, num_workers=1):
    dist.all_reduce(torch.ones(8))
""",
    ),
    LaunchClass(
        name="lock-order",
        cause="blocked",
        words="writer",
        place="fault",
        body=_on_one(
            "first, second = threading.Lock(), threading.Lock()\n"
            "def write():\n    with second:\n        time.sleep(1)\n        first.acquire()\n"
            "first.acquire()\nthreading.Thread(target=write, name='writer', daemon=True).start()\ntime.sleep(0.3)\n"
            "second.acquire()"
        ),
    ),
    LaunchClass(
        name="other-program",
        cause="left",
        words="sleep 600",
        body=_on_one("os.execvp('sleep', ['sleep', '600'])"),
    ),
    # 10: place and condition from one frame.
    LaunchClass(
        name="condition-in-another-function",
        ranks=3,
        blamed=(0,),
        cause="different-calls",
        words="`if dist.get_rank() == 0` at train.py:18 (main)",
        place="save",
        body="""
def save():
    dist.all_reduce(torch.ones(3))

def main():
    join()
    if dist.get_rank() == 0:
        save()
    dist.barrier()

main()
""",
    ),
    # 11: what holds for a rank holds for the child and the thread that it waits for.
    LaunchClass(
        name="live-child",
        blamed=(),
        body=_on_one("subprocess.run([sys.executable, '-c', 'import time\\nend = time.time() + 14\\nwhile time.time() < end: pass'])"),
    ),
    LaunchClass(
        name="live-thread",
        blamed=(),
        body=_on_one(
            "results = queue.Queue()\n"
            "def prepare():\n    for _ in range(14):\n        time.sleep(1)\n    results.put(1)\n"
            "threading.Thread(target=prepare).start()\nresults.get()"
        ),
    ),
)  # fmt: skip
