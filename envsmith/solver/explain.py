"""Refusals, reasons, cells, rules and upgrades in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from envsmith.base.schema import AsJson, written
from envsmith.errors import UsageError
from envsmith.model.cell import Cell, CellId, Platform, Request
from envsmith.model.component import Role
from envsmith.model.finding import Conflict, Finding, Refusal, Repair, Solution, UnsatisfiableError
from envsmith.model.rule import Evidence, Row, Rule, Severity, Tested
from envsmith.model.version import WORDS, Spec, public, version_key
from envsmith.solver.kernel import Domains, Effort, Net, bits
from envsmith.solver.prefer import A_STEP, PYTHON_ORDER, Preference
from envsmith.solver.problem import Problem, RuleNogoods, Wish, pose
from envsmith.solver.remarks import lock_notes, ready, unheard
from envsmith.solver.request import Posed
from envsmith.solver.solver import Answer, Solver, Stuck, default_solver
from envsmith.solver.words import finding_of_row, join_words, name_release, rule_sentence, strongest, these_versions


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


# ``explain``: a cell, a rule, an upgrade, in sentences with the rules they rest on.


_TRIED = "tried"
_LEFT_OUT = "none is taken unless asked for"


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation(AsJson):
    """``sentences`` are complete by themselves.

    ``members`` are the rules they rest on, with evidence. ``repairs`` were solved.
    """

    subject: str
    sentences: tuple[str, ...]
    members: tuple[Conflict, ...] = field(default=(), metadata=written("rules"))
    evidence: tuple[Evidence, ...] = ()
    repairs: tuple[Repair, ...] = ()


def _parsed(cell: CellId | str) -> CellId:
    if isinstance(cell, CellId):
        return cell
    try:
        return CellId.parse(cell)
    except ValueError as error:
        raise UsageError(f"Cannot read the cell: {error}.") from error


def pose_cell(solver: Solver, cell: CellId) -> Posed:
    """Pose the problem in which every component of a cell's id is wished for exactly."""
    versions = dict(cell.components)
    roles = solver.compiled.roles
    for name in versions:
        if name not in roles:
            raise UsageError(
                f"Cannot read {cell}: {name!r} is not a component.",
                hint="Type for example ds0.19.8-torch2.13.0-cu130-py312.",
            )
    frameworks = {n: Spec.exactly(v) for n, v in versions.items() if roles[n] is Role.FRAMEWORK}
    constraints = {n: Spec.exactly(v) for n, v in versions.items() if n not in frameworks}
    request = Request(frameworks=frameworks, constraints=constraints, platform=cell.platform, lockable=False)
    return solver.pose(request)


def explain_cell(cell: CellId | str, *, solver: Solver | None = None) -> Explanation:
    """Explain each release of a cell.

    What is newer, which rule keeps it out, on what evidence, and what would let it in.
    """
    solver, cell = solver or default_solver(), _parsed(cell)
    posed = pose_cell(solver, cell)
    answer = solver.best(posed)
    if answer and answer.cell.id != cell:  # a shortened name stands for the best cell that begins like it
        cell = answer.cell.id
        posed = pose_cell(solver, cell)
        answer = solver.best(posed)
    members: dict[str, Conflict] = {}
    sentences = []
    if answer is None:
        own_members = conflict_members(solver, posed.problem, solver.stuck(posed.problem))
        sentences = [f"{cell} is not a valid cell: " + "; ".join(m.message for m in own_members)]
        repairs = solver.repairs(posed)
        return Explanation(subject=str(cell), sentences=tuple(sentences), members=own_members, repairs=repairs)
    sentences += _evidence_ladder(solver, answer.cell)
    for name in answer.cell.chosen:
        sentence, own_members = _newer(solver, posed, answer, name)
        sentences.append(sentence)
        members |= {m.rule: m for m in own_members if not m.is_wish}
    follows = [name_release(n, v) for n, v in answer.cell.components.items() if n not in answer.cell.chosen]
    if follows:
        sentences.append(f"torch {answer.cell.components['torch']} carries {join_words(follows)}.")
    evidence = strongest((e for m in members.values() for e in m.evidence), limit=12)
    return Explanation(
        subject=str(cell), sentences=tuple(sentences), members=tuple(members.values()), evidence=evidence
    )


