"""Why this cell: a sentence for each choice, what was passed over and how to get it, other cells a user may prefer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from envsmith.model.cell import Cell
from envsmith.model.finding import Conflict, Finding, Solution
from envsmith.model.rule import Severity
from envsmith.model.version import WORDS, public, version_key
from envsmith.solver.kernel import Effort, bits
from envsmith.solver.prefer import A_STEP, PYTHON_ORDER, Preference
from envsmith.solver.problem import Problem, Wish
from envsmith.solver.refusal import conflict_members
from envsmith.solver.remarks import lock_notes, ready, unheard
from envsmith.solver.request import Posed
from envsmith.solver.solver import Answer, Solver, Stuck
from envsmith.solver.words import finding_of_row, join_words, rule_sentence

_MAX_ALTERNATIVES = 3
_TRIED = "tried"
_LEFT_OUT = "none is taken unless asked for"


def reasons(solver: Solver, posed: Posed, answer: Answer, effort: Effort | None = None) -> Solution:
    """Return the solution with its reasons, those that are met until the effort is spent."""
    why: list[str] = []
    earlier: list[Wish] = []
    effort = effort or Effort()
    for name in (*posed.preference.frameworks, "torch", "python", *posed.preference.companions):
        if name in posed.problem.names:
            with_cuda = _with_cuda(posed, answer) if name == "torch" else ()
            why += _choice_reasons(solver, posed, answer, name, (*earlier, *with_cuda), effort=effort)
            earlier += [_exactly(posed, answer, n) for n in (name, *(["cuda"] if with_cuda else []))]
    if "pre" not in answer.avoided and posed.pre:
        why.append("Nothing but pre-releases satisfies the request: the cell has one.")
    warnings = list(_warnings(solver, posed, answer))
    why += ready(solver, answer.cell, posed.request.wheels)
    why += unheard(solver, answer.cell)
    warnings += lock_notes(solver, answer.cell, posed.request.wheels)
    return Solution(
        cell=answer.cell,
        why=tuple(why),
        warnings=tuple(warnings),
        alternatives=tuple(_alternatives(solver, posed, answer)),
    )


def _exactly(posed: Posed, answer: Answer, name: str) -> Wish:
    """Return a release of the answer as a wish."""
    variable = posed.problem.names.index(name)
    text = str(posed.problem.values[variable][answer.domains[variable].bit_length() - 1])
    return Wish(name, text, ((variable, answer.domains[variable]),), reason=_TRIED)


def _with_cuda(posed: Posed, answer: Answer) -> tuple[Wish, ...]:
    """Return the wish for a build with CUDA, when the answer has one."""
    mask = posed.problem.with_cuda()
    if mask is None or not answer.domains[mask[0]] & mask[1]:
        return ()
    return (Wish("a build", "without CUDA", (mask,), reason="one with CUDA comes first"),)


def _of_default_index(posed: Posed) -> Wish:
    mask = (posed.problem.names.index("torch"), posed.preference.default_builds)
    return Wish("a build", "of the PyTorch index", (mask,), reason="one of the default index comes first")


def _plain(posed: Posed, variable: int, *, by_wish: bool = True) -> int:
    """Return the releases that are neither pre-releases nor yanked (nor, ``by_wish``, what the request excludes)."""
    compiled, component = posed.problem.compiled, posed.problem.components[variable]
    mask = posed.problem.full[variable] & ~(compiled.pre.get(component, 0) | compiled.yanked.get(component, 0))
    for v, allowed in (m for wish in posed.problem.wishes for m in wish.masks):
        if v == variable and by_wish:
            mask &= allowed
    return mask


def _choice_reasons(
    solver: Solver, posed: Posed, answer: Answer, name: str, earlier: Sequence[Wish], *, effort: Effort
) -> Iterator[str]:
    """Yield why a release was chosen: what it is, and what keeps out those that would come before it."""
    version, newer = _exactly(posed, answer, name).text, newer_than(posed, answer, name)
    label, rivals = (
        f"{name} {version}: ",
        [(tried_release(posed, name, i, sum(1 << i for i in newer)), "is newer") for i in newer[:1]],
    )
    if name == "python":
        label = f"Python {version}: "
        rivals = [(tried_release(posed, name, i, -1), "is the usual choice") for i in _first_python(posed, version)]
    elif name == "torch":
        label = f"torch {version} ({'default build' if answer.cell.index == 'default' else 'from the PyTorch index'}): "
        tests, better = _tests(posed, answer, newer)
        rivals += [(wish, "was tested as well") for wish in better if wish.text not in {w.text for w, _ in rivals}]
        if tests:
            yield f"{label}{tests}."
            label = "torch "
    reasons_before: set[str] = set()
    for wish, claim in rivals:
        if effort.is_spent():
            yield f"{label}{wish.text} {claim}; the search for the reason stopped at its limit."
            continue
        wishes = (*posed.problem.wishes, wish)
        members = against(solver, posed, answer, wishes, earlier)
        because = " and ".join(m.message for m in members) or _by_order(posed, answer, wish)
        because = because or _companion_beside(solver, posed, answer, wish)
        if not because and name == "torch" and answer.cell.index == "default":
            at_default = (*earlier, _of_default_index(posed))
            because = " and ".join(m.message for m in against(solver, posed, answer, wishes, at_default))
        because = because or f"the usual order prefers {version}"
        if because not in reasons_before:
            reasons_before.add(because)
            yield f"{label}{wish.text} {claim}, but {because}."
    if not rivals and label != "torch " and name not in posed.preference.companions:
        yield label + _first(posed, answer, name) + "."


def _by_order(posed: Posed, answer: Answer, wish: Wish) -> str:
    """Return what the order holds against a release: no test of it, or that it came out long after the others."""
    if doubt := untested(posed, answer, wish):
        return doubt
    ((_, mask),) = wish.masks
    day, start, part = posed.preference.later(wish.component, mask.bit_length() - 1, answer.domains)
    if posed.request.date:
        return f"it came out on {day}, after the date {start}" if day else ""
    beside = answer.cell.components[part] if part else ""
    months = A_STEP.days // 30
    return f"it came out on {day}, more than {months} months after {part} {beside} of {start}" if part else ""


def _companion_beside(solver: Solver, posed: Posed, answer: Answer, wish: Wish) -> str:
    """Return which companion would be older beside a release of torch, nothing when none would."""
    beside = solver.best(posed, wishes=(*posed.problem.wishes, wish)) if wish.component == "torch" else None
    for name in posed.preference.companions if beside else ():
        variable = posed.problem.names.index(name)
        if beside and beside.domains[variable] < answer.domains[variable]:
            return f"{name} would be {beside.cell.components[name]} beside it"
    return ""


def _first_python(posed: Posed, version: str) -> list[int]:
    """Return the Python release that is the usual choice of those that were asked for, if it is another."""
    variable = posed.problem.names.index("python")
    if posed.request.date:
        return []
    plain, values = _plain(posed, variable), posed.problem.values[variable]
    first = next((v for v in PYTHON_ORDER if v in values and plain >> values.index(v) & 1), version)
    return [values.index(first)] if first != version else []


def _first(posed: Posed, answer: Answer, name: str) -> str:
    """Return in which order a release comes before all others that the request admits."""
    variable, chosen = posed.problem.names.index(name), _exactly(posed, answer, name)
    if name == "python":
        wish = next((w for w in posed.problem.wishes if w.component == name), None)
        is_first = chosen.text == PYTHON_ORDER[0]
        if wish and not (wish.reason and is_first):
            return wish.reason or "as asked"
        if posed.request.date:
            return f"a year old on {posed.request.date}, or the oldest that the others admit"
        return "the usual choice" if is_first else "the first of the usual order that the request admits"
    if not chosen.masks[0][1] & _plain(posed, variable):
        return (
            "a yanked release" if chosen.masks[0][1] & posed.problem.compiled.yanked.get(name, 0) else "a pre-release"
        )
    newer = newer_than(posed, answer, name, by_wish=False)
    return "the newest release that the request admits" if newer else "the newest stable release"


def _tests(posed: Posed, answer: Answer, newer: Sequence[int]) -> tuple[str, list[Wish]]:
    """Return whether torch was tested with the frameworks, and the tested release that would come before it, if any."""
    tests = posed.preference.torch_tests(list(answer.domains))
    if tests is None:
        return "", []
    own = _exactly(posed, answer, "torch")
    label = join_words([f"{n} {answer.cell.components[n]}" for n in posed.preference.frameworks])
    variable, mask = own.masks[0]
    if tests.ran & mask:
        newest = not any(tests.ran >> i & 1 for i in newer_than(posed, answer, "torch", by_wish=False))
        head = f"the newest that is tested with {label}" if newest else f"tested with {label}"
        head += f" (how far and by whom: envsmith explain {answer.cell.id})"
    else:
        values = posed.problem.values[variable]
        releases = [values[i] for i in bits(tests.ran) if public(values[i]) == public(own.text)]
        head = f"no test of this build with {label} is known"
        head += (
            f" ({join_words([str(build) for build in releases])} {'was' if len(releases) == 1 else 'were'} run)"
            if releases
            else ""
        )
        if not tests.counted & mask:
            newer = [i for i in bits(_plain(posed, variable)) if public(values[i]) != public(own.text)]
    rivals = tests.ran & tests.near & _cuda_builds(posed, answer)
    return head, [tried_release(posed, "torch", i, rivals) for i in newer if rivals >> i & 1][:1]


def newer_than(posed: Posed, answer: Answer, name: str, *, by_wish: bool = True) -> list[int]:
    """Return the stable releases that are newer than the one in the answer, newest first: those ``asked`` for or all.

    Builds of torch count by release. Those without CUDA count where there are no others, or the answer has none either.
    """
    variable, version = posed.problem.names.index(name), _exactly(posed, answer, name).text
    mask, values = _plain(posed, variable, by_wish=by_wish), posed.problem.values[variable]
    if name == "torch":
        mask = _cuda_builds(posed, answer) & mask or mask
    index, listed = values.index(version), posed.problem.compiled.versions.get(name, ())
    above = bits(mask >> index + 1 << index + 1)
    if index >= len(listed):  # named by the request: it stands behind the releases that are known
        own = version_key(version)
        above = (i for i in bits(mask) if (key := version_key(values[i] or "none")) and own and key > own)
    return [i for i in above if values[i] and values[i] not in WORDS and public(values[i]) != public(version)]


def _cuda_builds(posed: Posed, answer: Answer) -> int:
    """Return the mask of the torch builds with CUDA, of all when the answer has none."""
    carried = next((i for i, g in enumerate(posed.problem.groups) if g.rule == "torch-bundles-cuda"), None)
    with_cuda = _with_cuda(posed, answer)
    if not with_cuda or carried is None:
        return -1
    builds = posed.problem.part(carried).begin(with_cuda[0].masks)
    return builds[posed.problem.names.index("torch")] if builds else 0


def tried_release(posed: Posed, name: str, index: int, among: int) -> Wish:
    """Return the wish for a release, of torch in any build ``among`` some."""
    variable = posed.problem.names.index(name)
    values, release = posed.problem.values[variable], public(posed.problem.values[variable][index])
    mask = sum(1 << i for i, value in enumerate(values) if i == index or (name == "torch" and public(value) == release))
    return Wish(name, release if name == "torch" else str(values[index]), ((variable, mask & among),), reason=_TRIED)


def untested(posed: Posed, answer: Answer, wish: Wish) -> str:
    """Return that no test is known of what was tried, where what was chosen is tested."""
    name, ((_, mask),) = wish.component, wish.masks
    framework = posed.preference.untested_with(name, mask, answer.domains)
    if framework is None:
        return ""
    if framework == name:
        return f"no test of it is known (ask for it: --framework '{name}=={wish.text}')"
    chosen = answer.cell.components[framework]
    return f"no test of it with {framework} {chosen} is known (ask for it: --torch {wish.text})"


def against(
    solver: Solver, posed: Posed, answer: Answer, wishes: Sequence[Wish], earlier: Sequence[Wish] = ()
) -> tuple[Conflict, ...]:
    """Return what keeps the release out that is tried among ``wishes``, rules first. Nothing when only the order does.

    Rules count before what the answer avoids (a pre-release, a warning that it does not have). The reason is the
    shorter one of that by itself and that beside ``earlier`` choices.
    """
    masks = [m for kind, m in (("pre", posed.pre), ("yanked", posed.yanked)) if kind in answer.avoided]
    left_out = Wish("a pre-release", "or yanked release", tuple(m for kind in masks for m in kind), reason=_LEFT_OUT)
    problem, firm, strict = posed.problem, posed.problem.firm(answer.domains), (*wishes, left_out)
    for tried, demands in ((problem, wishes), (problem, strict), (firm, strict)):
        conflicts = (solver.stuck(tried.with_wishes(beside)) for beside in (demands, (*demands, *earlier)))
        if members := [_shown_members(solver, problem, tried, stuck) for stuck in conflicts if stuck]:
            return min(members, key=len)
    return ()


def _shown_members(solver: Solver, problem: Problem, tried: Problem, stuck: Stuck) -> tuple[Conflict, ...]:
    """Return the rules of a conflict, warnings marked, then the wishes of the request."""
    members = conflict_members(solver, tried, stuck, cause=False)
    count = len(stuck.wishes)
    rules = [
        m if group in problem.groups else replace(m, message=f"{m.message} (a warning)")
        for m, group in zip(members[count:], stuck.groups, strict=True)
    ]
    wishes = zip(members[:count], stuck.wishes, strict=True)
    return (*rules, *(member for member, wish in wishes if wish.reason != _TRIED))


def _warnings(solver: Solver, posed: Posed, answer: Answer) -> Iterable[Finding]:
    """Return the warning rows that the cell could not avoid, and the advice that it does not follow."""
    domains = list(answer.domains)
    for group in (*posed.problem.groups, *posed.problem.advice):
        if group.severity is not Severity.WARNING:
            continue
        for number, nogood in group.nogoods:
            if all(domains[v] & m for v, m in nogood):
                rule = solver.graph.rule(group.rule)
                row = rule.rows[number]
                versions = {c: answer.cell.components[c] for c in row.scope if c in answer.cell.components}
                message = rule_sentence(rule, [row], {c: [v] for c, v in versions.items()})
                yield finding_of_row(rule, row, Severity.WARNING, versions, message)
                break


def _alternatives(solver: Solver, posed: Posed, answer: Answer) -> list[Cell]:
    """Return at most three cells: with the newest torch at all, and with the CUDA majors next to this one."""
    order = Preference(posed.problem, posed.preference.frameworks, posed.preference.companions, supported_first=False)
    candidates = [] if posed.request.date else [solver.best(posed._replace(preference=order))]
    cuda = posed.problem.variable("cuda")
    if cuda is not None and not any(w.component == "cuda" and not w.reason for w in posed.problem.wishes):
        majors: dict[str, int] = {}
        for index, value in enumerate(posed.problem.values[cuda]):
            if value not in (None, "cpu"):
                major = str(value).split(".")[0]
                majors[major] = majors.get(major, 0) | 1 << index
        mine = answer.cell.components.get("cuda", "").split(".")[0]
        for major in sorted(majors, key=int, reverse=True):
            if major != mine and (not mine.isdigit() or abs(int(major) - int(mine)) == 1):
                wish = Wish("cuda", major, ((cuda, majors[major]),))
                candidates.append(solver.best(posed, wishes=[*posed.problem.wishes, wish]))
    cells = [c.cell for c in candidates if c and c.avoided == answer.avoided and c.cell.id != answer.cell.id]
    return [cell for number, cell in enumerate(cells) if cell not in cells[:number]][:_MAX_ALTERNATIVES]
