"""Writes the events of every fault file anew from a real run: ``ENVSMITH_TEST_TORCH_PYTHON=… python tests/smoke/record.py [NAME…]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import faultlib

from envsmith.smoke import supervise
from envsmith.smoke.launch import LocalTarget

# Facts of the recording machine, and what holds paths of it.
_DROP = {"trace", "output", "stacks", "manifest", "env", "warnings", "executable", "cuda", "installed"}


def clean(event: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in event.items() if key not in _DROP}


def main(names: list[str]) -> None:
    local = LocalTarget(python=Path(faultlib.torch_python() or sys.exit("set ENVSMITH_TEST_TORCH_PYTHON")))
    for path in faultlib.files():
        if names and path.stem not in names:
            continue
        document = faultlib.load(path)
        plan = faultlib.plan_of(document)
        seen: list[object] = []
        judge = supervise.judge
        supervise.judge = lambda plan, events, **more: (seen.extend(events), seen.append(more["agent_exit"]), judge(plan, events, **more))[-1]
        try:
            with faultlib.taken_port() as port:
                target = faultlib.SmallShmTarget(local) if document.get("small_shm") else local
                result = supervise.run(plan.with_(port=port) if document.get("taken_port") else plan, target)
        finally:
            supervise.judge = judge
        document["agent_exit"] = seen.pop()
        document["recorded_on"] = str(result.loaded.get("torch", ""))
        document["events"] = [clean(event) for event in seen if event.get("event") not in {"host", "loaded"}]  # type: ignore[attr-defined]
        path.write_text(text(document))
        print(path.stem, result.exit_code, result.blame)


def text(document: dict[str, object]) -> str:
    """One event per line, so that a difference can be read."""
    events = document.pop("events")
    head = json.dumps(document, indent=1)[:-2]
    rows = ",\n".join("  " + json.dumps(event) for event in events)  # type: ignore[union-attr]
    return f'{head},\n "events": [\n{rows}\n ]\n}}\n'


if __name__ == "__main__":
    main(sys.argv[1:])
