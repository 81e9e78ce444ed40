"""What the name index answers to a message about a missing name, as a finding: which package, which side, which releases.

A name that went away or came is a matter of versions, one that no release has a matter of spelling. What is there all
the same is told in :mod:`envsmith.doctor.present_names`.
"""

from __future__ import annotations

import builtins
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

from envsmith.doctor.argument_owners import ArgumentOwners, owners_of_argument
from envsmith.doctor.asked_members import AskedMember, asked_member
from envsmith.doctor.diagnosis import Weight
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
    with_module,
)
from envsmith.doctor.name_explanation import (
    PAIR,
    SCRIPT,
    MissingNameExplanation,
    asker_of_name,
    thing_of,
    user_of_name,
)
from envsmith.doctor.needed_releases import asker_of, left_by_rules
from envsmith.doctor.parties import caller_fix, owner_of
from envsmith.doctor.present_names import (
    another_copy,
    bare_folder,
    beside_checkout,
    damaged,
    everywhere,
    in_a_circle,
    is_not_imported,
    not_compiled,
    not_imported,
    not_in_file,
    not_set_yet,
    shadowed,
)
from envsmith.doctor.read.lines import component_of, fold
from envsmith.doctor.rewriting import Rewriting, is_borne, nearest_name, rewriting_of
from envsmith.doctor.vocabulary import words
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence, short_spec_of
from envsmith.model.cell import Platform
from envsmith.model.rule import Severity
from envsmith.model.version import Spec

_OF_PYTHON_2 = frozenset({"long", "unicode"})


