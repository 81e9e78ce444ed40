"""``rules/imports.yaml``: which releases of other packages the import of a package fails with.

The names that the import takes (``names/NAME.takes``) are held against the names that each release of another package
has. A pair that another rule forbids already makes no rule. The file is made here as a whole.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from envsmith.base.files import read_text
from envsmith.knowledge.graph.location import MAX_FILE_BYTES
from envsmith.knowledge.graph.read import read_knowledge
from envsmith.knowledge.names.modules import is_shared
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.names_file import NamesFile, Table
from envsmith.knowledge.names.presence import Presence, spec_of
from envsmith.knowledge.names.takes import SUFFIX, Take, parse
from envsmith.matrix.refresh.measured_names import merge, read_packages
from envsmith.matrix.refresh.updates import FileChange
from envsmith.model.component import ComponentTable
from envsmith.model.rule import Knowledge, Row, Severity
from envsmith.model.version import Spec

FILE = "rules/imports.yaml"
_DATE = re.compile(r"^  (?P<name>[\w-]+): \{kind: measured, .* date: (?P<day>[\d-]+)\}$", re.MULTILINE)
_HEAD = """\
# Made by `envsmith matrix refresh --names`: names that the import of a package takes, and releases of others that lack
# them. Change the maker (envsmith/matrix/refresh/gaps.py), not the lines.
evidence:
"""
_EVIDENCE = '  {name}: {{kind: measured, source: "sources of {name} {first} to {last} on the package index, held against matrix/names", date: {day}}}\n'
_RULE = """\
- id: {name}-{verb}-{offering}
  kind: requires
  severity: {severity}
  stage: {stage}
  fix: "Use a release of {offering} with that name, or another one of {name}."
  rows:
{rows}
  evidence: [{name}]
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRules:
    """The rules of one package as text, and the releases that they were made from."""

    name: str
    first: str
    last: str
    text: str


def plan_gaps(matrix_dir: Path, today: str) -> tuple[FileChange, ...]:
    """Return the file where it would change. It follows from ``names/`` and from the other rules."""
    path = matrix_dir / FILE
    old = read_text(path, MAX_FILE_BYTES) if path.is_file() else None
    measured = list(measure_gaps(matrix_dir))
    changed = [m for m in measured if m.text not in (old or "")]
    days = {match["name"]: match["day"] for match in _DATE.finditer(old or "")}
    days |= {m.name: today for m in measured if m in changed or m.name not in days}
    evidence = [_EVIDENCE.format(name=m.name, first=m.first, last=m.last, day=days[m.name]) for m in measured]
    new = "".join([_HEAD, *evidence, "rules:\n", *(m.text for m in measured)])
    if new == old or not measured:
        return ()
    counts = (
        f"{sum(m.text.count('- id:') for m in measured)} rules, {sum(m.text.count('{when') for m in measured)} rows"
    )
    names = ", ".join(m.name for m in changed) or "evidence"
    return (FileChange(path=path, old=old, new=new, summary=(f"{FILE}: {counts}; new: {names}",)),)


def measure_gaps(matrix_dir: Path) -> Iterator[MeasuredRules]:
    """Yield the rules of each package that takes names which a release of another lacks."""
    knowledge = read_knowledge(matrix_dir)
    index, packages = NameIndex(matrix_dir / "names"), read_packages(matrix_dir / "names")
    for user, files in _files(matrix_dir / "names", knowledge.components):
        heads = [file.head for file in files]
        versions = list(dict.fromkeys(m.version for head in heads for m in head.releases))
        parts = frozenset(part for head in heads for part in packages[head.distribution].parts)
        versions.sort(key=Version)
        gaps: dict[str, list[Gap]] = defaultdict(list)
        for gap in _merged(find_gaps(_joined(files, versions), {head.distribution for head in heads}, index)):
            offering = _component(gap.offering, knowledge.components)
            # Of what is published in several distributions, the names of one say too little.
            is_whole = offering and len(knowledge.components.by_name[offering].distributions) == 1
            # What a function takes of a shared folder, another distribution may bring.
            is_direct = gap.is_called and gap.name.count(".") == 1
            may_be_others = is_direct and is_shared(gap.name.partition(".")[0])
            if offering and is_whole and offering != user and not may_be_others:
                gaps[offering].append(gap)
        text = "".join(
            _rules(knowledge, (user, versions), offering, gaps[offering], parts) for offering in sorted(gaps)
        )
        if text:
            yield MeasuredRules(name=user, first=versions[0], last=versions[-1], text=text)


