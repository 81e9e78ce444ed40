"""Which ready wheels fit a cell, best first, with their proof, and why the nearest others do not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from envsmith.graph.load import components, knowledge
from envsmith.graph.runtime import Stated, load_runtime
from envsmith.graph.wheels import ready_wheels
from envsmith.model.cell import Cell, Platform, WheelPolicy
from envsmith.model.rule import Knowledge
from envsmith.model.version import Spec, version_key
from envsmith.model.wheel import ReadyWheel, Target, glibc_of

# From a distribution, one of its releases and a cell to the wheel that a lock takes, or nothing.
Ready = Callable[[str, str, Cell], "ReadyWheel | None"]
# Of wheels that do not fit, how many ``envsmith wheel`` names.
_NEAREST = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A wheel of the catalogue, held against a target. It fits when nothing speaks ``against`` it."""

    wheel: ReadyWheel
    against: tuple[str, ...]


def torch_abi(facts: Knowledge, torch: str, platform: Platform) -> bool | None:
    """Return the C++ ABI of a build of torch: whether it is the new one. ``None`` where it was not measured."""
    for release in facts.releases.get("torch", ()):
        if release.version == torch and (not release.platforms or platform in release.platforms):
            abi = release.facts.get("cxx11_abi")
            return abi if isinstance(abi, bool) else None
    return None


def target_of(cell: Cell) -> Target:
    """Return what a wheel must fit to go into a cell."""
    return Target.of(cell, cxx11_abi=torch_abi(knowledge(), cell.components.get("torch", ""), cell.platform))


def offers(distribution: str, target: Target, *, root: Path | None = None) -> tuple[Offer, ...]:
    """Return every wheel of a distribution: those that fit first, then by how little speaks against them."""
    judged = [Offer(wheel=w, against=w.reasons_against(target)) for w in ready_wheels(distribution, root)]
    return tuple(sorted(judged, key=lambda offer: _order(offer, target)))


def best_wheel(
    distribution: str, release: str, cell: Cell, *, policy: WheelPolicy = WheelPolicy.OFFICIAL, root: Path | None = None
) -> ReadyWheel | None:
    """Return the best wheel of a release that fits a cell and that the policy admits."""
    if not any(w.release == release and w.admitted(policy) for w in ready_wheels(distribution, root)):
        return None
    fitting = (o.wheel for o in offers(distribution, target_of(cell), root=root) if not o.against)
    return next((w for w in fitting if w.release == release and w.admitted(policy)), None)


def _order(offer: Offer, target: Target) -> tuple[object, ...]:
    """Order by fit, trust, newest release, nearest CUDA, then more witnesses and the name, so that it is total."""
    wheel = offer.wheel
    key = version_key(wheel.release)
    newest = [-number for number in key.release] if key else []
    post = -(key.post or 0) if key else 0
    same_cuda = wheel.cuda != target.cuda
    return (
        len(offer.against),
        not wheel.official,
        newest,
        post,
        wheel.requires is None,
        same_cuda,
        -len(wheel.evidence),
        wheel.address,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The wheels of a distribution for a cell.

    ``locked`` are those that a lock of their release takes. ``nearest`` are some that do not fit. ``time`` is what
    compiling takes, where that was measured. ``on_index`` are wheels of the newest releases on the package index,
    which every resolver finds by itself.
    """

    name: str
    cell: Cell
    cxx11_abi: bool | None
    fitting: tuple[ReadyWheel, ...]
    nearest: tuple[Offer, ...]
    total: int
    locked: tuple[ReadyWheel, ...] = ()
    time: Stated | None = None
    on_index: tuple[Offer, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it for other programs."""
        return {
            "name": self.name,
            "cell": self.cell.to_json(),
            "wheels": [{**proof_of(wheel), "taken": wheel in self.locked} for wheel in self.fitting],
            "nearest": [{**proof_of(offer.wheel), "against": list(offer.against)} for offer in self.nearest],
            "in_catalogue": self.total,
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
    return component.distributions or (component.name,) if component else (canonicalize_name(name),)


def answer(
    name: str, releases: Spec, cell: Cell, *, policy: WheelPolicy = WheelPolicy.OFFICIAL, root: Path | None = None
) -> Answer:
    """Hold every wheel of some releases against a cell."""
    names = distributions_of(name)
    target = target_of(cell)
    judged = [o for each in names for o in offers(each, target, root=root) if releases.contains(o.wheel.release)]
    fitting = tuple(offer.wheel for offer in judged if not offer.against)
    return Answer(
        name=name,
        cell=cell,
        cxx11_abi=target.cxx11_abi,
        fitting=fitting,
        nearest=_one_of_each(judged),
        total=len(judged),
        locked=_best_of_each(wheel for wheel in fitting if wheel.admitted(policy)),
        time=next((s.time for s in load_runtime().sources if s.distribution in names), None),
    )


def _best_of_each(wheels: Iterable[ReadyWheel]) -> tuple[ReadyWheel, ...]:
    """Return the first wheel of each release."""
    first: dict[tuple[str, str], ReadyWheel] = {}
    for wheel in wheels:
        first.setdefault((wheel.distribution, wheel.release), wheel)
    return tuple(first.values())


def _one_of_each(judged: list[Offer]) -> tuple[Offer, ...]:
    """Return the nearest offer for each set of reasons, so that a row of Pythons does not hide the next torch."""
    first: dict[tuple[str, ...], Offer] = {}
    for offer in judged:
        if offer.against:
            first.setdefault(offer.against, offer)
    return tuple(first.values())[:_NEAREST]
