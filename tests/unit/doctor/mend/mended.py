"""An environment of tiny wheels whose numpy is to change, and the diagnosis that says so. Run as a program it mends one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from lock_helpers import uv_for
from tiny_index import TinyIndex, wheel

from envsmith.base.progress import Clock, silent
from envsmith.doctor.diagnosis import Diagnosed, Diagnosis
from envsmith.doctor.mend.apply import Mender, MendResult
from envsmith.doctor.mend.trial import Ability, EnvironmentTrial
from envsmith.model.cell import Cell
from envsmith.model.finding import Change, Finding, Repair
from envsmith.model.rule import Severity

GOOD = Ability(passed=True, rungs=5, summary="all cases passed")
BAD = Ability(passed=False, rungs=3, summary="numpy is not available")


def tiny(root: Path) -> TinyIndex:
    """numpy in two releases, what needs it, and what has nothing to do with it."""
    index = TinyIndex(root)
    index.add("numpy", wheel("numpy", "1.26.4"), wheel("numpy", "2.0.2"))
    index.add("scipy", wheel("scipy", "1.14.0", ["numpy>=2"]), wheel("scipy", "1.13.0", ["numpy>=1,<3"]))
    index.add("click", wheel("click", "8.0"), wheel("click", "8.1"))
    index.add("old", wheel("old", "1.0", ["click>=9", "absent"]))
    script = {"tool.py": "def main():\n    print('runs')\n"}
    point = "[console_scripts]\ntool = tool:main\n"
    old = wheel("tool", "1.0", files={**script, "tool-1.0.dist-info/entry_points.txt": point})
    new = wheel("tool", "2.0", ["numpy<2"], files={**script, "tool-2.0.dist-info/entry_points.txt": point})
    index.add("tool", old, new)
    return index


def environment(folder: Path, index: TinyIndex, *packages: str) -> Path:
    uv, root = uv_for(index.url, folder / "uv-cache"), folder / "env"
    uv.check(["venv", "--quiet", "--python", sys.executable, str(root)], work="make an environment")
    python = str(root / "bin" / "python")
    uv.check(["pip", "install", "--quiet", "--no-deps", "--python", python, *packages], work="install")
    return root


def diagnosis(
    *changes: tuple[str, str, str], lines: tuple[str, ...] = (), cell: dict[str, str] | None = None
) -> Diagnosis:
    """A finding on numpy, a repair of these components, and lines to type."""
    finding = Finding(rule="numpy-2-abi", severity=Severity.ERROR, components={"numpy": "2.0.2"}, message="breaks")
    repair = Repair(
        changes=tuple(Change(component=name, old=old, new=new) for name, old, new in changes),
        cell=Cell(components={**{name: new for name, _, new in changes}, **(cell or {})}, chosen=()),
    )
    diagnosed = Diagnosed(finding=finding, confidence="high", score=100, lines=lines)
    return Diagnosis(status="bad", diagnosed=(diagnosed,), repair=repair if changes else None)


def numpy_repair() -> Diagnosis:
    return diagnosis(("numpy", "2.0.2", "1.26.4"))


def as_numpy_says(python: Path, _distributions: Collection[str], _clock: Clock, _step: str) -> Ability:
    """A trial that minds numpy 2."""
    return GOOD if any(python.parent.parent.glob("lib/python3*/site-packages/numpy-1*")) else BAD


def mend(root: Path, index: str, cache: Path, trial: EnvironmentTrial = as_numpy_says) -> MendResult:
    mender = Mender(uv=uv_for(index, cache), trial=trial)
    return mender.apply(mender.propose(numpy_repair(), root), Clock(silent))


class Killer:
    """Kills this process at the event of a number that may change something, counted from the start of a stage."""

    def __init__(self, stage: str, number: int) -> None:
        self._stage, self._number, self.events = stage, number, 0
        self._is_counting = stage == "start"
        sys.addaudithook(self._count)

    def trial(self, python: Path, distributions: Collection[str], clock: Clock, step: str) -> Ability:
        """Try as numpy says. The stage ``after`` begins with the last trial, before the two change places."""
        self._is_counting |= step.endswith(self._stage)
        return as_numpy_says(python, distributions, clock, step)

    def _count(self, event: str, _arguments: object) -> None:
        if self._is_counting and event.startswith(("os.", "open", "subprocess.", "shutil.", "ctypes.")):
            self.events += 1
            if self.events == self._number:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    # ENVIRONMENT INDEX CACHE STAGE NUMBER: says how many events there were.
    killer = Killer(sys.argv[4], int(sys.argv[5]))
    mended = mend(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), killer.trial)
    sys.stdout.write(f"{killer.events}\n")
    sys.exit(mended.status != "mended")