def _evidence_ladder(solver: Solver, cell: Cell) -> list[str]:
    """Tell who is known to have run the frameworks of a cell with its torch."""
    sentences = []
    knowledge = solver.knowledge()
    for name in (n for n in cell.chosen if solver.compiled.roles[n] is Role.FRAMEWORK):
        version, torch = cell.components[name], cell.components["torch"]
        lines = [
            t
            for t in knowledge.tested
            if t.framework == name and t.version.contains(version) and t.torch.contains(torch)
        ]
        own = [t for t in lines if _ran_this_build(t, cell)]
        if lines:
            sources = "; ".join(map(str, strongest((e for t in own or lines for e in t.evidence), limit=2)))
            kinds = join_words(list(dict.fromkeys(t.kind for t in own or lines)))
        if own:
            sentences.append(f"{name} {version} with torch {torch} is tested ({kinds}): {sources}.")
        elif lines:
            sentences.append(
                f"No test of {name} {version} with torch {torch} is known. The same release of torch was run in another "
                f"build ({kinds}): {sources}."
            )
        else:
            sentences.append(f"No test of {name} {version} with torch {torch} is known; no rule speaks against it.")
    return sentences


def _ran_this_build(line: Tested, cell: Cell) -> bool:
    """Return whether what was run is the build of torch that the cell has: of its CUDA, or the default one."""
    if line.cuda is None:
        return cell.index == "default"
    return line.cuda.contains(cell.components.get("cuda", "cpu"))


def _newer(solver: Solver, posed: Posed, answer: Answer, name: str) -> tuple[str, tuple[Conflict, ...]]:
    """Return what became of the newest release of one component when the rest of the cell stays."""
    problem = posed.problem
    if name == "cuda" and "torch" in problem.names:
        return (
            f"{name_release(name, _versions(posed.problem.wishes)[name])}: what this build of torch is made with.",
            (),
        )
    version = _versions(problem.wishes)[name]
    label = name_release(name, version)
    newer = _newer_than(posed, answer, name, by_wish=False)
    if not newer:
        return f"{label}: the newest release.", ()
    wish = _tried(posed, name, newer[0], sum(1 << i for i in newer))
    # The CUDA build follows its torch, and the torch build its CUDA: they do not hold each other back.
    tied = {"torch": ("torch", "cuda"), "cuda": ("torch", "cuda")}.get(name, (name,))
    tried = posed.with_wishes([*(w for w in problem.wishes if w.component not in tied), wish])
    members = _against(solver, tried, answer)
    if not members:
        untested = _untested(posed, answer, wish)
        return f"{label}: {wish.text} is newer{f', but {untested}' if untested else ' and breaks no rule here'}.", ()
    rules = tuple(m for m in members if not m.is_wish)
    sentence = f"{label}: {wish.text} is newer; {' and '.join(m.message for m in rules)}."
    if lift := _lift(solver, tried, wish):
        giving_up = " by giving up" if len(members) > len(rules) else ""
        sentence += f" It could be had{giving_up} {lift}."
    return sentence, rules


def _newer_than(posed: Posed, answer: Answer, name: str, *, by_wish: bool = True) -> list[int]:
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


def _tried(posed: Posed, name: str, index: int, among: int) -> Wish:
    """Return the wish for a release, of torch in any build ``among`` some."""
    variable = posed.problem.names.index(name)
    values, release = posed.problem.values[variable], public(posed.problem.values[variable][index])
    mask = sum(1 << i for i, value in enumerate(values) if i == index or (name == "torch" and public(value) == release))
    return Wish(name, release if name == "torch" else str(values[index]), ((variable, mask & among),), reason=_TRIED)


