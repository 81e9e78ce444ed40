"""Does what a library declares agree with the version graph? Findings with file and line, none without evidence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from envsmith.base.json_types import JsonDict
from envsmith.knowledge.graph.load import components
from envsmith.knowledge.graph.tables import one_state
from envsmith.model.component import Role
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, Knowledge, Release, Row, Rule, Severity
from envsmith.model.version import Spec, public, version_key
from envsmith.project.ci.library import Library, admitted_pythons
from envsmith.project.ci.possible import judged_request, unary_of, unstated_rules
from envsmith.project.declared import Declared
from envsmith.solver import default_solver
from envsmith.solver.kernel import Net
from envsmith.solver.problem import RuleNogoods
from envsmith.solver.refusal import refuse
from envsmith.solver.request import Posed
from envsmith.solver.solver import Solver
from envsmith.solver.words import join_words, rule_sentence, shown_spec, strongest


@one_state()
def check_library(library: Library) -> tuple[Located, ...]:
    """Return every finding, errors first, then by file and line. What only an extra brings says with which."""
    solver = default_solver()
    findings = list(_check(library, solver))
    plain = {(f.finding.rule, f.file, f.line) for f in findings}
    of_extras: dict[tuple[str, str, int, str], tuple[Located, list[str]]] = {}
    for extra, ranges in library.extras.items():
        if ranges == library.ranges:
            continue
        for located in _check(library.with_extra(extra), solver):
            key = (located.finding.rule, located.file, located.line)
            if key not in plain:
                of_extras.setdefault((*key, located.finding.message), (located, []))[1].append(extra)
    for located, extras in of_extras.values():
        message = f"with the extra {join_words(extras, last='or')}: {located.finding.message}"
        findings.append(replace(located, finding=replace(located.finding, message=message)))
    order = [Severity.ERROR, Severity.WARNING, Severity.NOTE]
    return tuple(sorted(findings, key=lambda f: (order.index(f.finding.severity), f.file, f.line, f.finding.rule)))


def _check(library: Library, solver: Solver) -> list[Located]:
    """Return the findings about the ranges of a library as it is installed with its extra."""
    case = LibraryCheck(library, solver, solver.knowledge(), solver.pose(judged_request(library, solver)))
    if _has_cell(case):
        _known_bad(case)
        _pythons(case)
        _newest_torch(case)
        _proved(case)
    _cuda_majors(case)
    _nccl_pin(case)
    return case.findings


def _has_cell(case: LibraryCheck) -> bool:
    """Find ranges that no set of releases satisfies: the library cannot be installed, or cannot work."""
    stuck = case.solver.stuck(case.posed.problem)
    if stuck is None:
        return True
    refusal = refuse(case.solver, case.posed).refusal
    members = refusal.conflict if refusal else ()
    repair = refusal.repairs[0] if refusal and refusal.repairs else None
    wished = [w.component for w in stuck.wishes]
    case.add(
        Finding(
            rule="ci-no-cell",
            severity=Severity.ERROR,
            components={c: case.spec(c).text for c in wished},
            message="no environment satisfies what is declared, because together: "
            + "; ".join(m.message for m in members),
            evidence=strongest([e for m in members for e in m.evidence]),
            fix=f"widen it: {repair.message}" if repair else None,
        ),
        at=wished[0] if wished else "torch",
    )
    return False


def _pythons(case: LibraryCheck) -> None:
    """Find Pythons that the library admits and for which no environment exists."""
    admits = case.spec("python")
    if admits.is_any:
        return
    listed = admitted_pythons(admits)
    empty = [p for p in listed if not _solvable(case, python=Spec.parse(f"=={p}.*"))]
    working = [p for p in listed if p not in empty]
    if not working or not empty:
        return
    older, newer = listed[: listed.index(working[0])], listed[listed.index(working[-1]) + 1 :]
    for pythons, floor in ((older, True), (newer, False)):
        if not pythons:
            continue
        obstacle = _why_not(case, python=Spec.parse(f"=={pythons[-1 if floor else 0]}.*"))
        case.add(
            Finding(
                rule="ci-python-without-cell",
                severity=Severity.WARNING if floor else Severity.NOTE,
                components={"python": admits.text},
                message=(
                    f"Python {join_words(pythons)} {'is' if len(pythons) == 1 else 'are'} admitted, "
                    f"but nothing that is declared can be installed there: {obstacle.message}"
                ),
                evidence=strongest(obstacle.evidence),
                fix=f"requires-python >={working[0]}" if floor else None,
            ),
            at="python",
        )


def _solvable(case: LibraryCheck, **narrower: Spec) -> bool:
    return case.solver.best(case.solver.pose(judged_request(case.library, case.solver, narrower))) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Obstacle:
    """What keeps a library from a release: the rules of the smallest conflict, as a sentence and by their components."""

    message: str
    components: frozenset[str]
    evidence: tuple[Evidence, ...]


def _why_not(case: LibraryCheck, **narrower: Spec) -> Obstacle:
    """Return what stands between the ranges and ``narrower``."""
    refusal = refuse(case.solver, case.solver.pose(judged_request(case.library, case.solver, narrower))).refusal
    members = refusal.conflict if refusal else ()
    rules = [m for m in members if not m.is_wish]
    return Obstacle(
        message="; ".join(m.message for m in rules) or "nothing fits",
        components=frozenset(name for m in rules for name in m.components),
        evidence=tuple(e for m in members for e in m.evidence),
    )


def _newest_torch(case: LibraryCheck) -> None:
    """Find bounds that keep the newest torch out, and whether there is a reason."""
    platform = case.library.settings.platform
    releases = [r for r in case.stable("torch") if r.index == "default" and platform in r.platforms]
    if not releases:
        return
    newest = releases[-1]
    version = public(newest.version)
    exactly = {"torch": Spec.parse(f"=={version}")}
    if _solvable(case, **exactly):
        return
    if not case.spec("torch").contains(version):
        obstacle = None if _solvable(case, **exactly) else _why_not(case, **exactly)
        reason = f"; it could not be had anyway: {obstacle.message}" if obstacle else ""
        case.add(
            Finding(
                rule="ci-blocks-newest-torch",
                severity=Severity.NOTE if obstacle else Severity.WARNING,
                components={"torch": case.spec("torch").text},
                message=f"torch {case.spec('torch')} keeps out torch {version} of {newest.date}{reason}",
                evidence=strongest([*newest.evidence, *(obstacle.evidence if obstacle else ())]),
                fix=None if obstacle else f"try the library with torch {version}, then raise the bound",
            ),
            at="torch",
        )
        return
    obstacle = _why_not(case, **exactly)
    wished = [c for c in case.library.ranges if c != "torch" and c in obstacle.components and case.library.declared(c)]
    case.add(
        Finding(
            rule="ci-blocks-newest-torch",
            severity=Severity.NOTE,
            components={"torch": version, **{c: case.spec(c).text for c in wished[:1]}},
            message=(
                f"torch {version} of {newest.date} is within torch {case.spec('torch')}, "
                f"but the other ranges keep it out: {obstacle.message}"
            ),
            evidence=strongest([*obstacle.evidence, *newest.evidence]),
        ),
        at=wished[0] if wished else "torch",
    )


def _proved(case: LibraryCheck) -> None:
    """Find ranges that leave out releases of torch with which a declared framework was proved to work."""
    table = components()
    own = table.find(case.library.name)
    frameworks = [n for n in case.library.ranges if table.by_name[n].role is Role.FRAMEWORK]
    if own is not None and own.role is Role.FRAMEWORK:
        frameworks.append(own.name)
    torch = case.spec("torch")
    for framework in frameworks:
        mine = case.spec(framework) if framework in case.library.ranges else _own_release(case, framework)
        proved = _proved_outside(case, framework, mine)
        above = sorted((v for v in proved if _above(case, v)), key=lambda v: version_key(v) or v)
        if above:
            case.add(
                Finding(
                    rule="ci-excludes-proved",
                    severity=Severity.WARNING,
                    components={"torch": torch.text, framework: mine.text},
                    message=f"torch {torch} leaves out torch {join_words(above[-4:])}, with which {framework} {mine} was run",
                    evidence=strongest([e for v in above[-4:] for e in proved[v]]),
                    fix=f"try the library with torch {above[-1]}, then raise the bound",
                ),
                at="torch",
            )


def _proved_outside(case: LibraryCheck, framework: str, mine: Spec) -> dict[str, list[Evidence]]:
    """Return releases of torch outside the library's range with which a release in ``mine`` was run, with evidence."""
    torch = case.spec("torch")
    releases = [public(r.version) for r in case.stable("torch")]
    own = [r.version for r in case.stable(framework) if mine.contains(r.version)]
    proved: dict[str, list[Evidence]] = {}
    for entry in case.knowledge.tested:
        if entry.framework == framework and any(entry.version.contains(v) for v in own):
            for version in releases:
                if entry.torch.contains(version) and not torch.contains(version):
                    proved.setdefault(version, []).extend(entry.evidence)
    return proved


