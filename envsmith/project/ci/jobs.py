"""The matrix of a library's CI: a covering subset of what can occur, known-bad cells as expected failures.

Written as GitHub's ``include`` list, GitLab's ``parallel:matrix``, a module of nox parameters, or JSON.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from operator import or_
from pathlib import Path

from envsmith.base.files import write_whole
from envsmith.base.json_types import JsonDict
from envsmith.base.schema import AsJson
from envsmith.errors import UsageError
from envsmith.knowledge.graph.load import components
from envsmith.model.cell import Cell, CellId
from envsmith.model.component import Role
from envsmith.model.version import public
from envsmith.project.ci.library import CONFIG, FRAMEWORK_STEP, PAIRS, VALUES, Library, extras_of, ranges_of
from envsmith.project.ci.possible import EXTRA, Combinations, Space, Unfit, combinations_of
from envsmith.project.declared import Declaration, read_declared


@dataclass(frozen=True, kw_only=True, slots=True)
class CiJob:
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
    extra: str = ""
    rule: str = ""
    symptom: str = ""

    @property
    def expect(self) -> str:
        """Return ``pass`` or ``fail``."""
        return "fail" if self.rule else "pass"

    def to_json(self) -> JsonDict:
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
    jobs: tuple[CiJob, ...]
    possible: int
    lower_bound: int
    uncovered: tuple[Pair, ...]
    notes: tuple[str, ...]


def make_matrix(library: Library, *, small: str | None = None) -> Matrix:
    """Choose the jobs. ``small`` is the reason why the newest and the oldest cell are enough.

    :class:`~envsmith.model.finding.UnsatisfiableError` when the library's ranges admit no cell.
    """
    combinations, settings = combinations_of(library), library.settings
    rows, limit = combinations.rows(), settings.limit
    plain = [row for row in rows if len(combinations.spaces) == 1 or not row[-1]]
    newest_and_oldest = [_newest(combinations.spaces[""], plain), plain[-1]] if plain else []
    bad: list[Unfit] = []
    if small:
        cover = covering_subset(list(dict.fromkeys(newest_and_oldest)), limit=limit)
    else:
        ends = list(dict.fromkeys([*plain[:1], *newest_and_oldest]))
        bad = combinations.unfit(min(settings.known_bad, max(limit - len(ends), 0)))
        strength = 2 if settings.cover == PAIRS else 1
        cover = covering_subset(rows, keep=ends, limit=limit - len(bad), strength=strength)
    notes = [f"small: {small}"] if small else []
    if cover.uncovered:
        of_values = "pairs of values" if settings.cover == PAIRS else "values"
        notes.append(f"{len(cover.uncovered)} {of_values} are left out by the limit of {limit} jobs")
    notes += [f"no environment has the extra {extra}: envsmith ci check says why" for extra in combinations.empty]
    jobs = [_job(library, combinations, row, combinations.cell(row)) for row in cover.rows]
    jobs += [_job(library, combinations, one.row, one.cell, rule=one.rule, symptom=one.symptom) for one in bad]
    return Matrix(
        library=library.name,
        jobs=tuple({job.id: job for job in jobs}.values()),
        possible=len(rows),
        lower_bound=cover.bound,
        uncovered=cover.uncovered,
        notes=tuple(notes),
    )


def _newest(space: Space, rows: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the row that is nearest to the newest value of every axis."""
    return min(
        rows,
        key=lambda row: [*sorted((a.values.index(v) for a, v in zip(space.axes, row, strict=False)), reverse=True)],
    )


def _job(
    library: Library, combinations: Combinations, row: Sequence[str], cell: Cell, *, rule: str = "", symptom: str = ""
) -> CiJob:
    table = components().by_name
    pins = [(names[0], cell.components[each]) for each in cell.chosen if (names := table[each].distributions)]
    axes = dict(zip(combinations.axes, row, strict=True))
    return CiJob(
        id=_job_id(library, cell, axes.get(EXTRA, ""), rule),
        axes=axes,
        cell=cell,
        constraints=tuple(f"{name}=={public(version)}" for name, version in pins),
        runner=library.runner,
        backend=cell.components.get("torch", "").partition("+")[2] if cell.index == "pytorch" else "",
        extra=axes.get(EXTRA, ""),
        rule=rule,
        symptom=symptom,
    )


