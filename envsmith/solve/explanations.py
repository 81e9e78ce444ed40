"""``explain``: a cell, a rule, an upgrade, in sentences with the rules they rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from envsmith.errors import UsageError
from envsmith.model.cell import Cell, CellId, Request
from envsmith.model.component import Role
from envsmith.model.evidence import Evidence
from envsmith.model.finding import Conflict, Repair
from envsmith.model.platform import Platform
from envsmith.model.rule import Rule, Severity
from envsmith.model.version import Spec
from envsmith.solve.explain import conflict_members
from envsmith.solve.kernel import bits
from envsmith.solve.problem import Wish, pose
from envsmith.solve.request import Posed
from envsmith.solve.solver import Solver
from envsmith.solve.words import join_words, name_release, rule_sentence, strongest, these_versions

__all__ = ["Explanation", "explain_cell", "explain_rule", "explain_upgrade"]

_TRIED = "tried"


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """``sentences`` are complete by themselves; ``members`` are the rules they rest on, with evidence; ``repairs`` were solved."""

    subject: str
    sentences: tuple[str, ...]
    members: tuple[Conflict, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    repairs: tuple[Repair, ...] = ()

    def to_json(self) -> dict[str, object]:
        """JSON of all of it."""
        return {
            "subject": self.subject,
            "sentences": list(self.sentences),
            "rules": [m.to_json() for m in self.members],
            "evidence": [e.to_json() for e in self.evidence],
            "repairs": [r.to_json() for r in self.repairs],
        }


def _posed(solver: Solver, cell: CellId) -> Posed:
    """The problem in which every component of a cell's id is wished for exactly."""
    versions = dict(cell.components)
    roles = solver.compiled.roles
    for name in versions:
        if name not in roles:
            raise UsageError(f"{cell}: unknown component {name!r}", hint="example: ds0.19.8-torch2.13.0-cu130-py312")
    frameworks = {n: Spec.exactly(v) for n, v in versions.items() if roles[n] is Role.FRAMEWORK}
    others = {n: Spec.exactly(v) for n, v in versions.items() if n not in frameworks}
    return solver.pose(Request(frameworks=frameworks, constraints=others, platform=cell.platform))


def explain_cell(solver: Solver, cell: CellId) -> Explanation:
    """Why each release of a cell: what is newer, which rule keeps it out, on what evidence, and what would let it in."""
    posed = _posed(solver, cell)
    answer = solver.best(posed)
    members: dict[str, Conflict] = {}
    sentences = []
    if answer is None:
        stuck = solver.stuck(posed)
        found = conflict_members(solver, posed.problem, stuck) if stuck else ()
        sentences = [f"{cell} is no valid cell: " + "; ".join(m.message for m in found)]
        repairs = solver.repairs(posed)
        return Explanation(subject=str(cell), sentences=tuple(sentences), members=found, repairs=repairs)
    sentences += _evidence_ladder(solver, answer.cell)
    for name in answer.cell.chosen:
        told, found = _newer(solver, posed, name)
        sentences.append(told)
        members |= {m.rule: m for m in found if not m.rule.startswith("request:")}
    follows = [name_release(n, v) for n, v in answer.cell.components.items() if n not in answer.cell.chosen]
    if follows:
        sentences.append(f"torch {answer.cell.components['torch']} carries {join_words(follows)}.")
    evidence = strongest((e for m in members.values() for e in m.evidence), limit=12)
    return Explanation(
        subject=str(cell), sentences=tuple(sentences), members=tuple(members.values()), evidence=evidence
    )


def _evidence_ladder(solver: Solver, cell: Cell) -> list[str]:
    """Who is known to have run the frameworks of a cell with its torch."""
    told = []
    knowledge = solver.knowledge()
    for name in (n for n in cell.chosen if solver.compiled.roles[n] is Role.FRAMEWORK):
        version, torch = cell.components[name], cell.components["torch"]
        lines = [
            t
            for t in knowledge.tested
            if t.framework == name and t.version.contains(version) and t.torch.contains(torch)
        ]
        if lines:
            sources = strongest((e for t in lines for e in t.evidence), limit=2)
            kinds = join_words(list(dict.fromkeys(t.kind for t in lines)))
            told.append(f"{name} {version} with torch {torch} is tested ({kinds}): {'; '.join(map(str, sources))}.")
        else:
            told.append(f"No test of {name} {version} with torch {torch} is known; no rule speaks against it.")
    return told