def explain(
    lack: Lack, facts: Facts, index: NameIndex, needs: Sequence[Mapping[str, str]] = ()
) -> MissingNameExplanation | None:
    """Return what the index and the facts say of a lack, or ``None`` for an attribute that no package owns.

    ``needs`` are the releases that end the other faults of what is stated: what is recommended is among them.
    """
    if lack.is_told:
        if (borne_out := with_module(lack, facts, index)) is None:
            return None
        lack = borne_out
    if shadow := shadowing_file(lack):
        return shadowed(lack, shadow)
    if lack.is_of_own_part and (lack.partial or index.distribution_of(lack.root)):
        return damaged(lack)
    if lack.kind == "attribute" and (lack.name in _OF_PYTHON_2 or isinstance(getattr(builtins, lack.name, None), type)):
        return _unmeasured(lack, facts)  # np.int: a star import that hands on Python's own types cannot be seen
    if lack.file and not (index.distribution_of(lack.root) or listed_project(lack.root)):
        return not_in_file(lack, lack.file)
    if member := asked_member(lack, facts, index):
        return _asked(lack, member, installed_version(member.presence.distribution, facts))
    answer = best_answer(lack, facts, index)
    if lack.is_of_bare_folder and (answer is None or not answer[1].absent):
        return bare_folder(lack)
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
            if near := nearest_name(lack, question, index):
                return _misspelt(lack, question, near)
            is_upgraded = _is_upgraded(lack, presence.distribution)
            if question.argument and lack.kind == "argument" and (is_called or is_upgraded):
                return _handed_on(lack, question, presence, index.ask(question.path), is_upgraded=is_upgraded)
            return _never(lack, question, presence)
        return _perhaps(lack, question, presence, version) if presence.absent else _unmeasured(lack, facts)
    inside = is_in(version, presence.present, presence.releases) if version else None
    if inside is not False and lack.kind in {"name", "module"} and index.is_compiled_module(question.path):
        return not_compiled(lack, question, presence, version)
    is_set_later = lack.kind == "member" and index.is_set_later(question.path)
    if is_set_later and inside is not False and (is_called or presence.releases[-1] in presence.present):
        return not_set_yet(lack, question, presence, version)
    if lack.kind == "attribute" and inside is not False and is_not_imported(lack, question, presence, index):
        return not_imported(lack, question, presence, version)
    if inside and version:
        return another_copy(lack, question, presence, version)
    if not (presence.absent or presence.unknown):
        if lack.partial:
            return in_a_circle(lack, question, presence)
        is_module = lack.kind == "attribute" and index.ask_module(question.path) is not None
        return everywhere(lack, question, presence, version, is_module=is_module)
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
    return asker_of(path, releases) or next(((user, spec) for user, spec in taking if spec is not None), None)


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
    asker = f" {importer[0]} asks for it." if importer else asker_of_name(lack, name)
    other_way = f", or {''.join(importer)}" if importer and importer[1] else _other_way(lack, presence, version)
    successor = f" Later releases have {presence.successor} in its place." if presence.successor else ""
    message = (
        f"{lacking} does not have {thing_of(lack, question)}: it is in {name}{presence.ranges()}.{asker}{successor}"
    )
    requirement = f"{name}{needed}"
    fitting = f"{name}{presence.ranges()}" if needed == presence.short_spec() else requirement
    return MissingNameExplanation(
        rule="name-not-in-release",
        message=message,
        fix=f"Install {fitting}{other_way}.",
        weight=Weight.PROVED if version else Weight.SAID,
        confidence="high" if version else "medium",
        components={name: version or "*", **({importer[0]: "*"} if importer else user_of_name(lack, name))},
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
    """Explain a member that a package asks of an object of no package, or that its base no longer hands down."""
    presence, base, attribute = member.presence, member.base, lack.name
    name, spec = presence.distribution, presence.short_spec()
    before = short_spec_of(presence.releases, set(presence.releases) - presence.present)
    asking = ", nor whether it asks itself" if member.manner == "asked" else ""
    unsure = "" if member.is_told or member.manner == "handed" else f" Nothing here says which {name} runs{asking}."
    code = f"the code that brings {lack.owner}"
    if member.manner == "asked":
        message = (
            f"{lack.owner} has no {attribute}, which {name}{spec} has on {base} and asks for: {name}{before} does not."
        )
        way = f"let {lack.owner} derive from {base} and run its constructor, or define {attribute}"
    elif member.manner == "early":
        message = (
            f"{lack.owner} has no {attribute} yet: the constructor of {base} asks for the vocabulary in {name}{spec}."
        )
        way = f"let {lack.owner} set {attribute} before it calls super().__init__()"
    elif member.manner == "plain":
        message = (
            f"A {lack.owner} has no {attribute}: {name}{spec} has {base} in its place, which {name}{before} has not."
        )
        code, way = f"the code that passes the {lack.owner}", f"let it pass a {base.rpartition('.')[2]}"
    else:
        message = f"{lack.owner} has no {attribute}: a class that derives from {base} has it in {name}{spec} only."
        way = f"let {lack.owner} do without it"
    needed = spec if member.manner == "handed" else before
    return MissingNameExplanation(
        rule="name-not-in-release",
        message=message + unsure,
        fix=f"Install {name}{needed}, or a newer release of {code}; or {way}.",
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
        message=f"{lacking} wants {thing_of(lack, question)}, which its caller does not give: {name}{spec} does not want it."
        + asker_of_name(lack, name),
        fix=f"Install {name}{spec}, or a release of the caller that gives {question.argument}.",
        components={name: version or "*", **user_of_name(lack, name)},
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
        taxonomy=dataclasses.replace(PAIR, cause="package-version-pair"),
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
        message=f"{none} of {name} from {first} to {last} has {thing_of(lack, question)}:"
        f" it is misspelt, of another package or of a fork, older than {first} or newer than {last}."
        + asker_of_name(lack, name),
        fix=f"Look for the name in the code that asks for it. If it comes from a fork of {name}, install that.",
        taxonomy=dataclasses.replace(SCRIPT, cause="name-in-no-release"),
        severity=Severity.WARNING,
        weight=Weight.SYMPTOM,
        confidence="high",
        components={name: "*"},
        presence=presence,
    )


def _misspelt(lack: Lack, question: Question, near: Presence) -> MissingNameExplanation:
    """Explain a name that no release has, where a release has one that differs in its case or in a letter."""
    name, right = near.distribution, near.path.rpartition(".")[2]
    place = f" in {lack.script}" if lack.script else ""
    return MissingNameExplanation(
        rule="name-not-in-release" if near.absent else "name-in-no-release",
        message=f"No release of {name} from {near.releases[0]} to {near.releases[-1]} has {thing_of(lack, question)}:"
        f" {near.path} is in {name}{near.ranges()}.{asker_of_name(lack, name)}",
        fix=f"Write {right} in the place of {lack.name}{place}"
        + (f", with {name}{near.short_spec()}." if near.absent else "."),
        taxonomy=None if near.absent else dataclasses.replace(SCRIPT, cause="name-in-no-release"),
        severity=Severity.WARNING,
        confidence="high",
        components={name: "*"},
        needs={name: near.short_spec()} if near.absent else {},
        presence=near,
    )


def _is_upgraded(lack: Lack, name: str) -> bool:
    """Return whether the text says that the failure came with another release of a package."""
    change = r"\b(?:upgrad|updat|bump)\w{0,5}\b"
    apart = r"[^\n]{0,30}(?<![\w.-])"
    of_package = rf"{re.escape(name)}(?![\w-])"
    pattern = rf"{change}{apart}{of_package}|(?<![\w.-]){of_package}[^\n]{{0,20}}{change}"
    return re.search(pattern, lack.around, re.IGNORECASE) is not None


def _handed_on(
    lack: Lack, question: Question, presence: Presence, owner: Presence | None, *, is_upgraded: bool
) -> MissingNameExplanation:
    """Explain an argument of no release that a package hands on itself, or refuses since it was upgraded."""
    name = presence.distribution
    has_come = is_upgraded and owner is not None and owner.releases[0] in owner.absent and owner.present
    before = short_spec_of(owner.releases, owner.absent) if owner and has_come else ""
    since = f" {name}{before} has no {question.path}." if before else ""
    return MissingNameExplanation(
        rule="name-in-no-release",
        message=f"No release of {name} from {presence.releases[0]} to {presence.releases[-1]} has {thing_of(lack, question)}:"
        f" it comes from what {name} was given, the arguments of its caller or a file of another release.{since}",
        fix=f"Install {f'{name}{before}' if before else f'the release of {name} with which it worked'}, or a newer release"
        f" of the code that calls it. Where a file of settings has {question.argument}, take it out of that file.",
        taxonomy=dataclasses.replace(PAIR, cause=words().own_causes.get(name, "package-version-pair")),
        severity=Severity.WARNING,
        weight=Weight.SYMPTOM,
        components={name: "*"},
        needs={name: before} if before else {},
        presence=presence,
    )


def _perhaps(lack: Lack, question: Question, presence: Presence, version: str | None) -> MissingNameExplanation:
    """Explain a name that some releases surely lack, where others make names of their own when they are imported."""
    name, oldest = presence.distribution, presence.releases[0]
    lacking, spec = (short_spec_of(presence.releases, having) for having in (presence.absent, presence.unknown))
    is_older = oldest in presence.absent
    earlier = f" Releases before {oldest} were not measured: they may have it, too." if is_older else ""
    fix = f"Install {name}{spec}{f' or {name}<{oldest}' if is_older else ''}, and look whether it has it."
    if lack.kind == "member":
        owner = question.path.rpartition(".")[0]
        fix = (
            f"Give the code an object of the class that has it: mostly one of another package that extends {owner}."
            " Or install the release of that package that the code was written for."
        )
    return MissingNameExplanation(
        rule="name-not-in-release",
        message=f"{name}{lacking} does not have {thing_of(lack, question)}. Its other releases make names when they are"
        f" imported, and may have it.{earlier}{asker_of_name(lack, name)}",
        fix=fix,
        severity=lack.hit.signature.severity,
        weight=Weight.SYMPTOM,
        components={name: version or "*", **user_of_name(lack, name)},
        needs={} if is_older else {name: spec},
        presence=presence,
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
        return beside_checkout(lack, checkout)
    user = lack.user_of(owner)
    return MissingNameExplanation(
        rule="name-missing",
        message=_unmeasured_message(lack, owner),
        fix=("" if owner or lack.root else "Compare the call with what is called. ") + caller_fix(owner, user, facts),
        taxonomy=dataclasses.replace(PAIR, cause=words().own_causes.get(owner or "", "package-version-pair")),
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


def _versions(names: Sequence[str], facts: Facts) -> dict[str, str]:
    return {name: installed_version(name, facts) or "*" for name in dict.fromkeys(names)}
