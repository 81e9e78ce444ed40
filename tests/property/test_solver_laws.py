"""Laws of the solver, on small random knowledge, against a brute force that reads rows and specs and nothing else."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import combinations, product
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.model.cell import Request
from envsmith.model.component import Component, ComponentTable, Role
from envsmith.model.finding import Refusal, UnsatisfiableError
from envsmith.model.rule import Evidence, EvidenceKind, Knowledge, Release, Row, Rule, RuleKind, Severity
from envsmith.model.rule import Tested as Line
from envsmith.model.version import Spec
from envsmith.solver import cells, check, solve, solver_of

LAW = settings(deadline=None, max_examples=int(os.environ.get("ENVSMITH_FUZZ_EXAMPLES", "30")))
SOURCE = (Evidence(kind=EvidenceKind.REPORTED, source="a law", date="2026-01-01"),)
ROLES = {
    "alpha": Role.FRAMEWORK,
    "beta": Role.FRAMEWORK,
    "torch": Role.CORE,
    "cuda": Role.CORE,
    "python": Role.CORE,
    "numpy": Role.COMPANION,
    "driver": Role.HOST,
}
VERSIONS = {
    "alpha": ("1.0", "1.1", "2.0", "2.1rc1"),
    "beta": ("0.1", "0.2"),
    "torch": ("2.1.0", "2.2.0", "2.3.0"),
    "cuda": ("12.1", "12.4", "13.0"),
    "python": ("3.10", "3.11"),
    "numpy": ("1.26.0", "2.0.0"),
    "driver": ("500.1", "600.1"),
}
TABLE = ComponentTable.of(Component(name=n, role=r, short=n[:3], title=n) for n, r in ROLES.items())


def specs(component):
    versions = st.sampled_from(VERSIONS[component])
    single = st.builds(lambda op, v: Spec.parse(f"{op}{v}"), st.sampled_from(["==", ">=", "<", "<=", "!="]), versions)
    either = st.builds(lambda a, b: Spec.parse(f"=={a} || =={b}"), versions, versions)
    return single | either


@st.composite
def rules(draw, number):
    scope = draw(st.lists(st.sampled_from(list(VERSIONS)), min_size=1, max_size=3, unique=True))
    requires = len(scope) > 1 and draw(st.booleans())
    severity = draw(st.sampled_from([Severity.ERROR] * 4 + [Severity.WARNING]))
    rows = []
    for _ in range(draw(st.integers(1, 2))):
        chosen = {c: draw(specs(c)) for c in scope}
        needs = {scope[-1]: chosen.pop(scope[-1])} if requires else {}
        rows.append(Row(when=chosen, needs=needs, severity=severity, evidence=SOURCE))
    return Rule(id=f"rule-{number}", kind=RuleKind.REQUIRES if requires else RuleKind.CONFLICTS, rows=tuple(rows))


@st.composite
def knowledges(draw):
    found = [draw(rules(number)) for number in range(draw(st.integers(0, 6)))]
    bundled = {t: draw(st.sampled_from([*VERSIONS["cuda"], None])) for t in VERSIONS["torch"]}
    rows = [
        Row(when={"torch": Spec.exactly(t)}, needs={"cuda": Spec.exactly(c)}, evidence=SOURCE)
        for t, c in bundled.items()
        if c
    ]
    if rows:
        found.append(Rule(id="torch-bundles-cuda", kind=RuleKind.BUNDLES, rows=tuple(rows)))
    yanked = draw(st.sampled_from([None, *VERSIONS["alpha"]]))
    releases = {
        n: tuple(
            Release(component=n, version=v, yanked="yes" if n == "alpha" and v == yanked else None, evidence=SOURCE)
            for v in vs
        )
        for n, vs in VERSIONS.items()
    }
    tested = tuple(
        Line(framework="alpha", version=Spec.exactly(a), torch=Spec.exactly(t), evidence=SOURCE)
        for a, t in draw(
            st.lists(st.tuples(st.sampled_from(VERSIONS["alpha"]), st.sampled_from(VERSIONS["torch"])), max_size=3)
        )
    )
    return Knowledge(components=TABLE, releases=releases, rules=tuple(found), tested=tested)


@st.composite
def requests(draw):
    frameworks = {"alpha": draw(st.just(Spec.parse("*")) | specs("alpha"))}
    if draw(st.booleans()):
        frameworks["beta"] = draw(st.just(Spec.parse("*")) | specs("beta"))
    wanted = draw(st.lists(st.sampled_from(["torch", "cuda", "python", "numpy"]), unique=True, max_size=3))
    driver = draw(st.sampled_from([None, "500.1", "555.5", "600.1"]))
    return Request(frameworks=frameworks, constraints={c: draw(specs(c)) for c in wanted}, driver=driver)


def active(request):
    names = [*request.frameworks, "torch", "cuda", "python"]
    names += [c for c in request.constraints if c not in names]
    return names + (["driver"] if request.driver else [])


def holds(spec, value):
    return value is not None and spec.contains(value)


def obeys(rule, cell, severity=Severity.ERROR):
    for row in rule.rows:
        if row.severity is not severity or any(c not in cell for c in row.scope):
            continue
        matched = all(holds(s, cell[c]) for c, s in row.when.items())
        missed = any(cell[c] is not None and not s.contains(cell[c]) for c, s in row.needs.items())
        if matched and (missed or not row.needs):
            return False
    if rule.kind is RuleKind.BUNDLES:
        covered = any(holds(row.when["torch"], cell["torch"]) for row in rule.rows)
        return covered == (cell["cuda"] is not None)
    return True


def wishes(request):
    """Name, and what must hold; a wish that admits everything is none."""
    named = {**request.constraints, **request.frameworks}
    return [(n, s) for n, s in named.items() if not s.is_any] + (
        [("driver", Spec.exactly(request.driver))] if request.driver else []
    )


def brute(knowledge, request, *, wanted=None, only=None):
    """Every cell, by trying every combination. CUDA is unknown only where some build of torch does not say its own."""
    names = active(request)
    chosen = wishes(request) if wanted is None else wanted
    carrying = [row.when["torch"] for r in knowledge.rules if r.kind is RuleKind.BUNDLES for row in r.rows]
    unknown = carrying and not all(any(s.contains(t) for s in carrying) for t in VERSIONS["torch"])
    values = []
    for name in names:
        extra = [request.driver] if name == "driver" and request.driver not in VERSIONS["driver"] else []
        values.append([*VERSIONS[name], *extra, *([None] if name == "cuda" and unknown else [])])
    for combination in product(*values):
        cell = dict(zip(names, combination, strict=True))
        if all(holds(s, cell[n]) for n, s in chosen) and all(
            obeys(r, cell) for r in (knowledge.rules if only is None else only)
        ):
            yield cell


def plain(cell):
    return frozenset((n, v) for n, v in cell.items() if v is not None)


def refusal_of(knowledge, request) -> Refusal | None:
    try:
        solve(request, solver=solver_of(knowledge))
    except UnsatisfiableError as error:
        return cast("Refusal", error.refusal)
    return None


@LAW
@given(knowledges(), requests())
def test_enumeration_agrees_with_brute_force(knowledge, request):
    found = [plain(c.components) for c in cells(request, solver=solver_of(knowledge))]
    assert len(set(found)) == len(found)
    expected = {plain(c) for c in brute(knowledge, request)}
    assert set(found) == expected


@LAW
@given(knowledges(), requests())
def test_answer_is_the_best_cell_by_the_stated_order(knowledge, request):
    everything = list(brute(knowledge, request))
    if not everything:
        assert refusal_of(knowledge, request) is not None
        return
    answer = solve(request, solver=solver_of(knowledge)).cell.components
    assert plain(answer) in {plain(c) for c in everything}
    best = min(rank(knowledge, c) for c in mildest(knowledge, request, everything))
    assert rank(knowledge, dict.fromkeys(active(request)) | dict(answer)) == best


def mildest(knowledge, request, cells):
    """Cells that are not yanked, are no pre-releases, and have no warning that can be avoided, as long as there are any."""
    spec = request.frameworks["alpha"]
    exact = spec.text.startswith("==") and "||" not in spec.text
    yanked = {r.version for r in knowledge.releases["alpha"] if r.yanked and not exact}
    pre = {v for v in VERSIONS["alpha"] if "rc" in v and "rc" not in spec.text}
    rules = sorted((r for r in knowledge.rules if r.kind is not RuleKind.BUNDLES), key=lambda r: r.id)
    warnings = [replace(rule, rows=(row,)) for rule in rules for row in rule.rows]
    cells = [c for c in cells if c["alpha"] not in yanked] or cells
    cells = [c for c in cells if c["alpha"] not in pre] or cells
    for warning in warnings:
        cells = [c for c in cells if obeys(warning, c, Severity.WARNING)] or cells
    return cells


def rank(knowledge, cell):
    """Tested frameworks first, then the newest of each, up to torch and Python. None of the releases has a date."""
    release = next(r for r in knowledge.releases["alpha"] if r.version == cell["alpha"])
    minor = cell["alpha"].replace("rc1", "")
    own = [t for t in knowledge.tested if t.version.contains(cell["alpha"])]
    lines = own or [t for t in knowledge.tested if t.version.text.removeprefix("==").replace("rc1", "") == minor]
    has_lines = any(t.version.text.removeprefix("==").replace("rc1", "") == minor for t in knowledge.tested)
    alphas = list(VERSIONS["alpha"])
    newest = (bool(release.yanked), "rc" in cell["alpha"], -alphas.index(cell["alpha"]))
    beta = -VERSIONS["beta"].index(cell["beta"]) if cell.get("beta") else 0
    supported = any(t.torch.contains(cell["torch"]) for t in lines)
    python = ("3.11", "3.10").index(cell["python"])
    cuda = -VERSIONS["cuda"].index(cell["cuda"]) if cell.get("cuda") else 1
    torch = -VERSIONS["torch"].index(cell["torch"])
    return (
        bool(knowledge.tested) and not has_lines,
        newest,
        beta,
        bool(lines) and not supported,
        torch,
        cuda,
        python,
    )


@LAW
@given(knowledges(), requests(), st.randoms(use_true_random=False))
def test_same_answer_whatever_the_order_of_the_input(knowledge, request, random):
    def shuffled(items):
        items = list(items)
        random.shuffle(items)
        return tuple(items)

    other = replace(
        knowledge,
        rules=shuffled(knowledge.rules),
        tested=shuffled(knowledge.tested),
        releases={n: shuffled(knowledge.releases[n]) for n in shuffled(knowledge.releases)},
    )
    turned = replace(request, constraints=dict(shuffled(request.constraints.items())))
    first = [plain(c.components) for c in cells(request, solver=solver_of(knowledge))]
    assert first == [plain(c.components) for c in cells(request, solver=solver_of(knowledge))]
    again = [plain(c.components) for c in cells(turned, solver=solver_of(other))]
    assert set(again) == set(first)
    assert again[:1] == first[:1]


@LAW
@given(knowledges(), requests(), st.data())
def test_less_to_obey_never_takes_an_answer_away(knowledge, request, data):
    if refusal_of(knowledge, request) is not None:
        return
    # What a wheel bundles is not an obligation: without it the wheel would ship some CUDA that nobody knows.
    obligations = [rule for rule in knowledge.rules if rule.kind is not RuleKind.BUNDLES]
    if obligations:
        gone = data.draw(st.sampled_from(obligations))
        fewer = replace(knowledge, rules=tuple(r for r in knowledge.rules if r is not gone))
        assert refusal_of(fewer, request) is None
    for name, spec in request.constraints.items():
        wider = Spec.parse(f"{spec.text} || {data.draw(specs(name)).text}")
        assert refusal_of(knowledge, replace(request, constraints={**request.constraints, name: wider})) is None
    for name in request.frameworks:
        anything = {**request.frameworks, name: Spec.parse("*")}
        assert refusal_of(knowledge, replace(request, frameworks=anything)) is None


def test_without_what_a_wheel_bundles_an_answer_may_go_because_the_wheel_must_have_some_cuda():
    # torch 2.3.0 bundles nothing: with the rule it has no CUDA, so that no rule about CUDA touches it.
    bundles = Rule(
        id="torch-bundles-cuda",
        kind=RuleKind.BUNDLES,
        rows=tuple(
            Row(when={"torch": Spec.exactly(torch)}, needs={"cuda": Spec.exactly("12.1")}, evidence=SOURCE)
            for torch in ("2.1.0", "2.2.0")
        ),
    )
    no_cuda = Rule(id="rule-0", kind=RuleKind.CONFLICTS, rows=(Row(when={"cuda": Spec.parse("*")}, evidence=SOURCE),))
    releases = {n: tuple(Release(component=n, version=v, evidence=SOURCE) for v in vs) for n, vs in VERSIONS.items()}
    knowledge = Knowledge(components=TABLE, releases=releases, rules=(no_cuda, bundles))
    request = Request(frameworks={"alpha": Spec.parse("*")})
    without = replace(knowledge, rules=(no_cuda,))

    assert refusal_of(knowledge, request) is None
    assert {cell["torch"] for cell in brute(knowledge, request)} == {"2.3.0"}
    assert refusal_of(without, request) is not None
    assert not list(brute(without, request))


@LAW
@given(knowledges(), requests())
def test_conflict_is_minimal_and_has_the_fewest_members(knowledge, request):
    refusal = refusal_of(knowledge, request)
    if refusal is None:
        return
    members = [m.rule for m in refusal.conflict]
    asked = [w for w in wishes(request) if f"request:{w[0]}" in members]
    named = [r for r in knowledge.rules if r.id in members]
    assert len(asked) + len(named) == len(members)
    assert not list(brute(knowledge, request, wanted=asked, only=named))
    for gone in members:
        rest = [w for w in asked if f"request:{w[0]}" != gone], [r for r in named if r.id != gone]
        assert any(True for _ in brute(knowledge, request, wanted=rest[0], only=rest[1]))
    everything = [("wish", w) for w in wishes(request)] + [("rule", r) for r in knowledge.rules]
    for size in range(min(len(members), 3)):
        for chosen in combinations(everything, size):
            wanted, only = [x for k, x in chosen if k == "wish"], [x for k, x in chosen if k == "rule"]
            assert any(True for _ in brute(knowledge, request, wanted=wanted, only=only))


def fewest_to_give_up(knowledge, request):
    """By brute force: how many wishes must go for a cell to exist, the driver last; ``None`` when there is none at all."""
    everything = wishes(request)
    for loose in ([w for w in everything if w[0] != "driver"], everything):
        for size in range(len(loose) + 1):
            for gone in combinations(loose, size):
                if any(True for _ in brute(knowledge, request, wanted=[w for w in everything if w not in gone])):
                    return size
    return None


@LAW
@given(knowledges(), requests())
def test_repairs_are_solved_and_none_changes_fewer_components(knowledge, request):
    refusal = refusal_of(knowledge, request)
    if refusal is None:
        return
    everything = wishes(request)
    fewest = fewest_to_give_up(knowledge, request)
    if fewest is None:
        assert refusal.repairs == ()
        return
    assert refusal.repairs
    for repair in refusal.repairs:
        assert len(repair.changes) == fewest
        changed = {c.component for c in repair.changes}
        kept = [w for w in everything if w[0] not in changed]
        assert plain(repair.cell.components) in {plain(c) for c in brute(knowledge, request, wanted=kept)}


def without_unlisted(rule, have):
    """Return a rule without what every listed release of something nobody named breaks: one not listed may do.

    What torch carries is listed.
    """
    free = [name for name in VERSIONS if name not in have and name != "cuda"]

    def covers(spec, name):
        return name in free and all(spec.contains(version) for version in VERSIONS[name])

    def excludes(spec, name):
        return name in free and not any(spec.contains(version) for version in VERSIONS[name])

    rows = []
    for row in rule.rows:
        if any(covers(spec, name) for name, spec in row.when.items()):
            continue
        needs = {name: spec for name, spec in row.needs.items() if not excludes(spec, name)}
        if needs or not row.needs:
            rows.append(replace(row, needs=needs))
    return replace(rule, rows=tuple(rows))


@LAW
@given(
    knowledges(),
    st.fixed_dictionaries(
        {"alpha": st.sampled_from(VERSIONS["alpha"]), "torch": st.sampled_from(VERSIONS["torch"])},
        optional={n: st.sampled_from(VERSIONS[n]) for n in ("cuda", "python", "numpy", "driver")},
    ),
)
def test_check_finds_an_error_exactly_where_no_cell_is_left(knowledge, have):
    judgement = check(have, solver=solver_of(knowledge))
    errors = [f for f in judgement.findings if f.severity is Severity.ERROR]
    exact = {n: Spec.exactly(v) for n, v in have.items()}
    names = dict.fromkeys(["alpha", "torch", "cuda", "python", *have])
    relaxed = [without_unlisted(r, have) for r in knowledge.rules if r.kind is not RuleKind.BUNDLES]
    bundles = [r for r in knowledge.rules if r.kind is RuleKind.BUNDLES]

    def fits(rules=relaxed):
        for combination in product(*[[have[n]] if n in have else VERSIONS[n] for n in names]):
            cell = dict(zip(names, combination, strict=True))
            carried = all(
                s.contains(cell["cuda"])
                for r in bundles
                for row in r.rows
                if row.when["torch"].contains(cell["torch"])
                for s in row.needs.values()
            )
            if carried and all(obeys(r, cell) for r in rules):
                return True
        return False

    assert exact
    published = [row for r in bundles for row in r.rows if row.when["torch"].contains(have["torch"])]
    if "cuda" in have and not all(s.contains(have["cuda"]) for row in published for s in row.needs.values()):
        # Nobody published such a build; somebody may have compiled one, so nothing can be said of it.
        assert judgement.status != "ok"
        return
    if "cuda" not in have and not published:
        # No build of this torch says its CUDA, so what conflicts with every CUDA that is known may not concern it. What
        # the rules that do not name CUDA forbid is an error all the same.
        assert not (errors and fits())
        assert errors or fits([r for r in relaxed if not any("cuda" in {*row.when, *row.needs} for row in r.rows)])
    else:
        assert bool(errors) == (not fits())
    assert (judgement.status == "bad") == bool(errors)
    if judgement.repair:
        changed = {c.component for c in judgement.repair.changes}
        assert all(judgement.repair.cell.components[n] == v for n, v in have.items() if n not in changed | {"cuda"})


def test_brute_force_itself_can_say_no():
    rule = Rule(id="no", kind=RuleKind.CONFLICTS, rows=(Row(when={"alpha": Spec.parse(">=0")}, evidence=SOURCE),))
    releases = {n: tuple(Release(component=n, version=v, evidence=SOURCE) for v in vs) for n, vs in VERSIONS.items()}
    knowledge = Knowledge(components=TABLE, releases=releases, rules=(rule,))
    request = Request(frameworks={"alpha": Spec.parse("*")})
    assert not list(brute(knowledge, request))
    with pytest.raises(UnsatisfiableError):
        solve(request, solver=solver_of(knowledge))
