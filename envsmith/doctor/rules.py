"""Judge facts that are not versions: each rule is a row of ``matrix/doctor/rules.yaml``, tried by one evaluator.

A rule names conditions, texts and its evidence. What no condition can say is computed by a check of :data:`CHECKS`,
which gives the words that conditions and texts of the rule name. Rules over versions stand in ``matrix/rules``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from envsmith.base.schema import Parsed, Problems, Text, WrongValueError, strict
from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.facts import Facts, LaunchCommand
from envsmith.doctor.rule_checks import CHECKS, words_of_launch
from envsmith.doctor.rule_conditions import KINDS, Condition, Scene, complaint_about, names_in
from envsmith.knowledge.graph.data import file_table, read_table, refuse
from envsmith.knowledge.graph.fields import Sources
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity

_FILE = "doctor/rules.yaml"


def _conditions(value: Any, _context: object) -> tuple[Mapping[str, Condition], ...]:
    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise WrongValueError("a mapping of names to conditions belongs here, or a list of those")
    return tuple({str(name): _condition(each, str(name)) for name, each in row.items()} for row in rows)


def _condition(value: Any, name: str) -> Condition:
    if isinstance(value, bool):
        return value
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        complaint = complaint_about(text) if isinstance(text, str) else "true, false or a text belongs here"
        if complaint:
            raise WrongValueError(complaint, path=f".{name}", part=text)
    return tuple(texts) if isinstance(value, list) else str(value)


def _check(value: Any, _context: object) -> tuple[str, Any]:
    name, argument = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else (value, None)
    if not isinstance(name, str) or name not in CHECKS:
        raise WrongValueError("not a check", "choose " + ", ".join(CHECKS))
    expected = CHECKS[name][1]
    if not isinstance(argument, expected):
        raise WrongValueError(f"the argument of {name} is a {expected.__name__}")
    return name, argument


Conditions = Annotated[tuple[Mapping[str, Condition], ...], Parsed(_conditions)]
Confidence = Literal["high", "medium", "low"]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class RuleVariant:
    """What a rule says otherwise where ``when`` is met; each field that is given takes the place of the rule's."""

    when: Conditions
    let: Mapping[Text, str] = field(default_factory=dict)
    severity: Severity | None = None
    lines: tuple[Text, ...] | None = None
    confidence: Confidence | None = None
    score: int | None = None
    cause: Text | None = None
    evidence: Sources | None = None


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorRule:
    """One row of the file, which matrix/README.md describes.

    It gives a finding where one of ``when`` is met and none of ``unless``. Variants that are met are laid over it.
    A rule without evidence states what was read a moment ago.
    """

    id: Text
    launch: tuple[Text, ...] = ()
    check: Annotated[tuple[str, Any] | None, Parsed(_check)] = None
    when: Conditions = ({},)
    unless: Conditions = ()
    let: Mapping[Text, str] = field(default_factory=dict)
    severity: Severity
    message: Text
    fix: Text
    lines: tuple[Text, ...] = ()
    components: Mapping[Text, Text] = field(default_factory=dict)
    cause: Text
    stage: Text | None = None
    group: Text | None = None
    pattern: Text | None = None
    confidence: Confidence = "high"
    score: int | None = None
    evidence: Sources = ()
    variants: tuple[RuleVariant, ...] = ()


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class FailureClass:
    """The class of a failure as the study counts it."""

    stage: Text
    group: Text
    pattern: Text


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class RuleBook:
    """The file: rules over an environment, over start commands, over what was stated, and the class of each cause.

    ``features`` says by which facts it shows that a feature is in use.
    """

    evidence: Mapping[Text, Any]
    causes: Mapping[Text, FailureClass]
    features: Mapping[Text, Conditions]
    setup: tuple[DoctorRule, ...]
    launch: tuple[DoctorRule, ...]
    stated: tuple[DoctorRule, ...]


def rule_book() -> RuleBook:
    """Return the installed rules. ``DataError`` lists every problem of the file with its key path."""
    return RULES.load()


def read_rules(content: bytes) -> RuleBook:
    """Return the rules of a YAML text. ``DataError`` lists every problem with its key path."""
    book = read_table(RuleBook, _FILE, content)
    problems = Problems()
    for section, rules in {"setup": book.setup, "launch": book.launch, "stated": book.stated}.items():
        for number, rule in enumerate(rules):
            for complaint in _complaints(rule, book.causes):
                problems.add(f"{_FILE}: {section}[{number}] ({rule.id})", complaint)
    for name, rows in book.features.items():
        for complaint in _unknown_names(n for row in rows for n in row):
            problems.add(f"{_FILE}: features.{name}", complaint)
    refuse(_FILE, problems)
    return book


RULES = file_table("rules", _FILE, RuleBook, read_rules)


def _complaints(rule: DoctorRule, causes: Mapping[str, FailureClass]) -> Iterator[str]:
    for cause in (rule.cause, *(v.cause for v in rule.variants if v.cause)):
        if cause not in causes and not (rule.stage and rule.group and rule.pattern):
            yield f"the cause {cause} is not in `causes`"
    texts = [rule.id, rule.message, rule.fix, *rule.lines, *rule.components, *rule.components.values()]
    rows = [*rule.when, *rule.unless, *(row for variant in rule.variants for row in variant.when)]
    yield from _unknown_names([*(n for row in rows for n in row), *(n for text in texts for n in names_in(text))])


