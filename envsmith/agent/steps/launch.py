"""What the function that starts a framework's own launcher sees."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True)
class RankJob:
    """A job whose ranks are to be started.

    ``job_file`` and ``agent`` are the files that a rank needs: the job, and the text of the agent.
    """

    job: Mapping[str, Any]
    job_file: str
    agent: str

    @property
    def ranks(self) -> int:
        return int(self.job["world"])

    @property
    def directory(self) -> str:
        """Return a folder for what the launcher writes. It is removed with the run."""
        return str(self.job["directory"])

    @property
    def rank_command(self) -> list[str]:
        """Return the command that the launcher has to start once for each rank."""
        return [sys.executable, self.agent, "launched", "--plan", self.job_file]

    def execute(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> NoReturn:
        """Replace this process by the launcher's command. Its environment has ``variables`` too."""
        os.environ.update(variables or {})
        os.execvp(command[0], list(command))  # noqa: S606
