"""What the supervisor says by a field, and what it tidies up."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from envsmith.agent.protocol import NO_TIME, Exit, KeepingLog, Log
from envsmith.agent.supervisor import Supervisor
from envsmith.smoke.events import HaltReason
from envsmith.smoke.parse_events import parse_events


def _supervisor(**plan: Any) -> tuple[Supervisor, KeepingLog]:
    log = KeepingLog(os.open(os.devnull, os.O_WRONLY))
    supervisor = Supervisor({"timeouts": {"import": 1.0}, **plan}, log, watch_stdin=False)
    shutil.rmtree(supervisor.directory)
    return supervisor, log


@pytest.mark.parametrize(
    ("late", "ended", "code", "status"),
    [(2.0, -signal.SIGKILL, Exit.HANG, None), (0.0, -signal.SIGSEGV, Exit.CRASH, -signal.SIGSEGV)],
)
def test_import_that_is_late_or_ends_the_interpreter_is_said_by_a_code(
    monkeypatch: pytest.MonkeyPatch, late: float, ended: int, code: Exit, status: int | None
) -> None:
    supervisor, log = _supervisor()
    monkeypatch.setattr(supervisor.nursery, "wait", lambda *_: late)
    monkeypatch.setattr(supervisor.nursery, "end", lambda **_: ended)

    assert not supervisor._import_torch()

    (halt,) = parse_events(log.events).halts
    assert (halt.reason, halt.code, halt.status) == (HaltReason.IMPORT, code, status)


def test_plan_that_asks_for_nccl_where_cuda_is_not_usable_says_that_a_gpu_is_lacking() -> None:
    supervisor, log = _supervisor(backend="nccl", ranks=2)
    supervisor.nursery.answer = {"ready": {"torch": "2.13.0", "distributed": True, "has_nccl": True}}

    assert supervisor._place({"gpus": []}) is None

    (halt,) = parse_events(log.events).halts
    assert (halt.reason, halt.lacks_gpu) == (HaltReason.CONFIGURATION, True)


def test_step_for_which_no_time_is_left_says_so_by_a_word() -> None:
    supervisor, _ = _supervisor(limit=10.0)
    lack = supervisor._lack_of_time()
    assert lack is not None
    assert lack.row()["unmet"] == NO_TIME
    assert _supervisor(limit=100.0)[0]._lack_of_time() is None


def test_lock_of_a_compilation_that_was_ended_is_dropped_before_the_next_step_waits_for_it() -> None:
    supervisor = Supervisor({"timeouts": {}}, Log(2), watch_stdin=False)
    folder = Path(supervisor.directory) / "torch_extensions_dir" / "py311_cpu" / "deepspeed_shm_comm"
    folder.mkdir(parents=True)
    for name in ("lock", "deepspeed_shm_comm.so"):
        (folder / name).touch()
    supervisor._drop_locks()
    assert [path.name for path in folder.iterdir()] == ["deepspeed_shm_comm.so"]
    shutil.rmtree(supervisor.directory)
