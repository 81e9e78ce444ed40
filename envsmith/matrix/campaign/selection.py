"""From the choices of a campaign to a plan: which cells are run, each once, and which combinations cannot exist."""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from envsmith.errors import UsageError
from envsmith.frameworks import EXAMPLE, frameworks_of
from envsmith.knowledge.graph.expiry import latest, load_expiry
from envsmith.knowledge.graph.location import find_matrix
from envsmith.matrix.campaign.choices import Campaign, Choice
from envsmith.matrix.campaign.job import Job, Plan, Settings
from envsmith.matrix.grid import default_builds
from envsmith.model.cell import Cell, CellId, Platform, Request
from envsmith.model.component import Role
from envsmith.model.record import Expected, read_records
from envsmith.model.rule import Knowledge, Severity
from envsmith.model.version import Spec, minor_of, public, version_key
from envsmith.solver import check as judge
from envsmith.solver.known_bad import known_bad, stated_by_metadata
from envsmith.solver.solver import Solver

# Releases by component, as text, and why they were chosen together.
Combination = tuple[Mapping[str, str], str]

# -- a campaign's choices as jobs --------------------------------------------------------------------------------------

# Stages that a run on the CPU goes through; a rule that speaks of others cannot be shown by it.
_CPU_STAGES = ("install", "import", "init", "train")
_FOLLOWS = frozenset({"nccl", "cudnn", "triton"})
# A choice that admits more cells than this is cut: it should be narrowed.
_MOST = 20_000
# A cell that breaks more rules is left out: what fails could not be attributed to one of them.
_MAX_BROKEN = 4


def make_plan(campaign: Campaign, composer: Composer, *, exclude_newer: str) -> Plan:
    """Return the jobs of every choice in order, each cell once. ``UsageError`` when there are none."""
    jobs: dict[str, Job] = {}
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
    return Plan(
        name=campaign.name,
        exclude_newer=campaign.exclude_newer or exclude_newer,
        jobs=_ordered(jobs.values()),
        ranks=campaign.ranks,
        tier=campaign.tier,
        left_out=tuple(left_out.items()),
        executor=campaign.executor,
        sources=campaign.sources,
    )