def _files(folder: Path, table: ComponentTable) -> Iterator[tuple[str, list[NamesFile]]]:
    """Yield each component with the files of its distributions, the first distribution first."""
    for name, component in sorted(table.by_name.items()):
        paths = [folder / f"{distribution}{SUFFIX}" for distribution in component.distributions]
        if files := [NamesFile(path) for path in paths if path.is_file()]:
            yield name, files


def _joined(files: Sequence[NamesFile], versions: Sequence[str]) -> Table:
    """Return one table: of a release that several distributions have, the lines of the first."""
    counted: set[str] = set()
    tables: list[tuple[Table, list[str], list[str]]] = []
    for file in files:
        own = [m.version for m in file.head.releases]
        tables.append((file.table(), own, [version for version in own if version not in counted]))
        counted.update(own)
    return merge(*tables, versions=versions)


def _component(distribution: str, table: ComponentTable) -> str | None:
    """Return the component whose releases are those of a distribution."""
    component = table.find(distribution)
    return component.name if component and component.distributions[:1] == (distribution,) else None


def _merged(gaps: Iterable[Gap]) -> Iterator[Gap]:
    """Yield gaps of one name as one, whichever modules take it."""
    same: dict[tuple[str, bool, str, frozenset[str]], Gap] = {}
    for gap in gaps:
        key = (gap.entry, gap.is_called, gap.name, gap.lacking)
        earlier = same.get(key)
        newest = max(earlier or gap, gap, key=lambda g: g.users)
        places = (*(earlier.places if earlier else ()), *gap.places)
        same[key] = replace(newest, places=places)
    yield from same.values()


def _rules(
    knowledge: Knowledge, users: tuple[str, Sequence[str]], offering: str, gaps: Sequence[Gap], parts: frozenset[str]
) -> str:
    """Return a rule of what the import takes, and one of what functions take when they are called."""
    user, versions = users
    forbidden = _forbidden(knowledge, users, (offering, gaps[0].releases))
    rows: dict[bool, list[tuple[int, str]]] = {False: [], True: []}
    for gap, bits in _choose(gaps, [forbidden[v] for v in versions], parts):
        rows[gap.is_called].append((bits, _row(users, offering, bits, gap, parts)))
    kinds = ((False, "imports", "error", "import"), (True, "calls", "warning", "train"))
    return "".join(
        _RULE.format(name=user, offering=offering, verb=verb, severity=severity, stage=stage, rows=_lines(rows[later]))
        for later, verb, severity, stage in kinds
        if rows[later]
    )


def _lines(rows: Sequence[tuple[int, str]]) -> str:
    return "\n".join(text for _, text in sorted(rows, key=lambda row: (row[0] & -row[0], row[1])))


def _row(users: tuple[str, Sequence[str]], offering: str, bits: int, gap: Gap, parts: frozenset[str]) -> str:
    user, versions = users
    run = [v for at, v in enumerate(versions) if bits >> at & 1]
    place = max(gap.places, key=lambda place: (place.users & bits).bit_count())
    when = f"=={run[0]}" if len(run) == 1 else f">={run[0]},<={run[-1]}"
    needs = spec_of(gap.releases, frozenset(gap.releases) - gap.lacking)
    cause = f"The import of {gap.entry} takes {gap.name} in {place.module}."
    if place.function:
        verb = "imports" if "Import" in gap.error or "Module" in gap.error else "takes"
        cause = f"{place.module}.{place.function} {verb} {gap.name} when it is called."
    severity = "severity: warning, " if gap.entry in parts and not place.function else ""
    return (
        f'  - {{when: {{{user}: "{when}"}}, needs: {{{offering}: "{needs}"}}, {severity}'
        f"symptom: {json.dumps(gap.error)}, cause: {json.dumps(cause)}}}"
    )


