"""A request without an answer: what of it cannot hold together, in sentences, and the repairs."""

from __future__ import annotations

from collections.abc import Iterator

from envsmith.model.finding import Conflict, Refusal, UnsatisfiableError
from envsmith.model.rule import Row, Rule
from envsmith.model.version import Spec
from envsmith.solver.kernel import Domains, Effort, Net, bits
from envsmith.solver.problem import Problem, RuleNogoods, Wish
from envsmith.solver.request import Posed
from envsmith.solver.solver import Solver, Stuck
from envsmith.solver.words import name_release, rule_sentence, strongest, these_versions


def refuse(
    solver: Solver, posed: Posed, effort: Effort | None = None, *, here: Posed | None = None
) -> UnsatisfiableError:
    """Return the error for a request without an answer, with its :class:`Refusal`: what is met until effort is spent.

    ``here`` is the request on the machine at hand, for which repairs name the cell.
    """
    for name, component, values in zip(
        posed.problem.names, posed.problem.components, posed.problem.values, strict=False
    ):
        if not values:
            message = f"envsmith knows no release of {component}: name one exactly, as {component}==1.2.3"
            member = Conflict(rule=f"request:{name}", components={name: "*"}, message=message)
            return _error(Refusal(conflict=(member,)))
    effort = effort or Effort()
    members, *further = [*conflicts(solver, posed, effort)] or [()]
    repairs = solver.repairs(posed, effort, here=here)
    return _error(Refusal(conflict=members, further=tuple(further), repairs=repairs, stopped=effort.stopped))


def conflicts(solver: Solver, posed: Posed, effort: Effort | None = None) -> Iterator[tuple[Conflict, ...]]:
    """Yield conflicts that share no wish, the smallest first."""
    problem = posed.problem
    while stuck := solver.stuck(problem, effort, avoided=posed.pre):
        yield conflict_members(solver, problem, stuck)
        if not stuck.wishes:
            return
        problem = problem.with_wishes(wish for wish in problem.wishes if wish not in stuck.wishes)


def _error(refusal: Refusal) -> UnsatisfiableError:
    repair = refusal.repairs[0] if refusal.repairs else None
    hint = f"Ask for {repair.message}, which gives {repair.cell.id}." if repair else None
    return UnsatisfiableError(
        "Cannot solve the request: no cell satisfies it.",
        refusal=refusal,
        hint=hint,
        details=[c.message for c in refusal.conflict],
    )


def conflict_members(
    solver: Solver, problem: Problem, stuck: Stuck | None, *, cause: bool = True
) -> tuple[Conflict, ...]:
    """Return the members of a conflict, wishes first, then rules. ``cause`` adds why a hand-written rule holds."""
    if stuck is None:
        return ()
    members = [
        Conflict(rule=f"request:{w.component}", components={w.component: w.text}, message=_wish_sentence(problem, w))
        for w in stuck.wishes
    ]
    full, wishes = problem.full, [mask for wish in stuck.wishes for mask in wish.masks]
    for group in stuck.groups:
        # In one net, where two rules over the same two components are one table: what they leave together.
        remaining_rules = Net(full, [nogood for g in stuck.groups if g is not group for _, nogood in g.nogoods])
        domains = remaining_rules.begin(wishes) or full
        members.append(_rule_member(problem, solver.graph.rule(group.rule), group, domains, cause=cause))
    return tuple(members)


def _relevant_rows(rule: Rule, group: RuleNogoods, domains: Domains) -> tuple[list[Row], list[int]]:
    """Return the rows that speak of ``domains`` (all when none does), newest first, and the values in them."""
    touched = [0] * len(domains)
    newest = dict.fromkeys((n for n, _ in group.nogoods), 0)
    if met := [(n, nogood) for n, nogood in group.nogoods if all(domains[v] & mask for v, mask in nogood)]:
        newest = dict.fromkeys((n for n, _ in met), 0)
    for number, nogood in met:
        for variable, mask in nogood:
            touched[variable] |= domains[variable] & mask
        newest[number] = max(newest[number], (domains[nogood[0][0]] & nogood[0][1]).bit_length())
    listed = rule.id.startswith("torch-")  # one row for each build, in the order of builds
    order = sorted(newest) if listed else sorted(newest, key=lambda n: (-newest[n], n))
    return [rule.rows[n] for n in order if n >= 0], touched


def _rule_member(problem: Problem, rule: Rule, group: RuleNogoods, domains: Domains, *, cause: bool) -> Conflict:
    rows, touched = _relevant_rows(rule, group, domains)
    affected = {
        component: [str(problem.values[v][i]) for i in sorted(bits(touched[v])) if problem.values[v][i] is not None]
        for v, component in enumerate(problem.components)
        if touched[v]
    }
    components = {c: these_versions(c, versions) for c, versions in affected.items() if versions}
    for row in rows[:1]:
        components |= {c: spec.text for c, spec in row.needs.items()}
    return Conflict(
        rule=rule.id,
        components=components,
        message=rule_sentence(rule, rows, affected | {"platform": [problem.platform.value]}, cause=cause),
        evidence=strongest([e for row in rows for e in row.evidence] or [e for row in rule.rows for e in row.evidence]),
    )


def _wish_sentence(problem: Problem, wish: Wish) -> str:
    """Return what was asked for, and whether there is any such release at all."""
    if wish.reason:
        return f"{name_release(wish.component, wish.text)}: {wish.reason}"
    if wish.component == "exclude-newer":
        return f"only releases up to {wish.text} were asked for"
    if len(wish.masks) == 1 and not wish.masks[0][1]:
        values = [v for v in problem.values[wish.masks[0][0]] if v is not None]
        newest = f"the newest known is {values[-1]}" if values else "none is known"
        if "," in wish.text and all(any(c.contains(v) for v in values) for c in Spec.parse(wish.text).clauses):
            return f"{wish.component} {wish.text} was asked for, and no release is all of that"
        return f"{wish.component} {wish.text} was asked for, and no such release is known ({newest})"
    if wish.component in ("driver", "gpu") and wish.text == "none":
        return f"the host has {name_release(wish.component, wish.text)}"
    if wish.component == "driver":
        return f"the host has driver {wish.text}"
    if wish.component == "gpu":
        return f"the cell must run on {name_release('gpu', wish.text)}"
    return f"{wish.component} {wish.text} was asked for"
