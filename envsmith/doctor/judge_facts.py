"""Facts and texts -> findings: all judges in turn, and what is left to say where they find no cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

from envsmith.doctor.case import DiagnosisInput, PublishedPackages, read_case
from envsmith.doctor.diagnosis import Diagnosed, Diagnosis
from envsmith.doctor.facts import Facts
from envsmith.doctor.judge_messages import judge_messages_of_rules, of_loader
from envsmith.doctor.judge_versions import of_finding
from envsmith.doctor.last_words import judge_last_words
from envsmith.doctor.name_explanation import diagnosed_of
from envsmith.doctor.new_errors import judge_new_errors
from envsmith.doctor.possible import judge_possible
from envsmith.doctor.rank_failures import of_blame
from envsmith.doctor.ranking import diagnosis_of
from envsmith.doctor.rules import judge_launches, judge_setup
from envsmith.knowledge.graph.tables import one_state
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.launch.ranks.stored import Occasion
from envsmith.model.cell import Platform
from envsmith.model.rule import PassedRun, Severity


@one_state()
def diagnose(
    facts: Facts,
    texts: Sequence[tuple[str, str]] = (),
    *,
    platform: Platform | None = None,
    names: NameIndex | None = None,
    keep: Collection[str] = (),
    runs: Sequence[PassedRun] = (),
    launches: Mapping[str, Sequence[Occasion]] | None = None,
    published: Callable[[], PublishedPackages] | None = None,
) -> Diagnosis:
    """Judge ``facts`` and the ``(source, text)`` they came from.

    The repair leaves the components of ``keep`` alone where it can. ``runs`` passed in the environment at hand.
    ``launches`` is what `envsmith run` stored of one, by the names of its files.
    ``published`` reads what was not measured: names of packages, and the releases that printed a traceback.
    """
    case = read_case(
        facts, texts, platform=platform, names=names, keep=keep, runs=runs, launches=launches, published=published
    )
    diagnosed_all = [diagnosed for judge in JUDGES for diagnosed in judge(case)]
    if not any(_explains(each) for each in diagnosed_all):
        mended = published().mended(case.facts, texts) if published else None
        places = {each.where for each in diagnosed_all}
        diagnosed_all += (
            [mended.diagnosed()]
            if mended
            else judge_new_errors(texts, names or NameIndex.installed()) or judge_last_words(texts, places)
        )
    diagnosis = diagnosis_of(diagnosed_all, case.facts, case.judgement, texts)
    proofs = [f"what {run.evidence} has shown in this environment" for run in runs]
    return dataclasses.replace(diagnosis, checked=(*diagnosis.checked, *proofs))


def _explains(diagnosed: Diagnosed) -> bool:
    """Return whether a finding names a cause: an error, or what the text shows of something more than a note."""
    severity = diagnosed.finding.severity
    return severity is Severity.ERROR or (diagnosed.confirmed and severity is Severity.WARNING)


# Each judge gives what it finds in a case.
JUDGES: tuple[Callable[[DiagnosisInput], list[Diagnosed]], ...] = (
    lambda case: [of_finding(finding, case) for finding in case.judgement.findings],
    lambda case: [of_loader(hit, case) for hit in case.own if not case.is_outdone(hit)],
    lambda case: [diagnosed_of(*each) for each in case.explained],
    lambda case: [of_blame(*case.blamed)] if case.blamed else [],
    judge_messages_of_rules,
    lambda case: judge_setup(case.facts),
    lambda case: judge_launches(case.facts),
    lambda case: judge_possible(case.facts),
)
