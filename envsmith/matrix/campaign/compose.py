"""From wished releases to a job: the cell that the solver gives, or, on purpose, the cell that a rule forbids.

A known-bad cell is composed by leaving out of account the rules that forbid it, and those alone: every other rule still holds, so that
what fails is what the rule speaks of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.errors import UsageError
from envsmith.matrix.campaign.job import Job
from envsmith.model.cell import Cell, Request
from envsmith.model.component import Role
from envsmith.model.platform import Platform
from envsmith.model.record import Expected
from envsmith.model.rule import Severity
from envsmith.model.version import Spec
from envsmith.solve.api import check, solver_of
from envsmith.solve.known_bad import stated_by_metadata
from envsmith.solve.solver import Solver

__all__ = ["Composer", "without"]

# A cell that breaks more rules than this is nobody's: the rules would not be told apart.
_MAX_BROKEN = 4


def without(solver: Solver, rules: frozenset[str]) -> Solver:
    """A solver that knows everything but ``rules``."""
    if not rules:
        return solver
    known = solver.knowledge()
    return solver_of(dataclasses.replace(known, rules=tuple(r for r in known.rules if r.id not in rules)))


@dataclass(slots=True)
class Composer:
    """Composes cells for one platform; ``pythons`` are the minors that can be had where the campaign runs."""

    solver: Solver
    platform: Platform = Platform.LINUX_64
    pythons: tuple[str, ...] = ()
    _reduced: dict[frozenset[str], Solver] = field(default_factory=dict)

    def compose(self, wanted: Mapping[str, str], why: str = "") -> Job | str:
        """The job for ``wanted`` (component to spec), or one sentence why such a cell cannot exist.

        torch means its default build unless the build is named. Raises ``UsageError`` for names and versions that are none.
        """
        request = self._request(wanted)
        broken: frozenset[str] = frozenset()
        while True:
            solver = self.without(broken)
            posed = solver.pose(request)
            answer = solver.best(posed)
            if answer is not None:
                return self._job(answer.cell, broken, why)
            stuck = solver.stuck(posed)
            rules = frozenset(g.rule for g in stuck.groups) if stuck else frozenset()
            fixed = sorted(r for r in rules if self._by_metadata(r))
            if not rules or fixed or len(broken | rules) > _MAX_BROKEN:
                told = ", ".join(fixed or sorted(rules)) or "no such release is known"
                return f"no package resolver would give it: {told}" if fixed or not rules else f"too many rules: {told}"
            broken |= rules

    def without(self, rules: frozenset[str]) -> Solver:
        """As :func:`without`, each set compiled once."""
        if rules not in self._reduced:
            self._reduced[rules] = without(self.solver, rules)
        return self._reduced[rules]

    def _by_metadata(self, rule: str) -> bool:
        found = next((r for r in self.solver.knowledge().rules if r.id == rule), None)
        return found is None or stated_by_metadata(found)

    def _request(self, wanted: Mapping[str, str]) -> Request:
        roles = self.solver.compiled.roles
        specs = {name: self._spec(name, text) for name, text in wanted.items()}
        frameworks = {n: s for n, s in specs.items() if roles.get(n) is Role.FRAMEWORK}
        others = {n: s for n, s in specs.items() if n not in frameworks}
        narrowed = {}
        if self.pythons and "python" not in others:
            spec = Spec.parse(" || ".join(f"=={minor}.*" for minor in self.pythons))
            narrowed["python"] = (spec, "interpreters of the host that runs the campaign")
        return Request(frameworks=frameworks, constraints=others, platform=self.platform, narrowed=narrowed)

    def _spec(self, name: str, text: str) -> Spec:
        try:
            if name == "torch" and text[:1].isdigit() and "+" not in text:
                text = self._default_build(text)
            return Spec.exactly(text) if text[:1].isdigit() and name != "python" else Spec.parse(text)
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None

    def _default_build(self, version: str) -> str:
        """The build that the default index gives on the platform: the one with CUDA where there is one."""
        builds = [
            r.version
            for r in self.solver.knowledge().releases.get("torch", ())
            if r.index == "default" and self.platform in r.platforms and r.version.partition("+")[0] == version
        ]
        return next((b for b in builds if not b.endswith("+cpu")), builds[0] if builds else version)

    def _job(self, cell: Cell, broken: frozenset[str], why: str) -> Job:
        if broken:
            rules = [r for r in self.solver.knowledge().rules if r.id in broken]
            stages = tuple(sorted({r.stage for r in rules if r.stage}))
            return Job(cell=cell, expected=Expected.BAD, rules=tuple(sorted(broken)), stages=stages, why=why)
        judged = check(cell.components, cell.platform, solver=self.solver)
        warned = tuple(sorted({f.rule for f in judged.findings if f.severity is Severity.WARNING}))
        if warned:
            return Job(cell=cell, expected=Expected.WARNED, rules=warned, why=why)
        return Job(cell=cell, expected=Expected.GOOD if judged.status == "ok" else Expected.UNKNOWN, why=why)
