"""What code and its requirements ask for, less what no cell can have: a pin of years ago is a wish, not an order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping

from envsmith.errors import UnsatisfiableError
from envsmith.graph.load import version_graph
from envsmith.model.cell import Request
from envsmith.model.finding import Solution
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
            sentences.append(_give_way(current, names, name))
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


def _give_way(current: dict[str, str], names: Wishes, name: str) -> str:
    pin, needed = current[name], names.get(name, "*")
    if pin != needed:
        current[name] = needed
        return f"{name} {pin} gives way: no cell has it together with the rest"
    current.pop(name)
    return f"{name} is left out: no cell has it together with the rest"


def _too_far(solution: Solution, date: str | None, current: Wishes) -> str | None:
    if date is None:
        return None
    graph = version_graph()
    torch = graph.released_on("torch", solution.cell.components.get("torch", ""))
    if not torch or dt.date.fromisoformat(torch) - dt.date.fromisoformat(date) <= _TOO_FAR:
        return None
    return next((name for name in current if name in graph.compiled.built_on_torch), None)
