"""`envsmith bisect` on regressions whose culprits are known beforehand, beside two other ways of searching.

    python bench/regressions.py [--only ID …] [--folder DIR] [--json FILE] [--flake SHARE --tries N] [--kills N]

Each case of ``corpus/regressions.jsonl`` is resolved by uv at its two ends (or is searched by time), then searched. Counted are: the culprits right or wrong,
the first bad release right, how many sets were tried, and how many seconds a trial takes beside the command. The other two ways are counted on the same
groups without running anything, with the culprits that are known: one package after the other, and plain delta debugging (ddmin).

``--flake 0.2`` makes a command fail in one run of five besides, and ``--tries`` runs each set more often. ``--kills 3`` ends the search by SIGKILL
after each of its next three trials and starts it again: how many finished trials it repeats is counted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from envsmith.lock.index.uv import find_uv

HERE = Path(__file__).parent


def main() -> int:
    """Run the cases, print a table, return 1 where a wrong culprit was named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--folder", type=Path, default=Path("bench-bisect"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--flake", type=float, default=0.0)
    parser.add_argument("--tries", type=int, default=1)
    parser.add_argument("--kills", type=int, default=0)
    arguments = parser.parse_args()
    rows = []
    for line in (HERE / "corpus" / "regressions.jsonl").read_text().splitlines():
        case = json.loads(line)
        if "void" not in case and (not arguments.only or case["id"] in arguments.only):
            if arguments.flake:
                case["command"] = flaky(case["command"], arguments.flake)
            rows.append(run(case, arguments.folder.absolute() / case["id"], arguments.tries, arguments.kills))
            print(text(rows[-1]), flush=True)
            if arguments.json:
                arguments.json.write_text("".join(json.dumps(row) + "\n" for row in rows))
    right = sum(row["verdict"] == "right" for row in rows)
    wrong = sum(row["verdict"] == "wrong" for row in rows)
    print(f"\n{len(rows)} cases: {right} right, {wrong} wrong culprits, {len(rows) - right - wrong} without an answer")
    return int(wrong > 0)


def flaky(command: list[str], share: float) -> list[str]:
    """Return a command of Python code that fails with an error of its own in this share of its runs."""
    *python, code = command
    if python != ["python", "-c"]:
        sys.exit(f"Cannot make {command} fail now and then: it is no `python -c`.")
    return [*python, f"import random\nif random.random() < {share}: raise TimeoutError('the network')\n{code}"]


def search(command: list[str], journal: Path, kills: int) -> tuple[subprocess.CompletedProcess, int]:
    """Run a search, and end it by SIGKILL after each of its next trials. Return its end, and the trials that it repeated."""
    command = [sys.executable, "-m", "envsmith", *command]
    for _ in range(kills):
        finished = len(keys(journal))
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        while process.poll() is None and len(keys(journal)) == finished:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended, len(keys(journal)) - len(set(keys(journal)))


