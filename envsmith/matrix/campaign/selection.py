"""From the choices of a campaign to a plan: which cells are run, each once, and which combinations cannot exist."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE, frameworks_of
from envsmith.knowledge.graph.expiry import latest, load_expiry
from envsmith.knowledge.graph.location import find_matrix
from envsmith.matrix.campaign.choices import Campaign, CellChoice
from envsmith.matrix.campaign.composer import Composer
from envsmith.matrix.campaign.job import CampaignJob, CampaignPlan
from envsmith.matrix.grid import default_builds
from envsmith.model.cell import Cell, CellId, Request
from envsmith.model.component import Role
from envsmith.model.record import read_records
from envsmith.model.rule import Knowledge
from envsmith.model.version import Spec, minor_of, version_key
from envsmith.solver.known_bad import known_bad

# Releases by component, as text, and why they were chosen together.
Combination = tuple[Mapping[str, str], str]

# Stages that a run on the CPU goes through; a rule that speaks of others cannot be shown by it.
_CPU_STAGES = ("install", "import", "init", "train")
_FOLLOWS = frozenset({"nccl", "cudnn", "triton"})
# A choice that admits more cells than this is cut: it should be narrowed.
_MOST = 20_000


def make_plan(campaign: Campaign, composer: Composer, *, exclude_newer: str) -> CampaignPlan:
    """Return the jobs of every choice in order, each cell once. ``UsageError`` when there are none."""
    jobs: dict[str, CampaignJob] = {}
    left_out: dict[str, str] = {}
    for choice in campaign.choices:
        count = 0
        for releases, why in _combinations(choice, composer):
            job = composer.compose(releases, choice.why or why)
            if isinstance(job, str):
                left_out[" ".join(f"{n} {v}" for n, v in releases.items())] = job
            elif choice.kind != "bad" or _fits(job.cell.components, choice.where):
                count += jobs.setdefault(job.id, job) is job
            if choice.take is not None and count >= choice.take:
                break
    if not jobs:
        reasons = [f"{k}: {v}" for k, v in itertools.islice(left_out.items(), 3)]
        because = f"Cannot run the campaign {campaign.name}: it chooses no cell."
        raise UsageError(because, details=reasons, hint="Change its `cells:`.")
    return CampaignPlan(
        name=campaign.name,
        exclude_newer=campaign.exclude_newer or exclude_newer,
        jobs=_ordered(jobs.values()),
        ranks=campaign.ranks,
        tier=campaign.tier,
        left_out=tuple(left_out.items()),
        executor=campaign.executor,
        sources=campaign.sources,
    )


def _ordered(jobs: Iterable[CampaignJob]) -> tuple[CampaignJob, ...]:
    """Sort by torch, then Python, the frameworks in turn: long and short compilations alternate."""
    turns: dict[tuple[object, ...], int] = {}
    keyed = []
    for job in sorted(jobs, key=lambda job: job.order):
        group = (*job.order[:2], job.cell.frameworks)
        turns[group] = turns.get(group, 0) + 1
        keyed.append(((*job.order[:2], turns[group], job.cell.frameworks), job))
    return tuple(job for _, job in sorted(keyed, key=lambda pair: pair[0]))


def _combinations(choice: CellChoice, composer: Composer) -> Iterator[Combination]:
    """Return what a choice chooses, best first. Raises ``UsageError``."""
    if choice.kind == "grid":
        for values in itertools.product(*choice.where.values()):
            yield dict(zip(choice.where, values, strict=True)), "grid"
    elif choice.kind == "ids":
        for text in choice.words:
            yield _releases_of(text), "named"
    elif choice.kind == "bad":
        # Cells next to the bounds of the rules that a run can show.
        for bad in known_bad(composer.solver.knowledge(), worst=True):
            stated = {name: texts for name, texts in choice.where.items() if name in bad.components}
            is_meant = bad.stage in (choice.words or _CPU_STAGES) and _fits(bad.components, stated)
            if is_meant and _installable(bad.components, composer):
                yield dict(bad.components), f"known bad: {bad.rule}"
    elif choice.kind == "expired":
        yield from _expired(choice)
    elif choice.kind == "cover":
        for cell in covering(list(valid_cells(choice, composer))):
            yield _named(cell), "covers a pair of releases"
    elif choice.kind == "changed":
        if choice.since is None:
            raise UsageError(
                "Cannot choose changed cells: `since` is missing.", hint="Give a day: changed: {since: 2026-11-01}."
            )
        for cell in valid_cells(choice, composer):
            if why := _changed(composer.solver.knowledge(), cell, choice.since):
                yield _named(cell), why
    else:
        for cell in valid_cells(choice, composer):
            yield _named(cell), "valid"


def _releases_of(text: str) -> dict[str, str]:
    """Return the releases of a cell's id. ``UsageError`` when it is none."""
    try:
        components = CellId.parse(text).components
    except ValueError as error:
        raise UsageError(f"Cannot choose cells: {error}.") from None
    return {name: version for name, version in components if name != "cuda"}  # which follows from torch's build


