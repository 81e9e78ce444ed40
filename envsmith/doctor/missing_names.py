"""What the name index answers to a message about a missing name, as a finding: which package, which side, which releases.

A name that went away or came is a matter of versions. One that no release has is a matter of spelling, one that every
release has a matter of the installation, and a file of one's own may stand in the place of a package.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from envsmith.doctor.argument_owners import ArgumentOwners, owners_of_argument
from envsmith.doctor.asked_members import AskedMember, asked_member
from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.facts import Facts
from envsmith.doctor.lacks import (
    Lack,
    Question,
    best_answer,
    installed_version,
    is_in,
    listed_project,
    overridden,
    rivals,
    shadowing_file,
)
from envsmith.doctor.needed_releases import asker_of, left_by_rules
from envsmith.doctor.parties import caller_fix, owner_of
from envsmith.doctor.read.lines import component_of, fold
from envsmith.doctor.rewriting import Rewriting, is_borne, rewriting_of
from envsmith.doctor.signatures import Hit
from envsmith.doctor.vocabulary import words
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence, short_spec_of
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding
from envsmith.model.project_name import normal_name
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.model.version import Spec

_OF_PYTHON_2 = frozenset({"long", "unicode"})
_PAIR = Taxonomy(group="python-version-pair", pattern="version-and-dependency-management")
_SCRIPT = Taxonomy(group="negative", pattern="model-or-script-fix")
_BROKEN = Taxonomy(group="stale-or-foreign-binary", cause="broken-installation", pattern=_PAIR.pattern)


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
            return self.taxonomy or _PAIR
        own = words().own_causes.get(self.presence.distribution, self.rule)
        return dataclasses.replace(_PAIR, cause=own)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Return the files of every release that was measured."""
        if self.presence is None or not self.presence.date:
            return ()
        releases = f"{self.presence.releases[0]} to {self.presence.releases[-1]}"
        read = f"{len(self.presence.releases)} releases, read now" if self.presence.is_sample else "every release"
        source = f"{self.presence.distribution} {releases}: files of {read}"
        return (Evidence(kind=EvidenceKind.MEASURED, source=source, date=self.presence.date),)


def explain(
    lack: Lack, facts: Facts, index: NameIndex, needs: Sequence[Mapping[str, str]] = ()
) -> MissingNameExplanation | None:
    """Return what the index and the facts say of a lack, or ``None`` for an attribute that no package owns.

    ``needs`` are the releases that end the other faults of what is stated: what is recommended is among them.
    """
    if shadow := shadowing_file(lack):
        return _shadowed(lack, shadow)
    if lack.is_of_own_part and (lack.partial or index.distribution_of(lack.root)):
        return _damaged(lack)
    if lack.kind == "attribute" and (lack.name in _OF_PYTHON_2 or isinstance(getattr(builtins, lack.name, None), type)):
        return _unmeasured(lack, facts)  # np.int: a star import that hands on Python's own types cannot be seen
    if lack.file and not (index.distribution_of(lack.root) or listed_project(lack.root)):
        return _not_in_file(lack, lack.file)
    if member := asked_member(lack, facts, index):
        return _asked(lack, member, installed_version(member.presence.distribution, facts))
    answer = best_answer(lack, facts, index)
    if lack.is_of_bare_folder and (answer is None or not answer[1].absent):
        return _bare_folder(lack)
    if answer is None:
        if lack.is_of_model:
            return None
        own = _overridden(lack, facts, index, is_known=False)
        return own or _by_argument(lack, facts, index) or _unmeasured(lack, facts)
    if lack.kind == "positional" and not (answer[1].present and answer[1].absent):
        return None
    question, presence = answer
    if lack.is_of_model and not (presence.present and presence.absent):
        return None
    is_called = bool(lack.frames) and lack.frames[-1].package == presence.distribution
    if is_called and (own := _overridden(lack, facts, index, is_known=True)):
        return own  # the package calls what it has itself: a class of one's own stands in the place of its class
    version = installed_version(presence.distribution, facts)
    if lack.kind == "required":
        return _required(lack, question, presence, version) or _unmeasured(lack, facts)
    if not presence.present:
        if not presence.unknown:
            return _never(lack, question, presence)
        return _perhaps(lack, question, presence, version) if presence.absent else _unmeasured(lack, facts)
    inside = is_in(version, presence.present, presence.releases) if version else None
    if inside is not False and lack.kind in {"name", "module"} and index.is_compiled_module(question.path):
        return _not_compiled(lack, question, presence, version)
    is_set_later = lack.kind == "member" and index.is_set_later(question.path)
    if is_set_later and inside is not False and (is_called or presence.releases[-1] in presence.present):
        return _not_set_yet(lack, question, presence, version)
    if lack.kind == "attribute" and _is_wherever_its_owner_is(lack, question, presence, index):
        return _not_imported(lack, question, presence, version)
    if inside and version:
        return _another_copy(lack, question, presence, version)
    if not (presence.absent or presence.unknown):
        if lack.partial:
            return _in_a_circle(lack, question, presence)
        is_module = lack.kind == "attribute" and index.ask_module(question.path) is not None
        return _always(lack, question, presence, version, is_module=is_module)
    asker = _known_asker(lack, presence, facts, index)
    needed = _needed(presence, [*needs, *_needs_of(asker, presence, facts)])
    gone = _gone(lack, question, presence, version if inside is False else None, needed=needed, importer=asker)
    of_package = asker or lack.user_of(presence.distribution)
    rewriting = None if of_package else rewriting_of(lack, question, presence, version, index)
    if lack.is_of_report:
        return _of_report(gone, lack, presence, version)
    if rewriting:
        gone = _rewritten(gone, rewriting, lack, is_borne=is_borne(presence, facts))
    return _of_several(gone, rivals(lack, question, facts, index))


