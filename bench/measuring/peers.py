"""What ``uv pip compile`` and ``pip install --dry-run`` say of the same sets in the same run."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from envsmith.solver import default_solver
from measuring.judging import Row


def requirements(given: Mapping[str, str]) -> list[str]:
    """The part of a set that a package resolver can be asked: distributions of the package index."""
    table = default_solver().knowledge().components.by_name
    found = []
    for name, version in given.items():
        component = table.get(name)
        if component and component.distributions and component.role.value != "host":
            plain = version.split("+")[0]
            if name not in {"nccl", "cudnn"}:
                found.append(f"{component.distributions[0]}=={plain}")
    return found


REFUSED = re.compile(
    r"No solution found|ResolutionImpossible|conflicting dependencies|No matching distribution|not compatible"
)


def ask_peer(tool: str, wanted: Sequence[str], python: str | None, limit: float = 60) -> str:
    """What ``uv`` or ``pip`` says of the requirements: accepted, refused, failed (another error), timeout."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "in.txt"
        file.write_text("\n".join(wanted) + "\n")
        if tool == "uv":
            command = ["uv", "pip", "compile", "-q", "--no-header", str(file)]
            command += ["--python-version", python] if python else []
        else:
            command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed", "-r", str(file)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            return "timeout"
        except OSError:
            return "absent"
    if done.returncode == 0:
        return "accepted"
    return "refused" if REFUSED.search(done.stderr) else "failed"


def ask_peers(rows: Sequence[Row], pip: int) -> dict[str, Counter[str]]:
    """Both peers on the sets of ``env+culprit`` that have a distribution; ``pip`` on the first ``pip`` of those with two or more."""
    said: dict[str, Counter[str]] = {"uv pip compile": Counter(), "pip install --dry-run": Counter()}
    for row in rows:
        given = {n: v for n, v in row.sets[0].items() if v != "*"} if row.sets else {}
        wanted = requirements(given)
        ours = "check finds it" if row.filled else "check does not"
        if not wanted:
            said["uv pip compile"][f"nothing to ask ({ours})"] += 1
            continue
        said["uv pip compile"][f"{ask_peer('uv', wanted, given.get('python'))} ({ours})"] += 1
        if len(wanted) > 1 and sum(said["pip install --dry-run"].values()) < pip:
            said["pip install --dry-run"][f"{ask_peer('pip', wanted, None)} ({ours})"] += 1
    return said
