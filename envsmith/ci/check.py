"""Does what a library declares agree with the version graph? Findings with file and line, none without evidence."""

from __future__ import annotations

from envsmith.ci.carried import cuda_majors, nccl_pin
from envsmith.ci.case import Case, Located, public
from envsmith.ci.declared import PYTHONS
from envsmith.ci.known_bad import known_bad
from envsmith.ci.library import Library
from envsmith.ci.possible import judged_request
from envsmith.model.component import ComponentTable, Role
from envsmith.model.evidence import Evidence
from envsmith.model.rule import Severity
from envsmith.model.version import Spec, version_key
from envsmith.solve.solver import Solver
from envsmith.solve.words import join_words

__all__ = ["Located", "check_library"]


def check_library(
    library: Library, *, table: ComponentTable | None = None, solver: Solver | None = None
) -> tuple[Located, ...]:
    """Every finding, errors first, then by file and line."""
    from envsmith.graph import components
    from envsmith.solve.api import default_solver

    solver = solver or default_solver()
    case = Case(
        library, table or components(), solver, solver.knowledge(), solver.pose(judged_request(library, solver))
    )
    solvable = _no_cell(case)
    if solvable:
        known_bad(case)
        _pythons(case)
        _newest_torch(case)
        _proved(case)
    cuda_majors(case)
    nccl_pin(case)
    order = [Severity.ERROR, Severity.WARNING, Severity.NOTE]
    return tuple(sorted(case.found, key=lambda f: (order.index(f.finding.severity), f.file, f.line, f.finding.rule)))


def _no_cell(case: Case) -> bool:
    """Ranges that no set of releases satisfies: the library cannot be installed, or cannot work."""
    stuck = case.solver.stuck(case.posed)
    if stuck is None:
        return True
    from envsmith.errors import UnsatisfiableError
    from envsmith.solve.explain import refuse

    refusal: UnsatisfiableError = refuse(case.solver, case.posed)
    members = refusal.refusal.conflict if refusal.refusal else ()
    wished = [w.component for w in stuck.wishes]
    repair = refusal.refusal.repairs[0] if refusal.refusal and refusal.refusal.repairs else None
    case.add(
        "ci-no-cell",
        Severity.ERROR,
        "no environment satisfies what is declared, because together: " + "; ".join(m.message for m in members),
        at=wished[0] if wished else "torch",
        components={c: case.spec(c).text for c in wished},
        evidence=[e for m in members for e in m.evidence],
        fix=f"widen it: {repair.message}" if repair else None,
    )
    return False


def _pythons(case: Case) -> None:
    """Pythons that the library admits and for which no environment exists."""
    admits = case.spec("python")
    listed = [p for p in PYTHONS if any(admits.contains(f"{p}.{n}") for n in (0, 5, 30))]
    if admits.is_any:
        return
    empty = [p for p in listed if not _solvable(case, python=Spec.parse(f"=={p}.*"))]
    working = [p for p in listed if p not in empty]
    if not working or not empty:
        return
    older = [p for p in empty if _minor(p) < _minor(working[0])]
    newer = [p for p in empty if _minor(p) > _minor(working[-1])]
    for pythons, floor in ((older, True), (newer, False)):
        if not pythons:
            continue
        evidence, reason = _why_not(case, python=Spec.parse(f"=={pythons[0 if not floor else -1]}.*"))
        case.add(
            "ci-python-without-cell",
            Severity.WARNING if floor else Severity.NOTE,
            f"Python {join_words(pythons)} {'is' if len(pythons) == 1 else 'are'} admitted, but nothing that is declared can be installed there: {reason}",
            at="python",
            components={"python": admits.text},
            evidence=evidence,
            fix=f"requires-python >={working[0]}" if floor else None,
        )


def _minor(python: str) -> tuple[int, ...]:
    return tuple(map(int, python.split(".")))


def _solvable(case: Case, **more: Spec) -> bool:
    return case.solver.best(case.solver.pose(judged_request(case.library, case.solver, more))) is not None


def _why_not(case: Case, **more: Spec) -> tuple[list[Evidence], str]:
    """The evidence and the sentences of the smallest conflict of the ranges with ``more``."""
    from envsmith.solve.explain import refuse

    refusal = refuse(case.solver, case.solver.pose(judged_request(case.library, case.solver, more))).refusal
    members = refusal.conflict if refusal else ()
    rules = [m for m in members if not m.rule.startswith("request:")]
    return [e for m in members for e in m.evidence], "; ".join(m.message for m in rules) or "nothing fits"


