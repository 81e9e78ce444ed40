"""Every fault file, injected into real processes: the right rank and case are named in time, and no process is left."""

from __future__ import annotations

import time
from pathlib import Path

import faultlib
import pytest

from envsmith.smoke import run
from envsmith.smoke.run import LocalTarget

pytestmark = [pytest.mark.torch, pytest.mark.integration]


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("path", faultlib.files(), ids=lambda path: path.stem)
def test_fault_is_blamed_in_time_and_leaves_no_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = faultlib.load(path)
    if document.get("small_shm") and not faultlib.can_unshare():
        pytest.skip("needs the right to mount a small /dev/shm")
    expect = document["expect"]
    reader, events = faultlib.listener()
    monkeypatch.setattr(run, "EventReader", reader)
    local = LocalTarget(python=Path(faultlib.torch_python() or ""))
    plan = faultlib.plan_of(document).with_(versions={})
    with faultlib.taken_port() as port:
        target = faultlib.SmallShmTarget(local) if document.get("small_shm") else local
        result = run.run(plan.with_(port=port) if document.get("taken_port") else plan, target)

    assert result.exit_code in {expect["exit_code"], *expect["also"]}, result.blame
    if result.exit_code == expect["exit_code"]:
        for word in expect["words"]:
            assert word in result.summary
    elif expect["words"]:
        assert expect["words"][0] in result.summary
    if expect["case"] and not result.passed:
        assert expect["case"] in result.summary
    assert result.seconds["collectives"] <= faultlib.DEADLINE + 5
    pids = {row["pid"] for event in events for row in event.get("where", ())} | {
        e["pid"] for e in events if e["event"] == "hello"
    }
    until = time.monotonic() + 2
    while any(map(_alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in pids if _alive(pid)]
