"""How ``horovodrun`` is started for the steps of Horovod."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import pytest

from envsmith.agent.steps import LAUNCHERS, STEPS
from envsmith.frameworks.horovod import HOROVOD


@dataclass
class _Launch:
    """A job of which nothing is started."""

    ranks: int
    rank_command: list[str] = field(default_factory=lambda: ["python", "agent.py"])
    commands: list[list[str]] = field(default_factory=list)

    def execute(self, command: list[str]) -> None:
        self.commands.append(command)


def _command(launcher: str, ranks: int) -> list[str]:
    launch = _Launch(ranks)
    LAUNCHERS[launcher](launch)
    return launch.commands[0]


@pytest.mark.parametrize("launcher", ["horovod", "horovod-elastic"])
def test_horovodrun_starts_the_ranks_over_gloo_with_this_interpreter(launcher) -> None:
    command = _command(launcher, 2)
    assert command[:6] == [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--gloo"]
    assert command[-2:] == ["python", "agent.py"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_elastic_job_has_two_hosts_with_a_slot_for_each_rank_because_the_host_of_a_dead_rank_is_given_up(
    ranks,
) -> None:
    command = _command("horovod-elastic", ranks)
    hosts = dict(host.split(":") for host in command[command.index("-H") + 1].split(","))
    assert len(hosts) == 2
    assert sum(map(int, hosts.values())) == ranks
    assert command[command.index("--min-np") + 1] == "1"


@pytest.mark.parametrize("step", HOROVOD.steps, ids=lambda step: step.name)
def test_each_step_has_its_function_and_its_launcher(step) -> None:
    assert step.kind in STEPS
    assert step.launcher in LAUNCHERS