def diagnosed_of(lack: Lack, explanation: MissingNameExplanation, twins: Sequence[Hit]) -> Diagnosed:
    """Return an explanation as a finding at the place of its message, in the class of a message that says the same."""
    hit = lack.hit
    severity, weight = explanation.severity, explanation.weight
    if severity is Severity.ERROR and "warn" in hit.text.lower():
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


# What is said in each case.


def _thing(lack: Lack, question: Question) -> str:
    if lack.kind == "positional":
        return f"{lack.name} arguments by position of {question.path}"
    if question.argument:
        return f"the argument {question.argument} of {question.path}"
    if lack.is_of_model:
        return f"the model {question.path.rpartition('.')[2]}"
    return f"the module {question.path}" if lack.kind == "module" else question.path


def _needed(presence: Presence, needs: Sequence[Mapping[str, str]]) -> str:
    """Return the releases that have a name and end what else is wrong with the package, if there are any."""
    specs = [Spec.parse(each[presence.distribution]) for each in needs if presence.distribution in each]
    fitting = [r for r in presence.present if all(spec.contains(r) for spec in specs)]
    return short_spec_of(presence.releases, fitting) if fitting else presence.short_spec()


def _needs_of(asker: tuple[str, str] | None, presence: Presence, facts: Facts) -> Iterator[Mapping[str, str]]:
    """Yield what the stated release of a package that asks needs beside the name, by the rules."""
    pair = {asker[0], presence.distribution} if asker else set()
    version = installed_version(asker[0], facts) if asker else None
    if asker and version and all(component_of(name) == name for name in pair):
        yield left_by_rules(pair, {asker[0]: version}, Platform.LINUX_64)


def _known_asker(lack: Lack, presence: Presence, facts: Facts, index: NameIndex) -> tuple[str, str] | None:
    """Return the package that is known to import a name, with its releases that do not: of the calls, else stated."""
    name = presence.distribution
    if lack.kind not in {"name", "module"}:
        return None
    called = lack.user_of(name)
    users = [called] if called else [each for each in facts.components if each not in {name, "python"}]
    path = f"{lack.owner}.{lack.name}".rstrip(".")
    releases = {user: installed_version(user, facts) for user in users}
    taking = ((user, index.not_taking(path, user, version)) for user, version in releases.items() if version)
    return asker_of(path, releases) or next(((user, others) for user, others in taking if others is not None), None)


