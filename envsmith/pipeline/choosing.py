"""From a request to a cell: narrowed to what the engine, or the Conda channels, can give at all."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from typing import TYPE_CHECKING

from envsmith.engine.base import Engine, Event, EventKind, Progress
from envsmith.model.cell import Cell, Request
from envsmith.model.version import Spec
from envsmith.pipeline.values import Clock, Options

if TYPE_CHECKING:
    from envsmith.model.finding import Solution

__all__ = ["choose", "last_day", "narrow", "of_channels", "solve_for"]


def last_day() -> str:
    """The last complete UTC day, which ``exclude_newer`` defaults to; ``SOURCE_DATE_EPOCH`` sets another present.

    The day that is not over yet would not do: what is published in its course would change a lock that was made on the same date.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = (
        dt.datetime.fromtimestamp(int(epoch), tz=dt.timezone.utc)
        if epoch.isdigit()
        else dt.datetime.now(dt.timezone.utc)
    )
    return (now.date() - dt.timedelta(days=1)).isoformat()


def narrow(request: Request, engine: Engine) -> Request:
    """Keep to the Pythons that ``engine`` can provide here; the reason is told in ``why`` and in a refusal."""
    pythons = engine.pythons()
    if pythons is None:
        return request
    spec = Spec.parse(" || ".join(f"=={minor}.*" for minor in pythons))
    reason = f"engine {engine.name} can provide Python {', '.join(pythons)} here"
    return dataclasses.replace(request, narrowed={**request.narrowed, "python": (spec, reason)})


def solve_for(request: Request) -> Solution:
    """The solver's answer; ``UnsatisfiableError`` carries the refusal."""
    from envsmith.solve.api import solve

    return solve(request)


def choose(request: Request, options: Options, clock: Clock) -> Cell:
    """The best cell; one that the channels have, where Conda is to install it."""
    clock.start("solve")
    solution = solve_for(of_channels(request, options, clock.progress))
    clock.done("solve", str(solution.cell.id))
    for sentence in solution.why:
        clock.note(sentence)
    for finding in solution.warnings:
        clock.note(f"{finding.message} [{finding.rule}]", warning=True)
    return solution.cell


def of_channels(request: Request, options: Options, progress: Progress) -> Request:
    """The request narrowed to what the Conda channels have, where Conda is to install the cell; as it is elsewhere."""
    if not options.conda_needed:
        return request
    from envsmith.lock.conda import narrow_to_channels
    from envsmith.solve.api import cells

    ask = options.conda_ask()
    return narrow_to_channels(
        request,
        cells,
        channels=ask.channels,
        cache_dir=ask.cache_dir,
        offline=ask.offline,
        exclude_newer=ask.day(request.exclude_newer or last_day()),
        tolerate=ask.tolerate,
        progress=lambda line: progress(Event(kind=EventKind.LINE, step="solve", text=line)),
    )
