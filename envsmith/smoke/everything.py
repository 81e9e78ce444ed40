"""All that a machine can show, in one go: parts with deadlines of their own, so that one that fails loses nothing.

What is run follows from what CUDA says here. The order is that of the first ten minutes on a GPU that may be taken away
again: what tells most in the least time stands first, and what may leave the GPU in disorder stands late. Planning is
pure.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from envsmith.agent.placement import SHARING_WAY, sharing_env
from envsmith.agent.protocol import Exit
from envsmith.base.files import write_whole
from envsmith.base.programs import end, execute, start
from envsmith.base.schema import parse_json, parse_value
from envsmith.errors import SmokeError
from envsmith.model.record import Unmet
from envsmith.smoke.cases import Case
from envsmith.smoke.fields import Rank
from envsmith.smoke.parse_events import parse_loaded
from envsmith.smoke.plan import TWO_ENGINES, Plan, Tier, Timeouts
from envsmith.smoke.result import SmokeResult
from envsmith.smoke.run import SmokeProgress, SmokeTarget, run

# Less than this is not enough to import torch and make a group.
_LEAST = 10.0
_MOST_RANKS = 8
# The first NCCL that lets ranks share a GPU when a setting allows it (release notes of 2.30).
_MULTI_RANK = (2, 30)
# Seconds of each part, in their order. They add up to what ten minutes leave when a machine has been reached.
SHARES = {
    "facts": 15, "one-rank": 25, "hostid": 40, "multi-rank": 40, "faults": 60, "full": 150, "framework": 60,
    "engine-legacy": 90, "bandwidth": 60, "preflight": 30,
}  # fmt: skip
BUDGET = float(sum(SHARES.values()))
# What is done to rank 1 in the second of three reductions, and how a run may end that names it. A wrong dtype makes
# NCCL wait for bytes that never come, or read another tensor's.
_FAULTS = {
    "hang": (Exit.HANG,),
    "kill": (Exit.CRASH,),
    "wrong": (Exit.WRONG,),
    "dtype": (Exit.HANG, Exit.WRONG, Exit.ERROR, Exit.CRASH),
}
# What a process that has ended may leave on a GPU: a context of another program that came meanwhile is larger.
_LEFT_BEHIND = 256 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokeMachine:
    """What decides about the parts: the backend, how many GPUs CUDA can use, NCCL as loaded, torch as loaded."""

    backend: str
    gpus: int = 0
    nccl: str = ""
    torch: str = ""
    free: tuple[int, ...] = ()

    @property
    def multi_rank(self) -> bool:
        """Return whether this NCCL lets ranks share a GPU by P2P and shared memory."""
        return tuple(map(int, re.findall(r"\d+", self.nccl)[:2])) >= _MULTI_RANK

    @property
    def best(self) -> dict[str, object]:
        """Choose a GPU for each of two ranks or more, or else two ranks that share one."""
        if self.backend != "nccl":
            return {}
        if self.gpus > 1:
            return {"ranks": min(self.gpus, _MOST_RANKS)}
        return {"ranks": 2, "sharing": SHARING_WAY}


@dataclass(frozen=True, kw_only=True, slots=True)
class SmokePart:
    """One run.

    ``limit`` are the seconds that it may take, together with the others of its ``share``, and what the parts before it
    left over is added when it is run. ``why_not`` says why
    it is not run here, and has no plan. ``judge`` says what is wrong with a result, nothing when it is right;
    without it the result's own verdict counts. ``work`` is run in place of a plan.
    """

    name: str
    what: str
    limit: float = 0.0
    plan: Plan | None = None
    why_not: str = ""
    share: str = ""
    judge: Callable[[SmokeResult], str] | None = None
    work: Callable[[SmokeTarget, float], SmokeResult] | None = None

    def to_json(self) -> dict[str, object]:
        """Return one object, as the dry run prints it."""
        return {"part": self.name, "what": self.what, "limit": self.limit, "why_not": self.why_not}


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A part and what came of it; no result where it was not run (``part.why_not`` says why)."""

    part: SmokePart
    result: SmokeResult | None = None
    seconds: float = 0.0

    @property
    def word(self) -> str:
        """Return ``passed``, ``failed`` or ``not run``."""
        if self.result is None:
            return "not run"
        good = not self.part.judge(self.result) if self.part.judge else self.result.passed
        return "passed" if good else "failed"

    @property
    def sentence(self) -> str:
        """Return one line about it."""
        if self.result is None:
            return self.part.why_not
        problem = self.part.judge(self.result) if self.part.judge else ""
        text = f"{problem}: {self.result.summary}" if problem else self.result.summary
        return "; ".join(filter(None, (text, self.unreached)))

    @property
    def unreached(self) -> str:
        """Return how many cases and steps of the part had no time."""
        if self.result is None:
            return ""
        cases = self.result.late
        steps = [step.name for step in self.result.steps if step.unmet is Unmet.TIME]
        text = f"no time for {len(cases)} of {len(self.result.cases)} cases" if cases else ""
        return "; ".join(filter(None, (text, f"no time for {', '.join(steps)}" if steps else "")))

    def to_json(self) -> dict[str, object]:
        """Return one object. The result is that of ``envsmith smoke --json``."""
        row = {**self.part.to_json(), "outcome": self.word, "seconds": round(self.seconds, 1)}
        row["sentence"] = self.sentence
        return row | ({"result": self.result.to_json()} if self.result else {})


