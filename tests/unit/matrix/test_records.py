"""Records: small, named by their content, without the host's name, checked when they are read and merged."""

import datetime as dt
import json
import shutil

import pytest
from records_help import cell, record

from envsmith.cli.app import run
from envsmith.errors import DataError, LeftAsideWarning
from envsmith.knowledge.graph.expiry import TorchAge, latest, load_expiry
from envsmith.knowledge.graph.location import find_matrix
from envsmith.model.record import (
    CaseOutcome,
    Failure,
    Rung,
    Verdict,
    merge,
    put_record,
    read_record,
    read_records,
    record_text,
)

TORCHES = ["2.15.0+cu132", "2.14.1+cu130", "2.11.0+cu130", "2.10.0+cu128", "2.6.0+cu124"]


def test_a_record_reads_back_as_it_was_written(tmp_path):
    path = put_record(tmp_path, record())
    (read,) = read_records(tmp_path)
    assert read.name == path.name
    assert (read.cell, read.engine, read.passed, read.rung, read.day) == (
        "ds0.16.4-torch2.6.0-cu124-py312", "venv", True, Rung.FRAMEWORK_CPU, "2026-11-21",
    )  # fmt: skip


def test_a_record_stays_small_whatever_went_wrong():
    bad = tuple(CaseOutcome(case=f"c{n}", verdict=Verdict.WRONG, blame="x" * 5000) for n in range(200))
    failure = Failure(rung=Rung.COLLECTIVES_CPU, symptom="y" * 9000, log=tuple("z" * 500 for _ in range(500)))
    text = record_text(record(cases=bad, failure=failure, passed=False, notes=tuple("n" * 1000 for _ in range(50))))
    assert len(text.encode()) < 8000
    assert json.loads(text)["cases"]["counts"] == {"wrong": 200}


def test_a_record_of_a_plain_run_is_below_four_kilobytes():
    assert len(record_text(record()).encode()) < 4096


def test_a_record_does_not_tell_the_name_of_its_host():
    assert "secret" not in record_text(record())


def test_two_records_of_one_cell_have_two_names(tmp_path):
    put_record(tmp_path, record())
    put_record(tmp_path, record(started="2026-11-22T12:00:00+00:00"))
    assert len(read_records(tmp_path)) == 2


def test_the_same_record_twice_is_one_file(tmp_path):
    assert put_record(tmp_path, record()) == put_record(tmp_path, record())
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema": 1}, "this envsmith reads schema 2"),
        ({"cell": 7}, "cell: `7`"),
        ({"rungs": ["flown"]}, "rungs[0]: `flown`: unknown word"),
        ({"rungs": []}, "rungs: rungs of the ladder"),
        ({"passed": "yes"}, "passed: `yes`"),
        ({"components": {"torch": 2.1}}, "components.torch: `2.1`"),
        ({"started": "yesterday"}, "started: `yesterday`: not a time"),
        ({"failure": "it broke"}, "failure: `it broke`"),
    ],
)
def test_what_is_no_record_is_refused_with_its_key(change, told):
    data = {**record().to_json(), **change}
    with pytest.raises(DataError) as caught:
        read_record("x.json", json.dumps(data).encode())
    assert any(told in line for line in caught.value.details), caught.value.details


def test_broken_file_of_a_folder_is_named_and_left_aside(tmp_path):
    good = put_record(tmp_path, record())
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text(json.dumps({**record().to_json(), "components": {"torch": "not-a-version"}}))
    (tmp_path / "c.json").mkdir()

    with pytest.warns(LeftAsideWarning) as warned:
        records = read_records(tmp_path)

    assert [each.name for each in records] == [good.name]
    assert [str(each.message).partition(": ")[0].rpartition("/")[2] for each in warned] == [
        "a.json",
        "b.json",
        "c.json",
    ]