def _installable(components: Mapping[str, str], composer: Composer) -> bool:
    """Return whether the host can have them: a framework, packages that can be installed, one of its interpreters."""
    roles, table = composer.solver.compiled.roles, composer.solver.knowledge().components
    if not frameworks_of(components) or any(roles[n] is Role.HOST for n in components):
        return False
    if "python" in components and minor_of(components["python"]) not in composer.pythons:
        return False
    return all(
        roles[n] in (Role.FRAMEWORK, Role.CORE) or bool(table.by_name[n].distributions)
        for n in components
        if n not in _FOLLOWS
    )


def _fits(components: Mapping[str, str], where: Mapping[str, Iterable[str]]) -> bool:
    return all(
        name in components and any(Spec.parse(text).contains(components[name]) for text in texts)
        for name, texts in where.items()
    )


def valid_cells(choice: CellChoice, composer: Composer) -> Iterator[Cell]:
    """Return the valid cells of default builds, one framework each, in the solver's order."""
    solver = composer.solver
    specs = {name: Spec.parse(" || ".join(texts)) for name, texts in choice.where.items()}
    frameworks = frameworks_of(specs)
    if not frameworks:
        hint = f"Write for example {choice.kind}: {{{EXAMPLE}: '*', torch: '>=2.4'}}."
        raise UsageError(f"Cannot choose cells of {choice.kind}: no framework is named.", hint=hint)
    builds = " || ".join(f"=={build}" for build in default_builds(solver.knowledge(), composer.platform))
    narrowed = {"torch": (Spec(builds), "a campaign runs default builds"), **composer.host_pythons()}
    for framework in frameworks:
        request = Request(
            frameworks={framework: specs[framework]},
            constraints={n: s for n, s in specs.items() if n not in frameworks},
            platform=composer.platform,
            narrowed=narrowed,
        )
        for answer in itertools.islice(solver.cells(solver.pose(request)), _MOST):
            # From here on come cells with pre-releases and withdrawn releases.
            if "pre" not in answer.avoided:
                break
            yield answer.cell


def _named(cell: Cell) -> dict[str, str]:
    return {name: cell.components[name] for name in cell.chosen if name != "cuda"}


def covering(cells: Sequence[Cell]) -> list[Cell]:
    """Return few cells with every pair of ``cells``: framework and torch, framework and Python, torch and Python.

    Greedy: the cell with most new pairs comes next, the earlier one where two have as many.
    """
    pairs = dict(enumerate(map(_pairs, cells)))
    missing = set().union(*pairs.values())
    chosen = []
    while missing:
        best = max(pairs, key=lambda n: (len(pairs[n] & missing), -n))
        chosen.append(cells[best])
        missing -= pairs.pop(best)
        pairs = {n: own & missing for n, own in pairs.items() if own & missing}
    return chosen


def _pairs(cell: Cell) -> frozenset[tuple[tuple[str, str], ...]]:
    """Return the pairs of a cell. Patch releases of a framework stand for each other here."""
    values = [(n, _series(cell.components[n])) for n in cell.frameworks]
    values += [(n, cell.components[n]) for n in ("torch", "python")]
    return frozenset(itertools.combinations(values, 2))


def _series(version: str) -> str:
    key = version_key(version)
    return ".".join(map(str, key.release[:2])) if key else version


def _changed(knowledge: Knowledge, cell: Cell, since: str) -> str:
    """Return which release of a cell, or rule about it, is newer than a day, or an empty text."""
    for name, version in cell.components.items():
        for release in knowledge.releases.get(name, ()):
            if release.version == version and release.date and release.date >= since:
                return f"{name} {version} was released on {release.date}"
    for rule in knowledge.rules:
        if rule.id.startswith("torch-") or rule.is_declared or rule.is_extra:
            continue
        for row in rule.rows:
            newest = max((e.date for e in row.evidence), default="")
            if newest >= since and all(
                n in cell.components and s.contains(cell.components[n]) for n, s in row.when.items()
            ):
                return f"rule {rule.id} has evidence of {newest}"
    return ""


def _expired(choice: CellChoice) -> Iterator[Combination]:
    root = find_matrix()
    expiry = load_expiry(root)
    today = dt.datetime.now(dt.timezone.utc).date()
    for record in latest(read_records(root / "records")):
        due = expiry.until(record)
        if due < today and _fits(record.components, choice.where):
            yield _releases_of(record.cell), f"its record expired on {due.isoformat()}"
