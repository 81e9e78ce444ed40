"""From a request to a cell, narrowed to what the engine and the channels can give."""

from __future__ import annotations

from dataclasses import replace

from envsmith.base.progress import Clock, Progress, announced, lines_of
from envsmith.builder.engines.base import Engine
from envsmith.builder.options import Options
from envsmith.lock.conda.cells import narrow_to_channels
from envsmith.lock.conda.channels import open_channels, with_channels
from envsmith.lock.days import last_day
from envsmith.lock.learn import Learned
from envsmith.model.cell import Cell, Request
from envsmith.model.rule import Severity
from envsmith.solver import cells


def for_engine(options: Options, engine: Engine) -> Options:
    """Return the options of a build with ``engine``: its Pythons, and the Conda lock where it has a use for one.

    A frozen lock names its own base and Python, so that the engine is not asked for others. A virtual environment needs
    no channel, so none is asked unless the user spoke of Conda.
    """
    fixed = options.frozen or options.lock is not None
    request = options.request if fixed else narrow(options.request, engine, options.base)
    needed = options.conda_needed or engine.needs_conda_lock
    conda = options.conda
    named = conda is not None and bool(conda.channels or conda.platforms or conda.tolerate)
    useful = needed or named or engine.images is not None
    return replace(options, request=request, conda_needed=needed, conda=conda if useful else None)


def narrow(request: Request, engine: Engine, base: str | None = None) -> Request:
    """Keep to the Pythons that ``engine`` can provide here. The reason stands in ``why`` and in a refusal."""
    if request.machine:
        request = replace(request, machine=replace(request.machine, pythons=()))
    pythons = engine.pythons(base)
    if pythons is None:
        return request
    return request.on_pythons(pythons, f"engine {engine.name} can provide Python {', '.join(pythons)} here")


def choose(request: Request, clock: Clock, learned: Learned | None = None) -> Cell:
    """Return the best cell and announce why it is, with what was ``learned`` of packages beside the graph.

    Raises ``UnsatisfiableError`` with the refusal.
    """
    clock.start("solve")
    solution = (learned or Learned()).solve(request)
    clock.done("solve", str(solution.cell.id))
    for sentence in solution.why:
        clock.note(sentence)
    for finding in solution.warnings:
        clock.note(f"{finding.message} [{finding.rule}]", warning=finding.severity is Severity.WARNING)
    return solution.cell


def of_channels(options: Options, progress: Progress) -> Request:
    """Return what is asked for, narrowed to the best cell of the channels where Conda installs it."""
    request = options.request
    if options.conda is None or not options.needs_conda_lock:
        return request
    with announced(progress, "channels"):
        conda = with_channels(options.conda).until(request.exclude_newer or last_day())
        channels = open_channels(conda, request.platform.value, lines_of(progress, "channels"))
        return narrow_to_channels(request, cells, channels, conda.tolerate)