def _newer(solver: Solver, posed: Posed, name: str) -> tuple[str, tuple[Conflict, ...]]:
    """What became of the newest release of one component when the rest of the cell stays."""
    problem = posed.problem
    variable = problem.names.index(name)
    if name == "cuda" and "torch" in problem.names:
        return f"{name_release(name, dict(_id(posed))[name])}: what this build of torch is made with.", ()
    own = [w for w in problem.wishes if w.component == name]
    version = own[0].text.removeprefix("==")
    label = name_release(name, version)
    values = problem.values[variable]
    stable = problem.full[variable]
    for v, allowed in (*posed.pre, *posed.yanked):
        stable &= allowed if v == variable else -1
    for marked in (problem.compiled.pre, problem.compiled.yanked):
        stable &= ~marked.get(name, 0)
    current = values.index(version)
    newer = [i for i in bits(stable & problem.full[variable]) if i > current and values[i] not in (None, "cpu")]
    if name == "torch":
        release = version.split("+", maxsplit=1)[0]
        newer = [i for i in newer if str(values[i]).split("+", maxsplit=1)[0] != release]
    if not newer:
        return f"{label}: the newest release.", ()
    newest = str(values[newer[0]]).split("+", maxsplit=1)[0] if name == "torch" else str(values[newer[0]])
    mask = (
        sum(1 << i for i in newer if str(values[i]).split("+", maxsplit=1)[0] == newest)
        if name == "torch"
        else 1 << newer[0]
    )
    # The CUDA build follows its torch, and the torch build its CUDA: they do not hold each other back.
    tied = {"torch": ("torch", "cuda"), "cuda": ("torch", "cuda")}.get(name, (name,))
    rest = [w for w in problem.wishes if w.component not in tied]
    wish = Wish(name, newest, ((variable, mask),), reason=_TRIED)
    tried = replace(posed, problem=problem.with_wishes([*rest, wish]))
    stuck = solver.stuck(tried)
    if stuck is None:
        return _not_preferred(posed, name, label, newest, mask), ()
    members = tuple(
        m for m in conflict_members(solver, tried.problem, stuck, cause=False) if not m.message.endswith(f": {_TRIED}")
    )
    rules = [m for m in members if not m.rule.startswith("request:")]
    because = " and ".join(m.message for m in rules)
    others = [name_release(w.component, w.text.removeprefix("==")) for w in stuck.wishes if w is not wish]
    with_what = f" with {join_words(others)}" if others else ""
    told = f"{label}: {newest} is newer; {because}."
    lift = _lift(solver, tried, wish)
    return told + (f" It could be had{with_what and ' by giving up'}{lift}." if lift else ""), tuple(rules)


def _not_preferred(posed: Posed, name: str, label: str, newest: str, mask: int) -> str:
    """Why a newer release that breaks no rule was not taken."""
    if name == "python":
        return f"{label}: {newest} would do too; the stated order prefers {label.removeprefix('python ')}."
    if name == "torch":
        versions = dict(_id(posed))
        for framework, support in posed.preference.support.items():
            variable = posed.problem.names.index(framework)
            release = posed.problem.values[variable].index(versions[framework])
            if support.lines and not support.torch(release) & mask:
                whom = name_release(framework, versions[framework])
                return f"{label}: {newest} is newer and breaks no rule here, but nobody is known to have tested it with {whom}."
    return f"{label}: {newest} is newer and breaks no rule here; it can be asked for."


def _id(posed: Posed) -> list[tuple[str, str]]:
    """Component and version of each exact wish."""
    return [(w.component, w.text.removeprefix("==")) for w in posed.problem.wishes]


def _lift(solver: Solver, tried: Posed, wish: Wish) -> str:
    """What would have to change to have it."""
    others = [w for w in tried.problem.wishes if w is not wish]
    fixed = replace(wish, host=True)
    posed = replace(tried, problem=tried.problem.with_wishes([*others, fixed]))
    repairs = solver.repairs(posed, limit=1)
    if not repairs or any(c.component == wish.component for c in repairs[0].changes):
        return ""
    changes = [
        f"{name_release(c.component, c.old.removeprefix('=='))} for {c.new}" for c in repairs[0].changes if c.old
    ]
    return " " + join_words(changes) if changes else ""


