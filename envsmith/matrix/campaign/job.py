"""A job is one cell of a campaign, with what the graph says of it before. A plan is the list of them, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from envsmith.base.json_types import JsonDict
from envsmith.base.schema import (
    AsJson,
    Made,
    Problems,
    UnreadableError,
    WrongValueError,
    check,
    exactly,
    parse_json,
    strict,
    whole_number,
)
from envsmith.errors import DataError
from envsmith.knowledge.graph.fields import Version, plain_text
from envsmith.model import plain
from envsmith.model.cell import Cell, CellId, Platform
from envsmith.model.record import Expected
from envsmith.model.version import version_key

_SCHEMA = 1
_Number = Annotated[int, whole_number(0, 100_000, "a number")]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class CampaignSettings(AsJson):
    """What a campaign says of where it runs, as its file and its frozen plan spell it.

    ``jobs`` at once and what they leave free are for this machine, the rest for Slurm: ``cpus`` (``None``: one a rank),
    ``minutes`` and ``memory_gib`` are a cell's, ``at_once`` limits the tasks in parallel, ``python`` has envsmith on
    every node. What reaches a batch script is plain.
    """

    jobs: _Number = 1
    free_disk_gib: _Number = 15
    free_memory_gib: _Number = 3
    partition: Annotated[str, plain_text(plain.partition)] | None = None
    cpus: _Number | None = None
    gpus: _Number = 0
    minutes: _Number = 60
    memory_gib: _Number = 8
    at_once: _Number = 256
    python: Annotated[str, plain_text(plain.program)] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CampaignJob:
    """``rules`` are those that the cell breaks on purpose: solver and lock leave them out. ``why`` chose it."""

    cell: Cell
    expected: Expected
    rules: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    why: str = ""

    @property
    def id(self) -> str:
        """Return the cell's id: a campaign runs a cell once."""
        return str(self.cell.id)

    @property
    def order(self) -> tuple[Any, ...]:
        """Return a key by which cells of one torch, Python and framework come together: each wheel is fetched once."""
        parts = self.cell.components
        keys = [str(version_key(parts[n])) and version_key(parts[n]) for n in ("torch", "python")]
        names = self.cell.frameworks
        return (*keys, names, *(version_key(parts[n]) for n in names), self.id)

    def to_json(self) -> JsonDict:
        """Return everything that a worker needs."""
        return {
            **self.cell.to_json(),
            "chosen": list(self.cell.chosen),
            "expected": self.expected.value,
            "rules": list(self.rules),
            "stages": list(self.stages),
            "why": self.why,
        }


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _JobFile:
    """A job as a plan spells it: the fields of its cell stand beside its own."""

    id: str = ""
    platform: Platform
    index: str = "default"
    components: Mapping[str, Version]
    chosen: tuple[str, ...]
    expected: Expected
    rules: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    why: str = ""


def _job(file: _JobFile, _context: object) -> CampaignJob:
    if not {*file.chosen, "torch", "python"} <= file.components.keys():
        raise WrongValueError("`chosen`, torch and python must be among `components`")
    cell = Cell(components=file.components, chosen=file.chosen, platform=file.platform, index=file.index)
    CellId.parse(str(cell.id))  # it becomes a file name
    return CampaignJob(cell=cell, expected=file.expected, rules=file.rules, stages=file.stages, why=file.why)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class CampaignPlan:
    """What a campaign runs, frozen when it starts: a resumed campaign runs the same cells against the same date.

    ``left_out`` are combinations that cannot exist, each with its reason. ``sources`` are archives of releases that are
    on no index, as ``--source`` takes them.
    """

    schema: Annotated[int, exactly(_SCHEMA, f"this envsmith reads schema {_SCHEMA}")] = _SCHEMA
    name: str
    exclude_newer: str
    ranks: Annotated[int, whole_number(2, 64, "a number")] = 2
    tier: str = "quick"
    executor: CampaignSettings = field(default_factory=CampaignSettings)
    sources: tuple[str, ...] = ()
    jobs: tuple[Annotated[CampaignJob, Made(_JobFile, _job)], ...]
    left_out: tuple[tuple[str, str], ...] = ()

    def job(self, name: str) -> CampaignJob | None:
        """Return the job of a cell."""
        return next((job for job in self.jobs if job.id == name), None)

    def text(self) -> str:
        """Return the plan as its file holds it: one line a job."""
        head: JsonDict = {
            "schema": self.schema,
            "name": self.name,
            "exclude_newer": self.exclude_newer,
            "ranks": self.ranks,
            "tier": self.tier,
            "executor": self.executor.to_json(),
            **({"sources": list(self.sources)} if self.sources else {}),
        }
        jobs = ",\n".join(json.dumps(job.to_json()) for job in self.jobs)
        pairs = ",\n".join(json.dumps(list(pair)) for pair in self.left_out)
        return f'{json.dumps(head)[:-1]},\n"jobs": [\n{jobs}\n],\n"left_out": [\n{pairs}\n]}}\n'

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> CampaignPlan:
        """Return the plan of a text. ``DataError`` lists every problem."""
        hint = "Remove the folder and start the campaign again."
        try:
            document = parse_json(text)
        except UnreadableError as error:
            raise DataError(f"Cannot read {where}: {error}.", hint=hint) from None
        problems = Problems()
        plan = check(cls, document, where, problems)
        if plan is None:
            raise DataError(f"Cannot read {where}: it is not a plan.", details=problems.lines, hint=hint)
        return plan


def listing(plan: CampaignPlan) -> JsonDict:
    """Return a plan as ``strategy.matrix`` of GitHub Actions: ``{"jobs": [...], "left_out": [...]}``, each job an entry for ``include``.

    GitHub takes 256 entries in one matrix: who has more splits the campaign file or uses ``take:``.
    """
    jobs = [
        {
            "cell": job.id,
            "python": job.cell.components["python"],
            "torch": job.cell.components["torch"],
            "framework": job.cell.frameworks[0] if job.cell.frameworks else "",
            "expected": job.expected.value,
            "rules": " ".join(job.rules),
            "why": job.why,
        }
        for job in plan.jobs
    ]
    return {"jobs": jobs, "left_out": [list(pair) for pair in plan.left_out]}
