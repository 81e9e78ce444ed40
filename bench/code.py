"""Old training repositories without a lock: what imports in the environment that `--code` makes, beside `uv pip install`.

    python bench/code.py MIRRORS [--only NAME] [--python 3.11] [--minutes 10] [--output FILE]

MIRRORS holds a bare clone OWNER+NAME of each repository of corpus/repositories.jsonl. Each is checked out at its commit
and gets three environments, one after the other, each removed after use: `envsmith build --code`, `uv pip install` of
its own requirements today, and the same with `--exclude-newer` the commit's date. In each, every module of the
repository is imported in a process of its own. An ImportError, AttributeError, TypeError, NameError or a missing library
counts against the environment; what else stops a module (a missing file, no GPU, arguments) does not. What only the open
network has is replaced for all three alike, see :func:`without_addresses`.
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

HERE = Path(__file__).parent
CORPUS = HERE / "corpus" / "repositories.jsonl"
PROBE = HERE / "measuring" / "import_modules.py"
COLUMNS = ("code", "today", "then")
NOT_MODULES = {"setup.py", "conf.py", "noxfile.py"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mirrors", type=Path)
    parser.add_argument("--only", action="append", help="these repositories (repeatable)")
    parser.add_argument("--column", action="append", choices=COLUMNS, help="these columns (repeatable)")
    parser.add_argument("--python", default="3.11")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each environment")
    parser.add_argument("--output", type=Path, default=Path("code.jsonl"))
    parser.add_argument("--envs", type=Path, help="where environments are made, on the disk of uv's cache")
    options = parser.parse_args()
    rows = [json.loads(line) for line in CORPUS.read_text().splitlines()]
    for row in rows:
        if options.only and row["name"] not in options.only:
            continue
        with tempfile.TemporaryDirectory(dir=options.envs) as folder:
            answer = measure(row, options, Path(folder))
        with options.output.open("a") as file:
            file.write(json.dumps(answer) + "\n")
        print(line_of(answer), flush=True)
    total(options.output)
    return 0


def measure(row: dict[str, str], options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """The columns of one repository."""
    checkout = folder / "repository"
    mirror = options.mirrors / row["name"].replace("/", "+") / "repo"
    run(["git", "clone", "--quiet", "--shared", "--no-checkout", str(mirror), str(checkout)], 300)
    git = ["git", "-C", str(checkout)]
    # Large files of data may be absent from the mirror: a checkout would stop there.
    run([*git, "update-ref", "--no-deref", "HEAD", row["commit"]], 60)
    run([*git, "read-tree", "HEAD"], 60)
    run([*git, "checkout-index", "--all", "--force", "--quiet"], 300)
    root = checkout / row.get("folder", "")
    replaced = addresses_out(root)
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "*.py"], capture_output=True, text=True, check=True)
    modules = [m for m in listed.stdout.splitlines() if Path(m).name not in NOT_MODULES]
    answer: dict[str, object] = {**row, "modules": len(modules), "measured": time.strftime("%Y-%m-%d", time.gmtime())}
    answer |= {"replaced": replaced} if replaced else {}
    columns = {
        "code": lambda: by_code(root, folder, options),
        "today": lambda: by_uv(root, folder, options, []),
        "then": lambda: by_uv(root, folder, options, ["--exclude-newer", row["date"]]),
    }
    for name, make in columns.items():
        if options.column and name not in options.column:
            continue
        started = time.monotonic()
        python, facts = make()
        facts["seconds"] = round(time.monotonic() - started)
        if python is not None:
            facts |= imported(python, root, modules, folder)
        answer[name] = facts
        for place in ("venv", "out"):
            shutil.rmtree(folder / place, ignore_errors=True)
    return answer


def by_code(root: Path, folder: Path, options: argparse.Namespace) -> tuple[str | None, dict[str, object]]:
    """`envsmith build --code`: what was inferred, the cell, and the interpreter."""
    command = [sys.executable, "-m", "envsmith"]
    request = ["--code", str(root), "--python", options.python]
    solved = run([*command, "solve", *request, "--json"], 120)
    try:
        document = json.loads(solved.stdout)
    except ValueError:
        return None, {"made": False, "error": last_line(solved.stderr)}
    facts: dict[str, object] = {"inferred": document.get("inferred"), "cell": document.get("cell", {}).get("id")}
    flags = ["--engine", "venv", "--no-smoke", "--no-conda", "--output", str(folder / "out"), "--json", "--quiet"]
    built = run([*command, "build", *request, *flags], options.minutes * 60)
    try:
        return str(json.loads(built.stdout)["built"]["python"]), {**facts, "made": True}
    except (ValueError, KeyError, TypeError):
        return None, {**facts, "made": False, "error": errors_of(built.stderr)}


def by_uv(
    root: Path, folder: Path, options: argparse.Namespace, extra: list[str]
) -> tuple[str | None, dict[str, object]]:
    """`uv pip install` of requirements.txt, else of the project itself; nothing where it has neither."""
    facts: dict[str, object] = {"made": True}
    if (root / "requirements.txt").is_file():
        what = ["-r", "requirements.txt"]
    elif any((root / name).is_file() for name in ("pyproject.toml", "setup.py")):
        what = ["."]
    else:
        return None, {"made": False, "error": "the repository has no requirements.txt, pyproject.toml or setup.py"}
    run(["uv", "venv", "--quiet", "--seed", "--python", options.python, str(folder / "venv")], 120)
    python = str(folder / "venv" / "bin" / "python")
    done = run(["uv", "pip", "install", "--python", python, *extra, *what], options.minutes * 60, cwd=root)
    if done.returncode:
        return None, {**facts, "made": False, "error": errors_of(done.stderr)}
    return python, facts


_GIT = re.compile(
    r"\s*(?:-e\s+)?(?:([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*@\s*)?git\+\S*?/([A-Za-z0-9._-]+?)(?:\.git)?(?:[@#]\S*)?\s*"
)


_QUOTED = re.compile(r"""(["'])([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*@\s*git\+[^"']+\1""")
_LOCAL = re.compile(r"(==\s*[0-9][\w.]*)\+(?:cu\d+|cpu)\b")


def addresses_out(root: Path) -> list[str]:
    """Replace in a project's files what :func:`without_addresses` replaces. Return what went."""
    replaced = []
    for path in (root / "pyproject.toml", root / "setup.py"):
        if path.is_file():
            text = path.read_text(errors="replace")
            replaced += [match[0] for match in _QUOTED.finditer(text)]
            path.write_text(_QUOTED.sub(r"\1\2\1", text))
    path = root / "requirements.txt"
    if path.is_file():
        text, lines = without_addresses(path.read_text(errors="replace"))
        path.write_text(text)
        replaced += lines
    return replaced


def without_addresses(text: str) -> tuple[str, list[str]]:
    """Requirements without what only the open network has.

    A git address becomes its package, ``+cu118`` goes, and so does an index option. Such a line would fail here
    whatever its release is, so the release that the index has is asked for.
    """
    lines, replaced = [], []
    for line in text.splitlines():
        if match := _GIT.fullmatch(line):
            lines.append(match[1] or match[2])
            replaced.append(line.strip())
        elif re.match(r"\s*(--extra-index-url|--index-url|-i |-f |--find-links)", line):
            replaced.append(line.strip())
        else:
            lines.append(_LOCAL.sub(r"\1", line))
            replaced += [line.strip()] if lines[-1] != line else []
    return "\n".join(lines) + "\n", replaced


def imported(python: str, root: Path, modules: list[str], folder: Path) -> dict[str, object]:
    """How many modules are imported, and what stopped the others."""
    quiet = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "agg"}
    home = folder / "home"
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [python, str(PROBE), str(root)],
        input="\n".join(modules),
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, **quiet, "HOME": str(home), "PYTHONPATH": ""},
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    bad = {row["module"]: row["error"] for row in rows if row["of"] == "environment"}
    return {"imported": len(modules) - len(bad) - (len(modules) - len(rows)), "bad": bad}