# A job's name is read in a list of checks. GitHub cuts longer ones off there.
_LONGEST_ID = 60


def _job_id(library: Library, cell: Cell, extra: str, rule: str) -> str:
    """Return what varies in the grammar of cell ids, then the extra, and for a job that must fail the rule.

    A longer one ends with a digest.
    """
    named = [name for name in cell.chosen if name in (*library.axes, "cuda")]
    cell_id = str(CellId(tuple((name, cell.components[name]) for name in named), cell.platform))
    text = "-".join(part for part in (cell_id, extra, f"fails-{rule}" if rule else "") if part)
    if len(text) <= _LONGEST_ID:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{text[: _LONGEST_ID - 7].rstrip('-.')}-{digest}"


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
    own, extras = table.find(declaration.name), extras_of(declaration)
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
        f"cover: {VALUES}   # each value of each axis is in some job; {PAIRS}: each pair of them, many more jobs",
        *([f"extras: [{', '.join(map(json.dumps, extras))}]   # some jobs install one of them"] if extras else []),
        "# values: {torch: ['2.6', '2.9']}   # releases of an axis; default: the newest of each minor series",
        f"smoke: {FRAMEWORK_STEP}   # or a command: uv pip install pytest && pytest -x tests",
        "runners:",
        "  cpu: ubuntu-24.04",
        "  # gpu: [self-hosted, gpu]",
        "# gpu: h100",
        "# driver: '570.86.15'",
        "limit: 256   # most jobs; those left out are listed",
        "known_bad: 4   # jobs that must fail, so that you learn when a bound can be lifted",
    ]
    return "\n".join(lines) + "\n"


# Few rows that hold every pair of values that can occur together. Pure combinatorics: knows nothing of versions.
#
# A *row* is one value per axis; only rows that can occur are offered. A pair of values of two axes is *covered* when a
# chosen row holds both. The choice is greedy with several deterministic ways to break ties, and made smaller afterwards
# by taking out what others cover already (mixed-strength covering arrays by one row at a time: Cohen, Dalal, Fredman
# and Patton, "The AETG System", IEEE TSE 23(7), 1997).

Row = tuple[str, ...]
Pair = tuple[tuple[int, str], tuple[int, str]]
# Orders in which ties are broken; the smallest result is taken. More of them bring less than a row on real axes.
_TRIES = 12
# How many of the rows that hold least alone are tried two by two for one that replaces both.
_LIGHT = 12


@dataclass(frozen=True, slots=True)
class Cover:
    """``rows`` in the order in which they were offered.

    ``uncovered`` are pairs that a limit left out, as ``((axis, value), (axis, value))``.
    """

    rows: tuple[Row, ...]
    bound: int
    uncovered: tuple[Pair, ...] = ()


def covering_subset(
    rows: Sequence[Row],
    *,
    keep: Collection[Row] = (),
    limit: int = 256,
    strength: int = 2,
) -> Cover:
    """Choose from ``rows`` so that every pair that occurs in one of them occurs in a chosen one.

    With ``strength`` 1 every value does. The rows are of one length, the best first. ``keep`` are always chosen. With more than ``limit`` rows those that cover most are chosen, and
    the pairs that no row covers are listed.
    """
    if not rows:
        return Cover((), 0)
    masks, pairs = _masks(rows, strength)
    index = {row: i for i, row in enumerate(rows)}
    first = [index[row] for row in dict.fromkeys(keep) if row in index]
    everything = (1 << len(pairs)) - 1
    bound = lower_bound(rows, strength)
    floor = max(bound, len(first))
    best: list[int] = []
    for seed in range(_TRIES):
        chosen = _thin(masks, _greedy(masks, first, everything, _ranks(rows, seed)), set(first), floor)
        if seed == 0 or len(chosen) < len(best):
            best = chosen
        if len(best) <= floor:
            break
    best = best[:limit]
    covered = _held(masks, best)
    missing = tuple(pair for n, pair in enumerate(pairs) if not covered >> n & 1)
    return Cover(tuple(rows[i] for i in sorted(best)), bound, missing)