def _unknown_names(names: Iterable[str]) -> Iterator[str]:
    for name in (name for several in names for name in several.split("|")):
        if "." in name and name.partition(".")[0] not in KINDS:
            yield f"`{name}` is not the name of a fact"


def features_of(facts: Facts) -> frozenset[str]:
    """Return the features that the facts show to be in use: notes over versions with such a feature are errors."""
    scenes = [Scene(facts), *(Scene(facts, launch, words_of_launch(launch)) for launch in facts.launches)]
    return frozenset(name for name, when in rule_book().features.items() if any(s.meets(when) for s in scenes))


def judge_setup(facts: Facts) -> list[Diagnosed]:
    """Return what the rules over an environment find."""
    return [d for rule in rule_book().setup for d in _tried(rule, facts)]


def judge_stated(facts: Facts) -> list[Diagnosed]:
    """Return what the rules over stated facts find."""
    return [d for rule in rule_book().stated for d in _tried(rule, facts)]


def judge_launches(facts: Facts) -> list[Diagnosed]:
    """Return what the start commands and configurations give, each finding once, with the line it stands on."""
    rules = rule_book().launch
    diagnosed = [
        _placed(finding, launch)
        for launch in facts.launches
        for rule in rules
        if launch.tool in rule.launch
        for finding in _of(rule, facts, launch)
    ]
    diagnosed += [finding for rule in rules if not rule.launch for finding in _of(rule, facts)]
    return list({(d.finding.rule, d.finding.message): d for d in diagnosed}.values())


def _tried(rule: DoctorRule, facts: Facts) -> Iterator[Diagnosed]:
    launches = [launch for launch in facts.launches if launch.tool in rule.launch] if rule.launch else [None]
    for launch in launches:
        yield from _of(rule, facts, launch)


def _of(rule: DoctorRule, facts: Facts, launch: LaunchCommand | None = None) -> Iterator[Diagnosed]:
    """Return the findings of one rule: one for each set of words that its check gives and that meets its conditions."""
    scene = Scene(facts, launch, words_of_launch(launch) if launch else {})
    name, argument = rule.check or ("always", None)
    for words in CHECKS[name][0](scene, argument):
        each = Scene(facts, launch, {**scene.words, **words})
        if each.meets(rule.when) and not each.meets(rule.unless) and (finding := _finding(rule, each)):
            yield finding


def _finding(rule: DoctorRule, scene: Scene) -> Diagnosed | None:
    """Return a rule's finding, or ``None`` where a value that its message names is not known."""
    let = dict(rule.let)
    for variant in rule.variants:
        if scene.meets(variant.when):
            let |= variant.let
            fields = ("severity", "lines", "confidence", "score", "cause", "evidence")
            rule = dataclasses.replace(rule, **{n: v for n in fields if (v := getattr(variant, n)) is not None})
    scene = Scene(scene.facts, scene.launch, {**scene.words, **{name: scene.fill(text) for name, text in let.items()}})

    message = scene.fill(rule.message)
    if message is None:
        return None

    def filled(text: str) -> str:
        return scene.fill(text) or text

    filled_components = ((filled(name), scene.fill(text)) for name, text in rule.components.items())
    components = {name: text for name, text in filled_components if text is not None}
    cause = filled(rule.cause)
    usual = rule_book().causes.get(cause)
    taxonomy = Taxonomy(
        stage=rule.stage or (usual.stage if usual else ""),
        group=rule.group or (usual.group if usual else ""),
        cause=cause,
        pattern=rule.pattern or (usual.pattern if usual else ""),
    )
    finding = Finding(
        rule=filled(rule.id),
        severity=rule.severity,
        components=scene.words.get("components", {}) | components,
        message=message,
        evidence=scene.words.get("evidence", rule.evidence),
        fix=filled(rule.fix),
        stage=taxonomy.stage,
    )
    return Diagnosed(
        finding=finding,
        confidence=rule.confidence,
        score=Weight.of(rule.severity) if rule.score is None else rule.score,
        taxonomy=taxonomy,
        lines=tuple(filled(line) for line in rule.lines),
    )


def _placed(diagnosed: Diagnosed, launch: LaunchCommand) -> Diagnosed:
    """Return the finding with file and line: of the first option that its message names, else of the command."""
    if not launch.source:
        return diagnosed
    message = diagnosed.finding.message
    dotted = [name for name in launch.places if "." in name]
    named = [n for n in launch.places if n and re.search(rf"(?<![\w.]){re.escape(n)}(?![\w.])", message)]
    last = [n for n in dotted if "_" in n.rpartition(".")[2] and n.rpartition(".")[2] in message]
    groups = [n for n in dotted if re.search(rf"\b{re.escape(n.partition('.')[0])}\b", message)]
    line = launch.places.get(next(iter([*named, *last, *groups]), ""), launch.places.get(""))
    return dataclasses.replace(diagnosed, where=f"{launch.source}:{line}" if line else launch.source)
