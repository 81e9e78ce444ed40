"""From one combination of releases to its job: a cell that should hold, or one that a rule says must fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.errors import UsageError
from envsmith.lock.index.interpreters import find_interpreters
from envsmith.matrix.campaign.job import CampaignJob
from envsmith.model.cell import Cell, Platform, Request
from envsmith.model.component import Role
from envsmith.model.record import Expected
from envsmith.model.rule import Severity
from envsmith.model.version import Spec, public
from envsmith.solver import check as judge
from envsmith.solver import default_solver
from envsmith.solver.known_bad import stated_by_metadata
from envsmith.solver.solver import Solver

# A cell that breaks more rules is left out: what fails could not be attributed to one of them.
_MAX_BROKEN = 4


def without(solver: Solver, rules: frozenset[str]) -> Solver:
    """Return a solver that knows everything but ``rules``."""
    return Solver(solver.graph.without(rules)) if rules else solver


@dataclass(slots=True)
class Composer:
    """Compose cells for one platform. ``pythons`` are the minors that can be had where the campaign runs.

    A known-bad cell is composed by leaving out of account the rules that forbid it, and those alone: every other rule
    still holds, so that what fails is what the rule speaks of.
    """

    solver: Solver
    platform: Platform = Platform.LINUX_64
    pythons: tuple[str, ...] = ()
    _reduced: dict[frozenset[str], Solver] = field(default_factory=dict)

    @classmethod
    def of_host(cls) -> Composer:
        """Return what composes cells for the interpreters of this host."""
        return cls(default_solver(), pythons=tuple(i.minor for i in find_interpreters()))

    def compose(self, releases: Mapping[str, str], why: str = "") -> CampaignJob | str:
        """Return the job of a combination, or one sentence why such a cell cannot exist.

        torch means its default build unless the build is named. Raises ``UsageError`` for names and versions that are
        none.
        """
        request = self._request(releases)
        broken: frozenset[str] = frozenset()
        while True:
            if broken not in self._reduced:
                self._reduced[broken] = without(self.solver, broken)
            solver = self._reduced[broken]
            posed = solver.pose(request)
            answer = solver.best(posed)
            if answer is not None:
                return self._job(answer.cell, broken, why)
            stuck = solver.stuck(posed.problem)
            rules = frozenset(g.rule for g in stuck.groups) if stuck else frozenset()
            if not rules:
                return "no package resolver would give it: no such release is known"
            breakable = frozenset(rule for rule in rules if not self._by_metadata(rule))
            if not breakable:
                return f"no package resolver would give it: {', '.join(sorted(rules))}"
            if len(broken | breakable) > _MAX_BROKEN:
                return f"too many rules: {', '.join(sorted(breakable))}"
            broken |= breakable

    def host_pythons(self) -> dict[str, tuple[Spec, str]]:
        """Return what a request is narrowed to: the interpreters of the host."""
        if not self.pythons:
            return {}
        spec = Spec.parse(" || ".join(f"=={minor}.*" for minor in self.pythons))
        return {"python": (spec, "interpreters of the host that runs the campaign")}

    def _by_metadata(self, name: str) -> bool:
        rule = next((r for r in self.solver.knowledge().rules if r.id == name), None)
        return rule is None or stated_by_metadata(rule)

    def _request(self, releases: Mapping[str, str]) -> Request:
        roles = self.solver.compiled.roles
        specs = {name: self._spec(name, text) for name, text in releases.items()}
        frameworks = {n: s for n, s in specs.items() if roles.get(n) is Role.FRAMEWORK}
        constraints = {n: s for n, s in specs.items() if n not in frameworks}
        narrowed = {} if "python" in constraints else self.host_pythons()
        return Request(frameworks=frameworks, constraints=constraints, platform=self.platform, narrowed=narrowed)

    def _spec(self, name: str, text: str) -> Spec:
        try:
            if name == "torch" and text[:1].isdigit() and "+" not in text:
                text = self._default_build(text)
            return Spec.exactly(text) if text[:1].isdigit() and name != "python" else Spec.parse(text)
        except ValueError as error:
            raise UsageError(f"Cannot read {name}: {error}.") from None

    def _default_build(self, version: str) -> str:
        """Return the build that the default index gives on the platform: the one with CUDA where there is one."""
        builds = [
            r.version
            for r in self.solver.knowledge().releases.get("torch", ())
            if r.index == "default" and self.platform in r.platforms and public(r.version) == version
        ]
        return next((b for b in builds if not b.endswith("+cpu")), builds[0] if builds else version)

    def _job(self, cell: Cell, broken: frozenset[str], why: str) -> CampaignJob:
        if broken:
            rules = [r for r in self.solver.knowledge().rules if r.id in broken]
            stages = tuple(sorted({r.stage for r in rules if r.stage}))
            return CampaignJob(cell=cell, expected=Expected.BAD, rules=tuple(sorted(broken)), stages=stages, why=why)
        judgement = judge(cell.components, cell.platform, solver=self.solver)
        warned = tuple(sorted({f.rule for f in judgement.findings if f.severity is not Severity.NOTE}))
        if warned:
            return CampaignJob(cell=cell, expected=Expected.WARNED, rules=warned, why=why)
        return CampaignJob(cell=cell, expected=Expected.GOOD if judgement.status == "ok" else Expected.UNKNOWN, why=why)
