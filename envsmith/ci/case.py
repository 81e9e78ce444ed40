"""A library beside the version graph: its ranges, the releases that they admit, and the findings with file and line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envsmith.ci.declared import Declared
from envsmith.ci.library import Library
from envsmith.model.component import ComponentTable
from envsmith.model.evidence import Evidence
from envsmith.model.finding import Finding
from envsmith.model.rule import Knowledge, Release, Severity
from envsmith.model.version import Spec, version_key
from envsmith.solve.problem import Problem
from envsmith.solve.request import Posed
from envsmith.solve.solver import Solver
from envsmith.solve.words import strongest

__all__ = ["Case", "Located", "public"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """A finding at the line that it is about."""

    finding: Finding
    file: str
    line: int

    def to_json(self) -> dict[str, object]:
        """The finding's own shape, with ``file`` and ``line``."""
        return {**self.finding.to_json(), "file": self.file, "line": self.line}


@dataclass(slots=True)
class Case:
    """A library beside the graph, and what was found so far."""

    library: Library
    table: ComponentTable
    solver: Solver
    knowledge: Knowledge
    posed: Posed
    found: list[Located] = field(default_factory=list)

    @property
    def problem(self) -> Problem:
        """What the library asks of the solver."""
        return self.posed.problem

    def line(self, component: str) -> tuple[str, int]:
        """Where a component is declared; the first line of the first file when nowhere."""
        declaration = self.library.declaration
        declared = self.library.declared(component, self.table)
        if declared is not None:
            return declared.file, declared.line
        if component == "python" and declaration.python_at is not None:
            return declaration.python_at
        return (self.library.config or (declaration.files[0] if declaration.files else "envsmith.yaml"), 1)

    def add(
        self,
        rule: str,
        severity: Severity,
        message: str,
        *,
        at: str | Declared,
        components: Mapping[str, str],
        evidence: Iterable[Evidence],
        fix: str | None = None,
        symptom: str | None = None,
        stage: str | None = None,
    ) -> None:
        """Note one finding; what the library ignores is left out, and so is what nothing speaks for."""
        proof = strongest(evidence)
        if not proof or rule in self.library.ignore:
            return
        file, line = (at.file, at.line) if isinstance(at, Declared) else self.line(at)
        finding = Finding(
            rule=rule,
            severity=severity,
            components=dict(components),
            message=message,
            evidence=proof,
            fix=fix,
            symptom=symptom,
            stage=stage,
        )
        self.found.append(Located(finding=finding, file=file, line=line))

    def spec(self, component: str) -> Spec:
        """The range that the library declares; ``*`` where it declares none."""
        return self.library.ranges.get(component, Spec.parse("*"))

    def unbounded(self, component: str) -> bool:
        """Whether a line requires it without a version."""
        return self.spec(component).is_any and self.library.declared(component, self.table) is not None

    def stable(self, component: str) -> list[Release]:
        """The releases that an installer takes, oldest first."""
        listed = self.knowledge.releases.get(component, ())
        return [r for r in listed if (k := version_key(r.version)) and not k.is_prerelease and not r.yanked]

    def admitted(self, component: str) -> list[Release]:
        """The releases within the library's range that an installer takes, oldest first."""
        spec = self.spec(component)
        return [r for r in self.stable(component) if spec.contains(public(component, r.version))]


def public(component: str, version: str) -> str:
    """The version as people declare it: of torch without the build (``2.9.1+cu128`` is ``2.9.1``)."""
    return version.split("+", maxsplit=1)[0] if component == "torch" else version