def _own_release(case: LibraryCheck, framework: str) -> Spec:
    """Return the newest release of a library that is itself a framework: what its checkout is about to replace."""
    releases = case.stable(framework)
    version = case.library.declaration.version
    if version and any(r.version == version for r in releases):
        return Spec.parse(f"=={version}")
    return Spec.parse(f"=={releases[-1].version}") if releases else Spec.parse("*")


def _above(case: LibraryCheck, version: str) -> bool:
    """Return whether a release is newer than everything that is admitted."""
    admitted = case.admitted("torch")
    key = version_key(version)
    last = version_key(public(admitted[-1].version)) if admitted else None
    return key is not None and last is not None and key > last


# Declarations that meet what torch's own builds carry: their CUDA major and their NCCL.


# CUDA major in the name of a distribution that is built for one: nvidia-nccl-cu12, cupy-cuda12x, flashinfer-cu13,
# onnxruntime-cuda-11.
_FOR_CUDA = re.compile(r"(?:^|[-_])cu(?:da)?[-_]?(1[0-9])(?:\d|x)?(?:$|[-_])", re.IGNORECASE)


def _cuda_majors(case: LibraryCheck) -> None:
    """Find dependencies built for one CUDA major beside a torch range whose default builds are of another."""
    platform = case.library.settings.platform
    builds = [r for r in case.admitted("torch") if r.index == "default" and platform in r.platforms]
    for declared in case.library.requirements:
        match = _FOR_CUDA.search(declared.name)
        if not match or not builds:
            continue
        mismatched = [r for r in builds if (cuda := _cuda_of(case, r)) and not cuda.startswith(match[1] + ".")]
        if not mismatched:
            continue
        spans = sorted({c for r in builds if (c := _cuda_of(case, r))}, key=lambda c: version_key(c) or c)
        first, last = public(mismatched[0].version), public(mismatched[-1].version)
        newest = builds[-1] in mismatched
        case.add(
            Finding(
                rule="ci-cuda-major",
                severity=Severity.WARNING if newest else Severity.NOTE,
                components={"torch": case.spec("torch").text, declared.name: declared.spec or "*"},
                message=(
                    f"{declared.name} is built for CUDA {match[1]}, "
                    f"but torch {case.spec('torch')} admits default builds for CUDA {join_words(spans)}: "
                    f"torch {first}{' to ' + last if last != first else ''} "
                    f"{'is' if first == last else 'are'} of another CUDA major"
                ),
                evidence=strongest([e for r in (mismatched[0], mismatched[-1]) for e in r.evidence]),
                fix=f"bound torch, or take {declared.name} by the CUDA of torch (an extra per CUDA major)",
            ),
            at=declared,
        )


