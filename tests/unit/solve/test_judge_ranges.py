"""Ranges: met by known releases together, contradicted by a rule, or beyond what is known."""

from __future__ import annotations

from envsmith.model.cell import Request
from envsmith.model.version import Spec
from envsmith.solve.judge_ranges import judge_ranges


def _judge(**specs):
    narrowed = {name: (Spec.parse(text), f"{name}.txt:1") for name, text in specs.items()}
    return judge_ranges(Request(frameworks={"deepspeed": Spec.parse("*")}, narrowed=narrowed))


def test_ranges_that_known_releases_meet_are_ok():
    assert _judge(deepspeed=">=0.15", torch=">=2.4").status == "ok"


def test_a_rule_that_leaves_no_release_is_a_finding_with_place_and_repair():
    judgement = _judge(deepspeed=">=0.12,<0.14.4", torch=">=2.4")

    (finding,) = judgement.findings
    assert judgement.status == "bad"
    assert finding.rule == "deepspeed-elastic-socket"
    assert finding.where == "deepspeed.txt:1"
    assert finding.evidence
    assert judgement.repair
    assert {change.component for change in judgement.repair.changes} == {"deepspeed"}


def test_a_range_beyond_what_is_known_is_unknown():
    judgement = _judge(torch=">=99")

    assert judgement.status == "unknown"
    assert "torch.txt:1" in judgement.unknown[0]


def test_a_range_that_contradicts_itself_is_bad():
    judgement = _judge(torch=">=2.6,<2.4")

    assert judgement.status == "bad"
    assert judgement.findings[0].message == "no release of torch is >=2.6,<2.4"