def _gone(
    lack: Lack,
    question: Question,
    presence: Presence,
    version: str | None,
    *,
    needed: str,
    importer: tuple[str, str] | None,
) -> MissingNameExplanation:
    """Explain what some releases have and others do not. ``version`` is the release that is known to lack it.

    ``importer`` is the package that is known to ask, with its releases that do not.
    """
    name = presence.distribution
    lacking = f"{name} {version}" if version else f"The installed {name}"
    asker = f" {importer[0]} asks for it." if importer else _asker(lack, name)
    other_way = f", or {''.join(importer)}" if importer and importer[1] else _other_way(lack, presence, version)
    successor = f" Later releases have {presence.successor} in its place." if presence.successor else ""
    message = f"{lacking} does not have {_thing(lack, question)}: it is in {name}{presence.ranges()}.{asker}{successor}"
    requirement = f"{name}{needed}"
    return MissingNameExplanation(
        rule="name-not-in-release",
        message=message,
        fix=f"Install {requirement}{other_way}.",
        weight=Weight.PROVED if version else Weight.SAID,
        confidence="high" if version else "medium",
        components={name: version or "*", **({importer[0]: "*"} if importer else _user(lack, name))},
        needs={name: needed, **({importer[0]: importer[1]} if importer and importer[1] else {})},
        lines=(f"pip install '{requirement}'",),
        presence=presence,
    )


def _other_way(lack: Lack, presence: Presence, version: str | None) -> str:
    """Return the change on the side that asks, where it is known which way that is."""
    user = lack.user_of(presence.distribution)
    newest, oldest = presence.releases[-1] in presence.present, presence.releases[0] in presence.present
    if user:
        age = "a newer release of" if oldest and not newest else "an older release of" if newest and not oldest else ""
        return f", or {age or 'another release of'} {user}" if version or age else ""
    return f", or use {presence.successor}" if presence.successor else ""


def _asked(lack: Lack, member: AskedMember, version: str | None) -> MissingNameExplanation:
    """Explain a member that a package asks of a class of one's own, or that its base no longer hands down."""
    presence, base, attribute = member.presence, member.base, lack.name
    name, spec = presence.distribution, presence.short_spec()
    before = short_spec_of(presence.releases, set(presence.releases) - presence.present)
    needed = before if member.is_asked else spec
    if member.is_asked:
        message = (
            f"{lack.owner} has no {attribute}, which {name}{spec} has on {base} and asks for: {name}{before} does not."
        )
        message += "" if member.is_told else f" Nothing here says which {name} runs, nor whether it asks itself."
        way = f"let {lack.owner} derive from {base} and run its constructor, or define {attribute}"
    else:
        message = f"{lack.owner} has no {attribute}: a class that derives from {base} has it in {name}{spec} only."
        way = f"let {lack.owner} do without it"
    return MissingNameExplanation(
        rule="name-not-in-release",
        message=message,
        fix=f"Install {name}{needed}, or a newer release of the code that brings {lack.owner}; or {way}.",
        severity=Severity.ERROR if member.is_told else Severity.WARNING,
        weight=Weight.SAID if member.is_told else Weight.SYMPTOM,
        components={name: version or "*"},
        needs={name: needed},
        lines=(f"pip install '{name}{needed}'",),
        presence=presence,
    )


def _of_report(
    gone: MissingNameExplanation, lack: Lack, presence: Presence, version: str | None
) -> MissingNameExplanation:
    """Return an explanation for a script that collects a report, which fails beside what the report is about."""
    own = f"{presence.distribution} {version or 'that is installed'}"
    return dataclasses.replace(
        gone,
        message=f"{gone.message} Only that script fails by it: it is of another release than the package.",
        fix=f"Take {lack.script} from the source tree of the {own}. What else fails has another cause.",
        severity=Severity.WARNING,
        weight=Weight.FOLLOWS,
        lines=(),
    )


def _rewritten(
    gone: MissingNameExplanation, rewriting: Rewriting, lack: Lack, *, is_borne: bool
) -> MissingNameExplanation:
    """Return an explanation that names one's own code first, and an older release only where the others bear it."""
    requirement = next(f"{name}{spec}" for name, spec in gone.needs.items())
    older = f" Or install {requirement}." if is_borne else f" {requirement} has it, but not beside what else is stated."
    return dataclasses.replace(gone, fix=rewriting.sentence(lack.script) + older, lines=())


