"""Shared by the live fault tests and the recorder: the plan of a fault file, and the target it runs in."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.smoke.bundle import bundle
from envsmith.smoke.cases import Case
from envsmith.smoke.parse_events import EventReader
from envsmith.smoke.plan import Plan, Timeouts
from envsmith.smoke.run import LocalTarget, torchrun_argv

FAULTS = Path(__file__).parent / "faults"
LAUNCHED = Path(__file__).parent / "launched"
DEADLINE = 3.0
# A private /dev/shm of one megabyte, in a mount namespace of its own.
SMALL_SHM = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'


def files() -> list[Path]:
    return sorted(FAULTS.glob("*.json"))


def launched_files() -> list[Path]:
    return sorted(LAUNCHED.glob("*.json"))


def torchrun(plan: Plan, directory: Path) -> tuple[int, list[Any]]:
    """The agent's exit status and all ranks' events, started by the torchrun of the interpreter under test."""
    (directory / "plan.json").write_text(json.dumps(plan.to_json()))
    (directory / "agent.py").write_bytes(bundle())
    command = torchrun_argv(
        python=torch_python() or "",
        agent=str(directory / "agent.py"),
        plan=str(directory / "plan.json"),
        events=str(directory / "events.%r"),
        ranks=plan.ranks,
    )
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    files = sorted(directory.glob("events.*"))
    return done.returncode, [json.loads(line) for path in files for line in path.read_text().splitlines()]


def plan_of(document: dict[str, Any]) -> Plan:
    cases = tuple(Case(**case) for case in document["cases"])
    timeouts = Timeouts(case=DEADLINE, init=20.0)
    plan = Plan.build(
        {"torch": "2.13.0"} if document.get("recorded_on", "").startswith("2.13") else {},
        ranks=document["ranks"],
        backend="gloo",
        steps=False,
    )
    return plan.with_(cases=cases, expected={}, timeouts=timeouts, fault=document.get("fault"))


@dataclass(frozen=True)
class SmallShmTarget:
    """A local interpreter that sees a /dev/shm of one megabyte."""

    inner: LocalTarget

    def argv(self, args: list[str]) -> list[str]:
        return ["unshare", "--mount", "sh", "-c", SMALL_SHM, "sh", *self.inner.argv(args)]

    def env(self) -> dict[str, str]:
        return dict(self.inner.env())

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()


def can_unshare() -> bool:
    command = ["unshare", "--mount", "sh", "-c", SMALL_SHM, "sh", "true"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        yield taken.getsockname()[1]


def torch_python() -> str | None:
    return os.environ.get("ENVSMITH_TEST_TORCH_PYTHON")


def listener() -> tuple[type[EventReader], list[Any]]:
    """A reader to put in the place of `run.EventReader`, and the list of what it hears."""
    heard: list[Any] = []

    class Listener(EventReader):
        def take(self, event: object) -> object:
            heard.append(event)
            return super().take(event)

    return Listener, heard


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())