def _against(solver: Solver, posed: Posed, answer: Answer, earlier: Sequence[Wish] = ()) -> tuple[Conflict, ...]:
    """Return what keeps the release out that was tried, rules first. Nothing when only the usual order does.

    Rules count before what the answer avoids (a pre-release, a warning that it does not have). The reason is the
    shorter one of that by itself and that beside ``earlier`` choices.
    """
    masks = [m for kind, m in (("pre", posed.pre), ("yanked", posed.yanked)) if kind in answer.avoided]
    left_out = Wish("a pre-release", "or yanked release", tuple(m for kind in masks for m in kind), reason=_LEFT_OUT)
    problem, wished = posed.problem, posed.problem.wishes
    firm = problem.firm(answer.domains)
    for tried, wishes in ((problem, wished), (problem, (*wished, left_out)), (firm, (*wished, left_out))):
        conflicts = (solver.stuck(tried.with_wishes(beside)) for beside in (wishes, (*wishes, *earlier)))
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


def _untested(posed: Posed, answer: Answer, wish: Wish) -> str:
    """Return that no test is known of what was tried, where what was chosen is tested."""
    name, ((_, mask),) = wish.component, wish.masks
    for framework, support in posed.preference.support.items():
        chosen = _exactly(posed, answer, framework)
        tested = support.torch(chosen.masks[0][1].bit_length() - 1)
        if name == framework and tested and not support.torch(mask.bit_length() - 1):
            return f"no test of it is known (ask for it: --framework '{name}=={wish.text}')"
        if name == "torch" and tested & _exactly(posed, answer, name).masks[0][1] and not tested & mask:
            return f"no test of it with {framework} {chosen.text} is known (ask for it: --torch {wish.text})"
    return ""


def _versions(wishes: Iterable[Wish]) -> dict[str, str]:
    """Return component and version of each exact wish."""
    return {w.component: w.text.removeprefix("==") for w in wishes}


def _lift(solver: Solver, tried: Posed, wish: Wish) -> str:
    """Return what would have to change to have it, or nothing where it cannot be had."""
    wishes = [w for w in tried.problem.wishes if w is not wish]
    posed = tried.with_wishes([*wishes, wish._replace(host=True)])
    repairs = solver.repairs(posed, limit=1)
    if not repairs or any(c.component == wish.component for c in repairs[0].changes):
        return ""
    return join_words(
        [f"{name_release(c.component, c.old.removeprefix('=='))} for {c.new}" for c in repairs[0].changes if c.old]
    )


def explain_rule(rule_id: str, platform: Platform = Platform.LINUX_64, *, solver: Solver | None = None) -> Explanation:
    """Explain a rule: what it says, what one sees when it is broken, what it rules out, what to do, and its evidence.

    ``UsageError`` names the nearest rules when there is none of that id.
    """
    solver = solver or default_solver()
    rules = {r.id: r for r in solver.knowledge().rules}
    rule = rules.get(rule_id)
    if rule is None:
        import difflib

        near = difflib.get_close_matches(rule_id, rules, n=3, cutoff=0.4)
        raise UsageError(
            f"Cannot explain {rule_id!r}: there is no such rule.",
            hint=f"Try {join_words(near, last='or')}." if near else "Give an error message to envsmith doctor.",
        )
    rows = [row for row in rule.rows if not row.platforms or platform in row.platforms]
    sentences = [f"{rule.id} ({rule.kind.value}, {join_words(list(rule.components))})."]
    sentences += list(dict.fromkeys(rule_sentence(rule, [row], {}, cause=False) + "." for row in rows[-8:]))
    causes = dict.fromkeys(row.cause for row in rows if row.cause and row.needs and not rule.id.startswith("torch-"))
    sentences += [f"Why: {cause}" for cause in list(causes)[:3] if not rule.is_declared]
    if len(rows) > 8:
        sentences.append(f"{len(rows) - 8} more rows say the like of older releases.")
    sentences += _killed(solver, rule, platform)
    symptoms = dict.fromkeys(row.symptom for row in rows if row.symptom)
    sentences += [f"One sees: {symptom}" for symptom in list(symptoms)[:3]]
    if rule.stage:
        sentences.append(f"It shows at: {rule.stage}.")
    fixes = dict.fromkeys(row.fix for row in rows if row.fix)
    sentences += [f"What to do: {fix}" for fix in list(fixes)[:3]]
    evidence = strongest((e for row in rows for e in row.evidence), limit=12)
    return Explanation(subject=rule.id, sentences=tuple(sentences), evidence=evidence)


