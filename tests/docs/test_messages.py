"""The page of messages has every signature and every rule that names what it causes, each with its evidence."""

from __future__ import annotations

import re

import pytest

from envsmith.doctor.signatures import catalogue
from envsmith.knowledge.graph.load import knowledge


@pytest.fixture(scope="module")
def messages(load_file):
    return load_file("tools/messages.py")


@pytest.fixture(scope="module")
def page(messages):
    return messages.page()


def test_every_signature_and_every_rule_with_a_symptom_is_on_the_page(page):
    ids = {s.id for s in catalogue().signatures} | {r.id for r in knowledge().rules if any(w.symptom for w in r.rows)}
    missing = {name for name in ids if f"`{name}`" not in page}
    assert not missing


def test_every_entry_has_its_evidence(page):
    entries = page.split("\n### ")[1:]
    assert len(entries) > 500
    assert all(re.search(r"\. Evidence: (validated|measured|declared|documented|reported) \d{4}-", e) for e in entries)


@pytest.mark.parametrize(
    ("pattern", "sample"),
    [
        ("Call to shm_open failed ?: Permission denied", "Call to shm_open failed : Permission denied"),
        (r"cannot import name '\w+' from 'deepspeed[\w.]*'", "cannot import name ' … ' from 'deepspeed … '"),
        (r"gcc versions later than (?P<limit>\d+) are not supported", "gcc versions later than N are not supported"),
        ("launcher '(pdsh|openmpi)' not installed", "launcher 'pdsh' not installed"),
    ],
)
def test_a_pattern_is_shown_as_a_text_that_it_stands_for(messages, pattern, sample):
    assert messages.sample_of(pattern) == sample
