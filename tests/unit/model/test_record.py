"""A record is made, written and read in one shape; a lock is the text that it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envsmith.errors import DataError
from envsmith.model.lock import parse_lock
from envsmith.model.record import CaseOutcome, Cases, Verdict, read_record

ROOT = Path(__file__).resolve().parents[3]
RECORDS = sorted((ROOT / "matrix" / "records").glob("*.json"))
LOCKS = sorted((ROOT / "images").glob("*/lock.json"))


def test_every_record_of_the_matrix_is_written_again_byte_for_byte():
    for path in RECORDS:
        record = read_record(path.name, path.read_bytes())
        assert json.dumps(record.to_json(), indent=1, ensure_ascii=False) + "\n" == path.read_text(), path.name
        assert record.name == path.name


def test_every_lock_of_an_image_is_read_as_the_text_that_it_prints():
    for path in LOCKS:
        assert parse_lock(path.read_text(), where=str(path)).text() == path.read_text()


def test_every_problem_of_a_record_is_listed_with_its_key_path():
    with pytest.raises(DataError) as caught:
        read_record("r.json", json.dumps({"schema": 2, "cell": "", "rungs": ["flown"], "passed": 1}).encode())
    details = "\n".join(caught.value.details)
    assert "r.json: cell: ``: empty" in details
    assert "r.json: rungs[0]: `flown`: unknown word" in details
    assert "r.json: passed: `1`: true or false belongs here" in details
    assert "r.json: `engine` is missing" in details


def test_cases_are_counted_and_the_bad_ones_kept():
    outcomes = [CaseOutcome(case=str(n), verdict=Verdict.WRONG if n < 9 else Verdict.PASS) for n in range(20)]
    cases = Cases.of(outcomes, "sha256:x")
    assert cases.counts == {"pass": 11, "wrong": 9}
    assert [case.case for case in cases.bad] == ["0", "1", "2", "3", "4", "5"]
