"""A record is made, written and read in one shape; a lock is the text that it prints."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith.errors import DataError, LeftAsideWarning
from envsmith.model.cell import CellId
from envsmith.model.lock import Artifact, Compile, GivenArchive, parse_lock
from envsmith.model.record import (
    CaseOutcome,
    Cases,
    Failure,
    Record,
    Rung,
    StepOutcome,
    Verdict,
    merge,
    put_record,
    read_record,
    read_records,
)

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


def test_a_pin_and_an_archive_are_known_by_their_name_alone():
    lock = parse_lock(LOCKS[0].read_text(), where="lock.json")
    archives = tuple(
        GivenArchive(name=name, version="1", address=address, sha256="0" * 64, size=7)
        for name, address in (("b-c", "https://x.example/b.tgz"), ("a", "file:///a.tgz"), ("d", "file:///d.tgz"))
    )
    compile_by_user = Compile(archives=archives)

    assert [lock.pin(pin.name) for pin in lock.pins] == list(lock.pins)
    assert [compile_by_user.archive(archive.name) for archive in archives] == list(archives)
    assert lock.pin("nothing") is compile_by_user.archive("nothing") is None
    assert [(archive.filename, archive.origin) for archive in archives] == [
        ("b_c-1.tar.gz", "https://x.example/b.tgz"), ("a-1.tar.gz", "file"), ("d-1.tar.gz", "file"),
    ]  # fmt: skip
    assert archives[1].artifact == Artifact(filename="a-1.tar.gz", sha256="0" * 64, size=7, url="file:///a.tgz")


@pytest.mark.parametrize(
    ("text", "words"), [("{", "lock.json: "), ("[]", "schema 'None' is not the one"), ('{"schema": 3}', "schema '3'")]
)
def test_what_is_not_a_lock_is_refused_in_words(text, words):
    with pytest.raises(DataError, match=words):
        parse_lock(text, where="lock.json")


def test_a_lock_of_another_flavour_has_it_in_its_name():
    lock = parse_lock(LOCKS[0].read_text(), where="lock.json")

    assert lock.name == str(lock.cell.id)
    assert replace(lock, flavour="devel").name == f"{lock.cell.id}-devel"


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


def a_record(**changes: object) -> Record:
    document = {**json.loads(RECORDS[0].read_text()), **changes}
    return read_record("r.json", json.dumps(document).encode())


@pytest.mark.parametrize(("length", "end"), [(220, "x"), (221, "…")])
def test_a_text_of_a_record_has_at_most_220_characters(length, end):
    text = "x" * length

    trimmed = replace(a_record(summary=text), notes=(text,)).trimmed()

    assert [len(line) for line in (trimmed.summary, *trimmed.notes)] == [220, 220]
    assert trimmed.summary[-1] == trimmed.notes[0][-1] == end


def test_a_failure_holds_the_last_lines_that_fit_in_600_characters():
    lines = tuple(f"{number:03}" + "x" * 197 for number in range(9))

    trimmed = Failure(rung=Rung.IMPORTED, symptom="s" * 300, log=lines).trimmed()

    assert trimmed.log == lines[-2:]  # a line costs its length and four characters
    assert len(trimmed.symptom) == 220
    assert Failure(rung=Rung.IMPORTED, symptom="", log=("y" * 201,)).trimmed().log == ("y" * 199 + "…",)


def test_a_record_holds_six_notes_one_decimal_and_only_the_facts_that_it_publishes():
    record = replace(
        a_record(),
        notes=tuple("abcdefgh"),
        seconds={"smoke": 1.26},
        host={"cpus": 2, "hostname": "secret"},
        loaded={"torch": "2.9.1", "nccl": None, "path": "/secret"},
        steps=(
            StepOutcome(
                name="zero-2",
                verdict=Verdict.PASS,
                seconds=1.26,
                detail="d" * 300,
                facts={"trace": "t", "losses": [1], "losses_reference": [1], "world": 2},
            ),
        ),
        failure=Failure(rung=Rung.IMPORTED, symptom="s" * 300),
        earlier=(Failure(rung=Rung.LOCKED, symptom="e" * 300),),
    )

    trimmed = record.trimmed()

    assert trimmed.notes == tuple("abcdef")
    assert trimmed.seconds == {"smoke": 1.3}
    assert trimmed.host == {"cpus": 2}
    assert trimmed.loaded == {"torch": "2.9.1"}
    assert trimmed.steps[0].seconds == 1.3
    assert trimmed.steps[0].facts == {"world": 2}
    assert [len(text) for text in (trimmed.steps[0].detail, trimmed.failure.symptom, trimmed.earlier[0].symptom)] == [
        220
    ] * 3


@pytest.mark.parametrize(
    ("passed", "earlier", "flaky"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, False)],
)
def test_flaky_is_what_passed_but_not_at_once(passed, earlier, flaky):
    attempts = (Failure(rung=Rung.IMPORTED, symptom="killed"),) if earlier else ()

    assert replace(a_record(), passed=passed, earlier=attempts).flaky is flaky


def test_a_failure_speaks_against_the_cell_unless_it_says_that_the_host_lacked_something():
    cell = replace(a_record(), passed=False, failure=Failure(rung=Rung.IMPORTED, symptom="ImportError"))
    host = replace(cell, failure=Failure(rung=Rung.IMPORTED, symptom="no GPU", of_host=True))

    assert not cell.of_host
    assert host.of_host
    assert replace(cell, failure=None).of_host
    assert not replace(host, passed=True).of_host


def test_a_record_knows_its_day_its_moment_and_the_highest_rung():
    record = a_record(started="2026-11-21T23:30:00+02:00", rungs=["solved", "imported", "locked"])

    assert record.day == "2026-11-21"
    assert record.moment == dt.datetime(2026, 11, 21, 21, 30, tzinfo=dt.timezone.utc)
    assert record.rung is Rung.IMPORTED


@pytest.mark.parametrize("verdict", [*Verdict])
def test_what_speaks_against_a_cell_is_listed_and_what_was_a_surprise_too(verdict):
    cases = Cases.of([CaseOutcome(case="all_reduce", verdict=verdict, blame="b" * 300)], "sha256:x")

    listed = verdict.value not in {"pass", "unsupported-as-expected", "skipped"}
    assert [case.case for case in cases.bad] == ["all_reduce"] * listed
    assert not listed or len(cases.bad[0].blame) == 220
    assert verdict.good == (verdict.value in {"pass", "unsupported-as-expected", "skipped", "unexpectedly-supported"})


@pytest.mark.parametrize(
    "started",
    [
        "1999-01-01T00:00:00Z",
        "9999-99-99T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-11-21",
        "2026-11-21T13:00:00",
        "20" + "2" * 39,
    ],
)
def test_a_time_is_one_of_this_century_with_its_zone(started):
    with pytest.raises(DataError, match="not a record") as caught:
        a_record(started=started)
    assert "started" in caught.value.details[0]


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 1 << 63, -(1 << 63)])
def test_a_number_that_cannot_be_compared_is_refused_wherever_it_stands(number):
    with pytest.raises(DataError) as caught:
        a_record(host={"cpus": [{"deep": number}]})
    assert (
        "not finite" in caught.value.details[0]
        or "NaN" in caught.value.details[0]
        or "Infinity" in caught.value.details[0]
    )


def test_the_largest_numbers_that_fit_are_taken():
    assert a_record(host={"memory_bytes": (1 << 63) - 1}).host == {"memory_bytes": (1 << 63) - 1}


def test_a_folder_gives_its_records_by_name_and_names_what_it_leaves_aside(tmp_path):
    text = RECORDS[0].read_text()
    for name in ("b.json", "a.json", ".hidden.json", "note.txt"):
        (tmp_path / name).write_text(text)
    for number in range(7):
        (tmp_path / f"x{number}.json").write_text('{"schema": 2, "passed": 1}')

    with pytest.warns(LeftAsideWarning) as caught:
        records = read_records(tmp_path)

    assert [record.name for record in records] == ["a.json", "b.json"]
    lines = [str(warning.message) for warning in caught]
    assert len(lines) == 6
    assert lines[-1] == f"{tmp_path.name}/2 more records are left aside"
    assert lines[0].startswith(f"{tmp_path.name}/x0.json: ")
    assert "more problems); this record is left aside" in lines[0]


def test_a_folder_that_is_not_there_has_no_records(tmp_path):
    assert read_records(tmp_path / "nothing") == ()


def test_a_record_is_named_by_its_content(tmp_path):
    record = a_record()
    path = put_record(tmp_path, record)

    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.name == f"{record.cell}.{record.engine}-{digest[:12]}.json"
    assert merge([path], tmp_path / "matrix") == ([path.name], 0)
    assert merge([path], tmp_path / "matrix") == ([], 1)


def test_every_kind_of_source_is_merged(tmp_path):
    path = put_record(tmp_path / "campaign" / "records", a_record())
    for folder in ("build", "many/cell"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "record.json").write_bytes(path.read_bytes())
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "plan.json").write_text("{}")

    sources = {
        name: merge([tmp_path / name], tmp_path / "out" / name)[0]
        for name in ("campaign", "campaign/records", "build", "many")
    }

    assert list(sources.values()) == [[path.name]] * 4
    assert merge([tmp_path / "begun"], tmp_path / "out") == ([], 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no record"):
        merge([tmp_path / "empty"], tmp_path / "out")


def test_all_records_of_all_sources_are_merged_also_behind_one_that_is_known(tmp_path):
    paths = [put_record(tmp_path / "one", a_record(summary=text)) for text in "abc"]
    merge(paths[:1], tmp_path / "matrix")

    new, present = merge([tmp_path / "one", paths[1]], tmp_path / "matrix")

    assert (sorted(new), present) == (sorted(path.name for path in paths[1:]), 2)
    assert sorted(path.name for path in (tmp_path / "matrix").iterdir()) == sorted(path.name for path in paths)


def test_a_record_names_the_components_that_its_cell_has_otherwise():
    document = json.loads(RECORDS[0].read_text())
    document["components"]["python"] = "9.9"

    with pytest.raises(DataError) as caught:
        read_record("r.json", json.dumps(document).encode())

    python = dict(CellId.parse(document["cell"]).components)["python"]
    assert caught.value.details == (f"r.json: components.python: the cell says {python}",)


def test_a_record_that_was_changed_after_it_was_written_is_not_merged(tmp_path):
    path = put_record(tmp_path, a_record())
    path.write_text(path.read_text() + "\n")

    with pytest.raises(DataError, match="does not belong to its content"):
        merge([path], tmp_path / "matrix")
    assert not (tmp_path / "matrix").exists()
