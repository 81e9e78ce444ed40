"""``check`` of a set with more than versions: the rules over versions and the rules over facts, one judgement."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

from envsmith.doctor.diagnosis import Diagnosed
from envsmith.doctor.launch_rules import judge_launches
from envsmith.doctor.setup_rules import judge_setup
from envsmith.doctor.stated_rules import judge_stated
from envsmith.model.finding import Finding, Judgement
from envsmith.model.platform import Platform
from envsmith.model.rule import Severity
from envsmith.sources.reports.facts import Draft, Facts
from envsmith.sources.reports.names import note_present
from envsmith.sources.reports.words import local_cuda

__all__ = ["check_environment", "facts_of", "findings_of"]

_ANY, _NONE = "*", "none"
# A component that is known to be absent, as the fact that rules look for.
_TOOLS = {"toolkit": "nvcc", "gcc": "c++", "ninja": "ninja", "pybind11": "pybind11"}


def facts_of(given: Mapping[str, str], draft: Draft) -> Facts:
    """The facts of ``draft`` with the versions of a given set; ``*`` is in use, ``none`` is absent."""
    for name, version in given.items():
        if version == _NONE:
            draft.components.pop(name, None)
            if name in _TOOLS:
                draft.tools[_TOOLS[name]] = None
            else:
                draft.host[name] = _NONE
        elif version == _ANY:
            note_present(draft, name)
        else:
            first = version.split(",", maxsplit=1)[0]
            draft.component(name, first, "given", 4)
            if name == "torch" and (cuda := local_cuda(first)):
                draft.component("cuda", cuda, "given", 4)
    return draft.done()


def findings_of(facts: Facts) -> list[Diagnosed]:
    """What the rules over facts say, the gravest first; each finding once."""
    found = [*judge_setup(facts), *judge_launches(facts), *judge_stated(facts)]
    unique = {(d.finding.rule, d.finding.message): d for d in found}
    order = (Severity.ERROR, Severity.WARNING, Severity.NOTE)
    return sorted(unique.values(), key=lambda d: order.index(d.finding.severity))


def check_environment(given: Mapping[str, str], draft: Draft, platform: Platform | None = None) -> Judgement:
    """Judge a set of versions together with the facts that were stated beside it (see :mod:`envsmith.doctor.stated`).

    Findings of both kinds are in one list; the repair is that of the versions, for no release mends a limit or a variable.
    :class:`envsmith.errors.UsageError` when a version is none.
    """
    from envsmith.solve import api

    facts = facts_of(given, copy.deepcopy(draft))
    glibc = facts.components.get("glibc")
    if glibc is not None and "glibc" not in given:  # that of the distribution that was named
        given = {**given, "glibc": glibc.version}
    judgement = api.check(given, platform) if given or not facts.count else Judgement(status="ok")
    more = [dataclasses.replace(d.finding, where=d.where) for d in findings_of(facts)]
    findings = (*judgement.findings, *(f for f in more if not _told(f, judgement)))
    bad = any(f.severity is Severity.ERROR for f in findings)
    return dataclasses.replace(judgement, status="bad" if bad else judgement.status, findings=findings)


def _told(finding: Finding, judgement: Judgement) -> bool:
    """Whether a rule over versions says the same already."""
    return any(f.rule == finding.rule and f.severity is finding.severity for f in judgement.findings)