def _of_several(gone: MissingNameExplanation, answers: Sequence[Presence]) -> MissingNameExplanation:
    """Return the explanation for each of several packages, where nothing in the text says which one is meant."""
    specs = {presence.distribution: presence.short_spec() for presence in answers}
    rival_specs = {name: spec for name, spec in specs.items() if name not in gone.needs}
    if not rival_specs:
        return gone
    likewise = " or ".join(f"{name}{spec}" for name, spec in rival_specs.items())
    return dataclasses.replace(
        gone,
        message=f"{gone.message} The message does not say of which package it speaks: {likewise} has it too.",
        fix=f"{gone.fix.removesuffix('.')}, or {likewise} if that is the package in use.",
        needs={**gone.needs, **rival_specs},
        components={**gone.components, **dict.fromkeys(rival_specs, "*")},
    )


def _required(lack: Lack, question: Question, presence: Presence, version: str | None) -> MissingNameExplanation | None:
    """Explain an argument that a caller does not give. ``presence`` says which releases do not want it."""
    name, spec = presence.distribution, presence.short_spec()
    if not presence.absent or not presence.present:
        return None
    lacking = f"{name} {version}" if version else f"The installed {name}"
    return MissingNameExplanation(
        rule="name-not-in-release",
        message=f"{lacking} wants {_thing(lack, question)}, which its caller does not give: {name}{spec} does not want it."
        + _asker(lack, name),
        fix=f"Install {name}{spec}, or a release of the caller that gives {question.argument}.",
        components={name: version or "*", **_user(lack, name)},
        needs={name: spec},
        lines=(f"pip install '{name}{spec}'",),
        presence=presence,
    )


def _overridden(lack: Lack, facts: Facts, index: NameIndex, *, is_known: bool) -> MissingNameExplanation | None:
    """Explain a method of one's own that a package calls with an argument more or less than before."""
    answer = overridden(lack, index, is_known=is_known)
    return _own_method(lack, *answer, facts) if answer else None


def _own_method(lack: Lack, question: Question, presence: Presence, facts: Facts) -> MissingNameExplanation | None:
    name, spec = presence.distribution, presence.short_spec()
    version = installed_version(name, facts)
    if version and is_in(version, presence.present, presence.releases):
        return None
    place = "" if question.is_guess else f"stands in the place of {question.path} and "
    is_positional = lack.kind == "positional"
    argument = f"{lack.name} arguments by position" if is_positional else question.argument
    if lack.kind == "required":
        fault = f"wants {argument}, which {name} does not give it: {name}{spec} does"
        change = f"do without {argument}"
    else:
        fault = f"does not take {argument}, which {name} gives it: {name}{spec} does not"
        change = f"take {argument}, or **kwargs{' and *args' if is_positional else ''}"
    return MissingNameExplanation(
        rule="override-lacks-argument",
        message=f"{lack.owner} {place}{fault}.",
        fix=f"Let {lack.owner} {change}. Or install {name}{spec}.",
        confidence="high" if version else "medium",
        components={name: version or "*"},
        needs={name: spec},
        lines=(f"pip install '{name}{spec}'",),
        presence=presence,
    )


def _by_argument(lack: Lack, facts: Facts, index: NameIndex) -> MissingNameExplanation | None:
    """Explain an argument of a callable whose package is told by the argument alone."""
    owners = owners_of_argument(lack, facts, index)
    if owners is None:
        return None
    if not owners.are_one:
        return _of_either(lack, owners)
    owner = owners.owners[0]
    version = installed_version(owner.presence.distribution, facts)
    if owner.is_override:
        explanation = _own_method(lack, owner.question, owner.presence, facts)
    elif lack.kind == "required":
        explanation = _required(lack, owner.question, owner.presence, version)
    else:
        explanation = _gone(
            lack, owner.question, owner.presence, version, needed=_needed(owner.presence, ()), importer=None
        )
    if explanation is None:
        return None
    explanation = _of_several(explanation, [each.presence for each in owners.owners])
    if not owners.is_guess:
        return explanation
    names = " and ".join(each.presence.distribution for each in owners.owners)
    message = (
        f"{explanation.message} Nothing here names {names}: it is a guess, because no other measured package ever gained"
        f" or lost {'so many arguments by position' if lack.kind == 'positional' else lack.name} there."
    )
    return dataclasses.replace(
        explanation, message=message, severity=Severity.WARNING, weight=Weight.SYMPTOM, confidence="low"
    )


