"""Ranges of a library that admit what is known to fail, and the bound that keeps it out."""

from __future__ import annotations

from envsmith.ci.case import Case, public
from envsmith.model.component import Role
from envsmith.model.rule import Row, Rule, Severity
from envsmith.model.version import Spec
from envsmith.solve.kernel import Net
from envsmith.solve.problem import Group
from envsmith.solve.words import join_words, rule_sentence, shown_spec

__all__ = ["known_bad"]

# So many releases may be left out of a range one by one before a bound reads better.
_BY_NAME = 3


def known_bad(case: Case) -> None:
    """Ranges that admit what is known to fail and what no package's metadata prevents."""
    from envsmith.solve.known_bad import stated_by_metadata

    problem = case.problem
    rules = {r.id: r for r in case.knowledge.rules}
    hard = [i for i, g in enumerate(problem.groups) if g.severity is Severity.ERROR]
    unary = [m for w in problem.wishes for m in w.masks] + [*case.posed.pre, *case.posed.yanked]
    unbounded: dict[str, list[tuple[Rule, Row]]] = {}
    for index in hard:
        group = problem.groups[index]
        rule = rules[group.rule]
        if stated_by_metadata(rule):
            continue
        net = Net(problem.full).joined([problem.part(i) for i in hard if i != index])
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


def _broken_rows(group: Group, net: Net, unary: list[tuple[int, int]]) -> list[int]:
    found = []
    for number, nogood in group.nogoods:
        if number >= 0 and number not in found and net.solvable(net.begin([*unary, *nogood])) is not None:
            found.append(number)
    return found


def _ours(case: Case, row: Row) -> bool:
    """Whether a row speaks only of what the library declares: of a machine it can say nothing, and what it does not name it cannot bound."""
    roles = case.solver.compiled.roles
    named = set(case.library.ranges)
    spoken = [c for c in row.scope if roles.get(c) is not Role.CORE or c in ("torch", "python")]
    return all(roles.get(c) is not Role.HOST for c in row.scope) and bool(spoken) and all(c in named for c in spoken)


def _newest_breaks(case: Case, net: Net, unary: list[tuple[int, int]], group: Group) -> bool:
    """Whether an installer that takes the newest of everything meets the rule."""
    domains = net.begin(unary)
    if domains is None:
        return False
    answer = next(net.search(domains, case.posed.preference.steps()), None)
    return answer is not None and any(all(answer[v] & m for v, m in nogood) for n, nogood in group.nogoods if n >= 0)


def _tell_known_bad(case: Case, rule: Rule, rows: list[Row], *, installed: bool) -> None:
    scope = list(dict.fromkeys(c for row in rows for c in row.scope if c in case.library.ranges))
    named = [c for c in scope if c != "python"] or scope
    old = min(named, key=lambda c: (case.library.declared(c, case.table) is None, scope.index(c)))
    declared = [shown_spec(c, case.spec(c)) for c in scope]
    first = rows[0]
    bound = _bounds(case, rows)
    told = rule_sentence(rule, rows, {})
    fix = first.fix or rule.fix
    case.add(
        rule.id,
        Severity.ERROR if installed else _mild(rule),
        f"{join_words(declared)} {'gives' if installed else 'admits'} what is known to fail: {told}",
        at=bound[0] if bound else old,
        components={c: case.spec(c).text for c in scope},
        evidence=[e for row in rows for e in row.evidence],
        fix="; ".join(x for x in (f"declare {bound[1]}" if bound else "", fix) if x) or None,
        symptom=first.symptom or rule.symptom,
        stage=rule.stage,
    )


def _mild(rule: Rule) -> Severity:
    """What fails while it is installed is met by whoever asks for old releases only, and at once; what fails later is met by users."""
    return Severity.NOTE if rule.stage in ("install", "build") else Severity.WARNING


def _tell_unbounded(case: Case, component: str, listed: list[tuple[Rule, Row]]) -> None:
    """One finding for a component that is required without any bound: what its old releases break, and the floor that ends it."""
    rules = list(dict.fromkeys(rule.id for rule, _ in listed))
    releases = [public(component, r.version) for r in case.admitted(component)]
    bad = [v for v in releases if any(row.when.get(component, Spec.parse("cpu")).contains(v) for _, row in listed)]
    after = releases[releases.index(bad[-1]) + 1 :] if bad else []
    worst = listed[0]
    shown = f"{join_words(rules[:4])}{f' and {len(rules) - 4} more' if len(rules) > 4 else ''}"
    case.add(
        "ci-unbounded",
        max((_mild(rule) for rule, _ in listed), key=[Severity.NOTE, Severity.WARNING].index),
        f"{component} is required without a bound: its older releases fail beside others that are admitted ({shown}), "
        f"first of all {rule_sentence(worst[0], [worst[1]], {})}",
        at=component,
        components={component: "*"},
        evidence=[e for _, row in listed for e in row.evidence],
        fix=f"declare {component}>={after[0]}" if after else None,
        symptom=worst[1].symptom or worst[0].symptom,
        stage=worst[0].stage,
    )


def _bounds(case: Case, rows: list[Row]) -> tuple[str, str] | None:
    """The bound that keeps all rows out at the least cost: a floor, or a few releases left out by name."""
    best: tuple[float, str, str] | None = None
    for component in dict.fromkeys(c for row in rows for c in row.when):
        if component == "python" or component not in case.library.ranges or not all(component in r.when for r in rows):
            continue
        admitted = list(dict.fromkeys(public(component, r.version) for r in case.admitted(component)))
        bad = [v for v in admitted if any(row.when[component].contains(v) for row in rows)]
        good = [v for v in admitted if v not in bad]
        if not bad or not good:
            continue
        share = len(bad) / len(admitted)
        if admitted.index(bad[-1]) < admitted.index(good[0]):
            offer = f"{component}>={good[0]}"
        elif admitted.index(bad[0]) > admitted.index(good[-1]):
            offer = f"{component}<{bad[0]}"
        elif len(bad) <= _BY_NAME and admitted[-1] not in bad:
            offer = f"{component}{','.join(f'!={v}' for v in bad)}"
        else:
            continue
        if best is None or share < best[0]:
            best = share, component, offer
    return best[1:] if best else None
