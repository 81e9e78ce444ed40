"""CPU seconds from start to exit of ``envsmith doctor`` beside what people paste into bug reports, on the same environment, in turn.

    python bench/doctor_speed.py PYTHON [--runs 5] [--json]

PYTHON is the interpreter of an environment with torch (and deepspeed, for ``ds_report``). Peers: ``python -m torch.utils.collect_env`` and ``ds_report``
of that environment. The smallest of the runs counts, as CPU seconds of the process and its children. Also printed is what each says about the environment:
of a list of facts that a report should hold, which stand in its output; and whether it names a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

LIMIT = 1.0  # CPU seconds of `doctor` without --deep: the promise of the issue

# Marks of a fact in the text of the peers; "could not collect" counts as saying so.
FACTS = {
    "torch version": r"torch[^\n]{0,60}\d+\.\d+\.\d+",
    "CUDA of torch": r"CUDA used to build PyTorch|torch cuda version",
    "NCCL": r"nccl",
    "Python": r"[Pp]ython[^\n]{0,40}3\.\d+",
    "deepspeed version": r"deepspeed[^\n]{0,40}\d+\.\d+\.\d+",
    "compiler": r"gcc|GCC|g\+\+",
    "nvcc": r"nvcc|CUDA runtime version",
    "driver": r"[Dd]river version",
    "/dev/shm": r"/dev/shm|shared memory",
    "limits": r"memlock|locked memory|nofile|open files",
    "variables": r"NCCL_\w+|LD_LIBRARY_PATH",
    "interfaces": r"interface",
    "copies of CUDA libraries": r"libnccl|libcudart",
    "ninja": r"ninja",
}


def own_facts(text: str) -> list[str]:
    """The same facts in the JSON of the doctor: told, or known to be absent."""
    facts = json.loads(text)["facts"]
    components, tools = facts["components"], facts["tools"]
    told = {
        "torch version": "torch" in components,
        "CUDA of torch": "cuda" in components,
        "NCCL": "nccl" in components or components.get("cuda", {}).get("version") == "cpu",
        "Python": "python" in components,
        "deepspeed version": "deepspeed" in components,
        "compiler": "gcc" in components or "clang" in components or "c++" in tools,
        "nvcc": "nvcc" in tools,
        "driver": "driver" in components or facts["host"].get("gpu") == "none",
        "/dev/shm": "shm" in facts["limits"],
        "limits": "memlock" in facts["limits"],
        "variables": "variables" in facts,
        "interfaces": bool(facts["interfaces"]),
        "copies of CUDA libraries": "libraries" in facts,
        "ninja": "ninja" in tools,
    }
    return [name for name, known in told.items() if known]


def cpu(command: list[str], env: dict[str, str]) -> tuple[float, str, int]:
    """CPU seconds of ``command`` with its children, its output and its exit code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, done.stdout + done.stderr, done.returncode


def row_of(text: str, code: int, seconds: float, *, ours: bool) -> dict[str, object]:
    """What one program said; exit code 1 of the doctor is an answer."""
    if code and not (ours and code == 1):
        last = text.strip().splitlines()[-1:]
        return {"cpu_s": None, "says": [], "names a fault": False, "failed": last[0][:200] if last else None}
    says = own_facts(text) if ours else [fact for fact, mark in FACTS.items() if re.search(mark, text)]
    fault = ours and bool(json.loads(text)["findings"])
    return {"cpu_s": round(seconds, 3), "says": says, "names a fault": fault, "failed": None}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    python = str(options.python.absolute())
    here = str(Path(__file__).resolve().parents[1])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
    theirs = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    programs = {
        "envsmith doctor": ([sys.executable, "-m", "envsmith", "doctor", "--python", python, "--json"], env),
        "torch.utils.collect_env": ([python, "-m", "torch.utils.collect_env"], theirs),
        "ds_report": ([python, "-c", "from deepspeed.env_report import cli_main; cli_main()"], theirs),
    }
    table: dict[str, dict[str, object]] = {}
    best: dict[str, float] = {}
    for _ in range(options.runs):
        for name, (command, surroundings) in programs.items():
            seconds, text, code = cpu(command, surroundings)
            best[name] = min(seconds, best.get(name, seconds))
            table[name] = row_of(text, code, best[name], ours=name == "envsmith doctor")
    own = best["envsmith doctor"]
    verdict = {
        "limit_cpu_s": LIMIT,
        "within": own <= LIMIT,
        "ratio": {n: round(s / own, 1) for n, s in best.items() if table[n]["failed"] is None},
    }
    if options.json:
        print(json.dumps({"programs": table, "verdict": verdict}, indent=1))
    else:
        for name, row in table.items():
            print(
                f"{name:<26} {row['cpu_s']} s CPU, {len(row['says'])} of {len(FACTS)} facts: {', '.join(row['says'])}"
            )  # type: ignore[arg-type]
            if row["failed"]:
                print(f"{'':<26} failed: {row['failed']}")
        print(
            f"start to exit within {LIMIT} s CPU: {verdict['within']}; CPU of the others over ours: {verdict['ratio']}"
        )
    return 0 if verdict["within"] else 1


if __name__ == "__main__":
    sys.exit(main())