def _newest_torch(case: Case) -> None:
    """Bounds that keep the newest torch out, and whether there is a reason."""
    releases = [r for r in case.stable("torch") if r.index == "default" and case.library.platform in r.platforms]
    if not releases:
        return
    newest = releases[-1]
    version = public("torch", newest.version)
    if _solvable(case, torch=Spec.parse(f"=={version}")):
        return
    declared = case.library.declared("torch", case.table)
    own = not case.spec("torch").contains(version)
    if own:
        open_range = _request_without(case, "torch", version)
        reason = "" if open_range is None else f"; it could not be had anyway: {open_range[1]}"
        evidence = [*newest.evidence, *(open_range[0] if open_range else [])]
        case.add(
            "ci-blocks-newest-torch",
            Severity.NOTE if open_range else Severity.WARNING,
            f"torch {case.spec('torch')} keeps out torch {version} of {newest.date}{reason}",
            at=declared or "torch",
            components={"torch": case.spec("torch").text},
            evidence=evidence,
            fix=None if open_range else f"try the library with torch {version}, then raise the bound",
        )
        return
    evidence, message = _why_not(case, torch=Spec.parse(f"=={version}"))
    wished = [c for c in case.library.ranges if c != "torch" and c in message and case.library.declared(c, case.table)]
    case.add(
        "ci-blocks-newest-torch",
        Severity.NOTE,
        f"torch {version} of {newest.date} is within torch {case.spec('torch')}, but the other ranges keep it out: {message}",
        at=wished[0] if wished else "torch",
        components={"torch": version, **{c: case.spec(c).text for c in wished[:1]}},
        evidence=[*evidence, *newest.evidence],
    )


def _request_without(case: Case, component: str, version: str) -> tuple[list[Evidence], str] | None:
    """Why the rest of the ranges cannot have a release either; ``None`` when it can."""
    wider = {component: Spec.parse(f"=={version}")}
    return None if _solvable(case, **wider) else _why_not(case, **wider)


def _proved(case: Case) -> None:
    """Ranges that leave out releases of torch with which a declared framework was proved to work."""
    own = case.table.find(case.library.name)
    frameworks = [n for n in case.library.ranges if case.table.by_name[n].role is Role.FRAMEWORK]
    if own is not None and own.role is Role.FRAMEWORK:
        frameworks.append(own.name)
    torch = case.spec("torch")
    for framework in frameworks:
        mine = case.spec(framework) if framework in case.library.ranges else _own_release(case, framework)
        proved = _proved_outside(case, framework, mine)
        above = sorted((v for v in proved if _above(case, v)), key=lambda v: version_key(v) or v)
        if above:
            case.add(
                "ci-excludes-proved",
                Severity.WARNING,
                f"torch {torch} leaves out torch {join_words(above[-4:])}, with which {framework} {mine} was run",
                at="torch",
                components={"torch": torch.text, framework: mine.text},
                evidence=[e for v in above[-4:] for e in proved[v]],
                fix=f"try the library with torch {above[-1]}, then raise the bound",
            )


def _proved_outside(case: Case, framework: str, mine: Spec) -> dict[str, list[Evidence]]:
    """Releases of torch outside the library's range with which a release in ``mine`` was run, each with its evidence."""
    torch = case.spec("torch")
    releases = [public("torch", r.version) for r in case.stable("torch")]
    own = [r.version for r in case.stable(framework) if mine.contains(r.version)]
    found: dict[str, list[Evidence]] = {}
    for entry in case.knowledge.tested:
        if entry.framework == framework and any(entry.version.contains(v) for v in own):
            for version in releases:
                if entry.torch.contains(version) and not torch.contains(version):
                    found.setdefault(version, []).extend(entry.evidence)
    return found


def _own_release(case: Case, framework: str) -> Spec:
    """The newest release of a library that is itself a framework: what its checkout is about to replace."""
    releases = case.stable(framework)
    version = case.library.declaration.version
    if version and any(r.version == version for r in releases):
        return Spec.parse(f"=={version}")
    return Spec.parse(f"=={releases[-1].version}") if releases else Spec.parse("*")


def _above(case: Case, version: str) -> bool:
    """Whether a release is newer than everything that is admitted."""
    admitted = case.admitted("torch")
    key = version_key(version)
    last = version_key(public("torch", admitted[-1].version)) if admitted else None
    return key is not None and last is not None and key > last