def _of_either(lack: Lack, owners: ArgumentOwners) -> MissingNameExplanation:
    """Name the packages that may be meant, where they are too different to recommend a release of one."""
    fitting = " or ".join(
        f"{owner.question.path}, which the call fits in {owner.presence.distribution}{owner.presence.ranges()}"
        for owner in owners.owners
    )
    return MissingNameExplanation(
        rule="name-missing",
        message=f"{lack.owner}() and its caller are of different releases. What is called may be {fitting}.",
        fix="See which of them the code imports, and install the releases that it was written for.",
        taxonomy=dataclasses.replace(_PAIR, cause="package-version-pair"),
        severity=lack.hit.signature.severity,
        weight=Weight.SYMPTOM,
        components={owner.presence.distribution: "*" for owner in owners.owners},
        lines=("pip check",),
        is_certain=False,
    )


def _never(lack: Lack, question: Question, presence: Presence) -> MissingNameExplanation:
    name = presence.distribution
    first, last = presence.releases[0], presence.releases[-1]
    none = f"None of {len(presence.releases)} releases" if presence.is_sample else "No release"
    return MissingNameExplanation(
        rule="name-in-no-release",
        message=f"{none} of {name} from {first} to {last} has {_thing(lack, question)}:"
        f" it is misspelt, of another package or of a fork, older than {first} or newer than {last}."
        + _asker(lack, name),
        fix=f"Look for the name in the code that asks for it. If it comes from a fork of {name}, install that.",
        taxonomy=dataclasses.replace(_SCRIPT, cause="name-in-no-release"),
        severity=Severity.WARNING,
        weight=Weight.SYMPTOM,
        confidence="high",
        components={name: "*"},
        presence=presence,
    )


def _perhaps(lack: Lack, question: Question, presence: Presence, version: str | None) -> MissingNameExplanation:
    """Explain a name that some releases surely lack, where others make names of their own when they are imported."""
    name, oldest = presence.distribution, presence.releases[0]
    lacking, spec = (short_spec_of(presence.releases, having) for having in (presence.absent, presence.unknown))
    is_older = oldest in presence.absent
    earlier = f" Releases before {oldest} were not measured: they may have it, too." if is_older else ""
    return MissingNameExplanation(
        rule="name-not-in-release",
        message=f"{name}{lacking} does not have {_thing(lack, question)}. Its other releases make names when they are"
        f" imported, and may have it.{earlier}{_asker(lack, name)}",
        fix=f"Install {name}{spec}{f' or {name}<{oldest}' if is_older else ''}, and look whether it has it.",
        severity=lack.hit.signature.severity,
        weight=Weight.SYMPTOM,
        components={name: version or "*", **_user(lack, name)},
        needs={} if is_older else {name: spec},
        presence=presence,
    )


def _another_copy(lack: Lack, question: Question, presence: Presence, version: str) -> MissingNameExplanation:
    """Explain a name that the stated release has: what runs is another copy, or a damaged one."""
    name = presence.distribution
    return MissingNameExplanation(
        rule="installed-is-another",
        message=f"{name} {version} has {_thing(lack, question)}: what is imported is another copy, its files are damaged,"
        f" or it has this only beside an optional package that is not installed.{_asker(lack, name)}",
        fix=f"{_look(lack, question, presence)} Then reinstall {name} into a clean environment.",
        severity=lack.hit.signature.severity,
        weight=Weight.SYMPTOM,
        components={name: version},
        lines=(f"pip install --force-reinstall --no-deps {name}=={version}",),
        presence=presence,
    )


