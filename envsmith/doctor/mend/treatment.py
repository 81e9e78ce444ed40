"""A diagnosis as what is to be installed, removed and installed again. Pure.

The doctor's repair says which components change. The lines that it prints with a finding say the rest. What neither pip
nor uv can do stays a line for the user.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from envsmith.doctor.diagnosis import Diagnosed, Diagnosis
from envsmith.doctor.mend.environment import Environment
from envsmith.doctor.report import backend_of
from envsmith.knowledge.graph.load import components
from envsmith.model.component import CARRIED, Component, Role
from envsmith.model.finding import Finding, Repair
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Severity

# Options of pip and uv that need nothing here: only what changes is installed, from files whose hash is known.
_IDLE = frozenset({"-y", "-U", "--no-deps", "--no-cache-dir", "--upgrade", "-q", "--quiet"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Treatment:
    """What an environment needs, by distribution.

    ``install`` are requirements, ``again`` are installed anew in their version. ``reasons`` are the rules of each.
    ``by_hand`` is what no package installer does. ``backend`` is a word of ``--torch-backend``. ``concerned`` are the
    installed distributions that errors speak of, whether they change or not.
    """

    install: Mapping[str, str] = field(default_factory=dict)
    remove: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()
    backend: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)
    by_hand: tuple[str, ...] = ()
    concerned: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """Return every distribution that is named."""
        return frozenset({*self.install, *self.remove, *self.again})


@dataclass(slots=True)
class _Draft:
    """A treatment while it is gathered."""

    environment: Environment
    install: dict[str, str] = field(default_factory=dict)
    remove: set[str] = field(default_factory=set)
    again: set[str] = field(default_factory=set)
    backend: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    by_hand: list[str] = field(default_factory=list)
    concerned: frozenset[str] = frozenset()

    def add(self, requirement: str, reason: str) -> None:
        """Ask for a requirement, unless the repair has asked for the same distribution."""
        name = normal_name(Requirement(requirement).name)
        if self.install.setdefault(name, requirement) == requirement:
            self.reasons.setdefault(name, reason)

    def finished(self) -> Treatment:
        """Return the treatment. What is installed is not removed."""
        return Treatment(
            install=self.install,
            remove=frozenset(self.remove - set(self.install) & set(self.environment.distributions)),
            again=frozenset(self.again),
            backend=self.backend,
            reasons=self.reasons,
            by_hand=tuple(dict.fromkeys(self.by_hand)),
            concerned=self.concerned,
        )


def treatment_of(diagnosis: Diagnosis, environment: Environment) -> Treatment:
    """Return what the findings of a diagnosis ask for. Notes ask for nothing."""
    findings = [d for d in diagnosis.diagnosed if d.finding.severity is not Severity.NOTE]
    draft = _Draft(environment, concerned=_concerned(findings, environment))
    if diagnosis.repair:
        _add_repair(diagnosis.repair, [d.finding for d in findings], draft)
    for diagnosed in findings:
        for line in diagnosed.lines:
            if not _add_line(line, diagnosed.finding.rule, draft):
                draft.by_hand.append(f"{line}  [{diagnosed.finding.rule}]")
    return draft.finished()


def treatment_of_repair(repair: Repair, findings: Sequence[Finding], environment: Environment) -> Treatment:
    """Return what a repair asks for where nothing is installed yet. ``findings`` are its reasons."""
    draft = _Draft(environment)
    _add_repair(repair, findings, draft)
    return draft.finished()


def _concerned(findings: Iterable[Diagnosed], environment: Environment) -> frozenset[str]:
    errors = (d.finding for d in findings if d.finding.severity is Severity.ERROR)
    find = components().by_name.get
    named = (find(name) for finding in errors for name in finding.components)
    names = {normal_name(name) for component in named if component for name in component.distributions}
    return frozenset(names & environment.distributions.keys())


def _add_repair(repair: Repair, findings: Sequence[Finding], draft: _Draft) -> None:
    table = components()
    changed = {change.component for change in repair.changes}
    cell = repair.cell.components
    for change in repair.changes:
        component = table.by_name[change.component]
        reason = _reason_of(change.component, findings)
        if component.name in CARRIED and (changed & {"torch", "cuda"}):
            continue
        if component.role is Role.HOST or component.name == "python" or not component.distributions:
            draft.by_hand.append(f"{component.name}: {change.old or 'none'} -> {change.new}  [{reason}]")
            continue
        for name in _distributions_of(component, cell.get("cuda", ""), draft.environment):
            if change.new is None:
                draft.remove.add(name)
                draft.reasons.setdefault(name, reason)
            else:
                draft.add(f"{name}=={change.new.split('+')[0]}", reason)
    if "cuda" in changed and "torch" not in changed and "torch" in cell:
        draft.add(f"torch=={cell['torch'].split('+')[0]}", _reason_of("cuda", findings))
    if repair.cell.index == "pytorch" and changed & {"torch", "cuda"}:
        draft.backend = backend_of(cell.get("torch"), cell.get("cuda")) or ""


def _distributions_of(component: Component, cuda: str, environment: Environment) -> list[str]:
    """Return the distributions of a component that are installed, else its first. A library has one for each CUDA."""
    names: list[str] = [normal_name(name) for name in component.distributions]
    of_cuda = [name for name in names if name.endswith(f"-cu{cuda.partition('.')[0]}")]
    installed = [name for name in names if name in environment.distributions]
    return of_cuda or installed or names[:1]


def _reason_of(component: str, findings: Sequence[Finding]) -> str:
    """Return the rules of the errors that speak of a component, else of all errors."""
    errors = [f for f in findings if f.severity is Severity.ERROR] or list(findings)
    own = [finding.rule for finding in errors if component in finding.components]
    return ", ".join(dict.fromkeys(own or [finding.rule for finding in errors]))


def _add_line(line: str, reason: str, draft: _Draft) -> bool:
    """Add what ``pip install`` or ``pip uninstall`` would do. Return whether the line is such a command."""
    try:
        words = shlex.split(line)
    except ValueError:
        return False
    words = words[1:] if words[:1] == ["uv"] else words
    if words[:2] == ["pip", "check"]:
        return True
    if words[:1] != ["pip"] or "".join(words[1:2]) not in {"install", "uninstall"}:
        return False
    options = {word for word in words[2:] if word.startswith("-")} - _IDLE
    names = [word for word in words[2:] if not word.startswith("-")]
    again = bool(options & {"--force-reinstall", "--reinstall"})
    backends = [option.partition("=")[2] for option in options if option.startswith("--torch-backend=")]
    odd = {o for o in options if o not in {"--force-reinstall", "--reinstall"} and not o.startswith("--torch-backend=")}
    if odd or not names or not all(map(_is_exact_or_open, names)):
        return False
    if words[1] == "uninstall":
        removed = {normal_name(name) for name in names}
        draft.remove |= removed
        draft.reasons.update(dict.fromkeys(removed, reason))
        return True
    draft.backend = draft.backend or "".join(backends[:1])
    _add_installed(names, reason, draft, again=again)
    return True


def _add_installed(names: Iterable[str], reason: str, draft: _Draft, *, again: bool) -> None:
    for text in names:
        requirement = Requirement(text)
        name = normal_name(requirement.name)
        installed = draft.environment.distributions.get(name)
        same = installed is not None and requirement.specifier.contains(installed.version, prereleases=True)
        if same and not again and name not in draft.remove:
            continue
        if same and (again or name in draft.remove):
            draft.again.add(name)
            draft.reasons.setdefault(name, reason)
        draft.add(text, reason)


def _is_exact_or_open(text: str) -> bool:
    """Return whether a word is a requirement of a real version, and not a placeholder."""
    try:
        requirement = Requirement(text)
        for specifier in requirement.specifier:
            Version(specifier.version.removesuffix(".*"))
    except (InvalidRequirement, InvalidVersion):
        return False
    return requirement.url is None and text != "NAME"