def test_of_a_folder_full_of_broken_files_five_are_named_and_the_others_counted(tmp_path):
    for number in range(9):
        (tmp_path / f"{number}.json").write_text("{")
    with pytest.warns(LeftAsideWarning) as warned:
        assert read_records(tmp_path) == ()
    assert len(warned) == 6
    assert "4 more records are left aside" in str(warned[-1].message)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"components": {"torch": "not-a-version"}}, "components.torch: `not-a-version`"),
        ({"started": "9999-99-99T00:00:00Z"}, "started: "),
        ({"started": "9999-12-31T23:59:59Z"}, "not a time of this century"),
        ({"cell": "../../etc/x"}, "cell: "),
        ({"cell": "ds1"}, "components.deepspeed: the cell says 1"),
        ({"engine": "../x"}, "engine: "),
        ({"seconds": {"lock": float("nan")}}, "not finite"),
        ({"ranks": 10**30}, "more than 63 bits"),
    ],
)
def test_value_that_cannot_be_compared_dated_or_printed_is_refused_where_a_record_is_read(change, problem):
    with pytest.raises(DataError) as caught:
        read_record("x.json", json.dumps({**record().to_json(), **change}).encode())
    assert problem in "\n".join(caught.value.details)


def test_results_of_two_campaigns_are_merged_without_conflict(tmp_path):
    for folder, day in (("one", "2026-11-21"), ("two", "2026-11-22")):
        put_record(tmp_path / folder, record(started=f"{day}T12:00:00+00:00"))
        put_record(tmp_path / folder, record(cell=cell(framework="0.17.2")))
    new, known = merge([tmp_path / "one", tmp_path / "two"], tmp_path / "all")
    assert (len(new), known) == (3, 1)
    again, known = merge([tmp_path / "one", tmp_path / "two"], tmp_path / "all")
    assert (list(again), known) == ([], 4)


def test_what_builds_wrote_is_merged_as_it_is(tmp_path):
    for name, version in (("one", "0.16.4"), ("two", "0.17.2")):
        (tmp_path / "build" / name).mkdir(parents=True)
        (tmp_path / "build" / name / "record.json").write_text(record_text(record(cell=cell(framework=version))))
        (tmp_path / "build" / name / "lock.json").write_text("{}")
    new, _ = merge([tmp_path / "build" / "one"], tmp_path / "all")
    assert [read.name for read in read_records(tmp_path / "all")] == list(new)
    more, known = merge([tmp_path / "build", tmp_path / "build" / "two" / "record.json"], tmp_path / "all")
    assert (len(more), known) == (1, 2)
    assert {read.cell[:8] for read in read_records(tmp_path / "all")} == {"ds0.16.4", "ds0.17.2"}


def test_what_a_smoke_test_of_everything_left_is_merged_by_its_folder(tmp_path):
    put_record(tmp_path / "out" / "records", record())
    (tmp_path / "out" / "1-quick.json").write_text("{}")
    assert len(merge([tmp_path / "out"], tmp_path / "all")[0]) == 1


def test_a_campaign_that_has_just_begun_does_not_stop_the_others(tmp_path):
    put_record(tmp_path / "one", record())
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "plan.json").write_text('{"schema": 1}')
    assert len(merge([tmp_path / "begun", tmp_path / "one"], tmp_path / "all")[0]) == 1


def test_a_folder_without_records_is_named(tmp_path):
    with pytest.raises(DataError, match="holds no record"):
        merge([tmp_path], tmp_path / "all")


