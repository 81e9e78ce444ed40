"""Why this cell: a sentence for each choice, what was passed over and how to get it, and other cells a user may prefer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from envsmith.model.cell import Cell
from envsmith.model.finding import Finding, Solution
from envsmith.model.rule import Severity
from envsmith.solve.findings import finding_of_row
from envsmith.solve.kernel import bits
from envsmith.solve.prefer import Preference
from envsmith.solve.problem import Wish
from envsmith.solve.request import Posed
from envsmith.solve.solver import Answer, Solver
from envsmith.solve.words import rule_sentence

__all__ = ["blockers", "reasons"]

_MAX_ALTERNATIVES = 3


def reasons(solver: Solver, posed: Posed, answer: Answer) -> Solution:
    """The solution with its reasons."""
    why = [
        *_framework_reasons(solver, posed, answer),
        *_torch_reasons(solver, posed, answer),
        *_python_reason(posed, answer),
    ]
    if "pre" not in answer.avoided and posed.pre:
        why.append("Nothing but pre-releases satisfies the request: the cell has one.")
    warnings = tuple(_warnings(solver, posed, answer)) if "warning" not in answer.avoided else ()
    return Solution(
        cell=answer.cell, why=tuple(why), warnings=warnings, alternatives=tuple(_alternatives(solver, posed, answer))
    )


def _chosen(posed: Posed, answer: Answer, name: str) -> tuple[int, int, str]:
    variable = posed.problem.names.index(name)
    index = answer.domains[variable].bit_length() - 1
    return variable, index, str(posed.problem.values[variable][index])


def _plain(posed: Posed, variable: int) -> int:
    """Releases that are neither pre-releases nor yanked (nor what the request excludes)."""
    mask = posed.problem.full[variable]
    for v, allowed in (*posed.pre, *posed.yanked):
        if v == variable:
            mask &= allowed
    for wish in posed.problem.wishes:
        for v, allowed in wish.masks:
            if v == variable:
                mask &= allowed
    return mask


def _framework_reasons(solver: Solver, posed: Posed, answer: Answer) -> list[str]:
    told = []
    for name in posed.preference.frameworks:
        variable, index, version = _chosen(posed, answer, name)
        newer = _plain(posed, variable) >> (index + 1) << (index + 1)
        asked = any(w.component == name for w in posed.problem.wishes)
        if not newer:
            told.append(f"{name} {version}: the newest {'release that was asked for' if asked else 'stable release'}.")
            continue
        newest = newer.bit_length() - 1
        label = str(posed.problem.values[variable][newest])
        support = posed.preference.support[name].releases
        if support >> index & 1 and not support >> newest & 1:
            told.append(
                f"{name} {version}: the newest release that somebody is known to have tested; {label} was passed over"
                f" (ask for it: --framework '{name}=={label}')."
            )
        else:
            because = blockers(solver, posed, variable, newest)
            told.append(f"{name} {version}: {label} is newer, but {because or 'it does not go with the rest'}.")
    return told


def blockers(solver: Solver, posed: Posed, variable: int, index: int) -> str:
    """Why a release cannot be had under the request: the sentences of the rules in the conflict, or ``""`` when it can."""
    from envsmith.solve.explain import conflict_members

    problem = posed.problem
    name = problem.names[variable]
    wish = Wish(name, str(problem.values[variable][index]), ((variable, 1 << index),), reason="tried")
    tried = replace(posed, problem=problem.with_wishes([*problem.wishes, wish]))
    stuck = solver.stuck(tried)
    if stuck is None:
        return ""
    members = conflict_members(solver, tried.problem, stuck, cause=False)
    wishes = [m.message for m in members if m.rule.startswith("request:") and not m.message.endswith(": tried")]
    rules = [m.message for m in members if not m.rule.startswith("request:")]
    return " and ".join([*rules, *wishes])


def _torch_reasons(solver: Solver, posed: Posed, answer: Answer) -> list[str]:
    variable = posed.problem.variable("torch")
    if variable is None:
        return []
    _, index, version = _chosen(posed, answer, "torch")
    tiers = posed.preference.tested_torch(list(answer.domains))
    tested = bool(tiers) and bool(tiers[-1] >> index & 1)
    where = " (default build)" if answer.cell.index == "default" else " (from the PyTorch index)"
    names = [f"{n} {answer.cell.components[n]}" for n in posed.preference.frameworks]
    label = " and ".join(names)
    allowed = _plain(posed, variable)
    release = version.split("+", maxsplit=1)[0]
    values = posed.problem.values[variable]
    newer = [i for i in bits(allowed) if i > index and str(values[i]).split("+", maxsplit=1)[0] != release]
    head = f"torch {version}{where}"
    if tested:
        head += f": the newest that is tested with {label}" if newer else f": tested with {label}"
        head += f" (how far and by whom: envsmith explain {answer.cell.id})"
    elif label and tiers:
        head += f": nobody is known to have tested it with {label}, and nothing that is tested satisfies the request"
    elif not newer:
        head += ": the newest release"
    told = [head + "."]
    if newer:
        told += _passed_over(solver, posed, answer, variable, newer)
    return told


def _passed_over(solver: Solver, posed: Posed, answer: Answer, variable: int, newer: list[int]) -> list[str]:
    """What became of the newest torch that the request admits, for the frameworks that were chosen."""
    problem = posed.problem
    fixed = [
        Wish(
            n,
            str(answer.cell.components[n]),
            ((problem.names.index(n), answer.domains[problem.names.index(n)]),),
            reason="tried",
        )
        for n in posed.preference.frameworks
    ]
    with_frameworks = replace(posed, problem=problem.with_wishes([*problem.wishes, *fixed]))
    newest = str(problem.values[variable][newer[0]]).split("+", maxsplit=1)[0]
    builds = sum(1 << i for i in newer if str(problem.values[variable][i]).split("+", maxsplit=1)[0] == newest)
    wish = Wish("torch", newest, ((variable, builds),), reason="tried")
    if solver.best(with_frameworks, wishes=[*with_frameworks.problem.wishes, wish]):
        return [
            f"torch {newest} was passed over: no evidence supports it with {_named(posed, answer)} yet (ask for it: --torch {newest})."
        ]
    because = blockers_of(solver, with_frameworks, wish)
    return [f"torch {newest} is newer, but {because}."] if because else []


def blockers_of(solver: Solver, posed: Posed, wish: Wish) -> str:
    """As :func:`blockers`, for a wish over several releases."""
    from envsmith.solve.explain import conflict_members

    tried = replace(posed, problem=posed.problem.with_wishes([*posed.problem.wishes, wish]))
    stuck = solver.stuck(tried)
    members = conflict_members(solver, tried.problem, stuck, cause=False) if stuck else ()
    return " and ".join(m.message for m in members if not m.message.endswith(": tried"))


def _named(posed: Posed, answer: Answer) -> str:
    return " and ".join(f"{n} {answer.cell.components[n]}" for n in posed.preference.frameworks) or "this cell"


def _python_reason(posed: Posed, answer: Answer) -> list[str]:
    if "python" not in posed.problem.names:
        return []
    version = answer.cell.components["python"]
    if any(w.component == "python" and not w.reason for w in posed.problem.wishes):
        return [f"Python {version}: as asked."]
    return [f"Python {version}: first in the stated order that has wheels for all of it."]


def _warnings(solver: Solver, posed: Posed, answer: Answer) -> Iterable[Finding]:
    """The warning rows that the cell could not avoid."""
    rules = {r.id: r for r in solver.knowledge().rules}
    domains = list(answer.domains)
    for group in posed.problem.groups:
        if group.severity is not Severity.WARNING:
            continue
        for number, nogood in group.nogoods:
            if all(domains[v] & m for v, m in nogood):
                rule = rules[group.rule]
                row = rule.rows[number]
                shown = {c: answer.cell.components[c] for c in row.scope if c in answer.cell.components}
                message = rule_sentence(rule, [row], {c: [v] for c, v in shown.items()})
                yield finding_of_row(rule, row, Severity.WARNING, shown, message)
                break


def _alternatives(solver: Solver, posed: Posed, answer: Answer) -> list[Cell]:
    """The same request with the newest torch at all, and with the CUDA majors next to this one: at most three cells."""
    found: list[Cell] = []
    newest = replace(posed, preference=_whatever_is_newest(posed))
    candidates = [solver.best(newest)]
    cuda = posed.problem.variable("cuda")
    if cuda is not None and not any(w.component == "cuda" and not w.reason for w in posed.problem.wishes):
        majors: dict[str, int] = {}
        for index, value in enumerate(posed.problem.values[cuda]):
            if value not in (None, "cpu"):
                majors[str(value).split(".")[0]] = majors.get(str(value).split(".")[0], 0) | 1 << index
        mine = answer.cell.components.get("cuda", "").split(".")[0]
        for major in sorted(majors, key=int, reverse=True):
            if major != mine and (not mine.isdigit() or abs(int(major) - int(mine)) == 1):
                wish = Wish("cuda", major, ((cuda, majors[major]),))
                candidates.append(solver.best(posed, wishes=[*posed.problem.wishes, wish]))
    for candidate in candidates:
        if (
            candidate
            and candidate.avoided == answer.avoided
            and candidate.cell.id != answer.cell.id
            and candidate.cell not in found
        ):
            found.append(candidate.cell)
    return found[:_MAX_ALTERNATIVES]


def _whatever_is_newest(posed: Posed) -> Preference:
    """The preference that does not ask what was tested."""
    return Preference(posed.problem, posed.preference.frameworks, posed.preference.companions, supported_first=False)
