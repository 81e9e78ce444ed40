"""A framework step that ran to its end: its losses, its collectives, and the steps that train the same."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from envsmith.agent.compiler_words import refusal_of
from envsmith.base.json_types import JsonDict
from envsmith.base.os_packages import NAMES, install_commands
from envsmith.frameworks import FRAMEWORKS
from envsmith.frameworks.framework import Step
from envsmith.launch.ranks.causes import ranks_text
from envsmith.model.record import StepOutcome, Verdict
from envsmith.smoke.events import StepRow


def words_of_framework(error: str) -> str:
    """Return what a framework knows of its error, or what brings a program that is not there. Empty where neither."""
    patterns = (pair for framework in FRAMEWORKS.values() for pair in framework.errors.items())
    words = next((words for pattern, words in patterns if re.search(pattern, error)), "")
    refusal = refusal_of(error)
    if refusal and refusal.missing and not words:
        words = f"there is no {NAMES[refusal.missing]}; next: install it ({install_commands(refusal.missing)})"
    return f" -- {words}" if words else ""


def judge_step(step: Step, rows: Sequence[StepRow], seconds: float | None) -> StepOutcome:
    """Judge a step whose ranks all reported.

    Its losses must be finite, fall and equal the reference, by the collectives that it is named for.
    """
    facts: JsonDict = dict(rows[0].facts)
    if not step.trains:
        listed = [(key, value) for key, value in facts.items() if isinstance(value, list) and value]
        detail = "; ".join(f"{key}: {', '.join(map(str, value))}" for key, value in listed)
        return StepOutcome(name=step.name, verdict=Verdict.PASS, seconds=seconds, detail=detail[:2000], facts=facts)
    problems, worst = _judge_losses(step, rows, facts)
    compared = step.tolerance is not None and any(row.reference for row in rows)
    facts["difference from reference"] = worst if compared else None
    issued, missing = _issued(step, rows)
    facts["collectives"] = issued
    problems += [f"it never issued {' or '.join(names.split('|'))}: this was not {step.name}" for names in missing]
    if problems:
        detail = "; ".join(problems)
        return StepOutcome(name=step.name, verdict=Verdict.WRONG, seconds=seconds, detail=detail, facts=facts)
    losses = rows[0].losses
    same = f", equal to the reference within {worst:.1e}" if compared else ""
    counted = ", ".join(f"{row['count']} {name}" for name, row in issued.items() if row.get("count"))
    detail = f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {len(losses)} steps{same}"
    detail += f"; {counted}" if counted else ""
    return StepOutcome(name=step.name, verdict=Verdict.PASS, seconds=seconds, detail=detail, facts=facts)


def _judge_losses(step: Step, rows: Sequence[StepRow], facts: JsonDict) -> tuple[list[str], float]:
    """Return what is wrong with the losses and their largest difference from the reference. ``facts`` get them."""
    problems: list[str] = []
    differences: dict[int, float] = {}
    for row in rows:
        losses, rank = row.losses, row.rank
        facts[f"losses rank {rank}"] = [round(x, 6) for x in losses]
        if not losses or not all(math.isfinite(x) for x in losses):
            problems.append(f"rank {rank}: the losses are not finite: {list(losses)}")
            continue
        if not losses[-1] < losses[0]:
            problems.append(f"rank {rank}: the loss does not fall: {losses[0]:.5f} -> {losses[-1]:.5f}")
        differences[rank] = _difference(losses, row.reference)
    if len({str(row.facts.get("parameters")) for row in rows}) > 1:
        problems.append("the ranks hold different parameters after training")
    worst = max(differences.values(), default=0.0)
    if step.tolerance is not None and worst > step.tolerance:
        odd = [rank for rank, difference in differences.items() if difference > step.tolerance]
        whose = f"{ranks_text(odd, 'r')}: the" if len(odd) < len(rows) else "the"
        problems.append(f"{whose} losses differ from the reference by {worst:.2e}, allowed are {step.tolerance:.0e}")
    return problems, worst


def _difference(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Return the largest relative difference. Lists of different length differ without bound."""
    if not reference:
        return 0.0
    if len(losses) != len(reference):
        return math.inf
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(losses, reference, strict=True))


def _issued(step: Step, rows: Sequence[StepRow]) -> tuple[dict[str, dict[str, int]], list[str]]:
    """Return rank 0's collectives, ``{name: {count, bytes}}``, and the expected ones that are missing.

    What C++ issues comes from the flight recorder, with counts only. Where that torch keeps none for the backend
    nothing can be missed.
    """
    first = rows[0]
    calls = {name: dict(counts) for name, counts in (first.collectives or {}).items()}
    if step.native:
        for name, count in first.recorded.items():
            calls.setdefault(name, {"count": count})
    if first.collectives is None or (step.native and not first.recorded):
        return calls, []
    everyone = {name for row in rows for name in row.collectives or ()} | set(calls)
    return calls, [names for names in step.issues if not everyone & set(names.split("|"))]


def compare_families(steps: Sequence[Step], outcomes: Sequence[StepOutcome]) -> tuple[StepOutcome, ...]:
    """Hold steps of one family, which train the same model on the same data, against the first that passed."""
    base: dict[str, StepOutcome] = {}
    judged = []
    for step, outcome in zip(steps, outcomes, strict=True):
        if not step.family or outcome.verdict is not Verdict.PASS or step.tolerance is None:
            judged.append(outcome)
            continue
        first = base.setdefault(step.family, outcome)
        if first is outcome:
            judged.append(outcome)
            continue
        worst = max(
            _difference(_losses(outcome, key), _losses(first, key))
            for key in first.facts
            if key.startswith("losses rank ")
        )
        facts = {**outcome.facts, f"difference from {first.name}": worst}
        if worst > step.tolerance:
            detail = f"the losses differ from those of {first.name} by {worst:.2e}, allowed are {step.tolerance:.0e}"
            judged.append(replace(outcome, verdict=Verdict.WRONG, detail=detail, facts=facts))
        else:
            detail = f"{outcome.detail}; losses as in {first.name} within {worst:.1e}"
            judged.append(replace(outcome, detail=detail, facts=facts))
    return tuple(judged)


def _losses(outcome: StepOutcome, key: str) -> list[float]:
    losses = outcome.facts.get(key)
    return [float(x) for x in losses] if isinstance(losses, list) else []
