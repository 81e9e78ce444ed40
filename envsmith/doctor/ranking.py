"""What all judges found -> one diagnosis: each finding once, in order, with what was checked and what was not.

The order is what matters: a message that names a cause comes before a set of versions that merely could fail, and what
only follows from something else comes after it. :class:`~envsmith.doctor.diagnosis.Weight` says which weighs more.
"""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from collections.abc import Sequence

from envsmith.base.text import counted
from envsmith.doctor.diagnosis import Diagnosed, Diagnosis, Weight
from envsmith.doctor.facts import Facts
from envsmith.doctor.report import commands_of
from envsmith.doctor.signatures import catalogue
from envsmith.doctor.stated_environment import versions_of
from envsmith.doctor.vocabulary import words
from envsmith.model.finding import Judgement
from envsmith.model.rule import Severity

_STAGES = (
    "install",
    "build",
    "import",
    "load",
    "launch",
    "setup",
    "init",
    "comm-setup",
    "communication",
    "train",
    "save",
    "checkpoint",
    "inference",
)
_GRAVITY = tuple(Severity)


def diagnosis_of(
    findings: list[Diagnosed], facts: Facts, judgement: Judgement, texts: Sequence[tuple[str, str]]
) -> Diagnosis:
    """Return the diagnosis of what the judges found in facts and texts."""
    diagnosed_all = _with_roles(_merged(findings))
    failure = None
    nothing = not facts.count and not diagnosed_all
    if any(d.finding.severity is Severity.ERROR for d in diagnosed_all):
        status = "bad"
    elif (
        (failure := _failure(texts))
        or _shows_fault(diagnosed_all)
        or nothing
        or (facts.are_of_this_machine and "torch" not in facts.components)
    ):
        status = "unknown"
    else:
        status = "ok" if judgement.status == "bad" else judgement.status
    unexplained = [failure] if failure and not any(d.confirmed for d in diagnosed_all) else []
    return Diagnosis(
        status=status,
        diagnosed=tuple(diagnosed_all),
        facts=facts,
        inferred=judgement.inferred,
        unknown=(*unexplained, *judgement.unknown),
        checked=_checked(facts, texts),
        not_checked=_not_checked(facts, texts),
        repair=judgement.repair,
        commands=commands_of(judgement.repair) if judgement.repair else {},
    )


def _shows_fault(diagnosed_all: Sequence[Diagnosed]) -> bool:
    """Return whether a text shows what a judge warns of: nobody who pasted a failure is told that all is well."""
    return any(d.confirmed and d.finding.severity is Severity.WARNING for d in diagnosed_all)


def _merged(diagnosed_all: list[Diagnosed]) -> list[Diagnosed]:
    """Return each finding once, in order.

    A rule over versions that the log proves absorbs the message of the same line or class, a message that names its
    cause the general ones of its line.
    """
    proved = [d for d in diagnosed_all if d.score >= Weight.PROVED]
    unique: dict[tuple[str, str], Diagnosed] = {}
    for d in diagnosed_all:
        absorbed = (d.score < Weight.PROVED and d.where is not None) and any(
            p.where == d.where or (p.taxonomy.cause == d.taxonomy.cause and d.score >= Weight.SYMPTOM) for p in proved
        )
        if not absorbed:
            unique.setdefault((d.finding.rule, d.finding.message), d)
    ordered = sorted(unique.values(), key=_order)
    return [d for at, d in enumerate(ordered) if not any(_covers(before, d) for before in ordered[:at])]


def _covers(first: Diagnosed, d: Diagnosed) -> bool:
    """Return whether a message says all that a lighter one of its line says: the same advice, or the cause of a sign."""
    if d.where is None or first.where != d.where:
        return False
    names_cause = first.score >= Weight.SAID
    is_sign = d.score in {Weight.SYMPTOM, Weight.NAMED_SYMPTOM}
    is_general = d.score in {Weight.SAID, Weight.NAMED} and not d.finding.components and bool(first.finding.components)
    return (names_cause and (is_sign or is_general)) or (bool(d.lines) and first.lines == d.lines)


def _with_roles(diagnosed_all: list[Diagnosed]) -> list[Diagnosed]:
    """Return the findings with their roles: the first that is more than a note is the root."""
    root = next((d for d in diagnosed_all if d.finding.severity is not Severity.NOTE), None)
    return [dataclasses.replace(d, role=_role(d, root)) for d in diagnosed_all]


def _order(d: Diagnosed) -> tuple[int, int, int, int]:
    """Return what sorts findings: the heavier first, then the earlier in the text, the graver, the earlier stage."""
    stage = _STAGES.index(d.finding.stage) if d.finding.stage in _STAGES else len(_STAGES)
    return (-d.score, d.position, _GRAVITY.index(d.finding.severity), stage)


def _role(d: Diagnosed, root: Diagnosed | None) -> str:
    if d.finding.severity is Severity.NOTE or root is None:
        return "note"
    if d is root:
        return "root"
    follows = d.score <= Weight.FOLLOWS or d.taxonomy.cause == root.taxonomy.cause
    return "consequence" if follows and d.confirmed else "also"


def _failure(texts: Sequence[tuple[str, str]]) -> str | None:
    """Return a sentence on the last line of the texts that shows a failure."""
    for source, text in reversed(texts):
        matches = deque(re.finditer(words().failure, text, re.MULTILINE), maxlen=1)
        if matches:
            end = text.find("\n", matches[0].end())
            line = text[text.rfind("\n", 0, matches[0].end()) + 1 : end if end >= 0 else None]
            return f"why this fails: {source}:{text.count(chr(10), 0, matches[0].end()) + 1}: {line.strip()[:200]}"
    return None


def _checked(facts: Facts, texts: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    versions = versions_of(facts)
    sentences = []
    if versions:
        names = ", ".join(f"{name} {version}" for name, version in list(versions.items())[:24])
        sentences.append(f"{counted(len(versions), 'component')} against every rule of the matrix: {names}")
    if texts:
        lines = sum(text.count("\n") + 1 for _, text in texts)
        sentences.append(f"{counted(lines, 'line')} of text against {len(catalogue().signatures)} signatures")
    groups = (
        (facts.variables, "environment variable"),
        (facts.limits, "limit"),
        (facts.launches, "launch description"),
        (facts.libraries, "CUDA library file"),
    )
    return (*sentences, *(counted(len(group), noun) for group, noun in groups if group))


_ASKED_FOR = {
    "torch": "torch",
    "driver": "the driver",
    "gpu": "the GPU",
    "python": "Python",
    "toolkit": "the toolkit (nvcc)",
    "nccl": "NCCL",
}


def _not_checked(facts: Facts, texts: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return sentences that say what was not judged because nothing says it."""
    missing = [title for name, title in _ASKED_FOR.items() if name not in facts.components]
    sentences = [f"not in the report: {', '.join(missing)}"] if missing else []
    if not facts.limits:
        sentences.append("limits (/dev/shm, locked memory, open files) are not in the report")
    if not texts:
        sentences.append("no log was read: failures at run time were not looked for")
    return tuple(sentences)
