"""From a request to a cell, narrowed to what the engine and the channels can give."""

from __future__ import annotations

from dataclasses import replace

from envsmith.base.progress import Clock, Progress, lines_of
from envsmith.builder.engines.base import Engine
from envsmith.builder.options import Options
from envsmith.knowledge.graph.runtime import nvcc_cuda
from envsmith.lock.conda import lock as conda_lock
from envsmith.lock.learn import Learned
from envsmith.model.cell import Cell, Request
from envsmith.model.finding import Solution
from envsmith.model.rule import Severity
from envsmith.solver import cells, solve


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


def choose(options: Options, clock: Clock, learned: Learned | None = None) -> Cell:
    """Return the best cell and announce why it is, with what was ``learned`` of packages beside the graph.

    Raises ``UnsatisfiableError`` with the refusal.
    """
    clock.start("solve")
    learned = learned or Learned()
    solution = best(options, learned, clock.progress)
    clock.done("solve", str(solution.cell.id))
    for sentence in solution.why:
        clock.note(sentence)
    for finding in solution.warnings:
        clock.note(f"{finding.message} [{finding.rule}]", warning=finding.severity is Severity.WARNING)
    return learned.cell(solution.cell)


def best(options: Options, learned: Learned, progress: Progress) -> Solution:
    """Return the best cell with its reasons, or the best that the channels have where Conda is to install it."""
    request = learned.request(_of_channels(options.request, options, progress))
    return solve(request, solver=learned.solver)


def _of_channels(request: Request, options: Options, progress: Progress) -> Request:
    """Return the request, narrowed to what its flavour can have, and to the channels where Conda installs the cell."""
    if cuda := nvcc_cuda(request, options.flavour):
        request = replace(request, narrowed={**request.narrowed, "cuda": cuda})
    if options.conda is None or not options.needs_conda_lock:
        return request
    return conda_lock.narrow_to_channels(request, cells, options.conda, progress=lines_of(progress, "solve"))
