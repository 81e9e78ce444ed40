"""A campaign's choices -> jobs: which cells are run, each once, and which combinations cannot exist."""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from envsmith.errors import DataError, UsageError
from envsmith.frameworks import EXAMPLE
from envsmith.graph.expiry import latest, load_expiry
from envsmith.graph.fields import Node, parse_yaml
from envsmith.matrix.campaign.job import Job, Plan
from envsmith.matrix.document import default_builds
from envsmith.model.cell import Cell, CellId, Platform, Request
from envsmith.model.component import ComponentTable, Role
from envsmith.model.record import Expected, read_records
from envsmith.model.rule import Knowledge, Severity
from envsmith.model.version import Spec, version_key
from envsmith.schema import Problems
from envsmith.solve import check, solver_of
from envsmith.solve.judge import known_bad, stated_by_metadata
from envsmith.solve.solver import Solver

# Stages that a run on the CPU goes through; a rule that speaks of others cannot be shown by it.
SHOWN = ("install", "import", "init", "train")
_FOLLOWS = frozenset({"nccl", "cudnn", "triton"})


@dataclass(slots=True)
class _Chooser:
    composer: Composer
    jobs: dict[str, Job] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, wanted: Mapping[str, str], why: str, where: Mapping[str, Iterable[str]]) -> bool:
        """Compose one; a combination that cannot exist is kept with its reason, a cell outside of ``where`` is not wanted."""
        found = self.composer.compose(wanted, why)
        if isinstance(found, str):
            self.left_out[" ".join(f"{n} {v}" for n, v in wanted.items())] = found
            return False
        if not _fits(found.cell.components, where):
            return False
        new = found.id not in self.jobs
        self.jobs.setdefault(found.id, found)
        return new


def make_plan(campaign: Campaign, composer: Composer, *, exclude_newer: str) -> Plan:
    """Every choice in order; a cell that two choose is run once. ``UsageError`` when nothing is left."""
    chooser = _Chooser(composer)
    for choice in campaign.choices:
        made = 0
        for wanted, why in _wanted(choice, composer):
            made += chooser.add(wanted, choice.why or why, choice.where if choice.kind == "bad" else {})
            if choice.take is not None and made >= choice.take:
                break
    if not chooser.jobs:
        raise UsageError(
            f"campaign {campaign.name}: no cell is chosen",
            hint="; ".join(f"{k}: {v}" for k, v in itertools.islice(chooser.left_out.items(), 3)) or "see `cells:`",
        )
    return Plan(
        name=campaign.name,
        exclude_newer=campaign.exclude_newer or exclude_newer,
        jobs=_ordered(chooser.jobs.values()),
        ranks=campaign.ranks,
        tier=campaign.tier,
        left_out=tuple(chooser.left_out.items()),
        executor=campaign.executor,
    )


