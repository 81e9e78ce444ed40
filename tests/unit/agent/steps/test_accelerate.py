"""How ``accelerate launch`` is asked to start the ranks of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.agent.steps import LAUNCHERS, STEPS
from envsmith.agent.steps.launch import RankJob
from envsmith.frameworks import FRAMEWORKS


@dataclass(frozen=True)
class _Noted(RankJob):
    """Notes the command instead of becoming it."""

    commands: list[tuple[list[str], Mapping[str, str]]] = field(default_factory=list)

    def execute(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:  # type: ignore[override]
        self.commands.append((list(command), variables or {}))


def _launched(tmp_path: Path) -> tuple[list[str], Mapping[str, str]]:
    launch = _Noted(job={"world": 3, "directory": str(tmp_path)}, job_file="job.json", agent="agent.py")
    LAUNCHERS["accelerate"](launch)
    return launch.commands[0]


def test_accelerate_starts_one_process_for_each_rank_without_the_users_configuration(tmp_path: Path) -> None:
    command, variables = _launched(tmp_path)
    assert command[command.index("--num_processes") + 1] == "3"
    assert int(command[command.index("--main_process_port") + 1]) > 0
    assert command[-4:] == ["agent.py", "launched", "--plan", "job.json"]
    assert variables == {"HF_HOME": str(tmp_path)}


def test_every_step_has_a_function_of_the_agent_and_its_launcher_too() -> None:
    steps = [step for framework in FRAMEWORKS.values() for step in (*framework.quick_steps, *framework.steps)]
    assert {step.kind for step in steps} <= set(STEPS)
    assert {step.launcher for step in steps if step.launcher} == set(LAUNCHERS)