def run(command: list[str], seconds: float, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command within its time; what ran out of it has status 124."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds, cwd=cwd)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"more than {seconds:.0f} seconds")


def errors_of(text: str) -> str:
    """The lines of an error that say what it is."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    start = next((n for n, line in enumerate(lines) if "error" in line.lower()), max(0, len(lines) - 4))
    return " | ".join(lines[start : start + 6])[:600]


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:300] if text.strip() else "no output"


def line_of(answer: dict[str, object]) -> str:
    cells = []
    for name in COLUMNS:
        facts = answer.get(name)
        if isinstance(facts, dict):
            cells.append(f"{facts['imported']}/{answer['modules']}" if "imported" in facts else "not made")
        else:
            cells.append("")
    return f"{answer['name']:45} {answer['date']}  " + "  ".join(f"{cell:>9}" for cell in cells)


def total(output: Path) -> None:
    """Environments and modules of each column, over the repositories that have all of them."""
    rows: dict[str, dict[str, object]] = {}
    for line in output.read_text().splitlines():
        answer = json.loads(line)
        rows.setdefault(answer["name"], {}).update(answer)
    complete = [row for row in rows.values() if all(name in row for name in COLUMNS)]
    for row in complete:
        print(line_of(row))
    modules = sum(int(str(row["modules"])) for row in complete)
    for name in COLUMNS:
        facts = [f for row in complete if isinstance(f := row[name], dict)]
        made = sum(bool(f["made"]) for f in facts)
        count = sum(int(f.get("imported", 0)) for f in facts)
        entire = sum(f.get("imported") == row["modules"] for row, f in zip(complete, facts, strict=True))
        print(f"{name:6} environments {made}/{len(complete)}  modules {count}/{modules}  all modules {entire}")


if __name__ == "__main__":
    sys.exit(main())