def _ordered(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """By torch, then Python, the frameworks in turn: what compiles at its start then stands beside what does not."""
    ordered = sorted(jobs, key=lambda job: job.order)
    seen: dict[tuple[object, ...], int] = {}
    keyed = []
    for job in ordered:
        group = (*job.order[:2], job.cell.frameworks)
        seen[group] = seen.get(group, 0) + 1
        keyed.append(((*job.order[:2], seen[group], job.cell.frameworks), job))
    return tuple(job for _, job in sorted(keyed, key=lambda pair: pair[0]))


def _wanted(choice: Choice, composer: Composer) -> Iterator[tuple[Mapping[str, str], str]]:
    if choice.kind == "grid":
        for values in itertools.product(*choice.where.values()):
            yield dict(zip(choice.where, values, strict=True)), "grid"
    elif choice.kind == "ids":
        for text in choice.words:
            yield wanted_of_id(text), "named"
    elif choice.kind == "bad":
        yield from _bad(choice, composer)
    else:
        yield from selected(choice, composer)


def wanted_of_id(text: str) -> dict[str, str]:
    """What :meth:`Composer.compose` needs for the cell of an id. ``UsageError`` when it is none."""
    try:
        parsed = CellId.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    found = dict(parsed.components)
    found.pop("cuda", None)  # it follows from torch's build
    return found


def _bad(choice: Choice, composer: Composer) -> Iterator[tuple[Mapping[str, str], str]]:
    """Cells next to the bounds of the rules that a run can show: a framework, packages that can be installed, an interpreter of the host."""
    known = composer.solver.knowledge()
    stages = choice.words or SHOWN
    for bad in known_bad(known, worst=True):
        if bad.stage not in stages or not _installable(bad.components, composer):
            continue
        yield dict(bad.components), f"known bad: {bad.rule}"


def _installable(components: Mapping[str, str], composer: Composer) -> bool:
    roles, table = composer.solver.compiled.roles, composer.solver.knowledge().components
    if not any(roles[n] is Role.FRAMEWORK for n in components):
        return False
    if "python" in components and ".".join(components["python"].split(".")[:2]) not in composer.pythons:
        return False
    return all(
        roles[n] in (Role.FRAMEWORK, Role.CORE) or bool(table.by_name[n].distributions)
        for n in components
        if n not in _FOLLOWS
    ) and not any(roles[n] is Role.HOST for n in components)


def _fits(components: Mapping[str, str], where: Mapping[str, Iterable[str]]) -> bool:
    return all(
        name in components and any(Spec.parse(text).contains(components[name]) for text in texts)
        for name, texts in where.items()
    )


# From wished releases to a job: the cell that the solver gives, or, on purpose, the cell that a rule forbids.
#
# A known-bad cell is composed by leaving out of account the rules that forbid it, and those alone: every other rule still holds, so that
# what fails is what the rule speaks of.


# A cell that breaks more rules than this is nobody's: the rules would not be told apart.
_MAX_BROKEN = 4


def without(solver: Solver, rules: frozenset[str]) -> Solver:
    """A solver that knows everything but ``rules``."""
    if not rules:
        return solver
    known = solver.knowledge()
    return solver_of(dataclasses.replace(known, rules=tuple(r for r in known.rules if r.id not in rules)))


@dataclass(slots=True)
class Composer:
    """Composes cells for one platform; ``pythons`` are the minors that can be had where the campaign runs."""

    solver: Solver
    platform: Platform = Platform.LINUX_64
    pythons: tuple[str, ...] = ()
    _reduced: dict[frozenset[str], Solver] = field(default_factory=dict)

    def compose(self, wanted: Mapping[str, str], why: str = "") -> Job | str:
        """The job for ``wanted`` (component to spec), or one sentence why such a cell cannot exist.

        torch means its default build unless the build is named. Raises ``UsageError`` for names and versions that are none.
        """
        request = self._request(wanted)
        broken: frozenset[str] = frozenset()
        while True:
            solver = self.without(broken)
            posed = solver.pose(request)
            answer = solver.best(posed)
            if answer is not None:
                return self._job(answer.cell, broken, why)
            stuck = solver.stuck(posed)
            rules = frozenset(g.rule for g in stuck.groups) if stuck else frozenset()
            fixed = sorted(r for r in rules if self._by_metadata(r))
            if not rules or fixed or len(broken | rules) > _MAX_BROKEN:
                told = ", ".join(fixed or sorted(rules)) or "no such release is known"
                return f"no package resolver would give it: {told}" if fixed or not rules else f"too many rules: {told}"
            broken |= rules

    def without(self, rules: frozenset[str]) -> Solver:
        """As :func:`without`, each set compiled once."""
        if rules not in self._reduced:
            self._reduced[rules] = without(self.solver, rules)
        return self._reduced[rules]

    def _by_metadata(self, rule: str) -> bool:
        found = next((r for r in self.solver.knowledge().rules if r.id == rule), None)
        return found is None or stated_by_metadata(found)

    def _request(self, wanted: Mapping[str, str]) -> Request:
        roles = self.solver.compiled.roles
        specs = {name: self._spec(name, text) for name, text in wanted.items()}
        frameworks = {n: s for n, s in specs.items() if roles.get(n) is Role.FRAMEWORK}
        others = {n: s for n, s in specs.items() if n not in frameworks}
        narrowed = {}
        if self.pythons and "python" not in others:
            spec = Spec.parse(" || ".join(f"=={minor}.*" for minor in self.pythons))
            narrowed["python"] = (spec, "interpreters of the host that runs the campaign")
        return Request(frameworks=frameworks, constraints=others, platform=self.platform, narrowed=narrowed)

    def _spec(self, name: str, text: str) -> Spec:
        try:
            if name == "torch" and text[:1].isdigit() and "+" not in text:
                text = self._default_build(text)
            return Spec.exactly(text) if text[:1].isdigit() and name != "python" else Spec.parse(text)
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None

    def _default_build(self, version: str) -> str:
        """The build that the default index gives on the platform: the one with CUDA where there is one."""
        builds = [
            r.version
            for r in self.solver.knowledge().releases.get("torch", ())
            if r.index == "default" and self.platform in r.platforms and r.version.partition("+")[0] == version
        ]
        return next((b for b in builds if not b.endswith("+cpu")), builds[0] if builds else version)

    def _job(self, cell: Cell, broken: frozenset[str], why: str) -> Job:
        if broken:
            rules = [r for r in self.solver.knowledge().rules if r.id in broken]
            stages = tuple(sorted({r.stage for r in rules if r.stage}))
            return Job(cell=cell, expected=Expected.BAD, rules=tuple(sorted(broken)), stages=stages, why=why)
        judged = check(cell.components, cell.platform, solver=self.solver)
        warned = tuple(sorted({f.rule for f in judged.findings if f.severity is Severity.WARNING}))
        if warned:
            return Job(cell=cell, expected=Expected.WARNED, rules=warned, why=why)
        return Job(cell=cell, expected=Expected.GOOD if judged.status == "ok" else Expected.UNKNOWN, why=why)


# The campaign file: YAML from a person -> :class:`Campaign`, or one error with every problem and its key path.


_SCHEMA = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,39}")
_KINDS = ("grid", "solved", "cover", "bad", "ids", "expired", "changed")
_MAX = 100_000
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One line of ``cells:``. ``kind`` is one of grid, solved, cover, bad, ids, expired, changed.

    ``where`` maps a component to specs (each alone for ``grid``, their union for the others); ``words`` are cell ids, stages or rule ids;
    ``since`` an ISO day; ``take`` how many at most.
    """

    kind: str
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    since: str | None = None
    take: int | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Campaign:
    """``executor`` are the settings of the executor that is called, by its own names."""

    name: str
    choices: tuple[Choice, ...]
    ranks: int = 2
    tier: str = "quick"
    exclude_newer: str | None = None
    executor: Mapping[str, object] = field(default_factory=dict)


def read_campaign(path: Path, table: ComponentTable) -> Campaign:
    """Read a campaign file. ``DataError`` lists every problem."""
    problems = Problems()
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path}: larger than {_MAX_BYTES >> 20} MiB")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    root = parse_yaml(str(path), content, problems)
    campaign = _campaign(root, table) if root is not None else None
    if problems.lines or campaign is None:
        raise DataError(
            f"{path}: no campaign file",
            details=problems.lines,
            hint="the fields are described in docs/how-to/campaigns.md",
        )
    return campaign


def _campaign(root: Node, table: ComponentTable) -> Campaign | None:
    fields = root.fields(("schema", "name", "cells"), ("ranks", "tier", "exclude_newer", "executor"))
    if "schema" in fields and fields["schema"].value != _SCHEMA:
        fields["schema"].wrong("another schema", f"this envsmith reads schema: {_SCHEMA}")
    name = fields["name"].text() if "name" in fields else None
    if name and not _NAME.fullmatch(name):
        fields["name"].wrong("no name of a campaign", "lower-case letters, digits, dots and hyphens")
    tier = fields["tier"].text() if "tier" in fields else "quick"
    if tier not in {"import", "quick", "full", "framework"}:
        fields["tier"].wrong("unknown tier", "choose import, quick, full or framework")
    day = fields["exclude_newer"].day() if "exclude_newer" in fields else None
    choices = [_choice(node, table) for node in (fields["cells"].sequence() if "cells" in fields else [])]
    executor = _settings(fields["executor"]) if "executor" in fields else {}
    return Campaign(
        name=name or "",
        choices=tuple(c for c in choices if c),
        ranks=_number(fields.get("ranks"), 2, 64) or 2,
        tier=tier or "quick",
        exclude_newer=day,
        executor=executor,
    )


def _settings(node: Node) -> dict[str, object]:
    known = (
        "jobs",
        "free_disk_gib",
        "free_memory_gib",
        "partition",
        "cpus",
        "gpus",
        "minutes",
        "memory_gib",
        "at_once",
        "python",
    )
    fields = node.fields((), known)
    found: dict[str, object] = {}
    for name, value in fields.items():
        found[name] = value.text() if name in {"partition", "python"} else _number(value, 0, _MAX)
    return found


def _choice(node: Node, table: ComponentTable) -> Choice | None:
    fields = node.fields((), (*_KINDS, "take", "why"))
    kinds = [kind for kind in _KINDS if kind in fields]
    if len(kinds) != 1:
        node.wrong("one of " + ", ".join(_KINDS) + " belongs here", "each entry of `cells` is one way to choose")
        return None
    kind = kinds[0]
    take, why = _number(fields.get("take"), 1, _MAX), fields["why"].text() if "why" in fields else ""
    if kind == "ids":
        return Choice(kind=kind, words=_texts(fields[kind]), take=take, why=why or "")
    own = dict(fields[kind].items())
    words = _texts(own.pop("stages")) if kind == "bad" and "stages" in own else ()
    since = own.pop("since").day() if kind == "changed" and "since" in own else None
    where = {}
    for name, value in own.items():
        component = table.find(name)
        if component is None:
            value.wrong("unknown component", "see matrix/components.yaml")
        else:
            where[component.name] = _specs(value)
    return Choice(kind=kind, where=where, words=words, since=since, take=take, why=why or "")


def _specs(node: Node) -> tuple[str, ...]:
    nodes = node.sequence() if isinstance(node.value, list) else [node]
    specs = [n.spec() for n in nodes]
    return tuple(s.text for s in specs if isinstance(s, Spec))


def _texts(node: Node) -> tuple[str, ...]:
    return tuple(t for t in (n.text(maximum=200) for n in node.sequence()) if t)


def _number(node: Node | None, least: int, most: int) -> int | None:
    if node is None:
        return None
    if isinstance(node.value, bool) or not isinstance(node.value, int) or not least <= node.value <= most:
        node.wrong(f"a number from {least} to {most} belongs here")
        return None
    return node.value


# Cells chosen by what the graph holds: every valid one, a covering subset, what changed, what expired.


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
            f"{choice.kind}: no framework is named", hint=f"{choice.kind}: {{{EXAMPLE}: '*', torch: '>=2.4'}}"
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
    from envsmith.graph.files import find_matrix

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
