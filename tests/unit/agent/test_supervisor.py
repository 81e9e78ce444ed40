"""What the supervisor tidies up."""

from __future__ import annotations

import shutil
from pathlib import Path

from envsmith.agent.protocol import Log
from envsmith.agent.supervisor import Supervisor


def test_lock_of_a_compilation_that_was_ended_is_dropped_before_the_next_step_waits_for_it() -> None:
    supervisor = Supervisor({"timeouts": {}}, Log(2), watch_stdin=False)
    folder = Path(supervisor.directory) / "torch_extensions_dir" / "py311_cpu" / "deepspeed_shm_comm"
    folder.mkdir(parents=True)
    for name in ("lock", "deepspeed_shm_comm.so"):
        (folder / name).touch()
    supervisor._drop_locks()
    assert [path.name for path in folder.iterdir()] == ["deepspeed_shm_comm.so"]
    shutil.rmtree(supervisor.directory)
