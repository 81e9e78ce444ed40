"""The solver beside python-sat and rattler's resolver, on the same instances in the same run.

Instances are the real knowledge (the components of a Megatron or DeepSpeed cell with companions), once as it is and once with every
release split into ten. Rules over three or more components are left out for all, because a package resolver cannot state them.
Where two programs answer the same question their answers are compared, and a difference ends the run. `conflict` is minimal (any of its
members can go), `smallest` has the fewest members there are; rattler tells a conflict as a text, whose lines are counted. `reasons` is what a user
waits for: the smallest conflict in the whole knowledge (the longer rules too) with its sentences, once the tables are warm.

    python bench/solver.py [--json FILE] [--rounds N] [--budget SECONDS]

`bench/growth.py` asks for the best cell only, and doubles releases and rules three times.

Each program runs in a process of its own and has ``--budget`` seconds a question; what it had answered by then is told with the number of requests.

Needs `pip install python-sat py-rattler` beside envsmith; a program that is not installed is left out of the table.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import importlib.util
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from envsmith.model.cell import Request
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.solver import default_solver
from envsmith.solver.kernel import Net, bits, minimal_conflict, nearest, smallest_conflict
from envsmith.solver.problem import Wish
from envsmith.solver.refusal import conflict_members

COMPONENTS = ("transformer-engine", "flash-attn", "transformers", "numpy", "peft", "accelerate")
MAX_CELLS = 2000


@dataclass(frozen=True)
class Instance:
    """Variables with their sizes, rules as lists of nogoods of one or two literals, and the order of wishes."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    rules: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]
    keys: tuple[int, ...]

    @property
    def full(self):
        return [(1 << n) - 1 for n in self.sizes]


REQUEST = Request(
    frameworks={"deepspeed": Spec.parse("*"), "megatron-core": Spec.parse("*")},
    constraints={c: Spec.parse("*") for c in COMPONENTS},
    driver="580.65.06",
    gpus=("sm_90",),
)


def real_instance() -> Instance:
    """Today's knowledge for DeepSpeed, Megatron-core and companions on linux-64."""
    problem = default_solver().pose(REQUEST).problem
    rules = []
    for group in problem.groups:
        nogoods = tuple(n for _, n in group.nogoods if len(n) <= 2)
        if group.severity is Severity.ERROR and nogoods:
            rules.append(nogoods)
    order = [problem.names.index(n) for n in ("deepspeed", "megatron-core", "torch", "python")]
    return Instance(problem.names, tuple(len(v) for v in problem.values), tuple(rules), tuple(order))


def split(instance: Instance, times: int) -> Instance:
    """Every release becomes `times` releases under the same rules."""

    def spread(mask: int) -> int:
        return sum(((1 << times) - 1) << (value * times) for value in bits(mask))

    rules = tuple(tuple(tuple((v, spread(m)) for v, m in nogood) for nogood in rule) for rule in instance.rules)
    return Instance(instance.names, tuple(n * times for n in instance.sizes), rules, instance.keys)


