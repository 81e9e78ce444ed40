"""Break the code in seeded, small ways and count how many of the breaks a test sees.

    uv pip install --group mutants
    python bench/mutants.py [TARGET …] [--each 40] [--seed 0] [--jobs 2] [--only FILE] [--near] [--list]

A mutant is one change of one place by an operator of cosmic-ray (a comparison turned, an `and` for an `or`, a number off by one, a loop
that never runs …). Places are drawn evenly over the lines of a target, then an operator that fits the place. Changes that only touch an
annotation or a decorator of a class are no mutants. First the tests that enter the changed function run, and if they pass all tests of
the target. A mutant is killed when one fails or uses four times the processor time of the tests without a mutant: the load of the
machine kills none. Prints a line for each one that lived and a table at the end. Ends with 1 below 90 %.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import difflib
import importlib
import json
import os
import py_compile
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
_WALL = 900
# Stands for all tests in what was entered: imports, and fixtures that several share.
_EVERY = "*"
_QUIET = "ignore::pytest.PytestAssertRewriteWarning"
_ANYWHERE = ("", 0)
_ENTERED = Path("entered.json")
_PROPERTIES = ["tests/property/test_solver_laws.py"]
_VERDICTS = [
    *(
        f"tests/unit/smoke/test_{name}.py"
        for name in ("blame", "blame_of_faults", "blame_of_launched", "verdict_words")
    ),
    *(
        f"tests/unit/smoke/test_{name}.py"
        for name in ("nccl_text", "step_verdict", "fault", "coverage", "bandwidth", "machine_faults")
    ),
    "tests/property/test_smoke_verdict.py",
]
# Target -> the files that are mutated, the tests that see them.
TARGETS: dict[str, tuple[list[str], list[str]]] = {
    "solve": (["envsmith/solver"], ["tests/unit/solver", *_PROPERTIES]),
    "model": (
        ["envsmith/model"],
        [
            "tests/unit/model",
            "tests/unit/base/test_schema.py",
            "tests/unit/lock",
            "tests/unit/matrix/test_records.py",
            "tests/unit/solver",
        ],
    ),
    "http": (
        [
            "envsmith/net/address.py",
            "envsmith/net/authorities.py",
            "envsmith/net/http.py",
            "envsmith/net/wire.py",
            "envsmith/base/cache.py",
        ],
        [
            "tests/unit/net/test_address.py",
            "tests/unit/net/test_authorities.py",
            "tests/unit/net/test_http.py",
            "tests/unit/net/test_wire.py",
            "tests/unit/test_trust.py",
            "tests/unit/base/test_cache.py",
            "tests/unit/lock/index/test_index.py",
        ],
    ),
    "oci": (
        ["envsmith/net/oci"],
        ["tests/unit/net/oci", "tests/unit/builder/engines/test_content.py", "tests/unit/publish"],
    ),
    "publish": (["envsmith/publish"], ["tests/unit/publish"]),
    "smoke/verdict": (
        [f"envsmith/smoke/{name}.py" for name in ("verdict", "case_verdict", "step_verdict", "step_blame", "coverage")],
        _VERDICTS,
    ),
    "smoke/blame": ([f"envsmith/smoke/{name}.py" for name in ("blame", "ended_ranks", "places")], _VERDICTS),
    "lock": (
        ["envsmith/lock"],
        [
            "tests/unit/lock",
            "tests/unit/builder/test_arrow.py",
            "tests/unit/builder/test_locking.py",
            "tests/unit/builder/test_existing.py",
        ],
    ),
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
    from cosmic_ray.ast import ast_nodes, get_ast  # type: ignore[import-untyped]
    from cosmic_ray.mutating import mutate_code  # type: ignore[import-untyped]
    from cosmic_ray.plugins import get_operator, operator_names  # type: ignore[import-untyped]

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
        try:
            mutated = mutate_code(source, operator, occurrence)
            if not mutated or meaning(mutated) == meaning(source):
                continue
        except (SyntaxError, AttributeError):
            # An operator that stumbles over its own place, such as a dotted name behind `except`, makes no mutant.
            continue
        change = list(difflib.unified_diff(source.splitlines(), mutated.splitlines(), lineterm="", n=0))[3:]
        count -= 1
        yield Mutant(path=path_name, line=line, change=" → ".join(row[1:].strip() for row in change), source=mutated)


class Watch:
    """Note which functions of some files a test enters, and choose tests: a plugin of pytest."""

    def __init__(self, folder: str = "", chosen: list[str] | None = None) -> None:
        self.folder, self.chosen = folder, chosen
        self.entered: dict[str, set[tuple[str, int]]] = {}
        self.cost: dict[str, float] = {}
        self._test = _EVERY

    def enter(self, frame: FrameType, _event: str, _argument: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self.folder):
            self.entered.setdefault(self._test, set()).add((code.co_filename, code.co_firstlineno))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.chosen is not None:
            order = {name: number for number, name in enumerate(self.chosen)}
            items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test, start = item.nodeid, sum(os.times()[:4])
        trace = sys.gettrace()
        if trace and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            # Hundreds of examples are too slow to watch: such a test counts as one that enters everything.
            self.entered[item.nodeid] = {_ANYWHERE}
            sys.settrace(None)
        try:
            return (yield)
        finally:
            sys.settrace(trace)
            self.cost[item.nodeid] = sum(os.times()[:4]) - start
            self._test = _EVERY

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        # What a shared fixture runs belongs to every test, not to the one that came first.
        before = self._test
        self._test = before if fixturedef.scope == "function" else _EVERY
        try:
            return (yield)
        finally:
            self._test = before


def _child(order: dict[str, Any]) -> int:
    """Run tests in this process, which is a fork of the server."""
    os.setsid()
    silence = os.open(os.environ.get("MUTANTS_LOG", os.devnull), os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(silence, number)
    resource.setrlimit(resource.RLIMIT_CPU, (order["cpu"], order["cpu"] + 5))
    watch = Watch(f"{Path.cwd()}/envsmith/", order["chosen"])
    if order["trace"]:
        sys.dont_write_bytecode = False
        sys.settrace(watch.enter)
        threading.settrace(watch.enter)
    argv = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not integration", "-W", _QUIET, *order["tests"]]
    code = int(pytest.main(argv, plugins=[watch]))
    sys.settrace(None)
    if order["trace"]:
        rows = {name: (watch.cost.get(name, 0), sorted(places)) for name, places in watch.entered.items()}
        _ENTERED.write_text(json.dumps(rows))
    return code


def serve() -> None:
    """Answer each line of standard input, an order of tests, with what came of it. Heavy imports are paid once."""
    for name in (
        "hypothesis",
        "jsonschema",
        "networkx",
        "pydantic",
        "rich",
        "yaml",
        "httpx",
        "click",
        "docker",
        "rattler",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        if not (pid := os.fork()):
            code = 1
            try:
                code = _child(order)
            except BaseException:  # noqa: BLE001 - a fork that must not go on as the server
                traceback.print_exc()
            finally:
                os._exit(code)
        clock = threading.Timer(_WALL, os.killpg, (pid, signal.SIGKILL))
        clock.start()
        _, status, usage = os.wait4(pid, 0)
        clock.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        print(json.dumps({"code": status, "cpu": usage.ru_utime + usage.ru_stime}), flush=True)


class Copy:
    """Hold a copy of the project in which mutants are tried."""

    def __init__(self, folder: Path, *, near: bool) -> None:
        leave = shutil.ignore_patterns(".venv", ".git", ".cache", "node_modules", "envsmith-build", "__pycache__")
        shutil.copytree(ROOT, folder, ignore=leave)
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / "envsmith", quiet=2, invalidation_mode=mode)
        self.folder, self.near = folder, near
        env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        env["XDG_CACHE_HOME"] = str(folder / ".cache")
        argv = [sys.executable, str(folder / "bench/mutants.py"), "--serve"]
        self._server = subprocess.Popen(
            argv, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(
        self, tests: list[str], *, cpu: float, chosen: list[str] | None = None, trace: bool = False
    ) -> dict[str, Any]:
        """Run tests with a bound on their processor time, ``chosen`` of them in this order."""
        assert self._server.stdin
        assert self._server.stdout
        shutil.rmtree(self.folder / ".cache", ignore_errors=True)
        order = {"tests": tests, "cpu": int(cpu), "chosen": chosen, "trace": trace}
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer

    def lives(self, mutant: Mutant, tests: list[str], seen: dict[str, Any], cpu: float) -> bool:
        """Return whether no test sees a mutant."""
        path = self.folder / mutant.path
        original = path.read_text()
        first, last = _function(original, mutant.line)
        near = {
            name: cost
            for name, (cost, places) in seen.items()
            if any((file == str(path) and first <= line <= last) or not file for file, line in places)
        }
        chosen = sorted(near, key=lambda name: near[name]) if _EVERY not in near else []
        path.write_text(mutant.source)
        try:
            if chosen:
                files = list(dict.fromkeys(name.partition("::")[0] for name in chosen))
                if self.run(files, cpu=cpu, chosen=chosen)["code"]:
                    return False
                if self.near:
                    return True
            return not self.run(tests, cpu=cpu)["code"]
        finally:
            path.write_text(original)

    def close(self) -> None:
        assert self._server.stdin
        self._server.stdin.close()
        self._server.wait()


def _function(source: str, line: int) -> tuple[int, int]:
    """Return the first and last line of the outermost function around a line."""
    spans = [
        (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return min((span for span in spans if span[0] <= line <= span[1]), default=(0, 0))


def _try(target: str, options: argparse.Namespace, copies: Queue[Copy]) -> tuple[int, int]:
    """Try the mutants of a target and return how many there were and how many lived."""
    files, tests = TARGETS[target]
    batch = list(mutants(options.only or files, options.each, random.Random(f"{options.seed} {target}")))
    if options.list:
        print("\n".join(f"{mutant.path}:{mutant.line}: {mutant.change}" for mutant in batch))
        return len(batch), 0
    start = time.perf_counter()
    copy = copies.get()
    baseline = copy.run(tests, cpu=1800, trace=True)
    if baseline["code"]:
        sys.exit(f"{target}: its tests fail without a mutant")
    entered = json.loads((copy.folder / _ENTERED).read_text())
    copies.put(copy)

    def lives(mutant: Mutant) -> bool:
        copy = copies.get()
        try:
            alive = copy.lives(mutant, tests, entered, 20 + 4 * baseline["cpu"])
        finally:
            copies.put(copy)
        if alive:
            print(f"lives: {mutant.path}:{mutant.line}: {mutant.change}", flush=True)
        return alive

    with ThreadPoolExecutor(options.jobs) as pool:
        living = sum(pool.map(lives, batch))
    seconds = time.perf_counter() - start
    print(f"{target}: {len(batch) - living} of {len(batch)} killed, {seconds:.0f} s", flush=True)
    return len(batch), living


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all without it")
    parser.add_argument("--each", type=int, default=40, help="mutants of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", action="append", metavar="FILE", help="mutate these files of the target only")
    parser.add_argument("--near", action="store_true", help="run only the tests that enter the changed function")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: Queue[Copy] = Queue()
        for number in range(0 if options.list else options.jobs):
            copies.put(Copy(Path(folder) / str(number), near=options.near))
        rows = [(target, *_try(target, options, copies)) for target in options.targets or TARGETS]
        while not copies.empty():
            copies.get().close()
    if options.list:
        return
    total, alive = sum(row[1] for row in rows), sum(row[2] for row in rows)
    print("\n| target | mutants | killed | score |\n|---|---|---|---|")
    for target, count, living in [*rows, ("all", total, alive)]:
        print(f"| {target} | {count} | {count - living} | {(count - living) / max(1, count):.0%} |")
    sys.exit(total - alive < 0.9 * total)


if __name__ == "__main__":
    main()