@pytest.mark.parametrize("name", ["../../etc/x", "a b", "x" * 300])
def test_a_build_s_record_cannot_choose_where_it_is_written(tmp_path, name):
    (tmp_path / "record.json").write_text(json.dumps({**record().to_json(), "cell": name}))
    with pytest.raises(DataError, match="not a record"):
        merge([tmp_path / "record.json"], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_a_record_that_was_changed_by_hand_is_not_merged(tmp_path):
    path = put_record(tmp_path / "one", record(passed=False))
    path.write_text(path.read_text().replace('"passed": false', '"passed": true'))
    with pytest.raises(DataError, match="does not belong"):
        merge([tmp_path / "one"], tmp_path / "all")


def test_the_records_of_the_repository_are_records():
    read = read_records(find_matrix() / "records")
    assert len(read) >= 26
    for one in read:
        size = (find_matrix() / "records" / one.name).stat().st_size
        assert size <= (5000 if len(one.steps) <= 2 else 12_000), one.name


# -- expiry


def stored(tmp_path, **more):
    path = put_record(tmp_path, record(**more))
    return read_record(path.name, path.read_bytes())


def test_a_passing_record_of_the_newest_torch_expires_after_thirty_days(tmp_path):
    expiry = load_expiry(find_matrix(), TORCHES)
    one = stored(tmp_path, cell=cell(torch="2.15.0+cu132"))
    assert expiry.until(one) == dt.date(2026, 12, 21)
    assert not expiry.is_stale(one, dt.date(2026, 12, 21))
    assert expiry.is_stale(one, dt.date(2026, 12, 22))


def test_a_stale_record_counts_up_to_its_lock_only(tmp_path):
    expiry = load_expiry(find_matrix(), TORCHES)
    one = stored(tmp_path, cell=cell(torch="2.15.0+cu132"))
    assert expiry.rung(one, dt.date(2026, 12, 1)) is Rung.FRAMEWORK_CPU
    assert expiry.rung(one, dt.date(2027, 12, 1)) is Rung.LOCKED


def test_older_torch_counts_longer(tmp_path):
    expiry = load_expiry(find_matrix(), [f"2.{minor}.0" for minor in range(6, 16)])
    assert expiry.torch_age("2.15.0+cu132") is TorchAge.NEWEST
    assert expiry.torch_age("2.11.0+cu130") is TorchAge.RECENT
    assert expiry.torch_age("2.10.0") is TorchAge.OLDER
    assert expiry.torch_age("1.9.0") is TorchAge.OLDER
    old = stored(tmp_path, cell=cell(torch="2.6.0+cu124"))
    assert expiry.until(old) > dt.date(2027, 6, 1)


def test_a_table_of_expiry_with_a_word_in_place_of_days_is_refused(tmp_path):
    (tmp_path / "expiry.yaml").write_text(
        "schema: 1\nstale_counts_as: locked\nexpiry:\n- {torch: newest, days: soon}\n"
    )
    with pytest.raises(DataError, match="expiry") as caught:
        load_expiry(tmp_path, TORCHES)
    assert "expiry[0].days" in caught.value.details[0]


def test_the_newest_record_of_a_cell_speaks_for_it(tmp_path):
    put_record(tmp_path, record(passed=False))
    put_record(tmp_path, record(started="2026-11-22T12:00:00+00:00"))
    (one,) = latest(read_records(tmp_path))
    assert one.passed


# -- failed runs as known-bad cells


def test_a_failed_run_makes_its_cell_a_known_bad_one(tmp_path):
    from envsmith.knowledge.graph.load import components
    from envsmith.knowledge.graph.read import failed_runs
    from envsmith.model.rule import Severity

    lacking = Failure(rung=Rung.FRAMEWORK_CPU, symptom="Found no NVIDIA driver", of_host=True)
    made = {
        "a.json": record(passed=False),
        "b.json": record(passed=False, cell=cell(framework="0.17.2")),
        "c.json": record(cell=cell(framework="0.17.2"), started="2026-11-22T12:00:00+00:00"),
        "d.json": record(passed=False, failure=lacking, cell=cell(framework="0.10.3")),
    }
    (rule,) = failed_runs(made, components())
    assert (rule.id, rule.stage) == ("deepspeed-run-failed-import", "import")
    (row,) = rule.rows
    assert {n: s.text for n, s in row.when.items()} == {
        "deepspeed": "==0.16.4",
        "torch": "==2.6.0+cu124",
        "python": "==3.12",
    }
    assert (row.severity, row.symptom) == (Severity.WARNING, "ImportError: no")
    assert "a.json" in row.evidence[0].source


def test_commands_go_on_without_the_records_that_are_not_records(tmp_path, monkeypatch, capsys):
    matrix = tmp_path / "matrix"
    shutil.copytree(find_matrix(), matrix)
    good = next((matrix / "records").glob("*.json")).read_text()
    (matrix / "records" / "version.json").write_text(good.replace('"torch": "', '"torch": "not-a-version', 1))
    (matrix / "records" / "start.json").write_text(good.replace('"started": "2026-11-2', '"started": "9999-99-9'))
    monkeypatch.setenv("ENVSMITH_MATRIX", str(matrix))

    for command in (["solve", "--framework", "deepspeed"], ["check", "torch==2.9.1"], ["matrix", "list"]):
        code = run(command)

        talk = capsys.readouterr().err
        assert code == 0
        assert talk.count("left aside") == 2
        assert "records/version.json: components.torch" in talk
        assert "records/start.json: started" in talk
