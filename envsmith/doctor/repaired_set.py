"""What the repair of a diagnosis makes of the given set: its versions, and the request whose answer is its cell."""

from __future__ import annotations

from envsmith.doctor.facts import Facts
from envsmith.doctor.read.lines import component_of
from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE
from envsmith.knowledge.graph.load import components
from envsmith.model.cell import Request
from envsmith.model.component import CARRIED, Role
from envsmith.model.finding import Repair
from envsmith.model.version import Spec


def repaired(facts: Facts, repair: Repair) -> dict[str, str]:
    """Return the given set after the repair, without what follows from torch where torch changed."""
    changed = {c.component: c.new for c in repair.changes}
    versions = {n: s.version for n, s in facts.components.items() if component_of(n)}
    if "torch" in changed or "cuda" in changed:
        versions = {n: v for n, v in versions.items() if n not in CARRIED}
    versions |= {n: v for n, v in changed.items() if v is not None}
    return {n: v for n, v in versions.items() if changed.get(n, v) is not None}


def request_of(repair: Repair) -> tuple[Request, str]:
    """Return the request whose answer is the repair's cell, for the lock.

    ``UsageError`` when it has no framework or no torch.
    """
    pins = repair.cell.components
    if not repair.cell.frameworks or "torch" not in pins:
        raise UsageError(
            "Cannot lock the repaired set for --fix-to: it names no framework or no torch.",
            hint=f"Run envsmith lock {EXAMPLE}, with the changes of the repair as --with.",
        )
    frameworks = {n: Spec.exactly(pins[n]) for n in repair.cell.frameworks}
    chosen = [n for n in pins if n in {"torch", "cuda", "python"} or (n in repair.cell.chosen and n not in frameworks)]
    by_name = components().by_name
    constraints = {n: Spec.exactly(pins[n]) for n in chosen if by_name[n].role is not Role.HOST}
    if "python" in constraints and pins["python"].count(".") == 1:
        constraints["python"] = Spec.parse(pins["python"])
    text = " ".join(
        [f"--framework {n}=={pins[n]}" for n in frameworks] + [f"--with {n}=={pins[n]}" for n in constraints]
    )
    driver = pins.get("driver")
    gpus = tuple(g for g in pins.get("gpu", "").split(",") if g)
    return Request(
        frameworks=frameworks, constraints=constraints, driver=driver, gpus=gpus, platform=repair.cell.platform
    ), text
