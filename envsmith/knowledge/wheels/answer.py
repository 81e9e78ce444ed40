"""What ``envsmith wheel`` answers: the wheels that fit a cell with their proof, and why the nearest others do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from envsmith.knowledge.graph.load import components
from envsmith.knowledge.graph.runtime import StatedText, load_runtime
from envsmith.knowledge.wheels.offers import Offer, offers, target_of
from envsmith.model.cell import Cell, WheelPolicy
from envsmith.model.project_name import normal_name
from envsmith.model.version import Spec
from envsmith.model.wheel import ReadyWheel, glibc_of

# Of wheels that do not fit, how many are named.
_NEAREST = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class CellWheels:
    """The wheels of a distribution for a cell.

    ``locked`` are those that a lock of their release takes. ``nearest`` are some that do not fit. ``time`` is what
    compiling takes, where that was measured. ``on_index`` are wheels of the newest releases on the package index,
    which every resolver finds by itself. ``pythons`` are the tags of Python that there is a wheel for, by torch minor.
    """

    name: str
    cell: Cell
    cxx11_abi: bool | None
    fitting: tuple[ReadyWheel, ...]
    nearest: tuple[Offer, ...]
    total: int
    locked: tuple[ReadyWheel, ...] = ()
    time: StatedText | None = None
    on_index: tuple[Offer, ...] = ()
    pythons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it for other programs."""
        return {
            "name": self.name,
            "cell": self.cell.to_json(),
            "wheels": [{**proof_of(wheel), "taken": wheel in self.locked} for wheel in self.fitting],
            "nearest": [{**proof_of(offer.wheel), "against": list(offer.against)} for offer in self.nearest],
            "in_catalogue": self.total,
            "pythons": {torch: list(tags) for torch, tags in self.pythons.items()},
            "on_index": [{**proof_of(offer.wheel), "against": list(offer.against)} for offer in self.on_index],
            "compiling": {"time": self.time.text, "evidence": [e.to_json() for e in self.time.evidence]}
            if self.time
            else None,
        }


def proof_of(wheel: ReadyWheel) -> dict[str, Any]:
    """Return what is known of a wheel: where it lies, what it was built for, who says so."""
    return {
        "distribution": wheel.distribution,
        "version": wheel.version,
        "address": wheel.address,
        "sha256": wheel.sha256,
        "publisher": wheel.publisher,
        "origin": "official" if wheel.official else "listed",
        "built_for": {"torch": wheel.torch, "cuda": wheel.cuda, "cxx11_abi": wheel.cxx11_abi},
        "linked": "its METADATA says" if wheel.torch == "any" else "its name says",
        "glibc": wheel.glibc or glibc_of(wheel.filename),
        "gpu": list(wheel.gpu) or None,
        "requires": None if wheel.requires is None else list(wheel.requires),
        "evidence": [entry.to_json() for entry in wheel.evidence],
    }


def distributions_of(name: str) -> tuple[str, ...]:
    """Return the distributions of a component, or the one of that name."""
    component = components().find(name)
    return component.distributions or (component.name,) if component else (normal_name(name),)


def answer(
    name: str, releases: Spec, cell: Cell, *, policy: WheelPolicy = WheelPolicy.OFFICIAL, root: Path | None = None
) -> CellWheels:
    """Hold every wheel of some releases against a cell."""
    names = distributions_of(name)
    target = target_of(cell)
    judged = [o for each in names for o in offers(each, target, root=root) if releases.contains(o.wheel.release)]
    fitting = tuple(offer.wheel for offer in judged if not offer.against)
    return CellWheels(
        name=name,
        cell=cell,
        cxx11_abi=target.cxx11_abi,
        fitting=fitting,
        nearest=_one_of_each(judged),
        total=len(judged),
        locked=_best_of_each(wheel for wheel in fitting if wheel.admitted(policy)),
        pythons=_pythons(offer.wheel for offer in judged),
        time=next((s.time for s in load_runtime().sources if s.distribution in names), None),
    )


def _best_of_each(wheels: Iterable[ReadyWheel]) -> tuple[ReadyWheel, ...]:
    """Return the first wheel of each release."""
    first: dict[tuple[str, str], ReadyWheel] = {}
    for wheel in wheels:
        first.setdefault((wheel.distribution, wheel.release), wheel)
    return tuple(first.values())


def _pythons(wheels: Iterable[ReadyWheel]) -> dict[str, tuple[str, ...]]:
    """Return the tags of Python for each minor of torch, both ascending."""
    tags: dict[str, set[str]] = {}
    for wheel in wheels:
        if wheel.torch and wheel.torch != "any":
            tags.setdefault(wheel.torch, set()).update(
                tag.interpreter for tag in parse_wheel_filename(wheel.filename)[3]
            )
    return {torch: tuple(sorted(tags[torch], key=lambda tag: (len(tag), tag))) for torch in sorted(tags, key=Version)}


def _one_of_each(judged: list[Offer]) -> tuple[Offer, ...]:
    """Return the nearest offer for each set of reasons, so that a row of Pythons does not hide the next torch."""
    first: dict[tuple[str, ...], Offer] = {}
    for offer in judged:
        if offer.against:
            first.setdefault(offer.against, offer)
    return tuple(first.values())[:_NEAREST]