def _killed(solver: Solver, rule: Rule, platform: Platform) -> list[str]:
    """Tell how many combinations of releases a rule leaves no room for."""
    names = {c: c for c in rule.components}
    problem = pose(solver.compiled, platform, names, {}, gaps=False)
    sentences = []
    for group in problem.groups:
        if group.rule != rule.id or not all(problem.values):
            continue
        verb = "rules out" if group.severity is Severity.ERROR else "warns of"
        if len(names) == 1:
            mask = 0
            for _, nogood in group.nogoods:
                mask |= nogood[0][1]
            sentences.append(
                f"It {verb} {mask.bit_count()} of {len(problem.values[0])} releases of {rule.components[0]}."
            )
        elif len(names) == 2:
            rows = [0] * len(problem.values[0])
            for _, nogood in group.nogoods:
                masks = dict(nogood)
                for value in bits(masks.get(0, problem.full[0])):
                    rows[value] |= masks.get(1, problem.full[1])
            count, pairs = sum(r.bit_count() for r in rows), len(rows) * len(problem.values[1])
            touched = [problem.values[0][i] for i, r in enumerate(rows) if r]
            first, second = rule.components
            sentences.append(
                f"It {verb} {count} of {pairs} pairs of {first} and {second} releases"
                + (f" ({first} {these_versions(first, touched)})." if touched else ".")
            )
    return sentences


def explain_upgrade(cell: CellId | str, specs: Mapping[str, Spec], *, solver: Solver | None = None) -> Explanation:
    """Explain the way from a cell to ``{"torch": Spec(">=2.13")}``: what must change, what blocks, and since when.

    ``UsageError`` for a component that the cell does not have.
    """
    solver, cell = solver or default_solver(), _parsed(cell)
    posed = pose_cell(solver, cell)
    problem = posed.problem
    for name in specs:
        if name not in problem.names:
            raise UsageError(
                f"Cannot explain {name} of {cell}: the cell does not have it.",
                hint="Name a component of the cell: " + ", ".join(problem.names) + ".",
            )
    new = [
        Wish(n, s.text, ((problem.names.index(n), problem.mask(problem.names.index(n), s)),), host=True)
        for n, s in specs.items()
    ]
    tied = {"cuda"} if "torch" in specs and "cuda" not in specs else set()
    wishes = [w for w in problem.wishes if w.component not in specs and w.component not in tied]
    aim = posed.with_wishes([*wishes, *new])
    aim_text = join_words([f"{n} {s.text}" for n, s in specs.items()])
    answer = solver.best(aim)
    if answer is not None:
        old = dict(cell.components)
        changes = [
            f"{name_release(n, old[n])} becomes {v}"
            for n, v in answer.cell.components.items()
            if n in old and old[n] != v
        ]
        sentence = (
            f"Nothing blocks {aim_text}: {join_words(changes) or 'nothing changes'}. The cell is {answer.cell.id}."
        )
        return Explanation(subject=f"{cell} to {aim_text}", sentences=(sentence,))
    stuck = solver.stuck(aim.problem)
    blocking = _versions(w for w in (stuck.wishes if stuck else ()) if w not in new)
    rules = [m for m in conflict_members(solver, aim.problem, stuck) if not m.is_wish]
    sentences = [f"{name_release(n, v)}{_published(solver, n, v)} blocks {aim_text}." for n, v in blocking.items()]
    sentences += [f"{m.message}{_since(solver, m.rule, blocking)}." for m in rules]
    repairs = tuple(r for r in solver.repairs(aim) if not any(c.component in specs for c in r.changes))
    sentences += [f"What must change: {r.message}, which gives {r.cell.id}." for r in repairs]
    if not repairs:
        sentences.append("No cell with the frameworks of this one can have it.")
    return Explanation(
        subject=f"{cell} to {aim_text}", sentences=tuple(sentences), members=tuple(rules), repairs=repairs
    )