def _not_set_yet(lack: Lack, question: Question, presence: Presence, version: str | None) -> MissingNameExplanation:
    """Explain a member that methods set on an instance, of a release that sets it or of one that is not known."""
    name, spec = presence.distribution, presence.short_spec()
    older = "" if version or not presence.absent else ", or the installed release is another"
    is_foreign = bool(version and question.is_guess and presence.absent)
    before = short_spec_of(presence.releases, set(presence.releases) - presence.present) if is_foreign else ""
    return MissingNameExplanation(
        rule="name-not-in-release",
        message=f"{name}{spec} sets {_thing(lack, question)} on its objects while they are made or used: what sets it has"
        f" not run for this one{older}.{_asker(lack, name)}",
        fix=f"See where {name} sets {lack.name}, and on what condition."
        + (f" If the installed release is another, install {name}{spec}." if older else "")
        + (
            f" {lack.owner} is of another package, written for {name}{before}: take that, or a newer release of it."
            if before
            else ""
        ),
        severity=lack.hit.signature.severity,
        weight=Weight.SYMPTOM,
        components={name: version or "*", **_user(lack, name)},
        needs={name: before or spec} if older or before else {},
        presence=presence,
    )


def _always(
    lack: Lack, question: Question, presence: Presence, version: str | None, *, is_module: bool
) -> MissingNameExplanation:
    """Explain a name that every measured release has, where the installed one is not among them or not known."""
    name, first = presence.distribution, presence.releases[0]
    older = f"{name} {version} is not among them" if version else "the installed one is older"
    if lack.kind == "member":  # a model's own code may have a class of that name
        older = f"{older}, the class is another of that name (a model's own code)"
    if is_module:  # Python before 3.10 says no more of a circle
        older = f"it is a module that was not imported yet, {older}"
    every = f"Each of {len(presence.releases)} releases" if presence.is_sample else "Every release"
    return MissingNameExplanation(
        rule="name-not-in-release",
        message=f"{every} of {name} from {first} to {presence.releases[-1]} has {_thing(lack, question)}: {older},"
        f" another copy is imported, or its files are damaged.{_asker(lack, name)}",
        fix=f"{_look(lack, question, presence)} "
        + (f"Then install {name}>={first}." if version else f"Then install {name} again, not older than {first}."),
        severity=lack.hit.signature.severity,
        weight=Weight.SYMPTOM,
        components={name: version or "*"},
        needs={name: f">={first}"} if version else {},
        lines=(f"pip install '{name}>={first}'" if version else f"pip install --force-reinstall --no-deps {name}",),
        presence=presence,
    )


def _is_wherever_its_owner_is(lack: Lack, question: Question, presence: Presence, index: NameIndex) -> bool:
    """Return whether a module is in every release that has the package around it, which was imported."""
    around = index.ask_module(lack.owner) if "." in lack.owner and index.ask_module(question.path) else None
    return around is not None and bool(presence.absent) and around.present <= presence.present


def _not_imported(lack: Lack, question: Question, presence: Presence, version: str | None) -> MissingNameExplanation:
    """Explain a module that its caller takes from the package around it, and that nothing has imported."""
    name, user = presence.distribution, lack.user_of(presence.distribution)
    return MissingNameExplanation(
        rule="name-missing",
        message=f"{lack.owner} has no {lack.name} yet: it is a module, every {name} with {lack.owner} has it, and nothing"
        f" imported it.{_asker(lack, name)}",
        fix=f"Import it by its own path (import {question.path}), or take the release of {user or 'its caller'} that was"
        f" written for the installed {name}.",
        taxonomy=dataclasses.replace(_PAIR, cause="package-version-pair"),
        weight=Weight.SYMPTOM,
        components={name: version or "*", **_user(lack, name)},
        presence=presence,
        is_certain=False,
    )


def _not_compiled(lack: Lack, question: Question, presence: Presence, version: str | None) -> MissingNameExplanation:
    """Explain a compiled module that is not there."""
    name = presence.distribution
    releases = f" Of the files that were read those of {name}{presence.ranges()} have it." if presence.absent else ""
    return MissingNameExplanation(
        rule="broken-installation",
        message=f"{question.path} is a compiled module of {name}, and it is not in what is imported: a folder of sources,"
        f" files for another Python or machine, or files that were built without it.{releases}{_asker(lack, name)}",
        fix=f"{_look(lack, question, presence)} Then reinstall {name} with this Python: pip takes the wheel that fits.",
        taxonomy=_BROKEN,
        components={name: version or "*"},
        lines=(f"pip install --force-reinstall --no-deps {name}",),
    )


