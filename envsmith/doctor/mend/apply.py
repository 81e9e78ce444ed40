"""Mend an environment: the treatment in a copy, tried before and after, and the copy in its place when it is better."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from envsmith import solver
from envsmith.base.interpreter import python_in
from envsmith.base.progress import Clock
from envsmith.base.schema import AsJson
from envsmith.builder.engines.venv import PLAIN_BUILD, installation
from envsmith.doctor.diagnosis import Diagnosis
from envsmith.doctor.judge_facts import diagnose
from envsmith.doctor.mend.environment import Environment, read_environment
from envsmith.doctor.mend.resolution import PackageChange, ResolvedTreatment, difference, is_same
from envsmith.doctor.mend.treatment import Treatment, treatment_of
from envsmith.doctor.mend.trial import Ability, EnvironmentTrial, smoke_trial
from envsmith.doctor.mend.twin import Twin, earlier, exchange, twin, undo
from envsmith.doctor.repaired_set import repaired
from envsmith.errors import BuildError, ContentError, LockError, UsageError
from envsmith.knowledge.graph.load import components
from envsmith.lock.index.uv import Uv
from envsmith.model.rule import Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """What would be changed in an environment, before anything is."""

    environment: Environment
    treatment: Treatment
    difference: ResolvedTreatment

    @property
    def subjects(self) -> frozenset[str]:
        """Return the distributions that the change is about: they are to be importable afterwards."""
        changed = {c.name for c in self.difference.changes if c.new}
        return self.treatment.names | self.treatment.concerned | changed


@dataclass(frozen=True, kw_only=True, slots=True)
class MendResult(AsJson):
    """What came of it.

    ``status`` is mended, improved (something still fails, but less than before), rolled back, nothing or undone.
    """

    status: str
    environment: str
    changes: tuple[PackageChange, ...] = ()
    by_hand: tuple[str, ...] = ()
    before: Ability | None = None
    after: Ability | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Mender:
    """Who resolves, installs and tries."""

    uv: Uv = field(default_factory=Uv)
    trial: EnvironmentTrial = smoke_trial

    def propose(self, diagnosis: Diagnosis, root: Path, *, keep: Collection[str] = ()) -> Proposal:
        """Return the fewest changes that treat the findings. ``LockError`` where no set of packages does.

        The diagnosis is best one of :func:`by_packages`.
        """
        environment = read_environment(root)
        treatment = treatment_of(diagnosis, environment)
        treatment = replace(treatment, by_hand=(*treatment.by_hand, *environment.odd))
        glibc = diagnosis.facts.version("glibc")
        changes = ResolvedTreatment(changes=())
        if treatment.names:
            changes = difference(
                environment, treatment, keep=_distributions(keep, environment), glibc=glibc, uv=self.uv
            )
        _judge(diagnosis, changes)
        return Proposal(environment=environment, treatment=treatment, difference=changes)

    def apply(self, proposal: Proposal, clock: Clock) -> MendResult:
        """Mend a copy, try it, and put it into the environment's place when it is better. Otherwise nothing changes.

        Killed at any moment, the environment is what it was before or what it is after.
        """
        environment, delta = proposal.environment, proposal.difference
        with twin(environment.root) as copied:
            before = self.trial(environment.interpreter, proposal.subjects, clock, "smoke test before")
            clock.start("install", f"{len(delta.changes)} changes")
            self._install(copied, delta)
            _compare(copied, environment, delta)
            clock.done("install")
            python = python_in(copied.copy)
            after = self.trial(python, proposal.subjects, clock, "smoke test after")
            is_better = after.is_better_than(before)
            if is_better:
                exchange(copied, {"changes": [change.to_json() for change in delta.changes]})
        return MendResult(
            status="rolled back" if not is_better else "mended" if after.is_good else "improved",
            environment=str(environment.root),
            changes=delta.changes,
            by_hand=proposal.treatment.by_hand,
            before=before,
            after=after,
        )

    def _install(self, copied: Twin, delta: ResolvedTreatment) -> None:
        tool = replace(self.uv, inherit=(copied.handle,))
        python = python_in(copied.copy)
        work = f"install into a copy of {copied.environment}"
        try:
            gone = [*delta.removed, *delta.again]
            if gone:
                tool.check(["pip", "uninstall", "--python", str(python), *gone], work=work)
            if delta.pins:
                pins, build = delta.pins, delta.build
                with installation(python, pins, build, backend=delta.backend) as arguments:
                    tool.check(arguments, work=work, extra=PLAIN_BUILD)
        except LockError as error:
            raise BuildError(error.message, details=error.details, hint=error.hint) from None


# What is used only while something is compiled, and what no package of an environment changes.
_OF_THE_BUILDER = ("toolkit", "gcc", "clang", "cmake")


def by_packages(diagnosis: Diagnosis, keep: Collection[str]) -> Diagnosis:
    """Return the diagnosis with the repair by packages alone.

    An nvcc that is not of torch's CUDA is no reason to change torch in an environment: its finding stays, and the user
    mends it.
    """
    versions = {n: s for n, s in diagnosis.facts.components.items() if n not in _OF_THE_BUILDER}
    names = [component.name for component in map(components().find, keep) if component]
    judged = diagnose(replace(diagnosis.facts, components=versions), keep=names)
    rules = {d.finding.rule for d in judged.diagnosed}
    of_builder = [
        replace(d, lines=(d.finding.fix or d.finding.message,))
        for d in diagnosis.diagnosed
        if d.finding.severity is Severity.ERROR and d.finding.rule not in rules and not d.where
    ]
    texts = tuple(d for d in diagnosis.diagnosed if d.where)
    return replace(diagnosis, diagnosed=(*judged.diagnosed, *of_builder, *texts), repair=judged.repair)


def undo_last(root: Path, agree: Callable[[Sequence[PackageChange]], object]) -> MendResult:
    """Put the environment of before the last mend back. ``UsageError`` when there is none, or ``agree`` raises it."""
    root = root.resolve()
    with earlier(root) as copied:
        changes = between(read_environment(root), read_environment(copied.copy))
        agree(changes)
        undo(copied)
    return MendResult(status="undone", environment=str(root), changes=changes)


def between(old: Environment, new: Environment) -> tuple[PackageChange, ...]:
    """Return what differs between two environments."""
    changes = []
    for name in sorted({*old.distributions, *new.distributions}):
        a, b = (e.distributions[name].version if name in e.distributions else None for e in (old, new))
        if a != b:
            changes.append(PackageChange(name=name, old=a, new=b))
    return tuple(changes)


def _distributions(keep: Collection[str], environment: Environment) -> frozenset[str]:
    """Return the distributions of components and names that are to stay. ``UsageError`` for what is not installed."""
    names_to_keep: set[str] = set()
    for name in keep:
        component = components().find(name)
        names = {name.lower().replace("_", "-"), *(component.distributions if component else ())}
        present = names & set(environment.distributions)
        if not present:
            raise UsageError(
                f"Cannot keep {name}: it is not installed in {environment.root}.",
                hint="Give the name of an installed package.",
            )
        names_to_keep |= present
    return frozenset(names_to_keep)


def _judge(diagnosis: Diagnosis, changes: ResolvedTreatment) -> None:
    """Judge the set of after the change by every rule. ``LockError`` where it breaks one that it did not break."""
    if diagnosis.repair is None or not changes.changes:
        return
    versions = repaired(diagnosis.facts, diagnosis.repair)
    table = components()
    for change in changes.changes:
        component = table.find(change.name)
        if component and component.name not in {c.component for c in diagnosis.repair.changes} and change.new:
            versions[component.name] = change.new
    earlier_rules = {d.finding.rule for d in diagnosis.diagnosed}
    judged = solver.check(versions, diagnosis.repair.cell.platform)
    new = [f for f in judged.findings if f.severity is Severity.ERROR and f.rule not in earlier_rules]
    if new:
        raise LockError(
            f"Cannot mend the environment: the packages after the change break {new[0].rule}.",
            details=[f"{f.message} [{f.rule}]" for f in new],
            hint="Use envsmith lock to make a new environment.",
        )


def _compare(copied: Twin, environment: Environment, delta: ResolvedTreatment) -> None:
    """Compare what is installed in the copy with what was planned. ``ContentError`` where they differ."""
    planned = delta.after({d.name: d.version for d in environment.distributions.values()})
    installed = {d.name: d.version for d in read_environment(copied.copy).distributions.values()}
    odd = sorted(n for n in {*planned, *installed} if not is_same(installed.get(n, "0"), planned.get(n, "0")))
    if odd:
        raise ContentError(
            f"Cannot mend {environment.root}: uv installed something else than was planned.",
            details=[f"{n}: planned {planned.get(n)}, installed {installed.get(n)}" for n in odd[:8]],
        )