def _nccl_pin(case: LibraryCheck) -> None:
    """Find a bound on NCCL that no admitted torch carries: torch's wheels pin theirs exactly."""
    nccl = case.spec("nccl")
    if nccl.is_any or case.library.declared("nccl") is None:
        return
    carried = _carried_nccl(case)
    outside = [v for v in carried if not nccl.contains(v)]
    if outside and len(outside) < len(carried):
        case.add(
            Finding(
                rule="ci-nccl-narrow",
                severity=Severity.NOTE,
                components={"nccl": nccl.text, "torch": case.spec("torch").text},
                message=(
                    f"nccl {nccl} excludes NCCL {join_words(outside[:4])} that admitted torch releases pin: "
                    "those torch releases cannot be installed"
                ),
                evidence=strongest([e for v in outside[:4] for e in carried[v]]),
            ),
            at="nccl",
        )


def _carried_nccl(case: LibraryCheck) -> dict[str, list[Evidence]]:
    """Return the NCCL releases that admitted torch releases pin, each with what says so."""
    admitted = case.admitted("torch")
    carried: dict[str, list[Evidence]] = {}
    for row in _rows(case, "torch-bundles-nccl"):
        version = row.needs["nccl"].text.removeprefix("==")
        if version[:1].isdigit() and any(row.when["torch"].contains(r.version) for r in admitted):
            carried.setdefault(version, []).extend(row.evidence)
    return carried