def _in_a_circle(lack: Lack, question: Question, presence: Presence) -> MissingNameExplanation:
    """Explain a name that every release has, asked for while Python was still importing the package."""
    root = lack.root
    return MissingNameExplanation(
        rule="imported-in-a-circle",
        message=f"Python was still importing {root} when {_thing(lack, question)} was asked for. Every release of"
        f" {presence.distribution} has it: a file {root}.py of your own stands in its place, or what {root} imports"
        " imports it again.",
        fix=f"Look for {root}.py beside the script and rename it. Without one, the first lines of the traceback that are"
        " in no package show the file of yours that is imported twice: it has the name of a module of Python or of a"
        " package.",
        taxonomy=dataclasses.replace(_SCRIPT, cause="module-shadowed"),
        severity=Severity.WARNING,
        weight=Weight.SYMPTOM,
        components={presence.distribution: "*"},
        lines=(f"python -c 'import {root} as m; print(m.__file__)'",),
    )


def _look(lack: Lack, question: Question, presence: Presence) -> str:
    """Return how to see what is imported, and what each answer means."""
    root = presence.root or question.path.partition(".")[0]
    is_module = lack.kind == "attribute" and "." in lack.owner
    advice = f"Import it by its own path (import {question.path}), if it is a module. " if is_module else ""
    return (
        f"{advice}See what is imported: python -c 'import {root} as m; print(m.__file__)'. None is a folder {root}"
        f" without __init__.py, a path outside of site-packages is a file or folder of yours: rename it."
    )


def _shadowed(lack: Lack, file: str) -> MissingNameExplanation:
    return MissingNameExplanation(
        rule="module-shadowed",
        message=f"A file of your own is imported in the place of the package {lack.root}: {file}.",
        fix=f"Rename {file}, and delete its folder __pycache__.",
        taxonomy=dataclasses.replace(_SCRIPT, cause="module-shadowed"),
        severity=Severity.WARNING,
        confidence="high",
        components={fold(lack.root): "*"},
    )


def _beside_checkout(lack: Lack, folder: str) -> MissingNameExplanation:
    """Explain what a module lacks whose name a folder around the script or a clone has: Python may have taken that folder."""
    return MissingNameExplanation(
        rule="module-shadowed",
        message=f"{lack.root} has no {lack.name}, and beside or around the script lies a folder {folder}: Python may have imported"
        f" that in the place of the package, or an older {lack.root} is installed than this checkout.",
        fix=f"See which {lack.root} is imported. Install the checkout (pip install -e .), and run the script elsewhere.",
        taxonomy=dataclasses.replace(_SCRIPT, cause="module-shadowed"),
        severity=Severity.WARNING,
        weight=Weight.SYMPTOM,
        components={fold(lack.root): "*"},
        lines=(f"python -c 'import {lack.root} as m; print(m.__file__, m.__path__)'",),
        is_certain=False,
    )


def _not_in_file(lack: Lack, file: str) -> MissingNameExplanation:
    return MissingNameExplanation(
        rule="name-not-in-file",
        message=f"{file} does not have {lack.name}. It is of no installed package: no release of one is at fault.",
        fix=f"Look into {file}: the name is misspelt, or was never written there, or the file is of another state of"
        " the source tree than the one that imports it (git status).",
        taxonomy=dataclasses.replace(_SCRIPT, cause="name-not-in-file"),
        severity=Severity.WARNING,
        confidence="high",
        components={},
    )


def _damaged(lack: Lack) -> MissingNameExplanation:
    """Explain a package that does not find a part of its own while it is imported."""
    name = fold(lack.root)
    kernel = (
        f" Or {name} was installed anew while the kernel ran, which holds parts of the old one." * lack.is_in_notebook
    )
    restart = "Restart the kernel of the notebook first. If that is not enough: " * lack.is_in_notebook
    return MissingNameExplanation(
        rule="broken-installation",
        message=f"{name} does not find {lack.owner}.{lack.name}, a part of its own, while it is imported: its files are"
        f" of two releases, or some are missing.{kernel}",
        fix=f"{restart}Uninstall {name} until pip says that it is not installed, delete its folder, and install it again.",
        taxonomy=_BROKEN,
        components={name: "*"},
        lines=(f"pip uninstall -y {name}", f"pip install --no-cache-dir {name}"),
    )


