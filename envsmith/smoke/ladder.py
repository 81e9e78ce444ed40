"""The evidence ladder above what is installed: which of its rungs a run proved."""

from __future__ import annotations

from collections.abc import Sequence

from envsmith.frameworks import CORE
from envsmith.model.record import Rung, StepOutcome, Verdict
from envsmith.smoke.plan import IMPORTS
from envsmith.smoke.result import SmokeResult


def proved_rungs(
    result: SmokeResult,
    frameworks: Sequence[str] = (),
    *,
    cases: SmokeResult | None = None,
    steps: Sequence[StepOutcome] | None = None,
) -> tuple[Rung, ...]:
    """Return the rungs that a run of a cell for ``frameworks`` proved.

    Collectives when every case had its time and is good, the framework step when one passed and none failed. ``cases``
    and ``steps`` are those of other runs in the same environment, where it was run in parts.
    """
    gpu = result.backend.startswith("nccl")
    rungs = [Rung.IMPORTED] if result.loaded else []
    collectives = cases or (None if steps is not None or result.bandwidth else result)  # what is timed is not checked
    if collectives and collectives.collectives_good and not collectives.late:
        rungs.append(Rung.COLLECTIVES_GPU if gpu else Rung.COLLECTIVES_CPU)
    ran = [
        step
        for step in (result.steps if steps is None else steps)
        if step.verdict is not Verdict.SKIPPED and step.name != IMPORTS
    ]
    # Beside another framework the steps of the core are its control: alone they prove nothing of it.
    own = [step for step in ran if not set(frameworks) - {CORE} or not step.name.startswith(f"{CORE} ")]
    if own and all(step.verdict.good for step in ran):
        rungs.append(Rung.FRAMEWORK_GPU if gpu else Rung.FRAMEWORK_CPU)
    return tuple(rungs)