def ask(versions: Mapping[str, str], target: SmokeTarget, backend: str) -> SmokeMachine:
    """Import torch and start CUDA in the environment, or take gloo where ``auto`` finds none.

    Raises :class:`SmokeError` when ``nccl`` is wanted and cannot be had.
    """
    result = run(Plan.build(versions, tier=Tier.IMPORT, ranks=1, backend=backend), target)
    if not result.passed:
        needs_gpu = backend == "nccl" and bool(result.loaded)
        raise SmokeError(
            f"Cannot use a GPU here: {result.summary}." if needs_gpu else f"Cannot import torch: {result.summary}.",
            hint="Use --backend gloo. It runs everything that needs no GPU." if needs_gpu else None,
        )
    loaded = parse_loaded(result.loaded)
    return SmokeMachine(
        backend=result.backend,
        gpus=result.cuda.count,
        nccl=loaded.nccl_runtime or loaded.nccl,
        torch=loaded.torch,
        free=result.cuda.free,
    )


def supposed(versions: Mapping[str, str], backend: str) -> SmokeMachine:
    """Return one GPU with what the environment's metadata names, for a plan that nothing was asked for."""
    if backend == "gloo" or "+cpu" in versions.get("torch", ""):
        return SmokeMachine(backend="gloo", torch=versions.get("torch", ""))
    return SmokeMachine(
        backend="nccl", gpus=1, nccl=versions.get("nccl", ""), torch=versions.get("torch", ""), free=(0,)
    )  # fmt: skip


def parts_of(
    versions: Mapping[str, str], machine: SmokeMachine, *, ranks: int = 2, budget: float = BUDGET
) -> tuple[SmokePart, ...]:
    """Return the parts behind the facts, in their order. ``ranks`` is for the CPU: on GPUs their number decides.

    A budget beyond the sum of the shares makes each of them longer.
    """
    torch = {"torch": machine.torch} if machine.torch else {}
    versions = {**versions, **torch, **({"nccl": machine.nccl} if machine.nccl else {})}
    longer = max(1.0, budget / BUDGET)

    def part(
        share: str, what: str, tier: Tier, *, name: str = "", fields: Mapping[str, object] | None = None, **options: Any
    ) -> SmokePart:
        limit = round(SHARES[share] * longer, 1)
        options = {"ranks": ranks, **machine.best, "steps": False, **options}
        plan = _patient(Plan.build(versions, tier=tier, backend=machine.backend, **options), limit)
        return SmokePart(name=name or share, what=what, limit=limit, plan=plan.with_(**fields or {}), share=share)

    # Two ranks are what the steps ask for.
    two = {"ranks": 2} if machine.gpus != 1 or machine.backend != "nccl" else {}
    steps: dict[str, Any] = {"steps": True, "fields": {"cases": ()}, **two}
    return (
        part("one-rank", "quick tier, one rank", Tier.QUICK, ranks=1, sharing=None),
        *(_sharing(machine, part) if machine.backend == "nccl" else ()),
        *_faults(machine, part),
        part("full", "full tier, CUDA graphs and symmetric memory with it", Tier.FULL),
        part("framework", "every framework step", Tier.FRAMEWORK, **steps),
        *(_engines(machine, part) if machine.backend == "nccl" else ()),
        part("bandwidth", "bus bandwidth of seven operations", Tier.BANDWIDTH),
        SmokePart(
            name="preflight",
            what="preflight of two ranks, of which one is stopped",
            limit=round(SHARES["preflight"] * longer, 1),
            share="preflight",
            work=lambda target, limit: rehearse(target, machine.backend, limit, is_shared=machine.gpus == 1),
        ),
    )


FACTS = SmokePart(name="facts", what="import torch, start CUDA, ask the machine", limit=SHARES["facts"], share="facts")


