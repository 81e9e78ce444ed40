"""The matrix of a library's CI: a covering subset of what can occur, known-bad cells as expected failures.

Written as GitHub's ``include`` list, GitLab's ``parallel:matrix``, a module of nox parameters, or JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envsmith.ci.cover import Pair, covering_subset
from envsmith.ci.library import CONFIG, FRAMEWORK_STEP, Library, ranges_of
from envsmith.ci.possible import Space, Unfit, space_of
from envsmith.errors import UsageError
from envsmith.files import write_whole
from envsmith.graph.load import components
from envsmith.model.cell import Cell
from envsmith.model.component import Role
from envsmith.model.version import public
from envsmith.project.declared import Declaration, read_declared
from envsmith.schema import AsJson


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One job.

    ``axes`` are its values; ``constraints`` pip constraints that give the cell; ``backend`` uv's word for a torch build
    that the default index does not have (``--torch-backend cu126``), or empty. A job with a ``rule`` must fail, with
    ``symptom``.
    """

    id: str
    axes: Mapping[str, str]
    cell: Cell
    constraints: tuple[str, ...]
    runner: str | list[str]
    backend: str = ""
    rule: str = ""
    symptom: str = ""

    @property
    def expect(self) -> str:
        """Return ``pass`` or ``fail``."""
        return "fail" if self.rule else "pass"

    def to_json(self) -> dict[str, object]:
        """Return flat values, so that a workflow can say ``${{ matrix.torch }}``."""
        return {
            "id": self.id,
            **{name.replace("-", "_"): value for name, value in self.axes.items()},
            "cell": str(self.cell.id),
            "constraints": " ".join(self.constraints),
            "backend": self.backend,
            "runner": self.runner,
            "expect": self.expect,
            **({"rule": self.rule, "symptom": self.symptom} if self.rule else {}),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrix(AsJson):
    """The jobs, how many combinations they stand for, and the floor under any choice that covers all pairs.

    ``uncovered`` are the pairs that a limit left out.
    """

    library: str
    jobs: tuple[Job, ...]
    possible: int
    lower_bound: int
    uncovered: tuple[Pair, ...]
    notes: tuple[str, ...]


def make_matrix(library: Library, *, small: str | None = None, earlier: Sequence[tuple[str, ...]] = ()) -> Matrix:
    """Choose the jobs. ``small`` is the reason why the newest and the oldest cell are enough.

    ``earlier`` are rows to keep.

    :class:`~envsmith.errors.UnsatisfiableError` when the library's ranges admit no cell.
    """
    space, limit = space_of(library), library.settings.limit
    rows = space.rows()
    newest_and_oldest = [_newest(space, rows), rows[-1]] if rows else []
    bad: list[Unfit] = []
    if small:
        cover = covering_subset(list(dict.fromkeys(newest_and_oldest)), limit=limit)
    else:
        ends = list(dict.fromkeys([*rows[:1], *newest_and_oldest]))
        bad = space.unfit(min(library.settings.known_bad, max(limit - len(ends), 0)))
        cover = covering_subset(rows, keep=ends, earlier=earlier, limit=limit - len(bad))
    notes = [f"small: {small}"] if small else []
    if cover.uncovered:
        notes.append(f"{len(cover.uncovered)} pairs of values are left out by the limit of {limit} jobs")
    jobs: dict[str, Job] = {}
    for row in cover.rows:
        job = _job(library, space, row, space.cell(row))
        jobs[job.id] = job
    for entry in bad:
        job = _job(library, space, entry.row, entry.cell, rule=entry.rule, symptom=entry.symptom)
        jobs.setdefault(job.id, job)
    return Matrix(
        library=library.name,
        jobs=tuple(jobs.values()),
        possible=len(rows),
        lower_bound=cover.bound,
        uncovered=cover.uncovered,
        notes=tuple(notes),
    )


def _newest(space: Space, rows: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the row that is nearest to the newest value of every axis."""
    return min(
        rows, key=lambda row: [*sorted((a.values.index(v) for a, v in zip(space.axes, row, strict=True)), reverse=True)]
    )


def _job(library: Library, space: Space, row: Sequence[str], cell: Cell, *, rule: str = "", symptom: str = "") -> Job:
    table = components().by_name
    pins = [(names[0], cell.components[each]) for each in cell.chosen if (names := table[each].distributions)]
    return Job(
        id=str(cell.id),
        axes=dict(zip((a.name for a in space.axes), row, strict=True)),
        cell=cell,
        constraints=tuple(f"{name}=={public(version)}" for name, version in pins),
        runner=library.runner,
        backend=cell.components.get("torch", "").partition("+")[2] if cell.index == "pytorch" else "",
        rule=rule,
        symptom=symptom,
    )


def _github(matrix: Matrix) -> str:
    return json.dumps({"include": [job.to_json() for job in matrix.jobs]}, separators=(",", ":"), ensure_ascii=False)


def _gitlab(matrix: Matrix) -> str:
    """Write a job's ``parallel:matrix``: variables are upper case and texts, each entry is one job."""
    lines = ["parallel:", "  matrix:"]
    for job in matrix.jobs:
        values = {"ENVSMITH_ID": job.id, **{n.upper().replace("-", "_"): v for n, v in job.axes.items()}}
        values |= {"CONSTRAINTS": " ".join(job.constraints), "BACKEND": job.backend, "EXPECT": job.expect}
        entries = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
        lines.append("    - " + "\n      ".join(entries))
    return "\n".join(lines)


def _nox(matrix: Matrix) -> str:
    """Write a module for a noxfile: ``@nox.parametrize(cells.NAMES, cells.CELLS)``."""
    names = [n.replace("-", "_") for n in (matrix.jobs[0].axes if matrix.jobs else ())]
    lines = [
        '"""Cells of the library; written by `envsmith ci matrix --format nox`."""',
        "",
        "import nox",
        "",
        f"NAMES = {[*names, 'constraints', 'expect']!r}",
        "CELLS = [",
    ]
    for job in matrix.jobs:
        values = [*job.axes.values(), " ".join(job.constraints), job.expect]
        lines.append(f"    nox.param({', '.join(map(repr, values))}, id={job.id!r}),")
    return "\n".join([*lines, "]"])


_WRITERS: Mapping[str, Callable[[Matrix], str]] = {
    "github": _github,
    "gitlab": _gitlab,
    "nox": _nox,
    "json": lambda matrix: json.dumps(matrix.to_json(), indent=2, ensure_ascii=False),
}


def write_matrix(matrix: Matrix, form: str) -> str:
    """Write the matrix as ``github``, ``gitlab``, ``nox`` or ``json``."""
    return _WRITERS[form](matrix)


# ``envsmith init``: a first ``envsmith.yaml`` from what a library declares already.


def write_config(root: Path, *, force: bool = False) -> tuple[Path, Declaration]:
    """Write ``envsmith.yaml`` into ``root``.

    ``UsageError`` when one is there and ``force`` is not given, ``StorageError`` when it cannot be written.
    """
    path = root / CONFIG
    if path.exists() and not force:
        raise UsageError(f"Cannot write {path}: it exists already.", hint="Use --force to write it anew.")
    declaration = read_declared(root)
    write_whole(path, _draft_config(declaration))
    return path, declaration


def _draft_config(declaration: Declaration) -> str:
    """Write what is declared, and every other key as a comment."""
    table = components()
    ranges = ranges_of(declaration)
    frameworks = [n for n in ranges if table.by_name[n].role is Role.FRAMEWORK]
    own = table.find(declaration.name)
    axes = ["python", "torch", *(f for f in frameworks if own is None or f != own.name)]
    declared_ranges = ", ".join(f"{n} {s}" for n, s in ranges.items()) or "nothing that envsmith knows"
    head = "# Which environments this library supports, for `envsmith ci`."
    lines = [
        f"{head} `envsmith ci schema` prints what may stand here.",
        f"# Read from {', '.join(declaration.files)}: {declared_ranges}",
        "schema: 1",
        f"library: {json.dumps(declaration.name, ensure_ascii=False)}",
    ]
    if "torch" not in ranges and not frameworks:
        lines += ["requires:", '  torch: "*"   # nothing was declared: say which releases you support']
    else:
        lines += ["# requires: {nccl: '>=2.18'}   # what metadata cannot say, or a narrower range than it declares"]
    lines += [
        f"axes: [{', '.join(axes)}]",
        "# values: {torch: ['2.6', '2.9']}   # releases of an axis; default: the newest of each minor series",
        f"smoke: {FRAMEWORK_STEP}   # or a command: pytest -x tests/distributed",
        "runners:",
        "  cpu: ubuntu-24.04",
        "  # gpu: [self-hosted, gpu]",
        "# gpu: h100",
        "# driver: '570.86.15'",
        "limit: 256   # most jobs; those left out are listed",
        "known_bad: 4   # jobs that must fail, so that you learn when a bound can be lifted",
    ]
    return "\n".join(lines) + "\n"
