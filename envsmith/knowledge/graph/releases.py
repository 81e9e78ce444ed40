"""``releases/<component>.yaml`` -> releases, and the rules that they declare themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from operator import attrgetter
from typing import Annotated

from packaging.version import Version as Pep440

from envsmith.base.schema import Checked, Day, Flag, Parsed, Sha256, WrongValueError, each_once, strict, text_of
from envsmith.frameworks import FRAMEWORKS
from envsmith.knowledge.graph.fields import ComponentName, Sources, Specs, SpecText, Version
from envsmith.knowledge.graph.torch_builds import Device, with_hash
from envsmith.model.cell import Platform
from envsmith.model.rule import WHEELS_ONLY, WHEELS_OR_SOURCE, Evidence, Release, Row, Rule, RuleKind, Severity
from envsmith.model.version import Spec, version_key

Short = Annotated[str, text_of(60)]
# A row of many releases names the first of their sources.
_MOST_EVIDENCE = 4
# What helps against a release that its publisher took back.
YANKED_FIX = "Use another release."


def _one_text_or_many(value: object, _context: object) -> object:
    one = text_of().function
    return [one(entry, None) for entry in value] if isinstance(value, list) else one(value, None)


def _yanked(value: object, _context: object) -> object:
    return {True: "yanked", False: None}[value] if isinstance(value, bool) else text_of().function(value, None)


_Words = Annotated[object, Parsed(_one_text_or_many)]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """What a release asks for on one platform or some Pythons only."""

    requires: Specs
    platform: Platform | None = None
    python: SpecText | None = None

    @property
    def place(self) -> _Place:
        """Return the platform and the Pythons."""
        return self.platform, self.python


_Place = tuple[Platform | None, Spec | None]
_EVERYWHERE: _Place = (None, None)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class ReleaseLine:
    """A release and what it says it needs."""

    version: Version
    evidence: Sources
    date: Day | None = None
    yanked: Annotated[str | None, Parsed(_yanked)] = None
    requires: Specs = field(default_factory=dict)
    requires_where: tuple[Where, ...] = ()
    extras: Specs = field(default_factory=dict)
    python: SpecText | None = None
    ready_python: SpecText | None = None
    sha256: Sha256 | None = None
    sdist_only: Flag | None = None
    cuda_majors: _Words | None = None
    driver: _Words | None = None
    runfile_driver: _Words | None = None
    cudart: _Words | None = None
    cuda_shown: _Words | None = None
    family: _Words | None = None
    build_imports: _Words | None = None

    def release(self, component: str) -> Release:
        """Return the release without what it declares."""
        return Release(
            component=component,
            version=self.version,
            date=self.date,
            yanked=self.yanked,
            facts={name: value for name in _FACTS if (value := getattr(self, name)) is not None},
            evidence=self.sources,
        )

    @property
    def sources(self) -> tuple[Evidence, ...]:
        """Return the evidence of the line, with the hash of the file that was read."""
        return with_hash(self.evidence, self.sha256)

    def declares(self, target: str, place: _Place = _EVERYWHERE) -> Spec | None:
        """Return what the release asks of ``target`` (at that place only), or ``None`` when that bars no version.

        Without a source distribution the Pythons of its wheels bar more than ``Requires-Python``.
        """
        places = (
            [self.requires] if place == _EVERYWHERE else [w.requires for w in self.requires_where if w.place == place]
        )
        spec = next((specs[target] for specs in places if target in specs), None)
        if target == "python" and place == _EVERYWHERE:
            spec = self.python or spec
        return None if spec is None or spec.is_any else spec

    def targets(self) -> list[tuple[str, _Place]]:
        """Return the components that the release asks for, and where."""
        always = [*self.requires, *(["python"] if self.python else [])]
        return [(t, _EVERYWHERE) for t in always] + [(t, w.place) for w in self.requires_where for t in w.requires]


_FACTS = tuple(
    f.name
    for f in fields(ReleaseLine)
    if f.name
    not in {
        "version", "evidence", "date", "yanked", "requires", "requires_where", "extras", "python", "ready_python",
        "sha256",
    }
)  # fmt: skip


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasesFile:
    """``releases/<component>.yaml``."""

    component: ComponentName
    releases: Annotated[tuple[ReleaseLine, ...], each_once(attrgetter("version"))]
    evidence: object = None


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _GpuNames:
    gpu: Version
    names: tuple[Short, ...]
    evidence: Sources
    platform: Platform | None = None


def _fold(name: str) -> str:
    return re.sub(r"[-_\s]+", "", name.lower())


def _one_architecture_each(lines: tuple[_GpuNames, ...], _context: object) -> tuple[_GpuNames, ...]:
    architectures: dict[str, str] = {}
    for number, line in enumerate(lines):
        for place, name in enumerate(line.names):
            first = architectures.setdefault(_fold(name), line.gpu)
            if first != line.gpu:
                path = f"[{number}].names[{place}]"
                raise WrongValueError(f"names both {first} and {line.gpu}", path=path, part=name)
    return lines


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFile(ReleasesFile):
    """``releases/gpu.yaml``: the architectures, what people call them, and what runs on which."""

    names: Annotated[tuple[_GpuNames, ...], Checked(_one_architecture_each)] = ()
    runs_on: tuple[Device, ...] = ()

    def folded_names(self) -> dict[str, str]:
        """Return the architecture of each name of a GPU, without hyphens, spaces and capitals."""
        return {_fold(name): line.gpu for line in self.names for name in line.names}

    def on_arm(self) -> tuple[str, ...]:
        """Return the names of GPUs that are built into an Arm host, folded."""
        lines = [line for line in self.names if line.platform is Platform.LINUX_AARCH64]
        return tuple(_fold(name) for line in lines for name in line.names)


def in_order(lines: Iterable[ReleaseLine]) -> list[ReleaseLine]:
    """Sort by version, oldest first. Words such as ``cpu`` come first of all."""
    return sorted(lines, key=lambda line: version_key(line.version) or Pep440("0.dev0"))


def declared_rules(component: str, lines: Sequence[ReleaseLine]) -> list[Rule]:
    """Return the rules ``<component>-declares-<target>``.

    One row per run of consecutive releases that declare the same, for each platform and range of Pythons.
    """
    pairs = dict.fromkeys(pair for line in lines for pair in line.targets())
    rules = []
    for target in dict.fromkeys(target for target, _ in pairs):
        rows: list[Row] = []
        for place in (place for name, place in pairs if name == target):
            for spec, group in groupby(lines, key=lambda line, t=target, p=place: line.declares(t, p)):  # type: ignore[misc]
                if spec is not None:
                    row = _release_row(component, target, spec, run := list(group), place)
                    only_wheels = target == "python" and all(line.python == spec for line in run)
                    rows.append(replace(row, cause=WHEELS_ONLY) if only_wheels else row)
        if rows:
            rule_id = f"{component}-declares-{target}"
            rules.append(Rule(id=rule_id, kind=RuleKind.REQUIRES, rows=tuple(rows), stage="install"))
    return rules


def extra_rules(component: str, lines: Sequence[ReleaseLine]) -> list[Rule]:
    """Return the rules ``<component>-extra-<target>``: the oldest releases that extras of a component admit."""
    rules = []
    for target in dict.fromkeys(target for line in lines for target in line.extras):
        rows = [
            Row(
                when=run_of(component, run := list(group)),
                needs={target: spec},
                severity=Severity.WARNING,
                cause="Without that extra no installer keeps to it, and what the extra serves can fail with an older release",
                fix=f"Use such a release of {target}, or leave out what needs it.",
                evidence=evidence_of(run),
            )
            for spec, group in groupby(lines, key=lambda line, t=target: line.extras.get(t))  # type: ignore[misc]
            if spec is not None
        ]
        rules.append(Rule(id=f"{component}-extra-{target}", kind=RuleKind.REQUIRES, rows=tuple(rows), stage="init"))
    return rules


def yanked_cause(reason: str) -> str:
    """Return what is said of a release that was taken back. ``yanked`` is no reason."""
    return "its publisher yanked it" + ("" if reason == "yanked" else f": {reason.strip()}")


def yanked_rules(component: str, lines: Sequence[ReleaseLine]) -> list[Rule]:
    """Return the rule ``<component>-yanked``: the releases that their publisher took back, and why."""
    rows: list[Row] = []
    for reason, group in groupby(lines, key=lambda line: line.yanked):
        if reason is not None:
            run, cause = list(group), yanked_cause(reason)
            when, evidence = run_of(component, run), evidence_of(run)
            rows.append(Row(when=when, severity=Severity.WARNING, cause=cause, fix=YANKED_FIX, evidence=evidence))
    rule = Rule(id=f"{component}-yanked", kind=RuleKind.CONFLICTS, rows=tuple(rows), stage="install")
    return [rule] if rows else []


def ready_rules(component: str, lines: Sequence[ReleaseLine]) -> list[Rule]:
    """Return the rule ``<component>-ready-python``: the Pythons for which a release need not be compiled.

    It is a note for a framework, which a lock compiles wherever that is needed.
    """
    severity = Severity.NOTE if component in FRAMEWORKS else Severity.WARNING
    rows: list[Row] = []
    for spec, group in groupby(lines, key=lambda line: line.ready_python):
        if spec is not None:
            run = list(group)
            row = Row(
                when=run_of(component, run),
                needs={"python": spec},
                severity=severity,
                cause=WHEELS_OR_SOURCE,
                fix="Use a release with a wheel for that Python, or another Python.",
                evidence=evidence_of(run),
            )
            rows.append(row)
    rule = Rule(id=f"{component}-ready-python", kind=RuleKind.REQUIRES, rows=tuple(rows), stage="install")
    return [rule] if rows else []


def run_of(component: str, run: Sequence[ReleaseLine]) -> dict[str, Spec]:
    """Return the condition that a run of consecutive releases of a component meets."""
    first, last = run[0].version, run[-1].version
    return {component: Spec.parse(f"=={first}" if len(run) == 1 else f">={first},<={last}")}


def evidence_of(run: Sequence[ReleaseLine]) -> tuple[Evidence, ...]:
    """Return the first sources of releases."""
    first: dict[Evidence, None] = {}
    for line in run:
        first.update(dict.fromkeys(line.sources))
        if len(first) >= _MOST_EVIDENCE:
            break
    return tuple(first)[:_MOST_EVIDENCE]


def _release_row(component: str, target: str, spec: Spec, run: Sequence[ReleaseLine], place: _Place) -> Row:
    when = run_of(component, run)
    platform, python = place
    return Row(
        when=when if python is None else {**when, "python": python},
        needs={target: spec},
        platforms=(platform,) if platform else (),
        cause="its metadata says so",
        evidence=evidence_of(run),
    )