def wishes(
    instance: Instance, count: int, seed: int, *, wanted: bool, tries: int = 4000
) -> list[list[tuple[int, int]]]:
    """Random windows over three to five components, `wanted` with an answer, else without one."""
    chance = random.Random(seed)
    net = Net(instance.full, [n for rule in instance.rules for n in rule])
    found = []
    for _ in range(tries):
        chosen = chance.sample(range(len(instance.names)), chance.randint(3, 5))
        request = []
        for variable in chosen:
            size = instance.sizes[variable]
            width = max(1, size // chance.choice((3, 5, 8)))
            low = chance.randrange(max(1, size - width + 1))
            request.append((variable, ((1 << width) - 1) << low))
        solved = net.solvable(net.begin(request)) is not None
        if solved == wanted and all(net.start[v] & m for v, m in request):
            found.append(request)
        if len(found) == count:
            break
    return found


class Envsmith:
    name = "envsmith"

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.net = Net(instance.full, [n for rule in instance.rules for n in rule])
        self.parts = [Net(instance.full, rule) for rule in instance.rules]
        order = [*instance.keys, *(v for v in range(len(instance.sizes)) if v not in instance.keys)]
        self.steps = [(v, lambda domains, v=v: (1 << i for i in bits(domains[v]))) for v in order]

    def best(self, request):
        found = next(self.net.search(self.net.begin(request), self.steps))
        return [d.bit_length() - 1 for d in found]

    def cells(self, request):
        keys = self.instance.keys
        found = islice(self.net.search(self.net.begin(request), self.steps[: len(keys)]), MAX_CELLS)
        return len({tuple(domains[k] for k in keys) for domains in found})

    def _parts(self, request):
        full = self.instance.full
        return [Net(full, [((v, full[v] & ~m),)]) for v, m in request] + self.parts

    def conflict(self, request):
        return len(minimal_conflict(self._parts(request), self.instance.full))

    def smallest(self, request):
        return len(smallest_conflict(self._parts(request), self.instance.full))

    def repair(self, request):
        return len(nearest(self.net, [(w,) for w in request])[0])


class PySat:
    """CNF: one literal per release, one per (component, mask) of a rule, one selector per rule and wish."""

    name = "python-sat"

    def __init__(self, instance: Instance) -> None:
        from pysat.card import CardEnc, EncType
        from pysat.solvers import Cadical195, Glucose4

        self.instance, self.glucose, self.cadical = instance, Glucose4, Cadical195
        self.first = []
        top = 0
        for size in instance.sizes:
            self.first.append(top + 1)
            top += size
        self.hard: list[list[int]] = []
        for variable, size in enumerate(instance.sizes):
            literals = [self.first[variable] + i for i in range(size)]
            encoded = CardEnc.equals(literals, 1, top_id=top, encoding=EncType.ladder if size > 6 else EncType.pairwise)
            top = max(top, encoded.nv)
            self.hard += encoded.clauses
        self.sets: dict[tuple[int, int], int] = {}
        self.top = top
        self.rules = [[[-self.inside(v, m) for v, m in nogood] for nogood in rule] for rule in instance.rules]
        self.clauses = self.hard + [c for rule in self.rules for c in rule]
        self.solver = Glucose4(bootstrap_with=self.clauses)

    def inside(self, variable: int, mask: int) -> int:
        """The literal that is true when the release of `variable` is in `mask`."""
        if mask and not mask & (mask - 1):
            return self.first[variable] + mask.bit_length() - 1
        literal = self.sets.get((variable, mask))
        if literal is None:
            self.top += 1
            literal = self.sets[variable, mask] = self.top
            self.hard += [[-(self.first[variable] + i), literal] for i in bits(mask)]
        return literal

    def outside(self, request) -> list[list[int]]:
        """A wish as clauses: some release of the window."""
        return [[self.first[v] + i for i in bits(m)] for v, m in request]

    def assume(self, request) -> list[int]:
        """A wish as assumptions: none of the releases outside the window."""
        return [-(self.first[v] + i) for v, m in request for i in bits(self.instance.full[v] & ~m)]

    def best(self, request):
        fixed = self.assume(request)
        answer = {}
        order = [*self.instance.keys, *(v for v in range(len(self.instance.sizes)) if v not in self.instance.keys)]
        windows = dict(request)
        for variable in order:
            for value in bits(windows.get(variable, self.instance.full[variable])):
                if self.solver.solve(assumptions=[*fixed, self.first[variable] + value]):
                    fixed.append(self.first[variable] + value)
                    answer[variable] = value
                    break
        return [answer[v] for v in range(len(order))]

    def cells(self, request):
        with self.glucose(bootstrap_with=self.clauses + self.outside(request)) as solver:
            count = 0
            while count < MAX_CELLS and solver.solve():
                model = set(solver.get_model())
                starts = [(self.first[key], self.instance.sizes[key]) for key in self.instance.keys]
                cell = [next(x for x in range(start, start + size) if x in model) for start, size in starts]
                solver.add_clause([-x for x in cell])
                count += 1
            return count

    def _soft(self, request):
        """Weighted CNF with a soft selector per wish and rule."""
        from pysat.formula import WCNF

        formula = WCNF()
        formula.extend(self.hard)
        top = self.top
        for clauses in [*([c] for c in self.outside(request)), *self.rules]:
            top += 1
            for clause in clauses:
                formula.append([*clause, -top])
            formula.append([top], weight=1)
        return formula

    def conflict(self, request):
        from pysat.examples.musx import MUSX

        with MUSX(self._soft(request), solver="glucose4", verbosity=0) as search:
            return len(search.compute())

    def smallest(self, request):
        from pysat.examples.optux import OptUx

        with OptUx(self._soft(request), solver="glucose4", verbose=0) as search:
            return len(search.compute())

    def repair(self, request):
        from pysat.examples.rc2 import RC2
        from pysat.formula import WCNF

        formula = WCNF()
        formula.extend(self.clauses)
        top = self.top
        for clause in self.outside(request):
            top += 1
            formula.append([*clause, -top])
            formula.append([top], weight=1)
        with RC2(formula, solver="glucose4") as search:
            search.compute()
            return search.cost


class Rattler:
    """One package per component, one build per release; what a release allows becomes its `depends`."""

    name = "rattler"

    def __init__(self, instance: Instance) -> None:
        import rattler

        self.rattler, self.instance = rattler, instance
        allowed: list[list[dict[int, int]]] = [[{} for _ in range(n)] for n in instance.sizes]
        banned = [0] * len(instance.sizes)
        for rule in instance.rules:
            for nogood in rule:
                if len(nogood) == 1:
                    banned[nogood[0][0]] |= nogood[0][1]
                    continue
                (a, mask), (b, other) = nogood
                for value in bits(mask):
                    row = allowed[a][value]
                    row[b] = row.get(b, instance.full[b]) & ~other
        packages = {}
        for variable, size in enumerate(instance.sizes):
            for value in range(size):
                if not banned[variable] >> value & 1:
                    depends = [f"c{b} {_ranges(m)}" for b, m in allowed[variable][value].items()]
                    packages[f"c{variable}-{value + 1}-0.conda"] = _record(variable, value, depends)
        packages["all-1-0.conda"] = _record("all", 0, [f"c{v}" for v in range(len(instance.sizes))])
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "noarch" / "repodata.json"
        path.parent.mkdir()
        data = {"info": {"subdir": "noarch"}, "packages": {}, "packages.conda": packages, "repodata_version": 1}
        path.write_text(json.dumps(data))
        self.data = rattler.SparseRepoData(rattler.Channel(Path(self.folder.name).as_uri()), "noarch", path)

    def best(self, request):
        from rattler.solver import solve_with_sparse_repodata

        specs = [self.rattler.MatchSpec("all")]
        specs += [self.rattler.MatchSpec(f"c{v} {_ranges(m)}") for v, m in request]
        records = asyncio.run(solve_with_sparse_repodata(specs, [self.data]))
        found = {r.name.normalized: int(str(r.version)) - 1 for r in records}
        return [found[f"c{v}"] for v in range(len(self.instance.sizes))]

    def conflict(self, request):
        """A text that tells the conflict; its lines are counted, for it has no members."""
        from rattler.exceptions import SolverError

        try:
            self.best(request)
        except SolverError as error:
            return len(str(error).splitlines())
        raise AssertionError("rattler found a cell where there is none")


def _ranges(mask: int) -> str:
    """A mask as a version spec: `>=3,<=7|>=9,<=9`."""
    if not mask:
        return "<0"
    found, start = [], None
    for value in range(mask.bit_length() + 1):
        if mask >> value & 1:
            start = value if start is None else start
        elif start is not None:
            found.append(f"=={start + 1}" if start == value - 1 else f">={start + 1},<={value}")
            start = None
    return "|".join(found)


def _record(name, value: int, depends: list[str]) -> dict[str, object]:
    label = name if name == "all" else f"c{name}"
    return {
        "build": "0",
        "build_number": 0,
        "depends": depends,
        "name": label,
        "version": str(value + 1),
        "subdir": "noarch",
        "sha256": hashlib.sha256(f"{label} {value}".encode()).hexdigest(),
        "size": 1,
        "timestamp": 1,
    }


QUESTIONS = ("best", "cells", "conflict", "smallest", "repair")
REFUSED = {"conflict", "smallest", "repair"}  # asked of requests without an answer


def _child(pipe, program, instance: Instance, asked, rounds: int) -> None:
    """Build one program and answer; every answer goes through the pipe at once, so that what was done before a budget ended is kept."""
    start = time.perf_counter()
    built = program(instance)
    pipe.send(("build", 1000 * (time.perf_counter() - start), None))
    for question, requests in asked:
        work = getattr(built, question, None)
        for request in requests if work else ():
            runs = []
            for _ in range(rounds):
                start = time.perf_counter()
                answer = work(request)
                runs.append(time.perf_counter() - start)
            pipe.send((question, 1000 * min(runs), answer))
        pipe.send(("done", question, None))
    pipe.close()


def measure(program, instance: Instance, asked, rounds: int, budget: float) -> dict[str, list]:
    """Times in milliseconds with answers by question. A question that takes more than ``budget`` seconds is ended, and the next begins afresh."""
    found: dict[str, list] = {}
    left = list(asked)
    while left:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.Process(target=_child, args=(theirs, program, instance, left, rounds), daemon=True)
        child.start()
        theirs.close()
        ended = _listen(ours, found, left, budget)
        child.kill()
        child.join()
        if ended == "build":
            break
    return found


def _listen(pipe, found: dict[str, list], left: list, budget: float) -> str | None:
    """Take answers until all is answered or a budget ends; what was answered or ended leaves ``left``. Returns what was ended."""
    question, until = "build", time.monotonic() + budget
    while left:
        if not pipe.poll(max(0.0, until - time.monotonic())):
            if question != "build":
                left.pop(0)
            return question
        kind, value, answer = pipe.recv()
        if kind == "done":
            found.setdefault(value, [])
            left.pop(0)
        elif kind != "build" or "build" not in found:
            found.setdefault(kind, []).append((value, answer))
        if kind in {"build", "done"} and left:
            question, until = left[0][0], time.monotonic() + budget
    return None


def compare(question: str, answers: dict[str, list]) -> None:
    """Programs that answer the same question must agree (rattler prefers by its own order and tells conflicts as text)."""
    ours = [a for _, a in answers["envsmith"]]
    for name, told in answers.items():
        if name == "rattler" or (question == "conflict" and name != "envsmith"):
            continue
        both = list(zip(ours, [a for _, a in told], strict=False))
        if any(mine != theirs for mine, theirs in both):
            raise SystemExit(f"{question}: envsmith and {name} differ: {both}")


def run(label: str, instance: Instance, rounds: int, programs, budget: float) -> list[dict[str, object]]:
    solved = wishes(instance, 12, 1, wanted=True)
    refused = wishes(instance, 12, 2, wanted=False)
    rules = sum(len(r) for r in instance.rules)
    print(
        f"\n{label}: {sum(instance.sizes)} releases of {len(instance.sizes)} components, {rules} statements in {len(instance.rules)} rules; "
        f"{len(solved)} requests with an answer, {len(refused)} without",
        flush=True,
    )
    asked = [(q, refused if q in REFUSED else solved) for q in QUESTIONS]
    told = {p.name: measure(p, instance, asked, 1 if p is Rattler else rounds, budget) for p in programs}
    table = []
    for question in ("build", *QUESTIONS):
        answers = {name: found[question] for name, found in told.items() if question in found}
        if question != "build":
            compare(question, answers)
        for program in programs:
            if question == "build" or hasattr(program, question):
                wanted = 1 if question == "build" else len(dict(asked)[question])
                table.append(_row(label, program.name, question, answers.get(program.name, []), wanted))
    for row in table:
        print(_line(row, budget), flush=True)
    return table


def _row(label: str, program: str, question: str, answers: list, wanted: int) -> dict[str, object]:
    sizes = [a for _, a in answers if isinstance(a, int)]
    return {
        "instance": label,
        "program": program,
        "question": question,
        "ms": statistics.median(t for t, _ in answers) if answers else None,
        "size": statistics.median(sizes) if sizes else None,
        "answered": len(answers),
        "asked": wanted,
    }


def _line(row: dict[str, object], budget: float) -> str:
    took = f"{row['ms']:10.2f} ms" if row["ms"] is not None else " " * 13
    size = f"   median size {row['size']:g}" if row["size"] is not None else ""
    short = f"   {row['answered']} of {row['asked']} in {budget:g} s" if row["answered"] != row["asked"] else ""
    return f"  {row['question']:9} {row['program']:11} {took}{size}{short}"


def reasons_row(instance: Instance, rounds: int) -> dict[str, object]:
    """Processor times of conflicts with their sentences over the whole knowledge, as a row of the table."""
    solver = default_solver()
    posed = solver.pose(REQUEST)
    answers = []
    for request in wishes(instance, 12, 2, wanted=False):
        extra = [Wish(instance.names[v], "this window", ((v, mask),)) for v, mask in request]
        problem = posed.problem.with_wishes((*posed.problem.wishes, *extra))
        runs = []
        for _ in range(rounds + 1):
            start = time.process_time()
            members = conflict_members(solver, problem, solver.stuck(problem))
            runs.append(time.process_time() - start)
        answers.append((1000 * min(runs[1:]), len(members)))
    return _row("today", "envsmith", "reasons", answers, len(answers)) | {"longest": max(t for t, _ in answers)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of one program for one question")
    options = parser.parse_args()
    programs = [Envsmith]
    for program, module in ((PySat, "pysat"), (Rattler, "rattler")):
        if importlib.util.find_spec(module):
            programs.append(program)
        else:
            print(f"{module} is not installed: left out")
    today = real_instance()
    table = run("today", today, options.rounds, programs, options.budget)
    table.append(reasons_row(today, options.rounds))
    print(f"{_line(table[-1], options.budget)}   longest {table[-1]['longest']:.2f} ms")
    table += run("ten times", split(today, 10), options.rounds, programs, options.budget)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
