"""Requirements in a form that pip or setuptools refuse."""

from __future__ import annotations

import pytest

from envsmith.cli.values import parse_pairs
from envsmith.knowledge.graph.load import components
from envsmith.lock.index.distribution import ReleaseFacts
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.project.published.code import PublishedRelease
from envsmith.project.published.metadata import refused_requirements
from envsmith.project.published.stated import stated_releases

_EVIDENCE = Evidence(kind=EvidenceKind.MEASURED, source="the file", date="2021-10-06")
_RELEASE = PublishedRelease(name="nobody-knows", version="1.2", evidence=_EVIDENCE)
_WHEEL, _SOURCE = "nobody_knows-1.2-py3-none-any.whl", "nobody-knows-1.2.tar.gz"


def judged(filename: str, stated: str, *refused: str) -> list[Finding]:
    facts = ReleaseFacts(filename=filename, sha256="", refused=refused)
    return [*refused_requirements(_RELEASE, facts, stated_releases(parse_pairs([stated], components())))]


@pytest.mark.parametrize(
    ("filename", "stated", "severities"),
    [
        (_WHEEL, "torch==2.7.1", [Severity.WARNING]),
        (_WHEEL, "pip==24.1", [Severity.WARNING]),
        (_WHEEL, "pip==24.0", []),
        (_WHEEL, "setuptools==66.1.1", [Severity.WARNING]),
        (_SOURCE, "torch==2.7.1", [Severity.WARNING]),
        (_SOURCE, "setuptools==67.0.0", [Severity.ERROR]),
        (_SOURCE, "setuptools==66.1.1", []),
    ],
)
def test_pip_refuses_a_wheel_and_setuptools_a_source_but_not_their_older_releases(filename, stated, severities):
    assert [finding.severity for finding in judged(filename, stated, "a>=3.")] == severities


def test_the_tool_and_the_bound_below_it_are_named():
    [finding] = judged(_SOURCE, "setuptools==67.4.0", 'opencv-python>=3. ; extra == "all"')

    assert (finding.components, finding.needs) == (
        {"nobody-knows": "1.2", "setuptools": "67.4.0"},
        {"setuptools": "<67"},
    )
    assert finding.message == (
        'nobody-knows 1.2 requires opencv-python>=3. ; extra == "all", a form that setuptools refuses from 67 on, '
        "and it has no wheel"
    )


def test_a_release_of_which_every_requirement_is_valid_is_silent():
    assert judged(_SOURCE, "setuptools==67.4.0") == []
