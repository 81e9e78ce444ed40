"""All parts in their order on a real torch, gloo in NCCL's place: faults are blamed, what has no time is skipped and said, nothing is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import faultlib
import pytest

from envsmith.agent.protocol import TIME_IS_OVER
from envsmith.smoke.everything import SmokeMachine, parts_of, run_parts
from envsmith.smoke.run import LocalTarget, probe

pytestmark = [pytest.mark.torch, pytest.mark.integration]
SHORT = {"full": 20.0, "bandwidth": 20.0}


def test_parts_of_ten_minutes_run_in_their_order_and_keep_their_time(tmp_path) -> None:
    target = LocalTarget(python=Path(faultlib.torch_python() or ""))
    versions = probe(target)
    parts = parts_of(versions, SmokeMachine(backend="gloo", torch=versions["torch"]), budget=1140)
    short = tuple(replace(part, limit=SHORT.get(part.name, part.limit)) for part in parts)

    done = {item.part.name: item for item in run_parts(short, target, budget=900, folder=tmp_path)}

    assert list(done) == [part.name for part in parts]
    assert {name: item.sentence for name, item in done.items() if item.word != "passed"} == {}
    for name in ("fault-hang", "fault-kill", "fault-wrong", "fault-dtype"):
        assert "rank 1" in done[name].sentence
    full = done["full"].result
    assert full is not None
    assert {case.blame for case in full.cases if case.verdict == "skipped"} >= {TIME_IS_OVER}
    assert " of 1405 cases" in done["full"].unreached
    assert done["full"].seconds < SHORT["full"] + 5
    assert len(list(tmp_path.glob("*.json"))) == len(parts)