def _ordered(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Sort by torch, then Python, the frameworks in turn: long and short compilations alternate."""
    turns: dict[tuple[object, ...], int] = {}
    keyed = []
    for job in sorted(jobs, key=lambda job: job.order):
        group = (*job.order[:2], job.cell.frameworks)
        turns[group] = turns.get(group, 0) + 1
        keyed.append(((*job.order[:2], turns[group], job.cell.frameworks), job))
    return tuple(job for _, job in sorted(keyed, key=lambda pair: pair[0]))


def _combinations(choice: Choice, composer: Composer) -> Iterator[Combination]:
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
            if bad.stage in (choice.words or _CPU_STAGES) and _installable(bad.components, composer):
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


def valid_cells(choice: Choice, composer: Composer) -> Iterator[Cell]:
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


def _expired(choice: Choice) -> Iterator[Combination]:
    root = find_matrix()
    expiry = load_expiry(root)
    today = dt.datetime.now(dt.timezone.utc).date()
    for record in latest(read_records(root / "records")):
        due = expiry.until(record)
        if due < today and _fits(record.components, choice.where):
            yield _releases_of(record.cell), f"its record expired on {due.isoformat()}"


# -- one combination as a job ------------------------------------------------------------------------------------------


def without(solver: Solver, rules: frozenset[str]) -> Solver:
    """Return a solver that knows everything but ``rules``."""
    return Solver(solver.graph.without(rules)) if rules else solver


@dataclass(slots=True)
class Composer:
    """Compose cells for one platform. ``pythons`` are the minors that can be had where the campaign runs.

    A known-bad cell is composed by leaving out of account the rules that forbid it, and those alone: every other rule
    still holds, so that what fails is what the rule speaks of.
    """

    solver: Solver
    platform: Platform = Platform.LINUX_64
    pythons: tuple[str, ...] = ()
    _reduced: dict[frozenset[str], Solver] = field(default_factory=dict)

    def compose(self, releases: Mapping[str, str], why: str = "") -> Job | str:
        """Return the job of a combination, or one sentence why such a cell cannot exist.

        torch means its default build unless the build is named. Raises ``UsageError`` for names and versions that are
        none.
        """
        request = self._request(releases)
        broken: frozenset[str] = frozenset()
        while True:
            if broken not in self._reduced:
                self._reduced[broken] = without(self.solver, broken)
            solver = self._reduced[broken]
            posed = solver.pose(request)
            answer = solver.best(posed)
            if answer is not None:
                return self._job(answer.cell, broken, why)
            stuck = solver.stuck(posed.problem)
            rules = frozenset(g.rule for g in stuck.groups) if stuck else frozenset()
            if not rules:
                return "no package resolver would give it: no such release is known"
            breakable = frozenset(rule for rule in rules if not self._by_metadata(rule))
            if not breakable:
                return f"no package resolver would give it: {', '.join(sorted(rules))}"
            if len(broken | breakable) > _MAX_BROKEN:
                return f"too many rules: {', '.join(sorted(breakable))}"
            broken |= breakable

    def host_pythons(self) -> dict[str, tuple[Spec, str]]:
        """Return what a request is narrowed to: the interpreters of the host."""
        if not self.pythons:
            return {}
        spec = Spec.parse(" || ".join(f"=={minor}.*" for minor in self.pythons))
        return {"python": (spec, "interpreters of the host that runs the campaign")}

    def _by_metadata(self, name: str) -> bool:
        rule = next((r for r in self.solver.knowledge().rules if r.id == name), None)
        return rule is None or stated_by_metadata(rule)

    def _request(self, releases: Mapping[str, str]) -> Request:
        roles = self.solver.compiled.roles
        specs = {name: self._spec(name, text) for name, text in releases.items()}
        frameworks = {n: s for n, s in specs.items() if roles.get(n) is Role.FRAMEWORK}
        constraints = {n: s for n, s in specs.items() if n not in frameworks}
        narrowed = {} if "python" in constraints else self.host_pythons()
        return Request(frameworks=frameworks, constraints=constraints, platform=self.platform, narrowed=narrowed)

    def _spec(self, name: str, text: str) -> Spec:
        try:
            if name == "torch" and text[:1].isdigit() and "+" not in text:
                text = self._default_build(text)
            return Spec.exactly(text) if text[:1].isdigit() and name != "python" else Spec.parse(text)
        except ValueError as error:
            raise UsageError(f"Cannot read {name}: {error}.") from None

    def _default_build(self, version: str) -> str:
        """Return the build that the default index gives on the platform: the one with CUDA where there is one."""
        builds = [
            r.version
            for r in self.solver.knowledge().releases.get("torch", ())
            if r.index == "default" and self.platform in r.platforms and public(r.version) == version
        ]
        return next((b for b in builds if not b.endswith("+cpu")), builds[0] if builds else version)

    def _job(self, cell: Cell, broken: frozenset[str], why: str) -> Job:
        if broken:
            rules = [r for r in self.solver.knowledge().rules if r.id in broken]
            stages = tuple(sorted({r.stage for r in rules if r.stage}))
            return Job(cell=cell, expected=Expected.BAD, rules=tuple(sorted(broken)), stages=stages, why=why)
        judgement = judge(cell.components, cell.platform, solver=self.solver)
        warned = tuple(sorted({f.rule for f in judgement.findings if f.severity is Severity.WARNING}))
        if warned:
            return Job(cell=cell, expected=Expected.WARNED, rules=warned, why=why)
        return Job(cell=cell, expected=Expected.GOOD if judgement.status == "ok" else Expected.UNKNOWN, why=why)


# The campaign that follows frameworks: the best cell of each, which has its newest release, unless it is proved.

# One cell at a time: its wheels, and the environment that they are linked into.
_ONE_CELL = Settings(free_disk_gib=8)


def plan_newest(
    frameworks: Sequence[str], composer: Composer, *, last_day: str, tier: str, sources: Sequence[str] = ()
) -> Plan:
    """Return a plan of the best cell with the newest release of each framework, named after its cells.

    A release without a valid cell is left out with the reason, and the one before it is taken. uv sees the packages of
    ``last_day``, or of the day of the newest release among them: a release that came today is not on the index of
    yesterday.
    """
    left_out: dict[str, str] = {}
    choices = tuple(_choice(name, composer, left_out) for name in frameworks)
    campaign = Campaign(name="follow", choices=choices, tier=tier, sources=tuple(sources), executor=_ONE_CELL)
    plan = make_plan(campaign, composer, exclude_newer=last_day)
    dates = [_date(composer, name, v) for job in plan.jobs for name, v in job.cell.components.items()]
    cells = hashlib.sha256(" ".join(job.id for job in plan.jobs).encode()).hexdigest()[:12]
    named = replace(plan, name=f"follow-{cells}", exclude_newer=max([last_day, *dates]))
    return replace(named, left_out=(*left_out.items(), *plan.left_out))


def _choice(name: str, composer: Composer, left_out: dict[str, str]) -> Choice:
    releases = composer.solver.knowledge().releases.get(name, ())
    final = {public(r.version): key for r in releases if (key := version_key(r.version)) and not r.yanked}
    for version in sorted((v for v in final if not final[v].is_prerelease), key=final.__getitem__, reverse=True):
        choice = Choice(kind="solved", where={name: (f"=={version}",)}, take=1, why="its newest release")
        if next(valid_cells(choice, composer), None) is not None:
            return choice
        left_out[f"{name} {version}"] = "no valid cell of a default build has it with a Python of this host"
    raise UsageError(
        f"Cannot follow {name}: no release has a valid cell here.", hint=f"Ask envsmith solve --framework {name}."
    )


def _date(composer: Composer, name: str, version: str) -> str:
    compiled = composer.solver.compiled
    dates = zip(compiled.versions.get(name, ()), compiled.dates.get(name, ()), strict=False)
    return dict(dates).get(version) or ""


def unproved(plan: Plan, proved: Collection[str]) -> tuple[Job, ...]:
    """Return the jobs of ``plan`` whose cell is not among the ``proved`` ones."""
    return tuple(job for job in plan.jobs if job.id not in proved)