def _cuda_of(case: LibraryCheck, release: Release) -> str | None:
    platform = case.library.settings.platform
    for row in _rows(case, "torch-bundles-cuda"):
        if row.when["torch"].contains(release.version) and (not row.platforms or platform in row.platforms):
            text = row.needs["cuda"].text.removeprefix("==").removesuffix(".*")
            return text if text[:1].isdigit() else None
    return None


def _rows(case: LibraryCheck, rule: str) -> Iterator[Row]:
    return (row for r in case.knowledge.rules if r.id == rule for row in r.rows)


# A library beside the version graph: its ranges, the releases that they admit, and the findings with file and line.


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """A finding at the line that it is about."""

    finding: Finding
    file: str
    line: int

    def to_json(self) -> JsonDict:
        """Return the finding's own shape, with ``file`` and ``line``."""
        return {**self.finding.to_json(), "file": self.file, "line": self.line}


@dataclass(slots=True)
class LibraryCheck:
    """A library beside the graph, and the findings so far."""

    library: Library
    solver: Solver
    knowledge: Knowledge
    posed: Posed
    findings: list[Located] = field(default_factory=list)

    def add(self, finding: Finding, *, at: str | Declared) -> None:
        """Note one finding, unless the library ignores it or nothing speaks for it."""
        if finding.evidence and finding.rule not in self.library.settings.ignore:
            file, line = (at.file, at.line) if isinstance(at, Declared) else self.library.line(at)
            self.findings.append(Located(finding=finding, file=file, line=line))

    def spec(self, component: str) -> Spec:
        """Return the range that the library declares, ``*`` where it declares none."""
        return self.library.ranges.get(component, Spec.parse("*"))

    def unbounded(self, component: str) -> bool:
        """Return whether a line requires it without a version."""
        return self.spec(component).is_any and self.library.declared(component) is not None

    def stable(self, component: str) -> list[Release]:
        """Return the releases that an installer takes, oldest first."""
        listed = self.knowledge.releases.get(component, ())
        return [r for r in listed if (k := version_key(r.version)) and not k.is_prerelease and not r.yanked]

    def admitted(self, component: str) -> list[Release]:
        """Return the releases within the library's range that an installer takes, oldest first."""
        spec = self.spec(component)
        return [r for r in self.stable(component) if spec.contains(public(r.version))]


# Ranges of a library that admit what is known to fail, and the bound that keeps it out.


# So many releases may be left out of a range one by one before a bound reads better.
_BY_NAME = 3


def _known_bad(case: LibraryCheck) -> None:
    """Find ranges that admit what is known to fail and what no package's metadata prevents."""
    unary = unary_of(case.posed)
    unbounded: dict[str, list[tuple[Rule, Row]]] = {}
    for net, group, rule in unstated_rules(case.posed, case.solver):
        rows = [rule.rows[n] for n in _broken_rows(group, net, unary)]
        rows = [row for row in rows if _ours(case, row)]
        if not rows:
            continue
        installed = _newest_breaks(case, net, unary, group)
        open_ended = next((c for row in rows for c in row.when if c != "python" and case.unbounded(c)), None)
        if open_ended is not None and not installed:
            unbounded.setdefault(open_ended, []).extend((rule, row) for row in rows)
        else:
            _tell_known_bad(case, rule, rows, installed=installed)
    for component, listed in unbounded.items():
        _tell_unbounded(case, component, listed)


def _broken_rows(group: RuleNogoods, net: Net, unary: list[tuple[int, int]]) -> list[int]:
    numbers = []
    for number, nogood in group.nogoods:
        if number >= 0 and number not in numbers and net.solvable(net.begin([*unary, *nogood])) is not None:
            numbers.append(number)
    return numbers


def _ours(case: LibraryCheck, row: Row) -> bool:
    """Return whether a row names only what the library declares.

    A library can say nothing of a machine and bound nothing that it does not name.
    """
    roles, library = case.solver.compiled.roles, case.library
    named = {c for c in library.ranges if c == "python" or library.declared(c) or c in library.settings.requires}
    spoken = [c for c in row.scope if roles.get(c) is not Role.CORE or c in ("torch", "python")]
    return all(roles.get(c) is not Role.HOST for c in row.scope) and bool(spoken) and all(c in named for c in spoken)


def _newest_breaks(case: LibraryCheck, net: Net, unary: list[tuple[int, int]], group: RuleNogoods) -> bool:
    """Return whether an installer that takes the newest of everything meets the rule."""
    domains = net.begin(unary)
    if domains is None:
        return False
    answer = next(net.search(domains, case.posed.preference.steps()), None)
    return answer is not None and any(all(answer[v] & m for v, m in nogood) for n, nogood in group.nogoods if n >= 0)


