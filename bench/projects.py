"""Locks the requirement files of real projects, beside `uv pip compile` of the same files.

    python bench/projects.py MIRRORS RESULTS.jsonl [--corpus bench/corpus/projects.jsonl] [--only NAME] [--table]
    python bench/projects.py MIRRORS RESULTS.jsonl --imports FOLDER [--only NAME]
    python bench/projects.py MIRRORS RESULTS.jsonl --code [--only NAME]

MIRRORS holds a Git directory `OWNER+NAME/repo` for each project of the corpus. Both get the same Python, platform and
day. A lock counts when uv accepts its hashed requirements without the network. What the peer resolves is judged by the
rules of the version graph (`envsmith check`). RESULTS holds one line a project, and an interrupted run goes on.

A case may name its Python and the folder of its repository. One without a file that uv could compile has no peer.
With --code `lock --code` is asked too. Seconds are those of the clock and of the processors.

With --imports the versions of every answer, and of the peer's on the day of the commit where `lock --code` was not asked, are installed beneath FOLDER, each in an
environment that is removed again, with the project itself. uv's cache in FOLDER stays for the next one. What the project names is imported, then its own package and
the modules directly in it. The answer goes into RESULTS. Where bench/steps has a script of the project, it trains two ranks under `envsmith run` in the environment of
the first answer. Needs up to 10 GB of disk for one environment.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from envsmith.base.files import write_whole
from envsmith.project.demand import Demands
from envsmith.project.folder import ProjectPart, read_folder
from envsmith.project.pip_format import read_requirement_file

ROOT = Path(__file__).resolve().parents[1]
PYTHON, PLATFORM, DAY = "3.11", "x86_64-manylinux_2_28", "2026-11-21"
SECONDS = 300
# What a project needs to be read, its metadata and its own package to be built.
_SOURCES = re.compile(r"(?!tests?/|docs?/|examples?/).*\.(py|ipynb|sh|toml|cfg|txt|md|in|json|ya?ml)|[^/]+|.*version.*")
# An installed envsmith has its byte-code.
_ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
_SIDES = ("ours", "code", "peer", "then")
_SHOWN = ("torch", "transformers", "accelerate", "deepspeed", "numpy", "vllm")


def check_out(repository: Path, commit: str, folder: Path, *, part: str = "") -> None:
    """Write the sources of a commit, or of a folder of it."""
    commit = f"{commit}:{part}" if part else commit
    listed = subprocess.run(
        ["git", "-C", str(repository), "ls-tree", "-r", "--name-only", commit],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in filter(_SOURCES.fullmatch, listed):
        shown = subprocess.run(
            ["git", "-C", str(repository), "show", f"{commit}{'/' if part else ':'}{name}"],
            capture_output=True,
            check=False,
        )
        if shown.returncode == 0 and len(shown.stdout) < 1 << 20:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(shown.stdout)


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(used.ru_utime + used.ru_stime, 1)


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
            env={**_ENVIRON, "UV_PYTHON_DOWNLOADS": "never", **variables},
        )
    except subprocess.TimeoutExpired:
        return 124, "", "timed out", SECONDS
    return done.returncode, done.stdout, done.stderr, round(time.monotonic() - start, 1)


def pins(text: str) -> dict[str, str]:
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in _PIN.findall(text)}


def python_of(case: dict) -> str:
    return case.get("python", PYTHON)


def ours(ask: list[str], python: str, folder: Path, uv: str) -> dict:
    command = [sys.executable, "-m", "envsmith", "lock", *ask, "--python", python, "--format", "pip", "--json"]
    command += ["--machine", "none", "--exclude-newer", DAY, "-o", str(folder / "out")]
    before = processor_seconds()
    status, out, err, seconds = run(command, folder)
    result = {"status": status, "seconds": seconds, "cpu": round(processor_seconds() - before, 1)}
    if status == 0:
        answer = json.loads(out)
        lock = Path(answer["files"]["requirements.txt"])
        arguments = ["pip", "install", "--dry-run", "--offline", "--no-deps", "--require-hashes", "-r", str(lock)]
        venv = folder / "venv"
        run([uv, "venv", "--clear", "--python", python, str(venv)], folder)
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
    return {**result, "end": "refused", "why": (out if out.startswith("{") else err)[-2500:]}


def peer(case: dict, folder: Path, uv: str, day: str = DAY) -> dict:
    if not case["peer"]:
        return {"end": "nothing to compile"}
    command = [uv, "pip", "compile", *case["peer"], "--python-version", python_of(case), "--python-platform", PLATFORM]
    command += ["--generate-hashes", "--exclude-newer", day, "-q"]
    before = processor_seconds()
    status, out, err, seconds = run(command, folder)
    cpu = round(processor_seconds() - before, 1)
    if status:
        end = "no solution" if "No solution" in err else "failed"
        return {"end": end, "seconds": seconds, "cpu": cpu, "why": err[-2500:]}
    versions = pins(out)
    words = [f"{name}=={version}" for name, version in versions.items()]
    _, judged, _, _ = run([sys.executable, "-m", "envsmith", "check", *words, "--json"], folder)
    findings = json.loads(judged)["findings"] if judged.startswith("{") else []
    errors = [f["message"] for f in findings if f["severity"] == "error"]
    return {"end": "resolved", "seconds": seconds, "cpu": cpu, "pins": versions, "broken_rules": errors}


# Runs in the environment: imports what the project names, then its own package and what lies directly in it.
_IMPORT = r"""
import contextlib, importlib, json, os, pkgutil, sys
from envsmith.agent.steps.packages import modules_of
named, own = json.loads(sys.argv[1])
answer = {"imported": 0, "failed": [], "own": 0, "own_failed": []}
def attempt(name, count, failed):
    try:
        with contextlib.redirect_stdout(sys.stderr):
            module = importlib.import_module(name)
    except BaseException as error:
        answer[failed].append(("%s: %s: %s" % (name, type(error).__name__, error))[:300])
        return None
    answer[count] += 1
    return module
