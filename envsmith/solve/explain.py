"""A refusal in sentences: each member of the conflict with what it says about the releases that are left to the others."""

from __future__ import annotations

from collections.abc import Sequence

from envsmith.errors import UnsatisfiableError
from envsmith.model.finding import Conflict, Refusal
from envsmith.model.rule import Row, Rule
from envsmith.model.version import Spec
from envsmith.solve.kernel import Domains, Net, bits
from envsmith.solve.problem import Group, Problem, Wish
from envsmith.solve.request import Posed
from envsmith.solve.solver import Solver, Stuck, wish_net
from envsmith.solve.words import name_release, rule_sentence, strongest, these_versions

__all__ = ["conflict_members", "refuse", "relevant_rows", "wish_sentence"]


def refuse(solver: Solver, posed: Posed) -> UnsatisfiableError:
    """The error for a request without an answer, with its :class:`Refusal`."""
    for name, component, values in zip(
        posed.problem.names, posed.problem.components, posed.problem.values, strict=True
    ):
        if not values:
            message = f"envsmith knows no release of {component}: name one exactly, as {component}==1.2.3"
            member = Conflict(rule=f"request:{name}", components={name: "*"}, message=message)
            return _error(Refusal(conflict=(member,)))
    stuck = solver.stuck(posed)
    members = conflict_members(solver, posed.problem, stuck) if stuck else ()
    return _error(Refusal(conflict=members, repairs=solver.repairs(posed)))


def _error(refusal: Refusal) -> UnsatisfiableError:
    hint = f"{refusal.repairs[0].message} gives {refusal.repairs[0].cell.id}" if refusal.repairs else None
    return UnsatisfiableError(
        "no cell satisfies the request", refusal=refusal, hint=hint, details=[c.message for c in refusal.conflict]
    )


def conflict_members(solver: Solver, problem: Problem, stuck: Stuck, *, cause: bool = True) -> tuple[Conflict, ...]:
    """Wishes first, then rules; ``cause`` adds why a hand-written rule holds."""
    found = [_wish_member(problem, wish) for wish in stuck.wishes]
    rules = {rule.id: rule for rule in solver.knowledge().rules}
    for group in stuck.groups:
        others = [g for g in stuck.groups if g is not group]
        domains = _left_over(problem, stuck.wishes, others)
        found.append(_rule_member(problem, rules[group.rule], group, domains, cause=cause))
    return tuple(found)


def _left_over(problem: Problem, wishes: Sequence[Wish], groups: Sequence[Group]) -> Domains:
    """What the other members leave possible."""
    nets = [wish_net(problem.full, wish) for wish in wishes]
    nets += [problem.part(problem.groups.index(g)) for g in groups]
    return Net(problem.full).joined(nets).begin() or problem.full


def relevant_rows(rule: Rule, group: Group, domains: Domains) -> tuple[list[Row], list[int], int]:
    """Rows that speak of releases in ``domains``, newest first; what each variable has in them; how many nogoods had no row."""
    rows: dict[int, int] = {}
    touched = [0] * len(domains)
    gaps = 0
    for number, nogood in group.nogoods:
        if all(domains[variable] & mask for variable, mask in nogood):
            for variable, mask in nogood:
                touched[variable] |= domains[variable] & mask
            if number < 0:
                gaps += 1
            else:
                newest = (domains[nogood[0][0]] & nogood[0][1]).bit_length()
                rows[number] = max(rows.get(number, 0), newest)
    if not rows and not gaps:
        rows = dict.fromkeys((n for n, _ in group.nogoods if n >= 0), 0)
    ordered = sorted(rows, key=lambda n: (-rows[n], n))
    return [rule.rows[n] for n in ordered], touched, gaps


def _rule_member(problem: Problem, rule: Rule, group: Group, domains: Domains, *, cause: bool) -> Conflict:
    rows, touched, _ = relevant_rows(rule, group, domains)
    affected = {
        component: [str(problem.values[v][i]) for i in sorted(bits(touched[v])) if problem.values[v][i] is not None]
        for v, component in enumerate(problem.components)
        if touched[v]
    }
    if rule.id.startswith("torch-"):
        rows = sorted(rows, key=rule.rows.index)
    components = {c: these_versions(c, versions) for c, versions in affected.items() if versions}
    for row in rows[:1]:
        components |= {c: spec.text for c, spec in row.needs.items()}
    return Conflict(
        rule=rule.id,
        components=components,
        message=rule_sentence(rule, rows, affected, cause=cause),
        evidence=strongest([e for row in rows for e in row.evidence] or [e for row in rule.rows for e in row.evidence]),
    )


def _wish_member(problem: Problem, wish: Wish) -> Conflict:
    return Conflict(
        rule=f"request:{wish.component}", components={wish.component: wish.text}, message=wish_sentence(problem, wish)
    )


def _parts(spec: str) -> list[str]:
    return [part.strip() for part in spec.replace("||", ",").split(",") if part.strip()]


def wish_sentence(problem: Problem, wish: Wish) -> str:
    """What was asked for, and whether there is any such release at all."""
    if wish.reason:
        return f"{wish.component} {wish.text}: {wish.reason}"
    if wish.component == "exclude-newer":
        return f"only releases up to {wish.text} were asked for"
    if len(wish.masks) == 1 and not wish.masks[0][1]:
        values = [v for v in problem.values[wish.masks[0][0]] if v is not None]
        newest = f"the newest known is {values[-1]}" if values else "none is known"
        if "," in wish.text and all(any(Spec.parse(p).contains(v) for v in values) for p in _parts(wish.text)):
            return f"{wish.component} {wish.text} was asked for, and no release is all of that"
        return f"{wish.component} {wish.text} was asked for, and no such release is known ({newest})"
    if wish.component == "driver":
        return f"the host has driver {wish.text}"
    if wish.component == "gpu":
        return f"the cell must run on {name_release('gpu', wish.text)}"
    return f"{wish.component} {wish.text} was asked for"
