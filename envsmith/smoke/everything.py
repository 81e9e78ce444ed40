"""All that a machine can show, in one go: parts with deadlines of their own, so that one that fails loses nothing.

What is run follows from what CUDA says here: one rank, several ranks on one GPU in each way that this NCCL knows, a
rank on each GPU where there are several, the bandwidth, all cases, every step of the frameworks, and the older NCCL
engine where torch has two. Planning is pure.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from envsmith.errors import SmokeError
from envsmith.files import write_whole
from envsmith.model.version import Spec
from envsmith.smoke.plan import Plan, Tier
from envsmith.smoke.run import Progress, Target, run
from envsmith.smoke.verdict import SmokeResult

# Less than this is not enough to import torch and make a group.
_LEAST = 20.0
_MOST_RANKS = 8
_TWO_ENGINES = Spec.parse(">=2.15")
# The first NCCL that lets ranks share a GPU when it is told to (release notes of 2.30).
_MULTI_RANK = (2, 30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What decides about the parts: the backend, how many GPUs CUDA can use, NCCL as loaded, torch as loaded."""

    backend: str
    gpus: int = 0
    nccl: str = ""
    torch: str = ""

    @property
    def multi_rank(self) -> bool:
        """Return whether this NCCL lets ranks share a GPU by P2P and shared memory."""
        return tuple(map(int, re.findall(r"\d+", self.nccl)[:2])) >= _MULTI_RANK

    @property
    def best(self) -> dict[str, object]:
        """Choose a GPU for each of two ranks or more, or else the nearer way to share one, so that most is shown."""
        if self.backend != "nccl":
            return {}
        if self.gpus > 1:
            return {"ranks": min(self.gpus, _MOST_RANKS)}
        return {"ranks": 2, "sharing": "multi-rank" if self.multi_rank else "hostid"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One run.

    ``limit`` are the seconds that it may take at most; ``why_not`` says why it is not run here, and then there is no
    plan.
    """

    name: str
    what: str
    limit: float = 0.0
    plan: Plan | None = None
    why_not: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A part and what came of it; no result where it was not run (``part.why_not`` says why)."""

    part: Part
    result: SmokeResult | None = None
    seconds: float = 0.0

    @property
    def word(self) -> str:
        """Return ``passed``, ``failed`` or ``not run``."""
        return "not run" if self.result is None else "passed" if self.result.passed else "failed"

    @property
    def sentence(self) -> str:
        """Return one line about it."""
        return self.result.summary if self.result else self.part.why_not

    def to_json(self) -> dict[str, object]:
        """Return one object. The result is that of ``envsmith smoke --json``."""
        row: dict[str, object] = {"part": self.part.name, "what": self.part.what, "outcome": self.word}
        row |= {"seconds": round(self.seconds, 1), "limit": self.part.limit, "sentence": self.sentence}
        return row | ({"result": self.result.to_json()} if self.result else {})


def ask(versions: Mapping[str, str], target: Target, backend: str) -> Machine:
    """Import torch and start CUDA in the environment, or take gloo where ``auto`` finds none.

    Raises :class:`SmokeError` when ``nccl`` is wanted and cannot be had.
    """
    result = run(Plan.build(versions, tier=Tier.IMPORT, ranks=1, backend=backend), target)
    if not result.passed:
        needs_gpu = backend == "nccl" and bool(result.loaded)
        raise SmokeError(
            f"no GPU can be used here: {result.summary}" if needs_gpu else result.summary,
            hint="--backend gloo runs everything that needs no GPU" if needs_gpu else None,
        )
    count = result.cuda.get("count")
    return Machine(
        backend=result.backend,
        gpus=count if isinstance(count, int) else 0,
        nccl=str(result.loaded.get("nccl_runtime") or result.loaded.get("nccl") or ""),
        torch=str(result.loaded.get("torch") or ""),
    )


def parts_of(versions: Mapping[str, str], machine: Machine, *, ranks: int = 2) -> tuple[Part, ...]:
    """Return the parts, cheap and telling ones first. ``ranks`` is for the CPU: on GPUs their number decides."""
    versions = {**versions, "torch": machine.torch, **({"nccl": machine.nccl} if machine.nccl else {})}

    def part(name: str, what: str, limit: float, tier: Tier, **options: object) -> Part:
        options = {"ranks": ranks, **machine.best, **options}
        plan = Plan.build(versions, tier=tier, backend=machine.backend, **options)  # type: ignore[arg-type]
        return Part(name=name, what=what, limit=limit, plan=_patient(plan, limit))

    parts = [part("one-rank", "quick tier, one rank", 90, Tier.QUICK, ranks=1, sharing=None, steps=False)]
    if machine.backend == "nccl":
        parts += _sharing(machine, part)
    parts.append(part("bandwidth", "bus bandwidth of seven operations", 120, Tier.BANDWIDTH))
    parts.append(part("full", "full tier, CUDA graphs and symmetric memory with it", 240, Tier.FULL, steps=False))
    # Two ranks are what the steps ask for.
    two = {"ranks": 2} if machine.gpus != 1 or machine.backend != "nccl" else {}
    parts.append(part("framework", "every framework step", 300, Tier.FRAMEWORK, cases=False, **two))
    if machine.backend == "nccl":
        parts += _engines(machine, part)
    return tuple(parts)


def _sharing(machine: Machine, part: Callable[..., Part]) -> Iterator[Part]:
    what = "quick tier, two ranks on one GPU by NCCL_HOSTID"
    yield part("hostid", what, 90, Tier.QUICK, ranks=2, sharing="hostid", steps=False)
    what = "quick tier, two ranks on one GPU by NCCL_MULTI_RANK_GPU_ENABLE"
    if machine.multi_rank:
        yield part("multi-rank", what, 90, Tier.QUICK, ranks=2, sharing="multi-rank", steps=False)
    else:
        yield Part(name="multi-rank", what=what, why_not=f"NCCL {machine.nccl} does not know it, 2.30 does")


def _engines(machine: Machine, part: Callable[..., Part]) -> Iterator[Part]:
    what = "full tier on NCCL's older engine"
    if _TWO_ENGINES.contains(machine.torch):
        yield part("engine-legacy", what, 240, Tier.FULL, steps=False, engine="legacy")
    else:
        yield Part(name="engine-legacy", what=what, why_not=f"torch {machine.torch} has one engine, 2.15 has two")


def _patient(plan: Plan, limit: float) -> Plan:
    """Give a case more time. Ranks that share a GPU take turns of milliseconds."""
    times = replace(plan.timeouts, case=max(10.0, plan.timeouts.case), tier=limit)
    return plan.with_(timeouts=times)


@dataclass(slots=True)
class _Clock:
    """What is left of the budget."""

    budget: float
    now: Callable[[], float]
    started: float = field(init=False)

    def __post_init__(self) -> None:
        self.started = self.now()

    def left(self) -> float:
        return self.budget - (self.now() - self.started)


def run_parts(
    parts: tuple[Part, ...],
    target: Target,
    *,
    budget: float,
    folder: Path,
    begin: Callable[[Part], None] = lambda _: None,
    progress: Callable[[Progress], None] | None = None,
    runner: Callable[..., SmokeResult] = run,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Done]:
    """Run what fits into ``budget`` seconds; each part's result is a file in ``folder`` before the next begins."""
    clock = _Clock(budget=budget, now=now)
    for number, part in enumerate(parts, start=1):
        outcome = _run_part(part, target, clock, begin=begin, progress=progress, runner=runner)
        text = json.dumps(outcome.to_json(), indent=1, ensure_ascii=False) + "\n"
        write_whole(folder / f"{number}-{part.name}.json", text)
        yield outcome


def _run_part(
    part: Part,
    target: Target,
    clock: _Clock,
    *,
    begin: Callable[[Part], None],
    progress: Callable[[Progress], None] | None,
    runner: Callable[..., SmokeResult],
) -> Done:
    if part.plan is None:
        return Done(part=part)
    limit = min(part.limit, clock.left())
    if limit < _LEAST:
        return Done(part=replace(part, why_not=f"{max(0.0, clock.left()):.0f} s of {clock.budget:.0f} s were left"))
    part = replace(part, limit=round(limit, 1))
    begin(part)
    started = clock.now()
    try:
        result = runner(part.plan, target, progress=progress, limit=limit)
    except SmokeError as error:
        return Done(part=replace(part, why_not=f"could not be started: {error.message}"), seconds=clock.now() - started)
    return Done(part=part, result=result, seconds=clock.now() - started)
