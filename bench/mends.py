"""Mend broken environments: each of bench/mends.yaml is made with real wheels, mended by `doctor --apply`, judged, removed.

    python bench/mends.py [--only ID] [--folder DIR] [--python 3.11]

For each: did the smoke test fail before and pass after, was the labelled rule the reason, did only labelled packages
change, and was what could not work put back to the same freeze. Needs the package index and some 6 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
UV = (sys.executable, "-m", "uv")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "VIRTUAL_ENV": "", "CONDA_PREFIX": ""}
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=env)


def make(case: dict[str, Any], environment: Path, python: str) -> str:
    """Return why it cannot be made, or nothing."""
    run(*UV, "venv", "--quiet", "--python", python, str(environment))
    for line in case["make"]:
        answer = run(*UV, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), *line.split())
        if answer.returncode:
            return f"{line}: {answer.stderr.strip()[-300:]}"
    for name in case.get("delete", ()):
        (environment / name).unlink()
    for name, text in case.get("write", {}).items():
        (environment / name).write_text(text)
    return ""


def freeze(environment: Path) -> str:
    return run(*UV, "pip", "freeze", "--python", str(environment / "bin" / "python")).stdout


def judge(case: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """Return what is not as it was labelled."""
    wrong = []
    changed = {change["name"]: change for change in result.get("changes", [])}
    before, after = result.get("before") or {}, result.get("after") or {}
    if case.get("rolled_back"):
        return [] if result.get("status") == "rolled back" else [f"status {result.get('status')}"]
    if result.get("status") != "mended":
        wrong.append(f"status {result.get('status')}")
    if before.get("passed") and not before.get("broken"):
        wrong.append("nothing failed before")
    if not after.get("passed") or after.get("broken"):
        wrong.append("something fails after")
    if not any(case["rule"] in change["why"] for change in changed.values()):
        wrong.append(f"{case['rule']} is not the reason")
    if still := [name for name in case.get("gone", ()) if changed.get(name, {}).get("to", "") is not None]:
        wrong.append(f"still there: {', '.join(still)}")
    own = {n for n, change in changed.items() if change["why"] != "the new releases need it"}
    if not own & set(case["change"]):
        wrong.append("none of the labelled packages changed")
    if further := own - set(case["change"]):
        wrong.append(f"changed as well: {', '.join(sorted(further))}")
    return wrong


def one(case: dict[str, Any], folder: Path, python: str) -> dict[str, Any]:
    environment = folder / case["id"]
    shutil.rmtree(environment, ignore_errors=True)
    shutil.rmtree(folder / f".{case['id']}.envsmith", ignore_errors=True)
    row: dict[str, Any] = {"id": case["id"]}
    try:
        if reason := make(case, environment, python):
            return {**row, "wrong": [f"cannot be made: {reason}"]}
        old, started = freeze(environment), time.monotonic()
        command = ("-m", "envsmith", "doctor", "--python", str(environment), "--apply", "--yes", "--json")
        answer = run(sys.executable, *command)
        row["seconds"] = round(time.monotonic() - started)
        try:
            result = json.loads(answer.stdout)
        except ValueError:
            return {**row, "wrong": [f"no answer (exit {answer.returncode}): {answer.stderr.strip()[-400:]}"]}
        wrong = judge(case, result)
        if result["status"] == "rolled back" and freeze(environment) != old:
            wrong.append("another freeze than before")
        if result["status"] in {"mended", "improved"}:
            undone = run(sys.executable, "-m", "envsmith", "doctor", "--python", str(environment), "--undo", "--yes")
            if undone.returncode or freeze(environment) != old:
                wrong.append("undo gives another freeze")
        return {**row, "wrong": wrong, **result, "environment": ""}
    finally:
        shutil.rmtree(environment, ignore_errors=True)
        shutil.rmtree(folder / f".{case['id']}.envsmith", ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append")
    parser.add_argument("--folder", type=Path, default=Path("mends"))
    parser.add_argument("--python", default="3.11")
    options = parser.parse_args()
    cases = yaml.safe_load((ROOT / "bench" / "mends.yaml").read_text())["cases"]
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for case in cases:
        if options.only and case["id"] not in options.only:
            continue
        row = one(case, options.folder.absolute(), options.python)
        print(json.dumps(row), flush=True)
        rows.append(row)
    right = [row for row in rows if not row["wrong"]]
    print(f"{len(right)} of {len(rows)} as labelled")
    return 0 if len(right) == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