def _published(solver: Solver, component: str, version: str) -> str:
    day = next(
        (r.date for r in solver.knowledge().releases.get(component, ()) if r.version == version and r.date), None
    )
    return f" (published {day})" if day else ""


def _since(solver: Solver, rule_id: str, blocking: Mapping[str, str]) -> str:
    """Return since which release of the blocking component the rule holds."""
    for name, version in blocking.items():
        for row in solver.graph.rule(rule_id).rows:
            spec = row.when.get(name)
            if spec and not spec.is_any and spec.contains(version):
                releases = solver.knowledge().releases.get(name, ())
                first = next((r for r in releases if r.date and spec.contains(r.version)), None)
                return f" (so since {name} {first.version} of {first.date})" if first else ""
    return ""


# Why this cell: a sentence for each choice, what was passed over and how to get it, and other cells a user may prefer.


_MAX_ALTERNATIVES = 3


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
    mask = (posed.problem.names.index("torch"), posed.preference.default_builds())
    return Wish("a build", "of the PyTorch index", (mask,), reason="one of the default index comes first")


def _plain(posed: Posed, variable: int, *, by_wish: bool = True) -> int:
    """Return the releases that are neither pre-releases nor yanked (nor what the request excludes, when ``asked``)."""
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
    version, newer = _exactly(posed, answer, name).text, _newer_than(posed, answer, name)
    label, rivals = (
        f"{name} {version}: ",
        [(_tried(posed, name, i, sum(1 << i for i in newer)), "is newer") for i in newer[:1]],
    )
    if name == "python":
        label = f"Python {version}: "
        rivals = [(_tried(posed, name, i, -1), "is the usual choice") for i in _first_python(posed, version)]
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
        members = _against(solver, posed.and_also(wish), answer, earlier)
        because = " and ".join(m.message for m in members) or _untested(posed, answer, wish)
        because = because or _age(posed, answer, wish) or _companion_beside(solver, posed, answer, wish)
        if not because and name == "torch" and answer.cell.index == "default":
            at_default = (*earlier, _of_default_index(posed))
            because = " and ".join(m.message for m in _against(solver, posed.and_also(wish), answer, at_default))
        because = because or f"the usual order prefers {version}"
        if because not in reasons_before:
            reasons_before.add(because)
            yield f"{label}{wish.text} {claim}, but {because}."
    if not rivals and label != "torch " and name not in posed.preference.companions:
        yield label + _first(posed, answer, name) + "."


def _age(posed: Posed, answer: Answer, wish: Wish) -> str:
    """Return that a release came out long after the part whose age counts, nothing when it did not."""
    ((_, mask),) = wish.masks
    day, start, part = posed.preference.later(wish.component, mask.bit_length() - 1, answer.domains)
    if posed.request.date:
        return f"it came out on {day}, after the date {start}" if day else ""
    beside = _exactly(posed, answer, part).text if part else ""
    months = A_STEP.days // 30
    return f"it came out on {day}, more than {months} months after {part} {beside} of {start}" if part else ""


def _companion_beside(solver: Solver, posed: Posed, answer: Answer, wish: Wish) -> str:
    """Return which companion would be older beside a release of torch, nothing when none would."""
    beside = solver.best(posed.and_also(wish)) if wish.component == "torch" else None
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
    newer = _newer_than(posed, answer, name, by_wish=False)
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
        newest = not any(tests.ran >> i & 1 for i in _newer_than(posed, answer, "torch", by_wish=False))
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
    return head, [_tried(posed, "torch", i, rivals) for i in newer if rivals >> i & 1][:1]


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