def _bare_folder(lack: Lack) -> MissingNameExplanation:
    """Explain a package that Python took for a folder without ``__init__.py``, or that says no file of its own."""
    name = component_of(lack.root) or fold(lack.root)
    return MissingNameExplanation(
        rule="broken-installation",
        message=f"{lack.root} has no {lack.name} where Python looked, and says no file that it came from. It took a folder"
        f" without __init__.py for {lack.root}, or the release that is installed has no such name.",
        fix=f"See where Python looked. Rename a folder {lack.root} of your own. If it is a checkout of {name}, its"
        " sources lie in a folder below it or have moved: take it from PYTHONPATH, and run pip install . in it again."
        f" If there is none, the release of {name} is not the one that the code was written for.",
        taxonomy=_BROKEN,
        weight=Weight.SYMPTOM,
        components={name: "*"},
        lines=(f"python -c 'import {lack.root} as m; print(m.__path__)'",),
        is_certain=False,
    )


def _unmeasured(lack: Lack, facts: Facts) -> MissingNameExplanation | None:
    """Say that it was not measured. An attribute of an object is left out if no known package owns it."""
    if lack.kind == "positional":
        return None
    root = lack.root
    owner = component_of(root) or root if root else owner_of(lack.owner.split(".")[0]) or owner_of(lack.name)
    if not owner and lack.kind == "argument":
        owner = _called_package(lack)
    if not owner and lack.kind == "member":
        return None
    if lack.kind == "attribute" and "." not in lack.owner and (checkout := lack.checkout):
        return _beside_checkout(lack, checkout)
    user = lack.user_of(owner)
    return MissingNameExplanation(
        rule="name-missing",
        message=_unmeasured_message(lack, owner),
        fix=("" if owner or lack.root else "Compare the call with what is called. ") + caller_fix(owner, user, facts),
        taxonomy=dataclasses.replace(_PAIR, cause=words().own_causes.get(owner or "", "package-version-pair")),
        severity=lack.hit.signature.severity,
        weight=Weight.SYMPTOM,
        components=_versions([n for n in (owner, user) if n], facts),
        lines=("pip check",),
        is_certain=False,
    )


def _unmeasured_message(lack: Lack, owner: str | None) -> str:
    of_whom = f" of {owner}" if owner else ""
    if lack.kind == "required":
        fault = f"{lack.owner}(){of_whom} is called without an argument that it wants"
    elif lack.kind == "argument":
        fault = f"{lack.owner}(){of_whom} does not know the argument {lack.name} that it is given"
    else:
        thing = f"{lack.owner}.{lack.name}" if lack.name else lack.owner
        fault = f"{owner or 'A package'} does not have {thing}, which its caller asks for"
    if not owner and lack.kind in {"argument", "required"}:
        return f"{fault}: the call is wrong, or of two packages one is older than the other expects."
    return f"{fault}: one of the two is older than the other expects. It is not known here which releases fit."


def _called_package(lack: Lack) -> str | None:
    """Return the package whose name the call in the line of code above begins with."""
    source = lack.frames[-1].source if lack.frames else ""
    roots = (fold(part.split(".")[0]) for part in source.replace("(", " ").split() if "." in part)
    return next((root for root in roots if component_of(root)), None)


def _asker(lack: Lack, name: str) -> str:
    if user := lack.user_of(name):
        return f" {user} asks for it."
    return f" Your own code asks for it ({lack.script})." if lack.script and not lack.script.startswith("<") else ""


def _user(lack: Lack, name: str) -> dict[str, str]:
    user = lack.user_of(name)
    return {user: "*"} if user else {}


def _versions(names: Sequence[str], facts: Facts) -> dict[str, str]:
    return {name: installed_version(name, facts) or "*" for name in dict.fromkeys(names)}
