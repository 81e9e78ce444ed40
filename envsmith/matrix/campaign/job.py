"""A job: one cell that a campaign runs, with what the graph says of it before. It travels as JSON to whatever runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envsmith.errors import DataError
from envsmith.model.cell import Cell, CellId, Platform
from envsmith.model.record import Expected
from envsmith.model.version import parse_version, version_key

_SCHEMA = 1
_MAX_RANKS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """``rules`` are the rules that the cell breaks on purpose: the solver and the lock leave them out of account. ``why`` chose it."""

    cell: Cell
    expected: Expected
    rules: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    why: str = ""

    @property
    def id(self) -> str:
        """The cell's id: a campaign runs a cell once."""
        return str(self.cell.id)

    @property
    def order(self) -> tuple[Any, ...]:
        """Cells of one torch, one Python, one framework come together: each wheel is fetched once and the torch layer is kept."""
        parts = self.cell.components
        keys = [str(version_key(parts[n])) and version_key(parts[n]) for n in ("torch", "python")]
        names = self.cell.frameworks
        return (*keys, names, *(version_key(parts[n]) for n in names), self.id)

    def to_json(self) -> dict[str, object]:
        """Everything that a worker needs."""
        return {
            **self.cell.to_json(),
            "chosen": list(self.cell.chosen),
            "expected": self.expected.value,
            "rules": list(self.rules),
            "stages": list(self.stages),
            "why": self.why,
        }

    @classmethod
    def from_json(cls, value: object, where: str) -> Job:
        """``DataError`` names what is missing or no version."""
        data = _mapping(value, where)
        components = {
            str(k): _version(v, f"{where}.components.{k}")
            for k, v in _mapping(data.get("components"), f"{where}.components").items()
        }
        chosen = _texts(data.get("chosen"), f"{where}.chosen")
        if not set(chosen) <= components.keys() or not {"torch", "python"} <= components.keys():
            raise DataError(f"{where}: `chosen`, torch and python must be among `components`")
        try:
            platform = Platform(data.get("platform", ""))
            expected = Expected(data.get("expected", ""))
        except ValueError as error:
            raise DataError(f"{where}: {error}") from None
        cell = Cell(components=components, chosen=chosen, platform=platform, index=str(data.get("index", "default")))
        rules, stages = (_texts(data.get(name, []), f"{where}.{name}") for name in ("rules", "stages"))
        job = cls(cell=cell, expected=expected, rules=rules, stages=stages, why=str(data.get("why", "")))
        try:
            CellId.parse(job.id)  # it becomes a file name
        except ValueError as error:
            raise DataError(f"{where}: {error}") from None
        return job


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a campaign runs, frozen when it starts: a resumed campaign runs the same cells against the same date.

    ``left_out`` are combinations that cannot exist, each with its reason.
    """

    name: str
    exclude_newer: str
    jobs: tuple[Job, ...]
    ranks: int = 2
    tier: str = "quick"
    left_out: tuple[tuple[str, str], ...] = ()
    executor: Mapping[str, Any] = field(default_factory=dict)

    def job(self, name: str) -> Job | None:
        """The job of a cell."""
        return next((job for job in self.jobs if job.id == name), None)

    def text(self) -> str:
        """The plan as it is kept: one line a job."""
        head: dict[str, Any] = {
            "schema": _SCHEMA,
            "name": self.name,
            "exclude_newer": self.exclude_newer,
            "ranks": self.ranks,
            "tier": self.tier,
            "executor": dict(self.executor),
        }
        jobs = ",\n".join(json.dumps(job.to_json()) for job in self.jobs)
        gone = ",\n".join(json.dumps(list(pair)) for pair in self.left_out)
        return f'{json.dumps(head)[:-1]},\n"jobs": [\n{jobs}\n],\n"left_out": [\n{gone}\n]}}\n'

    @classmethod
    def parse(cls, text: str, where: str) -> Plan:
        """The inverse of :meth:`text`; ``DataError``."""
        try:
            data = _mapping(json.loads(text), where)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{where}: not JSON: {error}", hint="remove the folder and start the campaign again"
            ) from None
        if data.get("schema") != _SCHEMA:
            raise DataError(f"{where}: schema {data.get('schema')!r}; this envsmith reads {_SCHEMA}")
        jobs, gone, ranks = data.get("jobs"), data.get("left_out", []), data.get("ranks")
        if not isinstance(jobs, list) or not isinstance(gone, list):
            raise DataError(f"{where}: `jobs` and `left_out` are lists")
        if not isinstance(ranks, int) or not 2 <= ranks <= _MAX_RANKS:
            raise DataError(f"{where}: `ranks` is a number from 2 to {_MAX_RANKS}")
        return cls(
            name=str(data.get("name")),
            exclude_newer=str(data.get("exclude_newer")),
            jobs=tuple(Job.from_json(job, f"{where}: jobs[{n}]") for n, job in enumerate(jobs)),
            ranks=ranks,
            tier=str(data.get("tier", "quick")),
            left_out=tuple((str(p[0]), str(p[1])) for p in gone if isinstance(p, list) and len(p) == 2),
            executor=_mapping(data.get("executor") or {}, f"{where}: executor"),
        )


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where}: an object belongs here")
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise DataError(f"{where}: a list of texts belongs here")
    return tuple(value)


def _version(value: object, where: str) -> str:
    try:
        return parse_version(value if isinstance(value, str) else "")
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
