"""The rules over facts: every row of matrix/doctor/rules.yaml is whole, and a broken file is refused with file and key path."""

from __future__ import annotations

import pytest
import yaml

from envsmith.doctor.rule_checks import CHECKS
from envsmith.doctor.rules import read_rules, rule_book
from envsmith.doctor.vocabulary import is_read, variables
from envsmith.errors import DataError
from envsmith.knowledge.graph.location import find_matrix

FILE = find_matrix() / "doctor" / "rules.yaml"


def with_rule(**fields):
    row = {"id": "r", "severity": "note", "message": "m", "fix": "f", "cause": "c", "evidence": "e"} | fields
    return yaml.safe_dump(
        {
            "evidence": {"e": {"kind": "documented", "source": "s", "date": "2026-11-21"}},
            "causes": {"c": {"stage": "setup", "group": "g", "pattern": "p"}},
            "features": {},
            "setup": [{name: value for name, value in row.items() if value is not None}],
            "launch": [],
            "stated": [],
        }
    ).encode()


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"messag": "x"}, "setup[0].messag: `x`: unknown key"),
        ({"message": None}, "setup[0]: `message` is missing"),
        ({"severity": "bad"}, "setup[0].severity: `bad`: unknown word"),
        ({"evidence": "other"}, "setup[0].evidence[0]: `other`: no such evidence"),
        ({"check": "bogus"}, "setup[0].check: `bogus`: not a check"),
        ({"check": {"gpu": ["x"]}}, "setup[0].check: the argument of gpu is a str"),
        ({"when": {"limit.shm": 5}}, "setup[0].when.limit.shm: `5`: true, false or a text"),
        ({"when": [{"version.torch": "~("}]}, "setup[0].when.version.torch: `~(`: not a regular expression"),
        ({"variants": [{"when": {}, "score": "x"}]}, "setup[0].variants[0].score"),
        ({"cause": "unknown"}, "setup[0] (r): the cause unknown is not in `causes`"),
        ({"when": {"verson.torch": True}}, "setup[0] (r): `verson.torch` is not the name of a fact"),
        ({"message": "{hots.os}"}, "setup[0] (r): `hots.os` is not the name of a fact"),
    ],
)
def test_broken_rule_is_refused_with_its_place(fields, place):
    with pytest.raises(DataError) as refused:
        read_rules(with_rule(**fields))
    assert any(line.startswith(f"doctor/rules.yaml: {place}") for line in refused.value.details), refused.value.details


def test_file_that_is_not_yaml_is_refused():
    with pytest.raises(DataError) as refused:
        read_rules(b"a: [")
    assert "doctor/rules.yaml" in refused.value.details[0]


def test_every_check_is_used_by_a_rule():
    book = rule_book()
    assert {rule.check[0] for rule in (*book.setup, *book.launch, *book.stated) if rule.check} | {"always"} == set(
        CHECKS
    )


def test_cache_gives_what_the_file_says():
    assert rule_book() == read_rules(FILE.read_bytes())


@pytest.mark.parametrize(
    ("version", "why"),
    [("0.13.3", "read from deepspeed 0.13.4 on, here is 0.13.3"), ("0.13.4", None), ("nightly", None)],
)
def test_variable_is_read_from_its_first_release_on(version, why):
    assert is_read(variables()["DS_ENABLE_NINJA"], version) == why


def test_facts_of_a_feature_are_checked_as_those_of_a_rule():
    text = with_rule().replace(b"features: {}", b"features: {f: {verson.torch: true}}")

    with pytest.raises(DataError) as refused:
        read_rules(text)

    assert refused.value.details == ("doctor/rules.yaml: features.f: `verson.torch` is not the name of a fact",)
