"""Rules as values."""

from __future__ import annotations

from envsmith.model.rule import Row, Rule, RuleKind
from envsmith.model.version import Spec


def test_a_row_has_the_words_of_its_rule_where_it_has_none_of_its_own():
    plain = Row(when={"alpha": Spec("*")})
    special = Row(when={"alpha": Spec("*")}, cause="it is special", fix="Use beta.")

    rule = Rule(id="alpha-bad", kind=RuleKind.CONFLICTS, rows=(plain, special), symptom="it fails", cause="it is bad")

    assert [(row.symptom, row.cause, row.fix) for row in rule.rows] == [
        ("it fails", "it is bad", None),
        ("it fails", "it is special", "Use beta."),
    ]