def explain_rule(solver: Solver, rule_id: str, platform: Platform = Platform.LINUX_64) -> Explanation:
    """A rule: what it says, what one sees when it is broken, what it rules out, what to do, and how it is known. ``UsageError`` names the nearest rules when there is none of that id."""
    rules = {r.id: r for r in solver.knowledge().rules}
    rule = rules.get(rule_id)
    if rule is None:
        import difflib

        near = difflib.get_close_matches(rule_id, rules, n=3, cutoff=0.4)
        raise UsageError(f"no rule {rule_id!r}", hint=f"did you mean {join_words(near, last='or')}?" if near else None)
    rows = [row for row in rule.rows if not row.platforms or platform in row.platforms]
    sentences = [f"{rule.id} ({rule.kind.value}, {join_words(list(rule.components))})."]
    sentences += list(dict.fromkeys(rule_sentence(rule, [row], {}, cause=False) + "." for row in rows[-8:]))
    causes = dict.fromkeys(row.cause for row in rows if row.cause and row.needs and not rule.id.startswith("torch-"))
    sentences += [f"Why: {cause}" for cause in list(causes)[:3] if "-declares-" not in rule.id]
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
    """How many combinations of releases a rule leaves no room for."""
    names = {c: c for c in rule.components}
    problem = pose(solver.compiled, platform, names, {}, gaps=False)
    told = []
    for group in problem.groups:
        if group.rule != rule.id or not all(problem.values):
            continue
        verb = "rules out" if group.severity is Severity.ERROR else "warns of"
        if len(names) == 1:
            mask = 0
            for _, nogood in group.nogoods:
                mask |= nogood[0][1]
            told.append(f"It {verb} {mask.bit_count()} of {len(problem.values[0])} releases of {rule.components[0]}.")
        elif len(names) == 2:
            rows = [0] * len(problem.values[0])
            for _, nogood in group.nogoods:
                masks = dict(nogood)
                for value in bits(masks.get(0, problem.full[0])):
                    rows[value] |= masks.get(1, problem.full[1])
            count, whole = sum(r.bit_count() for r in rows), len(rows) * len(problem.values[1])
            touched = [problem.values[0][i] for i, r in enumerate(rows) if r]
            first, second = rule.components
            told.append(
                f"It {verb} {count} of {whole} pairs of {first} and {second} releases"
                + (f" ({first} {these_versions(first, touched)})." if touched else ".")
            )
    return told


def explain_upgrade(solver: Solver, cell: CellId, wanted: Mapping[str, Spec]) -> Explanation:
    """From a cell to ``{"torch": Spec(">=2.13")}``: what must change, which component blocks, and since when. ``UsageError`` for a component that the cell does not have."""
    posed = _posed(solver, cell)
    problem = posed.problem
    for name in wanted:
        if name not in problem.names:
            raise UsageError(f"{cell} has no {name}", hint="components of the cell: " + ", ".join(problem.names))
    new = [
        Wish(n, s.text, ((problem.names.index(n), problem.mask(problem.names.index(n), s)),), host=True)
        for n, s in wanted.items()
    ]
    tied = {"cuda"} if "torch" in wanted and "cuda" not in wanted else set()
    kept = [w for w in problem.wishes if w.component not in wanted and w.component not in tied]
    aim = replace(posed, problem=problem.with_wishes([*kept, *new]))
    told = join_words([f"{n} {s.text}" for n, s in wanted.items()])
    answer = solver.best(aim)
    if answer is not None:
        old = dict(cell.components)
        changes = [
            f"{name_release(n, old[n])} becomes {v}"
            for n, v in answer.cell.components.items()
            if n in old and old[n] != v
        ]
        sentences = (
            f"Nothing blocks {told}: {join_words(changes) or 'nothing changes'}. The cell is {answer.cell.id}.",
        )
        return Explanation(subject=f"{cell} to {told}", sentences=sentences)
    stuck = solver.stuck(aim)
    members = conflict_members(solver, aim.problem, stuck) if stuck else ()
    blocking = [w for w in (stuck.wishes if stuck else ()) if w not in new]
    sentences_list = []
    for wish in blocking:
        version = wish.text.removeprefix("==")
        sentences_list.append(
            f"{name_release(wish.component, version)}{_published(solver, wish.component, version)} blocks {told}."
        )
    rules = [m for m in members if not m.rule.startswith("request:")]
    sentences_list += [
        m.message + _since(solver, m, [(w.component, w.text.removeprefix("==")) for w in blocking]) + "." for m in rules
    ]
    repairs = tuple(r for r in solver.repairs(aim) if not any(c.component in wanted for c in r.changes))
    sentences_list += [f"What must change: {r.message}, which gives {r.cell.id}." for r in repairs]
    if not repairs:
        sentences_list.append("No cell with the frameworks of this one can have it.")
    return Explanation(
        subject=f"{cell} to {told}", sentences=tuple(sentences_list), members=tuple(rules), repairs=repairs
    )


def _published(solver: Solver, component: str, version: str) -> str:
    day = next(
        (r.date for r in solver.knowledge().releases.get(component, ()) if r.version == version and r.date), None
    )
    return f" (published {day})" if day else ""


def _since(solver: Solver, member: Conflict, blocking: Sequence[tuple[str, str]]) -> str:
    """Since which release of the blocking component the rule holds."""
    knowledge = solver.knowledge()
    rule = next((r for r in knowledge.rules if r.id == member.rule), None)
    for name, version in blocking:
        for row in rule.rows if rule else ():
            if name in row.when and not row.when[name].is_any and row.when[name].contains(version):
                releases = knowledge.releases.get(name, ())
                first = next((r for r in releases if row.when[name].contains(r.version) and r.date), None)
                return f" (so since {name} {first.version} of {first.date})" if first else ""
    return ""
