"""Break the code in seeded, small ways and count how many of the breaks a test sees.

    pip install --group mutants
    python bench/mutants.py [TARGET …] [--each 40] [--seed 0] [--jobs 2] [--list]

A mutant is one change of one place by an operator of cosmic-ray (a comparison turned, an `and` for an `or`, a number off by one, a loop
that never runs …). Places are drawn evenly over the lines of a target, then an operator that fits the place. Changes that only touch an
annotation or a decorator of a class are no mutants. A mutant is killed when the tests of its target fail or take four times as long. Prints a line for each one that
lived and a table at the end. Ends with 1 below 90 %.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parent.parent
_PROPERTIES = ["tests/property/test_solver_laws.py"]
# Target -> the files that are mutated, the tests that see them.
TARGETS: dict[str, tuple[list[str], list[str]]] = {
    "solve": (["envsmith/solve"], ["tests/unit/solve", "tests/golden", *_PROPERTIES]),
    "model": (
        ["envsmith/model"],
        [
            "tests/unit/model",
            "tests/unit/test_schema.py",
            "tests/unit/lock",
            "tests/unit/matrix/test_records.py",
            "tests/unit/solve",
        ],
    ),
    "http": (
        ["envsmith/http.py"],
        ["tests/unit/test_http.py", "tests/unit/test_trust.py", "tests/unit/python/test_index.py"],
    ),
    "oci": (["envsmith/oci"], ["tests/unit/oci", "tests/unit/engines/test_content.py", "tests/unit/publish"]),
    "publish": (["envsmith/publish"], ["tests/unit/publish"]),
    "smoke/verdict": (["envsmith/smoke/verdict.py"], ["tests/unit/smoke", "tests/property/test_smoke_verdict.py"]),
    "smoke/blame": (["envsmith/smoke/blame.py"], ["tests/unit/smoke", "tests/property/test_smoke_verdict.py"]),
    "lock": (["envsmith/lock"], ["tests/unit/lock", "tests/unit/test_build.py"]),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    path: str
    line: int
    change: str
    source: str


def meaning(source: str) -> str:
    """Return what a program does: its tree without annotations, what only a type checker imports, and what freezes a class."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(value=None)
        elif isinstance(node, ast.ClassDef):
            node.decorator_list = []
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.test, node.body = ast.Constant(value=False), []
    return ast.dump(tree)


def mutants(paths: list[str], count: int, rand: random.Random) -> Iterator[Mutant]:
    """Yield up to ``count`` mutants of the files below ``paths``."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    operators = [get_operator(name) for name in operator_names()]
    operators = [kind() for kind in operators if not kind.arguments() and "Decorator" not in kind.__name__]
    places: dict[tuple[str, int], list[tuple[object, int]]] = {}
    for path in sorted(
        p for entry in paths for p in ((ROOT / entry).rglob("*.py") if (ROOT / entry).is_dir() else [ROOT / entry])
    ):
        tree = get_ast(path.read_text())
        for operator in operators:
            positions = [place for node in ast_nodes(tree) for place in operator.mutation_positions(node)]
            for occurrence, ((line, _), _) in enumerate(positions):
                places.setdefault((str(path.relative_to(ROOT)), line), []).append((operator, occurrence))
    order = sorted(places)
    rand.shuffle(order)
    for path_name, line in order:
        if not count:
            return
        source = (ROOT / path_name).read_text()
        operator, occurrence = rand.choice(places[path_name, line])
        mutated = mutate_code(source, operator, occurrence)
        try:
            if not mutated or meaning(mutated) == meaning(source):
                continue
        except SyntaxError:
            continue
        change = list(difflib.unified_diff(source.splitlines(), mutated.splitlines(), lineterm="", n=0))[3:]
        count -= 1
        yield Mutant(path=path_name, line=line, change=" → ".join(row[1:].strip() for row in change), source=mutated)


def tests_pass(tree: Path, tests: list[str], limit: float) -> bool:
    """Run the tests of a target in a copy of the project. Too slow is a failure."""
    argv = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not integration", *tests]
    env = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(tree / ".cache"),
    }
    with subprocess.Popen(
        argv,
        cwd=tree,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as child:
        try:
            return child.wait(limit) == 0
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all without it")
    parser.add_argument("--each", type=int, default=40, help="mutants of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    options = parser.parse_args()
    rows: list[tuple[str, int, int]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees: Queue[Path] = Queue()
        for number in range(0 if options.list else options.jobs):
            tree = Path(folder) / str(number)
            shutil.copytree(
                ROOT, tree, ignore=shutil.ignore_patterns(".venv", ".git", ".cache", "node_modules", "envsmith-build")
            )
            trees.put(tree)
        for target in options.targets or TARGETS:
            files, tests = TARGETS[target]
            batch = list(mutants(files, options.each, random.Random(f"{options.seed} {target}")))
            if options.list:
                print("\n".join(f"{mutant.path}:{mutant.line}: {mutant.change}" for mutant in batch))
                continue
            start = time.perf_counter()
            tree = trees.get()
            if not tests_pass(tree, tests, 1800):
                sys.exit(f"{target}: its tests fail without a mutant")
            trees.put(tree)
            limit = 20 + 4 * (time.perf_counter() - start)

            def lives(mutant: Mutant, tests: list[str] = tests, limit: float = limit) -> bool:
                tree = trees.get()
                original = (tree / mutant.path).read_text()
                try:
                    (tree / mutant.path).write_text(mutant.source)
                    return tests_pass(tree, tests, limit)
                finally:
                    (tree / mutant.path).write_text(original)
                    trees.put(tree)

            with ThreadPoolExecutor(options.jobs) as pool:
                verdicts = list(pool.map(lives, batch))
            for mutant, alive in zip(batch, verdicts, strict=True):
                if alive:
                    print(f"lives: {mutant.path}:{mutant.line}: {mutant.change}", flush=True)
            rows.append((target, len(batch), sum(verdicts)))
            print(
                f"{target}: {len(batch) - sum(verdicts)} of {len(batch)} killed, {time.perf_counter() - start:.0f} s",
                flush=True,
            )
    if options.list:
        return
    total, alive = sum(row[1] for row in rows), sum(row[2] for row in rows)
    print("\n| target | mutants | killed | score |\n|---|---|---|---|")
    for target, count, living in [*rows, ("all", total, alive)]:
        print(f"| {target} | {count} | {count - living} | {(count - living) / max(1, count):.0%} |")
    sys.exit(total - alive < 0.9 * total)


if __name__ == "__main__":
    main()
