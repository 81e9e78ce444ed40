"""Asks for many cells drawn at random, and locks every answer: what is solved must be had.

    python bench/answers.py RESULTS.jsonl [--count 200] [--seed 20] [--again CLASS] [--install 20 --folder DIR]

A request draws its frameworks, GPU, CUDA, companions, Python, torch, driver, platform and date. Each ends as one of the
classes below. A request whose answer lies on an index that this host cannot reach is measured by nothing here: it is
counted by itself, and one more is drawn in its place. RESULTS holds one line a request: an interrupted run goes on
where it stopped, and ``--again`` asks the requests of a class (``refused``, ``crashed``, ``all``) once more.

``--install`` builds that many distinct locked cells in virtual environments (those with a framework, whose Python this
host has, and that compile nothing with nvcc), imports every component and takes the environment away.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import date, timedelta
from itertools import count
from pathlib import Path

from packaging.version import Version

from envsmith.cli.flags import RequestFlags
from envsmith.frameworks import FRAMEWORKS
from envsmith.knowledge.graph.load import version_graph
from envsmith.model.finding import UnsatisfiableError
from envsmith.model.rule import Release
from envsmith.model.version import minor_of
from envsmith.solver import solve

CLASSES = {
    "locked": "solved and locked",
    "unsatisfiable": "`solve` refused with a conflict",
    "refused": "solved, then refused by `lock`",
    "crashed": "crashed",
    "unreachable": "solved, on an index that this host cannot reach",
}
NEWEST = date(2026, 11, 19)
SECONDS = 600
AXES = """
gpu: gtx1080ti p100 v100 t4 rtx2080ti a100 a10 rtx3090 l4 l40s rtx4090 h100 h200 gh200 b200 gb200 rtx5090 rtxpro6000
cuda: 11.8 12.1 12.4 12.6 12.8 12.9 13.0 13.2 cpu
python: 3.9 3.10 3.10 3.11 3.11 3.11 3.11 3.12 3.12 3.13 3.14
driver: 470.82.01 525.60.13 535.54.03 550.54.14 570.26 580.65.06
compiled: transformer-engine flash-attn xformers mamba-ssm causal-conv1d deepspeed-kernels apex grouped-gemm horovod vllm
of models: transformers accelerate peft datasets diffusers trl safetensors tokenizers einops
further: bitsandbytes torchvision torchaudio lightning ray nvidia-modelopt nemo-toolkit numpy pydantic tensorstore tensorboard
"""
GPUS, CUDAS, PYTHONS, DRIVERS, *_COMPANIONS = (line.partition(": ")[2].split() for line in AXES.strip().splitlines())
COMPANIONS = sorted(name for names in _COMPANIONS for name in names)
# What those are called where they are imported.
MODULES = {
    "megatron-core": "megatron.core",
    "flash-attn": "flash_attn",
    "transformer-engine": "transformer_engine.pytorch",
    "nvidia-modelopt": "modelopt",
    "nemo-toolkit": "nemo",
    "deepspeed-kernels": "dskernels",
}


def releases() -> dict[str, list[Release]]:
    """Final releases of every component, oldest first."""
    every = version_graph().knowledge().releases
    wanted = {"torch", *FRAMEWORKS, *COMPANIONS}
    return {n: [e for e in known if not Version(e.version).is_prerelease] for n, known in every.items() if n in wanted}


def draw(dice: random.Random, releases: dict[str, list[Release]]) -> RequestFlags:
    """One request. Half of the exact releases are of the newest ten; nothing is younger than the drawn date."""
    day = (NEWEST - timedelta(days=dice.randrange(1, 1300)) if dice.random() < 0.25 else NEWEST).isoformat()

    def published(name: str) -> list[str]:
        return [each.version for each in releases.get(name, ()) if not each.date or each.date <= day]

    def wish(name: str, exactly: float) -> str:
        known = published(name)
        if not known or dice.random() >= exactly:
            return name
        return f"{name}=={dice.choice(known[-10:] if dice.random() < 0.5 else known)}"

    def maybe(share: float, choices: list[str]) -> str | None:
        return dice.choice(choices) if dice.random() < share else None

    frameworks = [wish(n, 0.35) for n in dice.sample(sorted(FRAMEWORKS), dice.choices((1, 2, 0), (88, 7, 5))[0])]
    choices = [name for name in COMPANIONS if published(name) or dice.random() < 0.05]
    companions = [wish(name, 0.2) for name in dice.sample(choices, dice.choices((0, 1, 2), (35, 45, 20))[0])]
    exact = any("=" in name for name in frameworks + companions)
    torches = list(dict.fromkeys(minor_of(version) for version in published("torch")))
    torch = maybe(1.0 if not frameworks else 0.05 if exact else 0.25, torches)
    cuda = maybe(0.1 if torch or exact else 0.3, CUDAS)
    gpu, driver = maybe(0.5, GPUS), maybe(0.05 if cuda else 0.2, DRIVERS)
    return RequestFlags(
        framework=tuple(frameworks),
        with_=tuple(companions),
        python=maybe(0.4, PYTHONS),
        torch=torch,
        cuda=cuda,
        nccl=None,
        driver=driver,
        gpu=(gpu,) if gpu else (),
        platform="linux-aarch64" if dice.random() < 0.15 else "linux-64",
        exclude_newer=day,
    )


def arguments(flags: RequestFlags) -> list[str]:
    """The request as it is typed."""
    pairs = [*(("--framework", name) for name in flags.framework), *(("--with", name) for name in flags.with_)]
    pairs += [("--gpu", name) for name in flags.gpu]
    pairs += [(f"--{name}", value) for name in ("python", "torch", "cuda", "driver") if (value := getattr(flags, name))]
    return [word for pair in pairs for word in pair] + [
        *("--platform", flags.platform),
        *("--exclude-newer", str(flags.exclude_newer)),
    ]


def envsmith(words: list[str]) -> tuple[int, str, str]:
    """Run the command line: its exit code (124: no answer in time), output and errors."""
    command = [sys.executable, "-m", "envsmith", *words]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer in {SECONDS} s"
    return run.returncode, run.stdout, run.stderr


def classified(code: int, errors: str) -> str:
    """The class of a lock that ended with ``code``. A traceback is a crash whatever the code."""
    if code not in {0, 4, 5, 6} or "Traceback" in errors:
        return "crashed"
    return {0: "locked", 5: "unreachable"}.get(code, "refused")


def ask(flags: RequestFlags, closed: set[str], folder: str) -> dict[str, object]:
    """Solve one request and lock its answer. ``closed`` are the indexes that were found out of reach."""
    words = arguments(flags)
    row: dict[str, object] = {"request": " ".join(words)}
    start = time.perf_counter()
    try:
        solution = solve(flags.request())
    except UnsatisfiableError as error:
        conflict = error.refusal.conflict if error.refusal else ()
        return {**row, "class": "unsatisfiable", "why": " / ".join(c.message for c in conflict)}
    except Exception as error:  # noqa: BLE001 - the crash is what is counted
        return {**row, "class": "crashed", "why": f"solve: {error!r}"}
    cell = solution.cell
    row |= {"cell": str(cell.id), "components": dict(cell.components), "solve_s": round(time.perf_counter() - start, 3)}
    row["warnings"] = [finding.message for finding in solution.warnings]
    if cell.index in closed:
        return {**row, "class": "unreachable"}
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    code, _, errors = envsmith(["lock", *words, "--no-conda", "--quiet", "--json", "--output", folder])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    row |= {"class": classified(code, errors), "lock_s": round(time.perf_counter() - start, 2)}
    row["lock_cpu_s"] = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2)
    if row["class"] == "unreachable" and cell.index != "default":
        closed.add(cell.index)
    return row if code == 0 else {**row, "exit": code, "why": errors.strip()}


def kind(why: str) -> str:
    """The first line of a reason, without the names and versions of one cell."""
    line = next((line for line in why.splitlines() if line.startswith("error:")), why.partition("\n")[0])
    line = re.sub(r"cell \S+: ", "", line)
    return re.sub(r"\d+(\.\w+)+(\+\w+)?", "N", line)[:150]


def show(rows: list[dict]) -> None:
    """Print the table, and the reasons of what did not lock."""
    classes = Counter(row["class"] for row in rows)
    print(f"| {len(rows) - classes['unreachable']} requests | count |\n|---|---|")
    for name, words in CLASSES.items():
        print(f"| {words} | {classes[name]} |")
    for name in ("lock_s", "lock_cpu_s"):
        if times := sorted(row[name] for row in rows if row["class"] == "locked"):
            print(
                f"| {name} of a lock: median, 90 %, most | {statistics.median(times)}, {times[len(times) * 9 // 10]}, {times[-1]} |"
            )
    if installs := [row["install"] for row in rows if "install" in row]:
        passed = [each for each in installs if each["class"] == "imported"]
        print(f"| of {len(installs)} installed, imported | {len(passed)} |")
    for row in (row for row in rows if row.get("install", {"class": "imported"})["class"] != "imported"):
        print(f"\nnot imported: {row['request']}\n  {row['install']['why'][-1500:]}")
    for name in ("crashed", "refused"):
        kinds: dict[str, list[dict]] = {}
        for row in rows:
            if row["class"] == name:
                kinds.setdefault(kind(row["why"]), []).append(row)
        for reason, members in sorted(kinds.items(), key=lambda item: -len(item[1])):
            print(f"\n{name}, {len(members)}: {reason}")
            for row in members:
                print(f"  {row['request']}\n    => {row.get('cell')}")


def install(row: dict, folder: Path) -> dict[str, object]:
    """Build a locked cell in a virtual environment and import its components."""
    start = time.perf_counter()
    words = ["build", *row["request"].split(), "--engine", "venv", "--no-smoke", "--no-conda", "--quiet"]
    try:
        code, _, errors = envsmith([*words, "--output", str(folder)])
        if code:
            return {"class": "not built", "why": errors.strip()}
        python = next(folder.glob("*/venv/bin/python"))
        asked = re.findall(r"--(?:framework|with) ([a-z0-9-]+)", row["request"])
        failures = []
        for name in ("torch", *asked):
            command = [str(python), "-c", f"import {MODULES.get(name, name.replace('-', '_'))}"]
            run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            failures += [f"import {name}: {run.stderr.strip()}"] if run.returncode else []
        answer = {"class": "not imported" if failures else "imported", "why": "\n".join(failures)}
        return {**answer, "install_s": round(time.perf_counter() - start, 1)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def installable(row: dict) -> bool:
    """Whether this host can install a locked cell: a framework, its own Python and machine, nothing compiled with nvcc."""
    here = "--framework" in row["request"] and "--platform linux-64" in row["request"]  # `build` wants a framework
    if row["class"] != "locked" or not here:
        return False
    own = "{}.{}".format(*sys.version_info)
    return row["components"]["python"] == own and not {"flash-attn", "transformer-engine"} & set(row["components"])


def write(path: Path, rows: list[dict]) -> None:
    """Write every line anew."""
    aside = path.with_suffix(".part")
    aside.write_text("".join(json.dumps(row) + "\n" for row in rows))
    aside.replace(path)


def main() -> None:
    """Ask, install, and print one table. Ends with 1 when an answer was refused, crashed or not imported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--again", choices=[*CLASSES, "all"], action="append", default=[])
    parser.add_argument("--install", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()] if options.results.exists() else []
    earlier = {row["request"]: row for row in rows if row["class"] not in options.again and "all" not in options.again}
    rows, closed, known = [], set(), releases()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for number in count():
            flags = draw(random.Random(f"{options.seed} {number}"), known)
            request = " ".join(arguments(flags))
            rows.append(earlier.get(request) or ask(flags, closed, folder))
            write(options.results, rows + [row for row in earlier.values() if row not in rows])
            if sum(row["class"] != "unreachable" for row in rows) >= options.count:
                break
        tried = {row["cell"] for row in rows if "install" in row}
        cells = {row["cell"]: row for row in rows if installable(row) and row["cell"] not in tried}
        for row in list(cells.values())[: max(0, options.install - len(tried))]:
            row["install"] = install(row, Path(folder) / "install")
            write(options.results, rows)
    show(rows)
    sys.exit(any(row["class"] in {"refused", "crashed"} for row in rows))


if __name__ == "__main__":
    os.environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
    main()
