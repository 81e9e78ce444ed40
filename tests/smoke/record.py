"""Writes the events of every fault file anew from a real run: ``ENVSMITH_TEST_TORCH_PYTHON=… python tests/smoke/record.py [NAME…]``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import faultlib

from envsmith.smoke import run
from envsmith.smoke.events import Events
from envsmith.smoke.parse_events import EventReader
from envsmith.smoke.plan import Plan
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.run import LocalTarget
from envsmith.smoke.verdict import judge, judge_events

# Facts of the recording machine, and what holds paths of it.
_DROP = {"trace", "output", "stacks", "manifest", "env", "warnings", "executable", "cuda", "installed"}


def clean(event: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in event.items() if key not in _DROP}


def record(document: dict[str, object], local: LocalTarget) -> None:
    plan = faultlib.plan_of(document)
    reader, seen = faultlib.listener()
    ends: list[int | None] = []

    def listen(plan: Plan, log: Events, **more: Any) -> SmokeResult:
        ends.append(more["agent_exit"])
        return judge_events(plan, log, **more)

    run.judge_events, run.EventReader = listen, reader  # type: ignore[assignment,misc]
    try:
        with faultlib.taken_port() as port:
            target = faultlib.SmallShmTarget(local) if document.get("small_shm") else local
            result = run.run(plan.with_(port=port) if document.get("taken_port") else plan, target)
    finally:
        run.judge_events, run.EventReader = judge_events, EventReader  # type: ignore[misc]
    (document["agent_exit"],) = ends
    document["recorded_on"] = str(result.loaded.get("torch", ""))
    document["events"] = [clean(event) for event in seen if event.get("event") not in {"host", "loaded"}]
    sys.stderr.write(f"{result.exit_code} {result.blame}\n")


def record_launched(document: dict[str, object]) -> None:
    plan = faultlib.plan_of(document)
    with tempfile.TemporaryDirectory() as directory:
        status, events = faultlib.torchrun(plan, Path(directory))
    result = judge(plan, events, agent_exit=status)
    document.update(agent_exit=status, recorded_on=str(result.loaded.get("torch", "")))
    document["events"] = [clean(e) for e in events if e["event"] not in {"host", "loaded"} and e.get("row") != "node"]
    sys.stderr.write(f"{result.exit_code} {result.blame}\n")


def main(names: list[str]) -> None:
    local = LocalTarget(python=Path(faultlib.torch_python() or sys.exit("set ENVSMITH_TEST_TORCH_PYTHON")))
    for path in faultlib.files():
        if not names or path.stem in names:
            document = faultlib.load(path)
            record(document, local)
            path.write_text(text(document))
    for path in faultlib.launched_files():
        document = faultlib.load(path)
        if (not names or f"launched/{path.stem}" in names) and not document.get("fixed"):
            record_launched(document)
            path.write_text(text(document))


def text(document: dict[str, object]) -> str:
    """One event per line, so that a difference can be read."""
    events = document.pop("events")
    head = json.dumps(document, indent=1)[:-2]
    rows = ",\n".join("  " + json.dumps(event) for event in events)  # type: ignore[union-attr]
    return f'{head},\n "events": [\n{rows}\n ]\n}}\n'


if __name__ == "__main__":
    main(sys.argv[1:])