def fitted(parts: Sequence[SmokePart], budget: float) -> tuple[SmokePart, ...]:
    """Return the parts, the facts first, with the reason at those that the budget does not reach in the worst case."""
    rows, planned, charged = [], 0.0, set()
    for part in (FACTS, *parts):
        if part.why_not or part.share in charged:
            rows.append(part)
            continue
        charged.add(part.share)
        short = budget - planned < _LEAST
        rows.append(replace(part, why_not=f"{budget:.0f} s may be over by then") if short else part)
        planned += part.limit
    return tuple(rows)


def _sharing(machine: SmokeMachine, part: Callable[..., SmokePart]) -> Iterator[SmokePart]:
    what = "quick tier, two ranks on one GPU by NCCL_HOSTID"
    yield part("hostid", what, Tier.QUICK, ranks=2, sharing="hostid")
    what = "quick tier, two ranks on one GPU by NCCL_MULTI_RANK_GPU_ENABLE"
    if machine.multi_rank:
        yield part("multi-rank", what, Tier.QUICK, ranks=2, sharing="multi-rank")
    else:
        why_not = f"NCCL {machine.nccl or 'of this torch'} does not know it, 2.30 does"
        yield SmokePart(name="multi-rank", what=what, why_not=why_not)


def _faults(machine: SmokeMachine, part: Callable[..., SmokePart]) -> Iterator[SmokePart]:
    """Yield a part for each fault, and a look at the memory of the GPUs when all processes have ended."""
    case = Case(op="all_reduce", redop="sum", n=1027)
    cases = (case, replace(case, n=1029), replace(case, n=1031))
    for kind, exits in _FAULTS.items():
        value = {"value": "float64"} if kind == "dtype" else {}
        fault = {"rank": 1, "case": cases[1].id, "kind": kind, **value}
        fields = {"cases": cases, "expected": {}, "fault": fault, "timeouts": Timeouts()}
        what = f"rank 1 is made to fail: {kind}"
        built = part("faults", what, Tier.QUICK, name=f"fault-{kind}", fields=fields, ranks=2)
        yield replace(built, judge=_names_rank_1(exits))
    if machine.free:
        what = "memory of the GPUs is free after the faults"
        built = part("faults", what, Tier.IMPORT, name="memory", ranks=1, sharing=None)
        yield replace(built, judge=_is_free(machine.free))


def _names_rank_1(exits: Sequence[Exit]) -> Callable[[SmokeResult], str]:
    def judge(result: SmokeResult) -> str:
        if result.exit_code not in exits:
            return f"the fault was not noticed as {exits[0].name.lower()}"
        return "" if result.blamed == (1,) else "the fault of rank 1 is not said of it"

    return judge


def _is_free(before: Sequence[int]) -> Callable[[SmokeResult], str]:
    def judge(result: SmokeResult) -> str:
        lost = [f"GPU {i}: {(b - n) >> 20} MiB" for i, (b, n) in enumerate(zip(before, result.cuda.free, strict=False))
                if b - n > _LEFT_BEHIND]  # fmt: skip
        return f"memory did not come back ({', '.join(lost)})" if lost else ""

    return judge


def _engines(machine: SmokeMachine, part: Callable[..., SmokePart]) -> Iterator[SmokePart]:
    what = "full tier on NCCL's older engine"
    if machine.torch and TWO_ENGINES.contains(machine.torch):
        yield part("engine-legacy", what, Tier.FULL, engine="legacy")
    else:
        yield SmokePart(name="engine-legacy", what=what, why_not=f"torch {machine.torch} has one engine, 2.15 has two")


def _patient(plan: Plan, limit: float) -> Plan:
    """Give a case more time. Ranks that share a GPU take turns of milliseconds."""
    times = replace(plan.timeouts, case=max(10.0, plan.timeouts.case), tier=limit)
    return plan.with_(timeouts=times)


@dataclass(slots=True)
class _Clock:
    """What is left of the budget and of the present share, and what earlier shares have left over."""

    budget: float
    now: Callable[[], float]
    started: float = field(init=False)
    share: str = ""
    remaining: float = 0.0
    left_over: float = 0.0

    def __post_init__(self) -> None:
        self.started = self.now()

    def left(self) -> float:
        return self.budget - (self.now() - self.started)

    def limit_of(self, part: SmokePart) -> float:
        """Return the seconds that a part may take: what its share has left, and what the shares before left over."""
        if part.share != self.share:
            self.left_over += max(0.0, self.remaining)
            self.share, self.remaining = part.share, part.limit
        return min(self.remaining + self.left_over, self.left())

    def spend(self, seconds: float) -> None:
        """Take seconds from the present share, and from what was left over where the share has no more."""
        self.remaining -= seconds
        self.left_over += min(0.0, self.remaining)
        self.remaining = max(0.0, self.remaining)