def lower_bound(rows: Iterable[Row], strength: int = 2) -> int:
    """Return a floor for every covering choice.

    A row holds one pair of two axes, so the two axes with most pairs set it.
    """
    listed = list(rows)
    return max((len({(row[a], row[b]) for row in listed}) for a, b in _axes(listed, strength)), default=0)


def _axes(rows: Sequence[Row], strength: int) -> list[tuple[int, int]]:
    """Return the pairs of axes. An axis is paired with itself where each of its values is to be covered."""
    width = len(rows[0]) if rows else 0
    return list(combinations(range(width), 2)) if width > 1 and strength > 1 else [(n, n) for n in range(width)]


def _masks(rows: Sequence[Row], strength: int) -> tuple[list[int], list[Pair]]:
    """Return each row as the set of its pairs."""
    numbers: dict[Pair, int] = {}
    masks = []
    axes = _axes(rows, strength)
    for row in rows:
        mask = 0
        for a, b in axes:
            mask |= 1 << numbers.setdefault(((a, row[a]), (b, row[b])), len(numbers))
        masks.append(mask)
    return masks, list(numbers)


def _ranks(rows: Sequence[Row], seed: int) -> list[int]:
    """Rank the rows for ties: the first try takes the better row, the others an order of the rows' texts."""
    return [_hash(seed, row) if seed else i for i, row in enumerate(rows)]


def _hash(seed: int, row: Row) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}|{'|'.join(row)}".encode(), digest_size=8).digest(), "big")


def _greedy(masks: Sequence[int], first: Sequence[int], everything: int, ranks: Sequence[int]) -> list[int]:
    chosen = list(first)
    uncovered = everything & ~_held(masks, first)
    # What a row can add only shrinks: yesterday's gain is an upper bound, so most rows need no new count.
    gains = sorted((-masks[i].bit_count(), ranks[i], i) for i in range(len(masks)))
    while uncovered and gains:
        stale, rank, i = heapq.heappop(gains)
        gain = (masks[i] & uncovered).bit_count()
        if not gain:
            continue
        if gain == -stale:
            chosen.append(i)
            uncovered &= ~masks[i]
        else:
            heapq.heappush(gains, (-gain, rank, i))
    return chosen


def _thin(masks: Sequence[int], chosen: list[int], fixed: Collection[int], floor: int) -> list[int]:
    """Drop the rows that the others make needless, then replace two rows by one where one will do."""
    rows = _needed(masks, chosen, fixed)
    while len(rows) > floor and (smaller := _merge(masks, rows, fixed)):
        rows = smaller
    return rows


def _needed(masks: Sequence[int], chosen: Sequence[int], fixed: Collection[int]) -> list[int]:
    """Drop rows, last chosen first, whose pairs are all covered by other rows."""
    rows = list(chosen)
    for i in reversed(chosen):
        once = _held_once(masks, rows)
        if i not in fixed and not masks[i] & once:
            rows.remove(i)
    return rows


def _held(masks: Sequence[int], rows: Iterable[int]) -> int:
    """Return the pairs that some of the rows hold."""
    return reduce(or_, (masks[i] for i in rows), 0)


def _held_once(masks: Sequence[int], rows: Iterable[int]) -> int:
    """Return the pairs that exactly one of the rows holds."""
    once = twice = 0
    for i in rows:
        twice |= once & masks[i]
        once |= masks[i]
    return once & ~twice


def _merge(masks: Sequence[int], rows: Sequence[int], fixed: Collection[int]) -> list[int] | None:
    """Replace two rows by one, looked for among the pairs of rows that hold least alone."""
    once = _held_once(masks, rows)
    light = sorted((i for i in rows if i not in fixed), key=lambda i: (masks[i] & once).bit_count())[:_LIGHT]
    for a, b in combinations(light, 2):
        remaining = [i for i in rows if i not in (a, b)]
        missing = (masks[a] | masks[b]) & ~_held(masks, remaining)
        replacement = next((i for i, mask in enumerate(masks) if not missing & ~mask), None)
        if replacement is not None:
            return [*remaining, replacement]
    return None