def keys(journal: Path) -> list[str]:
    """Return the keys of the finished trials, each as often as it was run."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [json.loads(line)["key"] for line in lines if line.endswith("}")]


def run(case: dict, folder: Path, tries: int = 1, kills: int = 0) -> dict:
    """Search one case, and compare the answer with its label."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    python = case.get("python", "3.11")
    if "requirements" in case:
        (folder / "requirements.txt").write_text("\n".join(case["requirements"]) + "\n")
        ends = ["-r", str(folder / "requirements.txt"), "--good", case["good"], "--bad", case["bad"]]
    else:
        ends = []
        for end in ("good", "bad"):
            (folder / f"{end}.txt").write_text(resolve(case[end], python, folder))
            ends += [f"--{end}", str(folder / f"{end}.txt")]
    command = ["bisect", *ends, "--python", python, "--folder", str(folder / "work"), "--tries", str(tries), "--json"]
    start = time.monotonic()
    finished, repeated = search([*command, "--", *case["command"]], folder / "work" / "trials.jsonl", kills)
    row = {"id": case["id"], "seconds": round(time.monotonic() - start, 1), "status": finished.returncode}
    if not finished.stdout.strip():
        return {**row, "verdict": "none", "answer": finished.stderr.strip()[-600:]}
    answer = json.loads(finished.stdout)
    culprits = [{part["name"] for part in culprit["packages"]} for culprit in answer["culprits"]]
    first_bad = {step["name"]: step["first_bad"]["version"] for c in answer["culprits"] for step in c["steps"]}
    expected = [{name for name, _ in culprit} for culprit in case["culprits"]]
    is_right = sorted(map(sorted, culprits)) == sorted(map(sorted, expected))
    releases = {name: version for culprit in case["culprits"] for name, version in culprit}
    verdict = "right" if is_right else "wrong" if culprits else "none"
    trials = [json.loads(line) for line in (folder / "work" / "trials.jsonl").read_text().splitlines()]
    overhead = (row["seconds"] - sum(trial["seconds"] for trial in trials)) / max(1, len(trials))
    shutil.rmtree(folder / "work" / "venv", ignore_errors=True)
    shutil.rmtree(folder / "work" / "bytecode", ignore_errors=True)
    return {
        **row,
        "verdict": verdict,
        "release": all(first_bad.get(name) == version for name, version in releases.items()),
        "answer": {"culprits": [sorted(c) for c in culprits], "first_bad": first_bad},
        "groups": answer["groups"],
        "trials": len(trials),
        "repeated": repeated,
        "peers": peers(answer["groups"], answer["positions"]),
        "overhead": round(overhead, 2),
    }


def resolve(end: dict, python: str, folder: Path) -> str:
    """Return what uv resolves for an end, at its date."""
    wish, overrides = folder / "wish.in", folder / "overrides.txt"
    wish.write_text("\n".join(end["requirements"]) + "\n")
    overrides.write_text("\n".join(end.get("overrides", [])) + "\n")
    command = [find_uv(), "pip", "compile", str(wish), "--override", str(overrides), "--python-version", python]
    command += ["--exclude-newer", end["before"], "--no-header", "--no-annotate", "--quiet", "--no-config"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def peers(groups: int, positions: list[list[int]]) -> dict[str, int]:
    """Count the sets that two other ways would try on as many groups with the culprits at these positions."""
    culprits = [frozenset(numbers) for numbers in positions]

    def fails(chosen: frozenset[int]) -> bool:
        return any(culprit <= chosen for culprit in culprits)

    tried: set[frozenset[int]] = set()

    def attempt(chosen: frozenset[int]) -> bool:
        tried.add(chosen)
        return fails(chosen)

    ddmin(list(range(groups)), attempt)
    return {"one by one": groups + 2, "ddmin": len(tried) + 2}


def ddmin(numbers: list[int], attempt) -> list[int]:
    """Return a smallest failing subset by delta debugging (Zeller and Hildebrandt, 2002)."""
    parts = 2
    while len(numbers) >= 2:
        size = math.ceil(len(numbers) / parts)
        subsets = [numbers[start : start + size] for start in range(0, len(numbers), size)]
        for subset in subsets:
            rest = [number for number in numbers if number not in subset]
            if attempt(frozenset(subset)):
                numbers, parts = subset, 2
                break
            if attempt(frozenset(rest)):
                numbers, parts = rest, max(parts - 1, 2)
                break
        else:
            if parts >= len(numbers):
                break
            parts = min(len(numbers), parts * 2)
    return numbers


def text(row: dict) -> str:
    """Return a line of the table."""
    if "trials" not in row:
        return f"{row['id']:24} {row['verdict']:6} status {row['status']}: {row['answer']}"
    return (
        f"{row['id']:24} {row['verdict']:6} release {'right' if row['release'] else 'wrong':6} groups {row['groups']:4} trials {row['trials']:3} "
        f"(one by one {row['peers']['one by one']}, ddmin {row['peers']['ddmin']}), {row['repeated']} of them again  {row['overhead']:.1f} s a trial beside the command, "
        f"{row['seconds']:.0f} s  {row['answer']}"
    )


if __name__ == "__main__":
    sys.exit(main())
