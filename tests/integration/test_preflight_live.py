"""The preflight under torchrun with four real ranks, one of which is different."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON")
ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.torch, pytest.mark.integration]
SCRIPT = """
import os, sys, time
rank = int(os.environ["RANK"])
{before}
import torch, torch.distributed as dist
{after}
from envsmith import preflight
try:
    report = preflight.run(timeout=8, **{options})
except preflight.PreflightError as error:
    print(f"rank {{rank}} says: {{error.message}}", flush=True)
    sys.exit(error.exit_code)
print(f"rank {{rank}} passed in {{report.seconds}} s: {{report.sentence}}", flush=True)
{then}
"""


# Losses as hexadecimal digits: equal means every bit. The group that is made later takes its name from torch's counter.
TRAINING = """
import os, sys, time
import torch, torch.distributed as dist
rank, mode = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo")
torch.manual_seed(7)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
if mode != "without":
    from envsmith import preflight
    if mode == "late" and rank == 1:
        time.sleep(4)
    report = preflight.run(timeout=2 if mode == "late" else 30, raises=False, quiet=True)
    sys.stdout.write(f"rank {rank} report {report.ok} {report.sentence}\\n")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data, later = torch.Generator().manual_seed(rank), dist.new_group()
losses = []
for _ in range(5):
    loss = model(torch.randn(4, 8, generator=data)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total = torch.tensor([loss.item()], dtype=torch.float64)
    dist.all_reduce(total, group=later)
    losses.append(total.item().hex())
sys.stdout.write(f"rank {rank} losses {' '.join(losses)} in {later.group_name}\\n")
sys.stdout.flush()
os._exit(0)  # an ordinary end aborts now and then, with or without a preflight (pytorch #179291)
"""


def _train(tmp_path: Path, mode: str, ranks: int) -> tuple[list[str], list[str]]:
    """Return what every rank says of its losses, and of the preflight's report."""
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    command = [PYTHON or "", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(script)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, mode], capture_output=True, text=True, timeout=180, check=False, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    return tuple(sorted(re.findall(rf"rank \d {word} .*", done.stdout)) for word in ("losses", "report"))  # type: ignore[return-value]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("mode", ["late", "passes"])
def test_losses_are_those_of_a_training_without_preflight(tmp_path: Path, mode: str, ranks: int) -> None:
    due, _ = _train(tmp_path, "without", ranks)

    losses, reports = _train(tmp_path, mode, ranks)

    assert len(due) == ranks
    assert losses == due
    sentence = "rank 1 did not come to the preflight within 2 s" if mode == "late" else f"{ranks} ranks agree"
    assert len(reports) == ranks
    assert all(f"report {mode == 'passes'} {sentence}" in report for report in reports)


def test_a_collective_that_hangs_is_named_before_its_group_is_aborted(tmp_path: Path) -> None:
    after = """
class Hang:
    def __init__(self, *_, **__): pass
    def allreduce(self, _): return self
    def is_completed(self): return False
    def shutdown(self): time.sleep(1e3)
    def abort(self): sys.stderr.write(f"rank {rank} aborts\\n"); time.sleep(1e3)
dist.ProcessGroupGloo = Hang
"""
    done = _run(tmp_path, after=after, options={"isolate": False})

    assert done.returncode != 0
    assert done.stdout.count("failed: no end after 8 s") == 4
    assert done.stderr.index("preflight: failed in") < done.stderr.index("rank 0 aborts")


def test_the_default_group_that_comes_after_a_preflight_can_be_split(tmp_path: Path) -> None:
    then = """
dist.init_process_group("gloo")
world = dist.group.WORLD
if hasattr(world, "split_group"):
    world.split_group([0, 1, 2, 3], None, None, "half", "of the world")
print("split", flush=True)
os._exit(0)
"""
    done = _run(tmp_path, then=then)

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("split") == 4


def _run(
    tmp_path: Path, *, before: str = "", after: str = "", then: str = "", options: dict[str, object] | None = None
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(before=before, after=after, then=then, options=options or {}))
    command = [PYTHON or "", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(script)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    # Every rank says what it found before torchrun ends the others.
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=env)


def test_four_ranks_pass_within_three_seconds_and_the_script_goes_on(tmp_path: Path) -> None:
    then = "dist.init_process_group('gloo'); preflight.run(quiet=True); dist.destroy_process_group(); print('trained')"
    done = _run(tmp_path, then=then, options={"isolate": False})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("trained") == 4
    assert "4 ranks agree: torch" in done.stderr
    assert "all_reduce on gloo is right" in done.stderr
    seconds = [float(number) for number in re.findall(r" passed in ([\d.]+) s:", done.stdout)]
    assert len(seconds) == 4
    assert min(seconds) < 3.0  # the last rank waits for nobody: what it needs is the preflight's own time


@pytest.mark.parametrize(
    ("inject", "words"),
    [
        ({"after": "if rank == 2: torch.__version__ = '2.12.1'"}, ["rank 2 has torch 2.12.1, the others"]),
        (
            {
                "before": "if rank == 1: os.environ['NCCL_SOCKET_IFNAME'] = 'eth7'",
                "options": {"strict": True},
            },
            ["rank 1 has NCCL_SOCKET_IFNAME=eth7, the others do not set it"],
        ),
        ({"before": "if rank == 3: time.sleep(1e3)"}, ["rank 3 did not come to the preflight within 8 s"]),
        ({"options": {"expect": {"torch": "1.0"}}}, ["have torch", "but 1.0 is expected"]),
        (
            {
                "after": "if rank == 2: real = dist.ProcessGroupGloo.allreduce; "
                "dist.ProcessGroupGloo.allreduce = lambda self, t: real(self, [t[0].add_(1)])",
                "options": {"isolate": False},
            },
            ["all_reduce on gloo failed: read 4 where 0 was due", "read 1 where 0 was due"],
        ),
    ],
    ids=["another torch", "another variable", "a rank that does not come", "expected version", "wrong value"],
)
def test_a_rank_that_is_different_is_named_in_one_sentence(
    tmp_path: Path, inject: dict[str, object], words: list[str]
) -> None:
    done = _run(tmp_path, **inject)  # type: ignore[arg-type]
    assert done.returncode != 0
    assert any(word in done.stderr + done.stdout for word in words), done.stderr[-3000:]


@pytest.mark.skipif(
    os.geteuid() != 0
    or not shutil.which("unshare")
    or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0,
    reason="a /dev/shm of its own for one rank needs root and mount namespaces",
)
def test_full_shm_of_one_rank_is_found(tmp_path: Path) -> None:
    before = (
        "if rank == 2 and 'AGAIN' not in os.environ:\n"
        "    os.environ['AGAIN'] = '1'\n"
        "    mount = 'mount -t tmpfs -o size=32m tmpfs /dev/shm && head -c 31M /dev/zero > /dev/shm/full && exec \"$@\"'\n"
        "    os.execvp('unshare', ['unshare', '-m', 'sh', '-c', mount, 'sh', sys.executable, *sys.argv])\n"
    )
    done = _run(tmp_path, before=before)
    assert done.returncode != 0
    assert "rank 2 has 1 MiB of /dev/shm free (32 MiB in all)" in done.stderr, done.stderr[-3000:]


def test_watch_names_the_slow_rank_and_the_one_that_stands(tmp_path: Path) -> None:
    then = """
from envsmith.preflight.watcher import Limits
dist.init_process_group("gloo")
with preflight.watch(interval=0.5, limits=Limits(stall=2.0)) as watch:
    end = time.time() + 6
    going = torch.ones(1)
    while going.item():
        time.sleep(0.2 if rank == 2 else 0.02)
        watch.computed()
        going[0] = float(time.time() < end)
        dist.all_reduce(going, dist.ReduceOp.MIN)
        watch.step()
    if rank == 1:
        time.sleep(8)
    watch.computed()
    dist.barrier()
dist.destroy_process_group()
"""
    done = _run(tmp_path, then=then)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "watch: rank 2 is slow" in done.stderr
    assert "watch: rank 1 has not done its part of step" in done.stderr


def test_alone_it_looks_at_its_own_machine() -> None:
    done = subprocess.run(
        [PYTHON or "", "-m", "envsmith.preflight", "--expect", "torch==0.1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    assert "rank 0 has torch" in done.stderr
    assert "Traceback" not in done.stderr


def test_usage_error_is_exit_code_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "envsmith.preflight", "--expect", "torch"],
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2


def test_a_bad_interface_is_blamed_on_its_rank_alone_and_the_program_ends_with_its_code(tmp_path):
    script = 'if [ "$RANK" = 2 ]; then export GLOO_SOCKET_IFNAME=nosuch0; fi; "$0" -m envsmith.preflight --timeout 8; echo "code $?"'
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "--no-python"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    result = subprocess.run(
        [str(PYTHON), *launcher, "sh", "-c", script, str(PYTHON)],
        capture_output=True, text=True, timeout=180, check=False, env=environment, cwd=tmp_path,
    )  # fmt: skip

    assert result.stdout.split("\n").count("code 1") == 3
    assert "preflight: error: rank 2: making a group on gloo failed" in result.stderr
    assert "frame #" not in result.stderr
