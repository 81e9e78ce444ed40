"""``check`` of a set with more than versions: the rules over versions and the rules over facts, one judgement."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping

from envsmith import solve
from envsmith.doctor.diagnosis import Diagnosed
from envsmith.doctor.facts import Draft, Facts, Stated
from envsmith.doctor.read.lines import component_of, local_cuda, note_present
from envsmith.doctor.rules import features_of, judge_launches, judge_setup, judge_stated
from envsmith.model.cell import Platform
from envsmith.model.finding import Judgement
from envsmith.model.rule import Severity
from envsmith.model.version import ABSENT, minor_of

_GRAVITY = tuple(Severity)
# Tools of the installation: what they declare says nothing about what runs later.
_NO_RULES = frozenset({"pip", "wheel"})
# A component that is known to be absent, as the fact that rules look for.
_TOOLS = {"toolkit": "nvcc", "gcc": "c++", "ninja": "ninja", "pybind11": "pybind11"}


def facts_of(versions: Mapping[str, str], draft: Draft) -> Facts:
    """Return the facts of ``draft`` with the versions of a given set, where ``*`` is in use and ``none`` is absent."""
    for name, version in versions.items():
        if component_of(name) is None:
            continue
        if version in ABSENT:
            draft.components.pop(name, None)
            if name in _TOOLS:
                draft.tools[_TOOLS[name]] = None
            else:
                draft.host[name] = "none"
        elif version == "*":
            note_present(draft, name)
        else:
            first = version.split(",", maxsplit=1)[0]
            draft.component(name, first, "given", 4)
            if name == "torch" and (cuda := local_cuda(first)):
                draft.component("cuda", cuda, "given", 4)
    return draft.done()


def findings_of(facts: Facts) -> list[Diagnosed]:
    """Return what the rules over facts find, the gravest first, each finding once."""
    diagnosed_all = [*judge_setup(facts), *judge_launches(facts), *judge_stated(facts)]
    unique = {(d.finding.rule, d.finding.message): d for d in diagnosed_all}
    return sorted(unique.values(), key=lambda d: _GRAVITY.index(d.finding.severity))


def _stated_beside(facts: Facts) -> dict[str, str]:
    """Return the components of which a fact says the version or the absence: a list of GPUs, an OS, ``tool.nvcc``."""
    exact = {n: v for n, v in versions_of(facts).items() if facts.components[n].exact}
    tools = {name for name, tool in _TOOLS.items() if facts.tools.get(tool, "") is None}
    absent = tools | {name for name, value in facts.host.items() if value == "none" and component_of(name) == name}
    return {**dict.fromkeys(sorted(absent), "none"), **exact}


def check_environment(
    versions: Mapping[str, str], draft: Draft, platform: Platform | None = None, *, keep: Collection[str] = ()
) -> Judgement:
    """Judge a set of versions together with the facts beside it (see :mod:`envsmith.doctor.stated`).

    Findings of both kinds are in one list. The repair is that of the versions, for no release mends a limit or a
    variable. It leaves ``keep`` alone where it can. Raises ``UsageError`` when a version is not one.
    """
    facts = facts_of(versions, copy.deepcopy(draft))
    versions = {**_stated_beside(facts), **versions}
    judgement = Judgement(status="ok")
    if versions or not facts.count:
        judgement = solve.check(versions, platform, keep=keep, features=features_of(facts))
    if (cuda := judgement.inferred.get("cuda")) and "cuda" not in facts.components:
        inferred = Stated(version=cuda, source="inferred", strength=1)
        facts = dataclasses.replace(facts, components={**facts.components, "cuda": inferred})
    of_versions = {(finding.rule, finding.severity) for finding in judgement.findings}
    of_facts = [dataclasses.replace(d.finding, where=d.where) for d in findings_of(facts)]
    findings = (*judgement.findings, *(f for f in of_facts if (f.rule, f.severity) not in of_versions))
    bad = any(f.severity is Severity.ERROR for f in findings)
    return dataclasses.replace(judgement, status="bad" if bad else judgement.status, findings=findings)


def versions_of(facts: Facts) -> dict[str, str]:
    """Return what ``check`` is asked: components with a version, ``gpu`` for several architectures joined by commas."""
    versions = {n: s.version for n, s in facts.components.items() if component_of(n) and n not in _NO_RULES}
    cuda = versions.get("cuda")
    if cuda and cuda != "cpu" and cuda.count(".") > 1:
        versions["cuda"] = minor_of(cuda)
    if cuda and local_cuda(versions.get("torch", "")) == cuda:
        del versions["cuda"]
    return versions