def run_parts(
    parts: tuple[SmokePart, ...],
    target: SmokeTarget,
    *,
    budget: float,
    folder: Path,
    begin: Callable[[SmokePart], None] = lambda _: None,
    progress: Callable[[SmokeProgress], None] | None = None,
    runner: Callable[..., SmokeResult] = run,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Done]:
    """Run what fits into ``budget`` seconds. Each part's result is a file in ``folder`` before the next begins."""
    clock = _Clock(budget=budget, now=now)
    for number, part in enumerate(parts, start=1):
        outcome = _run_part(part, target, clock, begin=begin, progress=progress, runner=runner)
        text = json.dumps(outcome.to_json(), indent=1, ensure_ascii=False) + "\n"
        write_whole(folder / f"{number:02}-{part.name}.json", text)
        yield outcome


def _run_part(
    part: SmokePart,
    target: SmokeTarget,
    clock: _Clock,
    *,
    begin: Callable[[SmokePart], None],
    progress: Callable[[SmokeProgress], None] | None,
    runner: Callable[..., SmokeResult],
) -> Done:
    if part.why_not:
        return Done(part=part)
    limit = clock.limit_of(part)
    if limit < _LEAST:
        of = clock.budget if clock.left() < _LEAST else part.limit
        return Done(part=replace(part, why_not=f"{max(0.0, limit):.0f} s of {of:.0f} s were left"))
    part = replace(part, limit=round(limit, 1))
    begin(part)
    started = clock.now()
    try:
        if part.work:
            result = part.work(target, limit)
        elif part.plan:
            result = runner(part.plan.with_(limit=part.limit), target, progress=progress, limit=limit)
    except SmokeError as error:
        return Done(part=replace(part, why_not=f"could not be started: {error.message}"), seconds=clock.now() - started)
    seconds = clock.now() - started
    clock.spend(seconds)
    return Done(part=part, result=result, seconds=seconds)


# The preflight of a training script where one of two ranks has stopped: the other one must name it.

# It needs what stands in the checkout or beside the package, the standard library and torch.
_SOURCES = Path(__file__).parents[2]


def rehearse(target: SmokeTarget, backend: str, limit: float, *, is_shared: bool = False) -> SmokeResult:
    """Run the preflight on two ranks, which may share a GPU and of which rank 1 is stopped, for ``limit`` seconds at most."""
    wait = max(3.0, min(10.0, limit / 3))
    command = target.argv(
        ["-B", "-m", "envsmith.preflight", "--backend", backend, "--timeout", f"{wait:.0f}", "--json"]
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [_environment(target, rank, port, is_shared=is_shared) for rank in range(2)]
    quiet = subprocess.DEVNULL
    stopped = start(command, env=ranks[1], stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        stopped.send_signal(signal.SIGSTOP)
        run = execute(command, env=ranks[0], seconds=limit)
        status, words, blamed = run.returncode, run.stderr.strip(), _blamed(run.stdout)
    except subprocess.TimeoutExpired:
        status, words, blamed = None, f"the preflight did not end within {limit:.0f} s", ()
    finally:
        end(stopped, signals=(signal.SIGKILL,))
    last = words.splitlines()[-1] if words else "the preflight said nothing"
    passed = status == 1 and blamed == (1,)
    return SmokeResult(
        passed=passed, exit_code=0 if passed else 1, summary=last[:300], backend=backend, ranks=2, blamed=blamed
    )


@dataclass(frozen=True)
class _Finding:
    severity: str
    ranks: tuple[Rank, ...] = ()


@dataclass(frozen=True)
class _Report:
    findings: tuple[_Finding, ...] = ()


def _blamed(report: str) -> tuple[int, ...]:
    """Return the ranks of the first error in the report of a preflight, none where it is no report."""
    with contextlib.suppress(ValueError):
        findings = parse_value(_Report, parse_json(report)).findings
        return next((finding.ranks for finding in findings if finding.severity == "error"), ())
    return ()


def _environment(target: SmokeTarget, rank: int, port: int, *, is_shared: bool) -> Mapping[str, str]:
    sharing = sharing_env(rank)[0] if is_shared else {}
    local = "0" if is_shared else str(rank)
    place = {"RANK": str(rank), "LOCAL_RANK": local, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(_SOURCES)}
    return {**os.environ, **target.env(), **sharing, **place, **store}
