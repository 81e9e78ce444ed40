"""``explain``: a cell, a rule, an upgrade, in sentences with the rules they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envsmith.base.schema import AsJson, written
from envsmith.errors import UsageError
from envsmith.model.cell import Cell, CellId, Platform, Request
from envsmith.model.component import Role
from envsmith.model.finding import Conflict, Repair
from envsmith.model.rule import Evidence, Rule, Severity, Tested
from envsmith.model.version import Spec
from envsmith.solver.choices import against, newer_than, tried_release, untested
from envsmith.solver.kernel import bits
from envsmith.solver.problem import Wish, pose
from envsmith.solver.refusal import conflict_members
from envsmith.solver.request import Posed
from envsmith.solver.solver import Answer, Solver, default_solver
from envsmith.solver.words import join_words, name_release, rule_sentence, strongest, these_versions


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
    newer = newer_than(posed, answer, name, by_wish=False)
    if not newer:
        return f"{label}: the newest release.", ()
    wish = tried_release(posed, name, newer[0], sum(1 << i for i in newer))
    # The CUDA build follows its torch, and the torch build its CUDA: they do not hold each other back.
    tied = {"torch": ("torch", "cuda"), "cuda": ("torch", "cuda")}.get(name, (name,))
    wishes = [*(w for w in problem.wishes if w.component not in tied), wish]
    members = against(solver, posed, answer, wishes)
    if not members:
        doubt = untested(posed, answer, wish)
        return f"{label}: {wish.text} is newer{f', but {doubt}' if doubt else ' and breaks no rule here'}.", ()
    rules = tuple(m for m in members if not m.is_wish)
    sentence = f"{label}: {wish.text} is newer; {' and '.join(m.message for m in rules)}."
    if lift := _lift(solver, posed.with_wishes(wishes), wish):
        giving_up = " by giving up" if len(members) > len(rules) else ""
        sentence += f" It could be had{giving_up} {lift}."
    return sentence, rules


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
