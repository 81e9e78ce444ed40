"""Why a smoke test failed, in the words that a user would search for, and at which rung of the ladder."""

from __future__ import annotations

from collections.abc import Sequence

from envsmith.model.record import Failure, Fault, Rung, Verdict
from envsmith.smoke.fault import lacking
from envsmith.smoke.result import SmokeResult


def failure_of(result: SmokeResult, reached: Sequence[Rung]) -> Failure | None:
    """Return the rung at which a smoke test ended, or nothing where it passed.

    A framework that cannot be imported is found in its step, but fails the rung `imported`.
    """
    if result.passed:
        return None
    bad = next((s for s in result.steps if not s.verdict.good and s.verdict is not Verdict.NOT_RUN), None)
    ending = bad.failure if bad else None
    gpu = result.backend.startswith("nccl")
    rung = Rung.FRAMEWORK_GPU if gpu else Rung.FRAMEWORK_CPU
    if Rung.IMPORTED not in reached or (ending and ending.in_import):
        rung = Rung.IMPORTED
    elif not result.collectives_good:
        rung = Rung.COLLECTIVES_GPU if gpu else Rung.COLLECTIVES_CPU
    trace = str(bad.facts.get("trace", "")) if bad else ""
    output = [line for text in result.output.values() for line in text.splitlines()]
    of_collectives = rung in {Rung.COLLECTIVES_CPU, Rung.COLLECTIVES_GPU}
    symptom = result.summary
    if bad and not of_collectives:
        symptom = (ending.error if ending else "") or bad.detail
    fault = None if result.cause.fault is Fault.CELL else result.cause.fault
    quote = ending.quote if ending and not of_collectives else ""
    if lacking(f"{quote}\n{trace}", result.backend):
        fault = Fault.HOST
    log = tuple(trace.splitlines() or output)
    return Failure(rung=rung, symptom=symptom, log=log, of_host=bool(fault), fault=fault)
