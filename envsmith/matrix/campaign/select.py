"""Cells chosen by what the graph holds: every valid one, a covering subset, what changed, what expired."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from envsmith.errors import UsageError
from envsmith.matrix.campaign.compose import Composer
from envsmith.matrix.campaign.file import Choice
from envsmith.model.cell import Cell, Request
from envsmith.model.component import Role
from envsmith.model.rule import Knowledge
from envsmith.model.version import Spec, version_key

__all__ = ["covering", "selected"]

Wanted = tuple[Mapping[str, str], str]
# More cells than this are not looked through: a choice that admits more should be narrowed.
_MOST = 20_000
_AXES = ("torch", "python")


def selected(choice: Choice, composer: Composer) -> Iterator[Wanted]:
    """What ``solved``, ``cover``, ``expired`` and ``changed`` choose, best first. Raises ``UsageError``."""
    if choice.kind == "expired":
        yield from _expired(choice)
        return
    cells = _valid(choice, composer)
    if choice.kind == "cover":
        for cell in covering(list(cells)):
            yield _named(cell), "covers a pair of releases"
    elif choice.kind == "changed":
        since = choice.since or ""
        if not since:
            raise UsageError("changed: `since` is missing", hint="give a day: changed: {since: 2026-11-01}")
        known = composer.solver.knowledge()
        for cell in cells:
            if why := _changed(known, cell, since):
                yield _named(cell), why
    else:
        for cell in cells:
            yield _named(cell), "valid"


def _valid(choice: Choice, composer: Composer) -> Iterator[Cell]:
    """Valid cells of default builds, one framework each, in the solver's order."""
    roles = composer.solver.compiled.roles
    specs = {name: Spec.parse(" || ".join(texts)) for name, texts in choice.where.items()}
    frameworks = [n for n in specs if roles.get(n) is Role.FRAMEWORK]
    if not frameworks:
        raise UsageError(
            f"{choice.kind}: no framework is named", hint=f"{choice.kind}: {{deepspeed: '*', torch: '>=2.4'}}"
        )
    narrowed = _narrowed(composer)
    for framework in frameworks:
        rest = {n: s for n, s in specs.items() if n not in frameworks}
        request = Request(
            frameworks={framework: specs[framework]}, constraints=rest, platform=composer.platform, narrowed=narrowed
        )
        for count, answer in enumerate(composer.solver.cells(composer.solver.pose(request))):
            # From here on come cells with pre-releases and withdrawn releases.
            if count >= _MOST or "pre" not in answer.avoided:
                break
            yield answer.cell


def _narrowed(composer: Composer) -> dict[str, tuple[Spec, str]]:
    """Default builds of torch, and the Pythons that can be had where the campaign runs."""
    from envsmith.matrix.export.grid import default_builds

    builds = default_builds(composer.solver.knowledge(), composer.platform)
    found = {"torch": (Spec(" || ".join(f"=={build}" for build in builds)), "a campaign runs default builds")}
    if composer.pythons:
        spec = Spec.parse(" || ".join(f"=={minor}.*" for minor in composer.pythons))
        found["python"] = (spec, "interpreters of the host that runs the campaign")
    return found


def _named(cell: Cell) -> dict[str, str]:
    return {name: cell.components[name] for name in cell.chosen if name != "cuda"}


def covering(cells: Sequence[Cell]) -> list[Cell]:
    """Few cells in which every pair of releases occurs that occurs in ``cells``: framework with torch, framework with Python, torch with Python.

    Greedy: the cell with most new pairs comes next, the earlier one where two have as many.
    """
    pairs = [_pairs(cell) for cell in cells]
    missing = set().union(*pairs) if pairs else set()
    chosen = []
    left = dict(enumerate(pairs))
    while missing:
        best = max(left, key=lambda n: (len(left[n] & missing), -n))
        chosen.append(cells[best])
        missing -= left.pop(best)
        left = {n: own & missing for n, own in left.items() if own & missing}
    return chosen


def _pairs(cell: Cell) -> frozenset[tuple[tuple[str, str], ...]]:
    """The framework counts by its minor series: patch releases stand for each other here."""
    values = [(n, _series(cell.components[n])) for n in cell.frameworks]
    values += [(n, cell.components[n]) for n in _AXES]
    return frozenset(combinations(values, 2))


def _series(version: str) -> str:
    key = version_key(version)
    return ".".join(map(str, key.release[:2])) if key else version


def _changed(known: Knowledge, cell: Cell, since: str) -> str:
    """What of a cell is newer than a day: a release, or a rule that speaks of its releases; empty when nothing is."""
    for name, version in cell.components.items():
        for release in known.releases.get(name, ()):
            if release.version == version and release.date and release.date >= since:
                return f"{name} {version} was released on {release.date}"
    for rule in known.rules:
        if rule.id.startswith("torch-") or "-declares-" in rule.id:
            continue
        for row in rule.rows:
            newest = max((e.date for e in row.evidence), default="")
            if newest >= since and all(
                n in cell.components and s.contains(cell.components[n]) for n, s in row.when.items()
            ):
                return f"rule {rule.id} has evidence of {newest}"
    return ""


def _expired(choice: Choice) -> Iterator[Wanted]:
    from envsmith.graph.data import find_matrix
    from envsmith.matrix.campaign.choose import wanted_of_id
    from envsmith.matrix.expiry import latest, load_expiry
    from envsmith.matrix.records import read_records

    root = find_matrix()
    expiry = load_expiry(root)
    today = dt.datetime.now(dt.timezone.utc).date()
    for record in latest(read_records(root / "records")):
        due = expiry.until(record)
        fits = all(
            n in record.components and any(Spec.parse(t).contains(record.components[n]) for t in texts)
            for n, texts in choice.where.items()
        )
        if due < today and fits:
            yield wanted_of_id(record.cell), f"its record expired on {due.isoformat()}"