def _tell_known_bad(case: LibraryCheck, rule: Rule, rows: list[Row], *, installed: bool) -> None:
    scope = list(dict.fromkeys(c for row in rows for c in row.scope if c in case.library.ranges))
    named = [c for c in scope if c != "python"] or scope
    old = min(named, key=lambda c: (case.library.declared(c) is None, scope.index(c)))
    declared = [shown_spec(c, case.spec(c)) for c in scope]
    first = rows[0]
    bound = _bounds(case, rows)
    sentence = rule_sentence(rule, rows, {})
    case.add(
        Finding(
            rule=rule.id,
            severity=Severity.ERROR if installed else _mild(rule),
            components={c: case.spec(c).text for c in scope},
            message=f"{join_words(declared)} {'gives' if installed else 'admits'} what is known to fail: {sentence}",
            evidence=strongest([e for row in rows for e in row.evidence]),
            fix="; ".join(x for x in (f"declare {bound[1]}" if bound else "", first.fix) if x) or None,
            symptom=first.symptom,
            stage=rule.stage,
        ),
        at=bound[0] if bound else old,
    )


def _mild(rule: Rule) -> Severity:
    """Return the severity by stage.

    What fails during installation meets those who want old releases, what fails later meets users.
    """
    return Severity.NOTE if rule.stage in ("install", "build") else Severity.WARNING


def _tell_unbounded(case: LibraryCheck, component: str, listed: list[tuple[Rule, Row]]) -> None:
    """Note one finding for a component without any bound: what some of its releases break, and the floor that ends it."""
    rules = list(dict.fromkeys(rule.id for rule, _ in listed))
    releases = [public(r.version) for r in case.admitted(component)]
    bad = [v for v in releases if any(row.when.get(component, Spec.parse("cpu")).contains(v) for _, row in listed)]
    after = releases[releases.index(bad[-1]) + 1 :] if bad else []
    worst = listed[0]
    named = f"{join_words(rules[:4])}{f' and {len(rules) - 4} more' if len(rules) > 4 else ''}"
    case.add(
        Finding(
            rule="ci-unbounded",
            severity=max((_mild(rule) for rule, _ in listed), key=[Severity.NOTE, Severity.WARNING].index),
            components={component: "*"},
            message=(
                f"{component} is required without a bound: some of its releases fail beside others that are admitted ({named}), "
                f"first of all {rule_sentence(worst[0], [worst[1]], {})}"
            ),
            evidence=strongest([e for _, row in listed for e in row.evidence]),
            fix=f"declare {component}>={after[0]}" if after else None,
            symptom=worst[1].symptom or worst[0].symptom,
            stage=worst[0].stage,
        ),
        at=component,
    )


def _bounds(case: LibraryCheck, rows: list[Row]) -> tuple[str, str] | None:
    """Return the bound that keeps all rows out at the least cost: a floor, or a few releases excluded by name.

    A ceiling costs more than any floor: it keeps people from what is new.
    """
    best: tuple[float, str, str] | None = None
    for component in dict.fromkeys(c for row in rows for c in row.scope):
        is_bounded = component != "python" and component in case.library.ranges
        if not is_bounded or not all(component in row.when or component in row.needs for row in rows):
            continue
        admitted = list(dict.fromkeys(public(r.version) for r in case.admitted(component)))
        bad = [v for v in admitted if any(_is_met_with(row, component, v) for row in rows)]
        good = [v for v in admitted if v not in bad]
        if not bad or not good:
            continue
        cost = len(bad) / len(admitted)
        if admitted.index(bad[-1]) < admitted.index(good[0]):
            offer = f"{component}>={good[0]}"
        elif admitted.index(bad[0]) > admitted.index(good[-1]):
            offer, cost = f"{component}<{bad[0]}", 1 + cost
        elif len(bad) <= _BY_NAME and admitted[-1] not in bad:
            offer = f"{component}{','.join(f'!={v}' for v in bad)}"
        else:
            continue
        if best is None or cost < best[0]:
            best = cost, component, offer
    return best[1:] if best else None


def _is_met_with(row: Row, component: str, version: str) -> bool:
    """Return whether a release of a component can be a part of what a row forbids."""
    needed = row.needs.get(component)
    return not needed.contains(version) if needed is not None else row.when[component].contains(version)
