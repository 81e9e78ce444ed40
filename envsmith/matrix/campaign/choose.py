"""A campaign's choices -> jobs: which cells are run, each once, and which combinations cannot exist."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from envsmith.errors import UsageError
from envsmith.matrix.campaign.compose import Composer
from envsmith.matrix.campaign.file import Campaign, Choice
from envsmith.matrix.campaign.job import Job, Plan
from envsmith.model.cell import CellId
from envsmith.model.component import Role
from envsmith.model.version import Spec
from envsmith.solve.known_bad import known_bad

__all__ = ["make_plan", "wanted_of_id"]

# Stages that a run on the CPU goes through; a rule that speaks of others cannot be shown by it.
SHOWN = ("install", "import", "init", "train")
_FOLLOWS = frozenset({"nccl", "cudnn", "triton"})


@dataclass(slots=True)
class _Chooser:
    composer: Composer
    jobs: dict[str, Job] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, wanted: Mapping[str, str], why: str, where: Mapping[str, Iterable[str]]) -> bool:
        """Compose one; a combination that cannot exist is kept with its reason, a cell outside of ``where`` is not wanted."""
        found = self.composer.compose(wanted, why)
        if isinstance(found, str):
            self.left_out[" ".join(f"{n} {v}" for n, v in wanted.items())] = found
            return False
        if not _fits(found.cell.components, where):
            return False
        new = found.id not in self.jobs
        self.jobs.setdefault(found.id, found)
        return new


def make_plan(campaign: Campaign, composer: Composer, *, exclude_newer: str) -> Plan:
    """Every choice in order; a cell that two choose is run once. ``UsageError`` when nothing is left."""
    chooser = _Chooser(composer)
    for choice in campaign.choices:
        made = 0
        for wanted, why in _wanted(choice, composer):
            made += chooser.add(wanted, choice.why or why, choice.where if choice.kind == "bad" else {})
            if choice.take is not None and made >= choice.take:
                break
    if not chooser.jobs:
        raise UsageError(
            f"campaign {campaign.name}: no cell is chosen",
            hint="; ".join(f"{k}: {v}" for k, v in itertools.islice(chooser.left_out.items(), 3)) or "see `cells:`",
        )
    return Plan(
        name=campaign.name,
        exclude_newer=campaign.exclude_newer or exclude_newer,
        jobs=_ordered(chooser.jobs.values()),
        ranks=campaign.ranks,
        tier=campaign.tier,
        left_out=tuple(chooser.left_out.items()),
        executor=campaign.executor,
    )


def _ordered(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """By torch, then Python, the frameworks in turn: what compiles at its start then stands beside what does not."""
    ordered = sorted(jobs, key=lambda job: job.order)
    seen: dict[tuple[object, ...], int] = {}
    keyed = []
    for job in ordered:
        group = (*job.order[:2], job.cell.frameworks)
        seen[group] = seen.get(group, 0) + 1
        keyed.append(((*job.order[:2], seen[group], job.cell.frameworks), job))
    return tuple(job for _, job in sorted(keyed, key=lambda pair: pair[0]))


def _wanted(choice: Choice, composer: Composer) -> Iterator[tuple[Mapping[str, str], str]]:
    if choice.kind == "grid":
        for values in itertools.product(*choice.where.values()):
            yield dict(zip(choice.where, values, strict=True)), "grid"
    elif choice.kind == "ids":
        for text in choice.words:
            yield wanted_of_id(text), "named"
    elif choice.kind == "bad":
        yield from _bad(choice, composer)
    else:
        from envsmith.matrix.campaign.select import selected

        yield from selected(choice, composer)


def wanted_of_id(text: str) -> dict[str, str]:
    """What :meth:`Composer.compose` needs for the cell of an id. ``UsageError`` when it is none."""
    try:
        parsed = CellId.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    found = dict(parsed.components)
    found.pop("cuda", None)  # it follows from torch's build
    return found


def _bad(choice: Choice, composer: Composer) -> Iterator[tuple[Mapping[str, str], str]]:
    """Cells next to the bounds of the rules that a run can show: a framework, packages that can be installed, an interpreter of the host."""
    known = composer.solver.knowledge()
    stages = choice.words or SHOWN
    for bad in known_bad(known, worst=True):
        if bad.stage not in stages or not _installable(bad.components, composer):
            continue
        yield dict(bad.components), f"known bad: {bad.rule}"


def _installable(components: Mapping[str, str], composer: Composer) -> bool:
    roles, table = composer.solver.compiled.roles, composer.solver.knowledge().components
    if not any(roles[n] is Role.FRAMEWORK for n in components):
        return False
    if "python" in components and ".".join(components["python"].split(".")[:2]) not in composer.pythons:
        return False
    return all(
        roles[n] in (Role.FRAMEWORK, Role.CORE) or bool(table.by_name[n].distributions)
        for n in components
        if n not in _FOLLOWS
    ) and not any(roles[n] is Role.HOST for n in components)


def _fits(components: Mapping[str, str], where: Mapping[str, Iterable[str]]) -> bool:
    return all(
        name in components and any(Spec.parse(text).contains(components[name]) for text in texts)
        for name, texts in where.items()
    )
