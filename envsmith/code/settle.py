"""What code and its requirements ask for, less what no cell can have: a pin of years ago is a wish, not an order."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Mapping

from envsmith.errors import LockError, UnsatisfiableError
from envsmith.graph.load import version_graph
from envsmith.lock.later import Later, later_wheel
from envsmith.model.cell import Request
from envsmith.model.finding import Solution
from envsmith.model.lock import Lock, Pin
from envsmith.model.version import minor_of
from envsmith.solve import solve

Wishes = Mapping[str, str]
# What must be compiled against torch may not move it further from the date than this.
_TOO_FAR = dt.timedelta(days=365)
_MOST_STEPS = 24


def settle(
    wishes: Wishes, names: Wishes, request_of: Callable[[Wishes], Request]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the wishes that a cell can have together, and a sentence for each that gave way.

    ``names`` are the specs that the code itself needs. A pin of the project gives way to them first, then what is
    compiled against torch is left out, then a component. Where nothing helps, the wishes stay as they are: the refusal
    of the solver says why.
    """
    current, sentences = dict(wishes), list[str]()
    for _ in range(_MOST_STEPS):
        request = request_of(current)
        try:
            solution = solve(request)
        except UnsatisfiableError as error:
            conflict = error.refusal.conflict if error.refusal else ()
            blamed = [c.rule.removeprefix("request:") for c in conflict if c.is_wish]
            mentioned = [name for member in conflict for name in member.components]
            name = _first_to_go(current, names, [*blamed, *mentioned])
            if name is None:
                return dict(wishes), ()
            sentences.append(_give_way(current, names, name, "no cell has it together with the rest"))
            continue
        far = _too_far(solution, request.date, current)
        if far is None:
            return current, tuple(sentences)
        current.pop(far)
        sentences.append(f"{far} is left out: with it torch would be a release of more than a year after the date")
    return dict(wishes), ()


def _first_to_go(current: Wishes, names: Wishes, conflict: list[str]) -> str | None:
    """Return the wish of a conflict that is given up first."""
    inferred = [name for name in dict.fromkeys(conflict) if name in current]
    compiled = version_graph().compiled.built_on_torch
    pinned = [name for name in inferred if current[name] != names.get(name, "*")]
    ordered = [
        *(name for name in inferred if name in compiled),
        *(name for name in pinned if name not in {"torch", "python"}),
        *pinned,
        *(name for name in inferred if name != "torch"),
    ]
    return next(iter(ordered), None)


def _give_way(current: dict[str, str], names: Wishes, name: str, why: str) -> str:
    """Loosen a wish to what the code needs. A wish that is as loose as that is given up."""
    pin, needed = current[name], names.get(name, "*")
    if pin != needed:
        current[name] = needed
        return f"{name} {pin} gives way: {why}"
    current.pop(name)
    return f"{name} is left out: {why}"


def settle_lock(
    wishes: Wishes, names: Wishes, lock_of: Callable[[Wishes], Lock], later: Later = later_wheel
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the wishes, by distribution, that a lock can meet, and a sentence for each that gave way.

    A pin gives way where uv finds no packages with it, or where it would be compiled because its wheels are for older
    Pythons. Where something else is in the way, the lock itself will say so.
    """
    current, sentences = dict(wishes), list[str]()
    before: dict[str, str] = {}
    for _ in range(_MOST_STEPS):
        try:
            lock = lock_of(current)
        except LockError as error:
            blamed = _blamed(error, current, names)
            if not blamed:
                break
            sentences += [_give_way(current, names, name, error.reason) for name in blamed]
            continue
        except UnsatisfiableError:  # no cell has a later release, so the earlier one is compiled
            if not before:
                raise
            return before, tuple(dict.fromkeys(sentences))
        before, number = dict(current), len(sentences)
        for pin in (pin for pin in lock.pins if pin.sdist):
            if newer := later(pin.name, pin.version, lock.cell):
                sentences += _wheel_instead(current, names, pin, newer, lock)
        if len(sentences) == number:
            break
    return current, tuple(dict.fromkeys(sentences))


def _blamed(error: LockError, current: Wishes, names: Wishes) -> list[str]:
    """Return the wishes that an error speaks of: pins of further packages before those of components, then the rest."""

    def mentioned(text: str, among: Iterable[str]) -> list[str]:
        words = set(re.findall(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*", re.sub(r"[=<>!~]=?\S*", " ", text.lower())))
        return [name for name in among if name in words]

    pinned = [name for name in current if current[name] != names.get(name, "*")]
    blamed = mentioned("\n".join([error.message, *error.details]), pinned)
    table = version_graph().components
    further = [name for name in blamed if table.find(name) is None]
    if blamed:
        return further or blamed[:1]
    # uv ends with what it was asked for: "And because you require protobuf==4.21.4 and scann".
    last = [line for line in error.details if "you require" in line][-1:]
    unpinned = [name for name in mentioned("\n".join(last), current) if table.find(name) is None]
    return mentioned(error.reason, current) or unpinned[:1]


def _wheel_instead(current: dict[str, str], names: Wishes, pin: Pin, newer: str, lock: Lock) -> list[str]:
    """Loosen what keeps a package at a release without a wheel for the cell's Python."""
    why = (
        f"{pin.name} {pin.version} has no wheel for Python {minor_of(lock.cell.components['python'])}, {newer} has one"
    )
    keeping = [pin.name, *(user.name for user in lock.pins if pin.name in user.requires)]
    pinned = [name for name in keeping if "==" in current.get(name, "") and current[name] != names.get(name, "*")]
    if pinned:
        return [_give_way(current, names, pinned[0], why)]
    if pin.name not in current or version_graph().components.find(pin.name) is None:
        return []
    needed = names.get(pin.name, "*").removeprefix("*")
    current[pin.name] = ",".join(filter(None, (needed, f">={newer}")))
    return [f"{pin.name} >={newer}: {why}"]


def _too_far(solution: Solution, date: str | None, current: Wishes) -> str | None:
    if date is None:
        return None
    graph = version_graph()
    torch = graph.released_on("torch", solution.cell.components.get("torch", ""))
    if not torch or dt.date.fromisoformat(torch) - dt.date.fromisoformat(date) <= _TOO_FAR:
        return None
    return next((name for name in current if name in graph.compiled.built_on_torch), None)