def _choose(
    gaps: Sequence[Gap], forbidden: Sequence[frozenset[str]], parts: frozenset[str]
) -> Iterator[tuple[Gap, int]]:
    """Yield the gaps that say something new, each with runs of the releases for which it does.

    Of two names of which more releases lack the one, that one says it all. What stops a part only says nothing of what
    stops every program, and what stops a function when it is called nothing of either.
    """
    chosen: dict[Gap, int] = defaultdict(int)
    order = sorted(
        gaps,
        key=lambda gap: (
            gap.is_called,
            gap.entry in parts,
            -len(gap.lacking),
            -gap.users.bit_count(),
            gap.entry,
            gap.name,
        ),
    )
    for at, pairs in enumerate(forbidden):
        covered: list[frozenset[str]] = []
        for gap in (_new_side(gap, pairs) for gap in order if gap.users >> at & 1):
            if gap.is_called and pairs.issuperset(set(gap.releases) - gap.lacking):
                continue  # the package allows no release that has the name, so what takes it is not called
            if gap.lacking and not any(gap.lacking <= lacking for lacking in covered):
                covered.append(gap.lacking)
                chosen[gap] |= 1 << at
    for gap, bits in chosen.items():
        for run in _runs(gap.users):
            if new := run & bits:  # from the first to the last: between them a pair may be forbidden otherwise
                yield gap, run & -(new & -new) & ((1 << new.bit_length()) - 1)


def _new_side(gap: Gap, forbidden: frozenset[str]) -> Gap:
    """Return a gap without the ends of its releases that are forbidden already: too old, or too new."""
    bits = sum(1 << at for at, release in enumerate(gap.releases) if release in gap.lacking)
    runs = [frozenset(r for at, r in enumerate(gap.releases) if run >> at & 1) for run in _runs(bits)]
    return replace(gap, lacking=frozenset().union(*(run for run in runs if run - forbidden)))


def _runs(bits: int) -> Iterator[int]:
    """Yield the runs of neighbouring bits."""
    while bits:
        run = ((bits + (bits & -bits)) ^ bits) & bits
        yield run
        bits ^= run


def _forbidden(
    knowledge: Knowledge, user: tuple[str, Sequence[str]], offering: tuple[str, Sequence[str]]
) -> dict[str, frozenset[str]]:
    """Return for each release of the one which releases of the other a rule forbids with it, whatever else is there.

    Of torch it has builds, not releases: what it does not list is forbidden too, and its names are there for logs.
    """
    names = {user[0], offering[0]}
    own = {f"{user[0]}-{verb}-{offering[0]}" for verb in ("imports", "calls")}
    builds = {str(r.version).partition("+")[0] for r in knowledge.releases.get("torch", ())}
    unlisted = frozenset(offering[1]) - builds if offering[0] == "torch" else frozenset[str]()
    forbidden: dict[str, frozenset[str]] = dict.fromkeys(user[1], unlisted)
    for rule in knowledge.rules:
        if rule.locking or rule.policies or rule.id in own or not names & set(rule.components):
            continue
        for row in rule.rows:
            if row.severity is not Severity.ERROR or row.platforms or not set(row.scope) <= names:
                continue
            matching, fitting = _releases(row, *offering)
            for version in (v for v in user[1] if _admits(row.when, user[0], v)):
                right = bool(row.needs) and _admits(row.needs, user[0], version)
                forbidden[version] |= matching - fitting if right else matching
    return forbidden


