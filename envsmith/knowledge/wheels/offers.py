"""Which ready wheels fit a cell, best first, and which of them a lock takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from envsmith.knowledge.graph.load import knowledge
from envsmith.knowledge.graph.wheels import ready_wheels
from envsmith.model.cell import Cell, Platform, WheelPolicy
from envsmith.model.rule import Knowledge
from envsmith.model.version import version_key
from envsmith.model.wheel import ReadyWheel, WheelTarget

# From a distribution, one of its releases and a cell to the wheel that a lock takes, or nothing.
Ready = Callable[[str, str, Cell], "ReadyWheel | None"]


class Offer(NamedTuple):
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


def target_of(cell: Cell) -> WheelTarget:
    """Return what a wheel must fit to go into a cell."""
    return WheelTarget.of(cell, cxx11_abi=torch_abi(knowledge(), cell.components.get("torch", ""), cell.platform))


def offers(distribution: str, target: WheelTarget, *, root: Path | None = None) -> tuple[Offer, ...]:
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


def _order(offer: Offer, target: WheelTarget) -> tuple[object, ...]:
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
