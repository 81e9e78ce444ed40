"""What is said of a name that is missing: the value, the words that its sentences share, and the finding of it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.lacks import Lack, Question
from envsmith.doctor.signatures import Hit
from envsmith.doctor.vocabulary import words
from envsmith.knowledge.names.presence import Presence
from envsmith.model.finding import Finding
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Evidence, EvidenceKind, Severity

PAIR = Taxonomy(group="python-version-pair", pattern="version-and-dependency-management")
SCRIPT = Taxonomy(group="negative", pattern="model-or-script-fix")
BROKEN = Taxonomy(group="stale-or-foreign-binary", cause="broken-installation", pattern=PAIR.pattern)


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingNameExplanation:
    """What is said of a lack, of which ``presence`` is what was measured.

    ``is_certain`` when releases or files are named, so that it says more than a general message.
    """

    rule: str
    message: str
    fix: str
    components: Mapping[str, str]
    presence: Presence | None = None
    needs: Mapping[str, str] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    taxonomy: Taxonomy | None = None
    severity: Severity = Severity.ERROR
    weight: Weight = Weight.SAID
    confidence: str = "medium"
    is_certain: bool = True

    @property
    def failure(self) -> Taxonomy:
        """Return the class of the failure: by default that of the package whose releases differ."""
        if self.taxonomy or self.presence is None:
            return self.taxonomy or PAIR
        own = words().own_causes.get(self.presence.distribution, self.rule)
        return dataclasses.replace(PAIR, cause=own)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Return the files of every release that was measured."""
        if self.presence is None or not self.presence.date:
            return ()
        releases = f"{self.presence.releases[0]} to {self.presence.releases[-1]}"
        read = f"{len(self.presence.releases)} releases, read now" if self.presence.is_sample else "every release"
        source = f"{self.presence.distribution} {releases}: files of {read}"
        return (Evidence(kind=EvidenceKind.MEASURED, source=source, date=self.presence.date),)


def thing_of(lack: Lack, question: Question) -> str:
    """Return what is missing, in words."""
    if lack.kind == "positional":
        return f"{lack.name} arguments by position of {question.path}"
    if question.argument:
        return f"the argument {question.argument} of {question.path}"
    if lack.is_of_model:
        return f"the model {question.path.rpartition('.')[2]}"
    return f"the module {question.path}" if lack.kind == "module" else question.path


def asker_of_name(lack: Lack, name: str) -> str:
    """Return the sentence on who asks a distribution for the name, ``""`` where nothing tells."""
    if user := lack.user_of(name):
        return f" {user} asks for it."
    return f" Your own code asks for it ({lack.script})." if lack.script and not lack.script.startswith("<") else ""


def user_of_name(lack: Lack, name: str) -> dict[str, str]:
    """Return the package that asks a distribution for the name, as a component of any release."""
    user = lack.user_of(name)
    return {user: "*"} if user else {}


def diagnosed_of(lack: Lack, explanation: MissingNameExplanation, twins: Sequence[Hit]) -> Diagnosed:
    """Return an explanation as a finding at the place of its message, in the class of a message that says the same."""
    hit = lack.hit
    severity, weight = explanation.severity, explanation.weight
    is_told = lack.is_told and hit.signature.severity is Severity.WARNING
    if severity is Severity.ERROR and (is_told or "warn" in hit.text.lower()):
        severity = Severity.WARNING
    if severity is Severity.WARNING:
        weight = min(weight, Weight.SYMPTOM)
    twin = twins[0] if twins and explanation.needs else None
    taxonomy = twin.signature.taxonomy if twin else explanation.failure
    cause = twin.signature if twin and twin.signature.kind == "cause" and not _of_another(twin, explanation) else None
    if cause and explanation.presence and _lacking((cause.fix,), explanation.presence):
        cause = None
    finding = Finding(
        rule=explanation.rule,
        severity=severity,
        components=explanation.components,
        needs=explanation.needs,
        message=explanation.message,
        evidence=explanation.evidence or hit.signature.evidence,
        fix=f"{explanation.fix} {cause.fix}" if cause else explanation.fix,
        symptom=hit.text[:300],
        stage=hit.signature.stage,
    )
    taxonomy = dataclasses.replace(taxonomy, stage=hit.signature.stage)
    diagnosed = hit.shown_by(finding, confidence=explanation.confidence, weight=hit.weighed(weight), taxonomy=taxonomy)
    return dataclasses.replace(diagnosed, lines=_lines(explanation, cause.lines if cause else ()))


def _of_another(twin: Hit, explanation: MissingNameExplanation) -> bool:
    """Tell whether a message's advice is for another package than the one that asks for the name."""
    components = set(twin.signature.components) - {explanation.presence.distribution if explanation.presence else None}
    return bool(components) and not explanation.components.keys() <= set(twin.signature.components)


def _lines(explanation: MissingNameExplanation, of_cause: tuple[str, ...]) -> tuple[str, ...]:
    """Return the commands of the message's cause, unless they may install a release that lacks the name."""
    presence = explanation.presence
    if presence is None or not explanation.lines:
        return of_cause or explanation.lines
    return explanation.lines if _lacking(of_cause, presence) or not of_cause else of_cause


def _lacking(lines: Sequence[str], presence: Presence) -> set[str]:
    """Return the releases that commands may install and that lack the name."""
    specs = _installed(lines, presence.distribution)
    return {release for spec in specs for release in spec.filter(presence.releases)} - presence.present


def _installed(lines: Sequence[str], distribution: str) -> Iterator[SpecifierSet]:
    """Yield the releases of a distribution that commands install."""
    for word in (word for line in lines if " install " in line for word in line.replace("'", "").split()):
        with contextlib.suppress(InvalidRequirement):
            requirement = Requirement(word)
            if normal_name(requirement.name) == distribution:
                yield requirement.specifier
