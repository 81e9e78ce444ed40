"""Locks the requirement files of real projects, beside `uv pip compile` of the same files.

    python bench/projects.py MIRRORS RESULTS.jsonl [--corpus bench/corpus/projects.jsonl] [--only NAME] [--table]

MIRRORS holds a Git directory `OWNER+NAME/repo` for each project of the corpus. Both get the same Python, platform and
day. A lock counts when uv accepts its hashed requirements without the network. What the peer resolves is judged by the
rules of the version graph (`envsmith check`). RESULTS holds one line a project, and an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PYTHON, PLATFORM, DAY = "3.11", "x86_64-manylinux_2_28", "2026-11-21"
SECONDS = 900
# What the files of a project need to be read, and its metadata to be built.
_NEEDED = re.compile(r"[^/]+|requirements/.+|.*version.*|src/[^/]+/(__init__|extras/env)\.py")
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_SHOWN = ("torch", "transformers", "accelerate", "deepspeed", "numpy", "vllm")


def check_out(repository: Path, commit: str, folder: Path) -> None:
    """Write the files of a commit that say what a project requires."""
    listed = subprocess.run(
        ["git", "-C", str(repository), "ls-tree", "-r", "--name-only", commit],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in filter(_NEEDED.fullmatch, listed):
        shown = subprocess.run(
            ["git", "-C", str(repository), "show", f"{commit}:{name}"], capture_output=True, check=False
        )
        if shown.returncode == 0 and len(shown.stdout) < 1 << 20:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(shown.stdout)


def run(command: list[str], folder: Path, **variables: str) -> tuple[int, str, str, float]:
    start = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env={**os.environ, "UV_PYTHON_DOWNLOADS": "never", **variables},
        )
    except subprocess.TimeoutExpired:
        return 124, "", "timed out", SECONDS
    return done.returncode, done.stdout, done.stderr, round(time.monotonic() - start, 1)


def pins(text: str) -> dict[str, str]:
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in _PIN.findall(text)}


def ours(case: dict, folder: Path, uv: str) -> dict:
    command = [sys.executable, "-m", "envsmith", "lock", *case["ask"], "--python", PYTHON, "--format", "pip", "--json"]
    status, out, err, seconds = run([*command, "--exclude-newer", DAY, "-o", str(folder / "out")], folder)
    result = {"status": status, "seconds": seconds}
    if status == 0:
        answer = json.loads(out)
        lock = Path(answer["files"]["requirements.txt"])
        arguments = ["pip", "install", "--dry-run", "--offline", "--no-deps", "--require-hashes", "-r", str(lock)]
        venv = folder / "venv"
        run([uv, "venv", "--python", PYTHON, str(venv)], folder)
        accepted, _, why, _ = run([uv, *arguments, "--python", str(venv)], folder)
        text = lock.read_text()
        return {
            **result,
            "end": "locked",
            "cell": answer["cell"]["id"],
            "rounds": err.count("reading what these declare"),
            "accepted": accepted == 0,
            "why": why[-400:] if accepted else "",
            "pins": pins(text),
        }
    if status == 1:
        answer = json.loads(out)
        return {**result, "end": "conflict", "conflict": [m["message"] for m in answer["conflict"]]}
    return {**result, "end": "refused", "why": err[-2500:]}


def peer(case: dict, folder: Path, uv: str) -> dict:
    command = [uv, "pip", "compile", *case["peer"], "--python-version", PYTHON, "--python-platform", PLATFORM]
    command += ["--generate-hashes", "--exclude-newer", DAY, "-q"]
    status, out, err, seconds = run(command, folder)
    if status:
        return {"end": "no solution" if "No solution" in err else "failed", "seconds": seconds, "why": err[-2500:]}
    versions = pins(out)
    words = [f"{name}=={version}" for name, version in versions.items()]
    _, judged, _, _ = run([sys.executable, "-m", "envsmith", "check", *words, "--json"], folder)
    findings = json.loads(judged)["findings"] if judged.startswith("{") else []
    errors = [f["message"] for f in findings if f["severity"] == "error"]
    return {"end": "resolved", "seconds": seconds, "pins": versions, "broken_rules": errors}


def table(results: list[dict]) -> str:
    """Return the table of the corpus' page."""
    lines = ["| project | `lock` | `uv pip compile` | what differs |", "|---|---|---|---|"]
    for row in results:
        mine, other = row["ours"], row["peer"]
        how = mine["end"] + (f", {mine['rounds']} more rounds" if mine.get("rounds") else "")
        theirs = other["end"] + (f", breaks {len(other['broken_rules'])} rules" if other.get("broken_rules") else "")
        differs = [
            f"{n} {a or '-'} / {b or '-'}"
            for n in _SHOWN
            if (a := mine.get("pins", {}).get(n)) != (b := other.get("pins", {}).get(n))
            and mine.get("pins")
            and other.get("pins")
        ]
        lines.append(f"| {row['name']} | {how} | {theirs} | {', '.join(differs)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--corpus", type=Path, default=Path(__file__).parent / "corpus" / "projects.jsonl")
    parser.add_argument("--only")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    uv = shutil.which("uv") or sys.exit("no uv on PATH")
    results = (
        [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    )
    finished = {row["name"] for row in results}
    for case in map(json.loads, options.corpus.read_text().splitlines()):
        if options.table or case["name"] in finished or (options.only and options.only not in case["name"]):
            continue
        with tempfile.TemporaryDirectory(prefix="projects-") as scratch:
            check_out(options.mirrors / case["name"].replace("/", "+") / "repo", case["commit"], Path(scratch))
            row = {"name": case["name"], "ours": ours(case, Path(scratch), uv), "peer": peer(case, Path(scratch), uv)}
        results.append(row)
        with options.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(case["name"], row["ours"]["end"], row["peer"]["end"], flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
