"""Asks the solver several times: as near to the pip lock as the channel allows, and for the help that a refusal gives."""

from __future__ import annotations

from envsmith.errors import LockError
from envsmith.lock.conda.model import CondaPackage, CondaSpec
from envsmith.lock.conda.names import component_version
from envsmith.lock.conda.plan import Plan
from envsmith.lock.conda.solver import Ask, Unsolvable, solve

__all__ = ["MOVABLE", "nearest_to_pip"]

_RELAXED = "Conda has dependencies in other releases than the pip lock; the components of the cell are equal"
# What Conda's PyTorch binds more narrowly than the wheel does, and a user can choose another release of.
MOVABLE = ("nccl", "cudnn", "triton")

Solved = tuple[tuple[CondaSpec, ...], tuple[CondaPackage, ...], tuple[str, ...]]


def nearest_to_pip(plan: Plan, ask: Ask, what: str) -> Solved:
    """The specs that were solved, the packages, and notes. The releases of the cell are never given up.

    First with every release of the pip lock that the channel has, then only where Conda installs it anyway, then without.
    ``LockError`` carries rattler's explanation and, when one component alone stands in the way, what the channel would give.
    """
    everything = ((*plan.specs, *plan.extra), (*plan.limits, *plan.soft), ())
    tries: dict[tuple[tuple[CondaSpec, ...], tuple[CondaSpec, ...]], tuple[str, ...]] = {everything[:2]: ()}
    tries.setdefault((plan.specs, (*plan.limits, *plan.soft)), ())
    tries.setdefault((plan.specs, plan.limits), (_RELAXED,))
    reason: tuple[str, ...] = ()
    for (specs, limits), notes in tries.items():
        try:
            return specs, solve(specs, limits, ask), notes
        except Unsolvable as refusal:  # noqa: PERF203 - three rounds
            reason = refusal.lines
    instead, hint = _instead(plan, ask)
    raise LockError(
        f"the channel cannot give {what}: its builds exclude each other", details=[*instead, *reason], hint=hint
    )


def _instead(plan: Plan, ask: Ask) -> tuple[list[str], str]:
    """Which Conda build exists when NCCL, cuDNN or Triton may be another release, one of them if that is enough."""
    for free in (*((name,) for name in MOVABLE), MOVABLE):
        specs = [CondaSpec(s.name) if s.name in free else s for s in plan.specs]
        limits = [s for s in plan.limits if s.name not in {*free, *(["torchtriton"] if "triton" in free else [])}]
        if specs == list(plan.specs) and limits == list(plan.limits):
            continue
        try:
            packages = {p.name: p for p in solve(specs, limits, ask)}
        except Unsolvable:
            continue
        asked = {s.name: s.version.removesuffix(".*").removeprefix("==") for s in (*plan.specs, *plan.limits)}
        moved = {n: component_version(n, packages[n].version) for n in free if n in packages and n in asked}
        moved = {n: v for n, v in moved.items() if not v.startswith(asked[n])}
        torch = packages.get("pytorch")
        build = f"pytorch {torch.version} {torch.build}" if torch else "its builds"
        told = [f"{n}: the cell has {asked[n]}, the channel's {build} goes with {v}" for n, v in moved.items()]
        flags = " ".join(f"--nccl {v}" if n == "nccl" else f"--with {n}=={v}" for n, v in moved.items())
        accept = " ".join(f"--conda-tolerate {n}" for n in moved)
        return (
            told,
            f"`envsmith solve {flags}` finds a cell whose PyTorch wheel carries it too; or accept the difference: {accept}; or give another --channel",
        )
    return [], "choose another cell (envsmith solve --all), or give another --channel"