for name in named:
    try:
        modules = modules_of(name)
    except importlib.metadata.PackageNotFoundError:
        continue
    for module in modules:
        attempt(module, "imported", "failed")
for top in own:
    package = attempt(top, "own", "own_failed")
    for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
        if module.name != "__main__":
            attempt(top + "." + module.name, "own", "own_failed")
print("ANSWER " + json.dumps(answer))
os._exit(0)
"""
_NOT_OWN = re.compile(r"tests?|docs?|examples?|scripts?|tools?|recipes|assets|benchmarks?")


def named_by(case: dict, folder: Path) -> list[str]:
    """Return the distributions that a project's files name."""
    if "--project" in case["ask"]:
        listed = read_folder(folder, ProjectPart())
    else:
        files = [folder / word for word in case["ask"] if word != "-r"]
        listed = Demands()
        for file in files:
            listed = listed.joined(read_requirement_file(file, lambda root, _extras: read_folder(root, ProjectPart())))
    return sorted({demand.name for demand in listed.demands})


def imports(
    case: dict, versions: dict[str, str], repository: Path, folder: Path, uv: str, *, trains: bool = False
) -> dict:
    """Install these versions and the project, and return what can be imported, and whether it ``trains``."""
    shutil.rmtree(folder, ignore_errors=True)
    source, venv = folder / "source", folder / "venv"
    source.mkdir(parents=True)
    check_out(repository, case["commit"], source, part=case.get("folder", ""))
    try:
        run([uv, "venv", "--python", python_of(case), str(venv)], folder)
        install = [
            uv,
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--python",
            str(venv),
            "--cache-dir",
            str(folder.parent / "cache"),
        ]
        status, _, err, seconds = run([*install, *(f"{n}=={v}" for n, v in versions.items())], folder)
        if status:
            return {"installed": False, "why": err[-600:], "seconds": seconds}
        roots = [source / "src", source] if (source / "src").is_dir() else [source]
        tops = [p.parent.name for root in roots for p in sorted(root.glob("*/__init__.py"))]
        own = [name for name in tops if not _NOT_OWN.fullmatch(name)]
        status, _, err, _ = run([*install, str(source)], folder, SETUPTOOLS_SCM_PRETEND_VERSION="0.0")
        path = os.pathsep.join(map(str, [ROOT, *([] if status == 0 else roots)]))
        command = [str(venv / "bin" / "python"), "-c", _IMPORT, json.dumps([named_by(case, source), own])]
        _, out, why, _ = run(command, folder, PYTHONPATH=path, CUDA_VISIBLE_DEVICES="")
        line = next((row for row in out.splitlines() if row.startswith("ANSWER ")), "")
        answer = json.loads(line.removeprefix("ANSWER ")) if line else {"why": why[-600:]}
        step = ROOT / "bench" / "steps" / f"step-{case['name'].partition('/')[2]}.py"
        if trains and step.is_file():
            answer["step"] = first_step(step, venv, folder, roots)
        return {"installed": True, "seconds": seconds, "from_path": status != 0, **answer}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def first_step(script: Path, venv: Path, folder: Path, roots: list[Path]) -> dict:
    """Train on two ranks on the CPU, watched by `envsmith run`, and return what was said."""
    command = [sys.executable, "-m", "envsmith", "run", "--evidence", str(folder / "evidence"), "--"]
    command += [str(venv / "bin" / "torchrun"), "--nproc-per-node", "2", str(script)]
    path = os.pathsep.join(map(str, roots))
    status, out, err, seconds = run(command, folder, PYTHONPATH=path, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    said = next((line for line in out.splitlines() if line.startswith("STEP ")), "")
    return {"status": status, "said": said or (out + err)[-1500:], "seconds": seconds}


def import_sides(case: dict, row: dict, repository: Path, folder: Path, uv: str) -> None:
    """Add to a row what can be imported of each answer. Answers with the same versions are installed once."""
    if "code" not in row:
        with tempfile.TemporaryDirectory(prefix="projects-") as scratch:
            check_out(repository, case["commit"], Path(scratch), part=case.get("folder", ""))
            row["then"] = peer(case, Path(scratch), uv, case["date"])
    installed = []
    for side in (row["ours"], row.get("code", {}), row["peer"], row.get("then", {})):
        if "pins" not in side:
            continue
        same = next((earlier for earlier in installed if earlier["pins"] == side["pins"]), None)
        if same is None:
            same = {"imports": imports(case, side["pins"], repository, folder, uv, trains=not installed)}
        side["imports"] = same["imports"]
        installed.append(side)


def count(side: dict) -> str:
    """Return what was imported of an answer, as a cell of the table."""
    answer = side.get("imports")
    if answer is None:
        return ""
    if "own" not in answer:
        return "not imported" if answer["installed"] else "cannot be installed"
    every = [(answer["imported"], answer["failed"]), (answer["own"], answer["own_failed"])]
    named, own = (f"{good} of {good + len(bad)}" for good, bad in every)
    return f"{named}, own {own}"


def table(results: list[dict]) -> str:
    """Return the table of the corpus' page."""
    lines = [
        "| project | `lock` | `lock --code` | `uv pip compile` | seconds | what differs | imports of `lock` | of `lock --code` | of `uv pip compile` | of the same on the day of the commit |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
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
        code = row.get("code", {})
        clock = " / ".join(str(side.get("seconds", "-")) for side in (mine, code, other))
        cells = (
            row["name"],
            how,
            code.get("end", ""),
            theirs,
            clock,
            ", ".join(differs),
            *(count(row.get(side, {})) for side in _SIDES),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--corpus", type=Path, default=Path(__file__).parent / "corpus" / "projects.jsonl")
    parser.add_argument("--only")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--imports", type=Path)
    parser.add_argument("--code", action="store_true")
    options = parser.parse_args()
    uv = shutil.which("uv") or sys.exit("no uv on PATH")
    results = (
        [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    )
    finished = {row["name"] for row in results}
    if options.imports:
        cases = {case["name"]: case for case in map(json.loads, options.corpus.read_text().splitlines())}
        for row in results:
            is_finished = any("imports" in side for side in row.values() if isinstance(side, dict))
            if is_finished or (options.only and options.only not in row["name"]):
                continue
            repository = options.mirrors / row["name"].replace("/", "+") / "repo"
            import_sides(cases[row["name"]], row, repository, options.imports.absolute() / "one", uv)
            write_whole(options.results, "".join(json.dumps(row) + "\n" for row in results))
            print(row["name"], *(count(row.get(side, {})) for side in _SIDES), sep=" | ", flush=True)
    for case in map(json.loads, options.corpus.read_text().splitlines()):
        if (
            options.table
            or options.imports
            or case["name"] in finished
            or (options.only and options.only not in case["name"])
        ):
            continue
        with tempfile.TemporaryDirectory(prefix="projects-") as scratch:
            folder, python = Path(scratch), python_of(case)
            repository = options.mirrors / case["name"].replace("/", "+") / "repo"
            check_out(repository, case["commit"], folder, part=case.get("folder", ""))
            row = {"name": case["name"], "peer": peer(case, folder, uv), "ours": ours(case["ask"], python, folder, uv)}
            if options.code:
                row["code"] = ours(["--code", "."], python, folder, uv)
        results.append(row)
        with options.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(case["name"], row["ours"]["end"], row.get("code", {}).get("end"), row["peer"]["end"], flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