def _releases(row: Row, name: str, releases: Sequence[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the releases of which a row speaks, and those that have what it needs."""
    return (
        frozenset(v for v in releases if _admits(row.when, name, v)),
        frozenset(v for v in releases if _admits(row.needs, name, v)),
    )


def _admits(specs: Mapping[str, Spec], name: str, version: str) -> bool:
    spec = specs.get(name)
    return spec is None or spec.contains(version)


@dataclass(frozen=True, kw_only=True, slots=True)
class TakingPlace:
    """The module that takes a name, the function that does so when it is called, and the bits of the releases."""

    module: str
    function: str
    users: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """A name that the import of ``entry`` takes in ``places``, and the releases of ``offering`` that lack it.

    ``error`` is what Python says with the newest of ``lacking``.
    """

    entry: str
    places: tuple[TakingPlace, ...]
    name: str
    error: str
    offering: str
    releases: tuple[str, ...]
    lacking: frozenset[str]

    @property
    def users(self) -> int:
        """Return the bits of the releases that take it."""
        return functools.reduce(operator.or_, (place.users for place in self.places))

    @property
    def is_called(self) -> bool:
        """Return whether functions take it when they are called."""
        return bool(self.places[0].function)


def find_gaps(table: Table, own: Collection[str], index: NameIndex) -> Iterator[Gap]:
    """Yield the gaps of a package, the distributions ``own``, from the table of what it takes, by entry and name."""
    for entry, lines in sorted(table.items()):
        for line, users in sorted(lines.items()):
            take = parse(line) if line else None
            offering = index.distribution_of(take.path) if take else None
            if take is None or offering in {None, *own} or _needs_others(take, own, index):
                continue
            missing = list(_steps(take, index))
            reached = _reached(take, index)
            lacking = frozenset().union(*(p.absent for p in missing)) & reached
            if take.function:
                lacking = _gone(missing[0].releases if missing else (), lacking)
            newest = max(lacking, key=missing[0].releases.index, default="") if lacking else ""
            first = next((p for p in missing if newest in p.absent), None)
            if first is not None:
                yield Gap(
                    entry=entry,
                    places=(TakingPlace(module=take.module, function=take.function, users=users),),
                    name=f"{first.path}({first.argument}=)" if first.argument else first.path,
                    error=_error(take, first, index),
                    offering=first.distribution,
                    releases=first.releases,
                    lacking=_with_older(lacking, first, reached),
                )


def _with_older(lacking: frozenset[str], presence: Presence, reached: frozenset[str]) -> frozenset[str]:
    """Return the releases that lack a name, with those before them, where of all these it cannot be read."""
    older = frozenset(presence.releases[: min(map(presence.releases.index, lacking))])
    return lacking | older if older <= presence.unknown & reached else lacking


def _gone(releases: Sequence[str], lacking: frozenset[str]) -> frozenset[str]:
    """Return the releases behind the last one that has a name, where one has it: for a function it is gone for good.

    What came later is often asked for only where it is used.
    """
    last = max((at for at, release in enumerate(releases) if release not in lacking), default=len(releases))
    return frozenset(releases[last + 1 :])


def _steps(take: Take, index: NameIndex) -> Iterator[Presence]:
    """Yield the answer for each step of a name, then for each argument.

    A step that no release has is made at run time or is nowhere: nothing is said of it, nor of what is compiled.
    """
    parts = take.path.split(".")
    for depth in range(1 if take.imported else 2, len(parts) + 1):
        path = ".".join(parts[:depth])
        # What an import passes through is a module, whatever its package answers for.
        is_module = take.imported and depth < max(len(parts), 2)
        presence = index.ask_module(path) if is_module else index.ask(path)
        if presence is None or not presence.present or index.is_compiled(path):
            return
        yield presence
    for argument in take.arguments:
        presence = index.ask(take.path, argument)
        if presence is not None and presence.present:
            yield presence


def _needs_others(take: Take, own: Collection[str], index: NameIndex) -> bool:
    """Return whether it runs only where a third package is installed."""
    offering = index.distribution_of(take.path)
    return any(index.distribution_of(_package(name)) not in {offering, *own} for name in take.available)


def _package(available: str) -> str:
    return available.partition(">=")[0]


def _reached(take: Take, index: NameIndex) -> frozenset[str]:
    """Return the releases in which every ``hasattr`` on the way comes out as the use needs it, and that are new enough."""
    offering = index.distribution_of(take.path)
    start = index.ask(take.path)
    reached = frozenset(start.releases) if start else frozenset()
    for name, _, floor in (name.partition(">=") for name in take.available):
        if floor and index.distribution_of(name) == offering:
            reached &= {release for release in reached if Spec.parse(f">={floor}").contains(release)}
    for paths, holds in ((take.holds, True), (take.lacks, False)):
        for path in paths:
            presence = index.ask(path)
            if presence is None or presence.distribution != offering:
                return frozenset()
            reached &= presence.present if holds else presence.absent
    return reached


def _error(take: Take, presence: Presence, index: NameIndex) -> str:
    """Return the last line of the traceback."""
    parent, _, name = presence.path.rpartition(".")
    if presence.argument:
        return f"TypeError: {name}() got an unexpected keyword argument '{presence.argument}'"
    if take.imported and (presence.path != take.path or _is_module(presence.path, index)):
        return f"ModuleNotFoundError: No module named '{presence.path}'"
    if take.imported:
        return f"ImportError: cannot import name '{name}' from '{parent}'"
    subject = f"module '{parent}'" if _is_module(parent, index) else f"type object '{parent.rpartition('.')[2]}'"
    return f"AttributeError: {subject} has no attribute '{name}'"


def _is_module(path: str, index: NameIndex) -> bool:
    presence = index.ask(f"{path}.__spec__")
    return presence is not None and bool(presence.present)
