"""The whole search, in real environments of tiny packages."""

from __future__ import annotations

import dataclasses

import pytest

from envsmith.doctor.bisect.between import Search
from envsmith.doctor.bisect.journal import open_journal
from envsmith.doctor.bisect.report import as_json, as_markdown, as_text, rule_of
from envsmith.doctor.bisect.trials import PackageSet, Trials
from envsmith.errors import UsageError
from envsmith.lock.index.index import IndexFile, IndexProject
from envsmith.lock.index.interpreters import running_interpreter

PYTHON = running_interpreter().minor
GOOD = PackageSet(pins={"app": "1.0", "shape": "1.0", "helper": "1.0", "other": "1.0", "third": "1.0"}, python=PYTHON)
BAD = PackageSet(pins={"app": "1.0", "shape": "2.1", "helper": "1.1", "other": "1.1", "third": "1.1"}, python=PYTHON)


class Listed:
    """An index that lists the releases of shape, as the real one does."""

    def __init__(self, *shapes):
        self.shapes = shapes or ("1.0", "1.1", "1.2", "2.0", "2.1")

    def project(self, name):
        versions = self.shapes if name == "shape" else ("1.0", "1.1")
        files = [
            IndexFile(filename=f"{name}-{v}-py3-none-any.whl", url="", version=v, uploaded=f"2026-0{n}-01T00:00:00Z")
            for n, v in enumerate(versions, 1)
        ]
        return IndexProject(name=name, files=tuple(files))


@pytest.fixture
def found(trials):
    return Search(good=GOOD, bad=BAD, trials=trials, index=Listed()).run()


def test_the_culprit_and_its_release_are_found_and_confirmed(found):
    (guilty,) = found.guilty

    assert [group.lead.name for group in guilty.groups] == ["shape"]
    assert [(step.good.version, step.bad.version, step.bad.day) for step in guilty.steps] == [
        ("1.2", "2.0", "2026-04-01")
    ]
    assert guilty.alone
    assert found.explains
    assert "ImportError: cannot import name 'round_off' from 'shape'" in guilty.error


def test_the_answer_names_the_remedy_and_a_rule_to_contribute(found):
    text, rule = as_text(found), rule_of(found)

    assert "remedy: shape<2.0" in text
    assert 'when: {shape: ">=2.0"' in rule
    assert as_json(found)["culprits"][0]["steps"][0]["first_bad"] == {"version": "2.0", "day": "2026-04-01"}
    assert "shape==1.0" in as_markdown(found, "python -c 'import app'")


def test_a_second_search_repeats_no_trial(found, trials):
    again = dataclasses.replace(trials, runs=0, sets=set())

    answer = Search(good=GOOD, bad=BAD, trials=again, index=Listed()).run()

    assert trials.runs > 0
    assert again.runs == 0
    assert answer.guilty == found.guilty


def test_a_trial_that_a_kill_cut_off_is_run_again_and_the_others_are_not(broken_index, uv_of_index, tmp_path):
    folder, command = tmp_path / "killed", ("python", "-c", "import app")
    with open_journal(folder) as journal:
        first = Trials(command=command, folder=folder, journal=journal, uv=uv_of_index)
        Search(good=GOOD, bad=BAD, trials=first, index=Listed()).run()
    text = journal.path.read_text()
    journal.path.write_text(text[:-20])

    with open_journal(folder) as journal:
        second = Trials(command=command, folder=folder, journal=journal, uv=uv_of_index)
        Search(good=GOOD, bad=BAD, trials=second, index=Listed()).run()

    assert second.runs == 1


def test_a_line_that_a_kill_cut_off_does_not_take_the_next_one_with_it(tmp_path):
    with open_journal(tmp_path) as journal:
        journal.add("one", {"status": 0})
        journal.path.write_text(journal.path.read_text() + '{"key": "two", "stat')

    with open_journal(tmp_path) as journal:
        journal.add("three", {"status": 1})
    with open_journal(tmp_path) as journal:
        assert list(journal.rows) == ["one", "three"]


def test_two_searches_in_one_folder_are_refused(trials, tmp_path):
    with pytest.raises(UsageError, match="another search runs in it"), open_journal(tmp_path / "search"):
        pass


def test_a_command_that_fails_at_the_good_end_is_refused(trials):
    trials.command = ("python", "-c", "raise SystemExit(3)")

    with pytest.raises(UsageError, match="fails at the good end too"):
        Search(good=GOOD, bad=BAD, trials=trials, index=Listed()).run()


def test_a_command_that_passes_at_the_bad_end_is_refused(trials):
    trials.command = ("python", "-c", "pass")

    with pytest.raises(UsageError, match="passes at the bad end"):
        Search(good=GOOD, bad=BAD, trials=trials, index=Listed()).run()


def test_a_command_that_is_not_there_ends_the_search(trials):
    trials.command = ("no-such-program",)

    with pytest.raises(UsageError, match="Cannot run no-such-program"):
        Search(good=GOOD, bad=BAD, trials=trials, index=Listed()).run()


def test_a_run_without_an_end_fails_at_the_limit(trials):
    trials.command = ("python", "-c", "import shape, time; time.sleep(0 if hasattr(shape, 'round_off') else 60)")
    trials.limit = 5.0
    # Every run of the newer shape takes as long as the limit: they differ in nothing else.
    bad = dataclasses.replace(GOOD, pins={**GOOD.pins, "shape": "2.0"})

    found = Search(good=GOOD, bad=bad, trials=trials, index=Listed("1.0", "2.0")).run()

    assert [group.lead.name for group in found.guilty[0].groups] == ["shape"]
    assert found.guilty[0].error == "no end after 5 s"


@pytest.mark.slow  # some fifty runs of a program
def test_a_command_that_fails_now_and_then_is_run_several_times(trials, tmp_path):
    # Fails every third run where shape is new.
    counter = tmp_path / "count"
    code = f"""
import pathlib, shape
path = pathlib.Path({str(counter)!r})
count = int(path.read_text()) if path.exists() else 0
path.write_text(str(count + 1))
assert hasattr(shape, "round_off") or count % 3
"""
    trials.command = ("python", "-c", code)
    trials.tries = 4

    found = Search(good=GOOD, bad=BAD, trials=trials, index=Listed()).run()

    assert [group.lead.name for group in found.guilty[0].groups] == ["shape"]


@pytest.mark.slow  # some fifty runs of a program
def test_a_network_that_fails_now_and_then_is_no_culprit(trials, tmp_path):
    # Every second run fails for a reason of its own. Where shape is new, the others fail too.
    counter = tmp_path / "count"
    code = f"""
import pathlib, shape
path = pathlib.Path({str(counter)!r})
count = int(path.read_text()) if path.exists() else 0
path.write_text(str(count + 1))
if count % 2:
    raise TimeoutError("the network")
assert hasattr(shape, "round_off")
"""
    trials.command = ("python", "-c", code)
    trials.tries = 3

    found = Search(good=GOOD, bad=BAD, trials=trials, index=Listed()).run()

    assert [group.lead.name for group in found.guilty[0].groups] == ["shape"]
    assert found.guilty[0].error == "AssertionError"


def test_failures_no_more_often_than_at_the_good_end_are_a_pass(trials, tmp_path):
    # Its first run fails whatever the packages, as it may at the good end too.
    first = tmp_path / "first"
    code = f"import pathlib; p = pathlib.Path({str(first)!r}); was = p.exists(); p.touch(); assert was"
    trials.command, trials.tries, trials.threshold = ("python", "-c", code), 3, 0.5

    assert trials.attempt(GOOD).passed
