"""The two ends of a search by time: the uploads of all packages, and what a project requires."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from envsmith.doctor.bisect.ends import ends_in_time, parse_moment, write_requirements
from envsmith.doctor.bisect.outcome import TrialOutcome
from envsmith.doctor.bisect.trials import PackageSet
from envsmith.errors import DataError, UsageError
from envsmith.project.folder import ProjectPart

BROKEN = "ImportError: cannot import name 'url_quote'"
UPLOADS = {
    "app": {"1.0": "2024-01-10"},
    "shape": {"1.0": "2024-01-01", "1.1": "2025-03-01", "2.0": "2025-06-01T12:30:00Z"},
}


@dataclass
class Uploads:
    """Requirements of which each release is taken from the second after its upload on."""

    breaks: str = "2025-06-01T12:30:00"

    def at(self, moment: dt.datetime) -> PackageSet:
        newest = {
            name: max(version for version, day in rows.items() if parse_moment(day) < moment)
            for name, rows in UPLOADS.items()
        }
        return PackageSet(pins=newest, python="3.11")

    def attempt(self, moment: dt.datetime) -> TrialOutcome:
        fails = f"{moment:%Y-%m-%dT%H:%M:%S}" > self.breaks
        return TrialOutcome(passed=not fails, error=BROKEN if fails else "")

    failure = attempt


class Index:
    """An index that knows when each file was uploaded."""

    def project(self, name: str) -> SimpleNamespace:
        rows = {version: [SimpleNamespace(uploaded=day)] for version, day in UPLOADS[name].items()}
        return SimpleNamespace(releases=lambda: rows)


@pytest.mark.parametrize("good", ["2025-02-01", None], ids=["stated", "stepped back to"])
def test_the_upload_that_broke_it_stands_between_the_two_ends(good):
    lines: list[str] = []

    before, after = ends_in_time(Uploads(), good, "2025-07-01", Index(), lines.append)

    assert (before.pins["shape"], after.pins["shape"]) == ("1.1", "2.0")
    assert lines[-1].endswith("the one of 2025-06-01 12:30 UTC is the first with which it fails")


def test_a_command_that_does_not_fail_today_is_refused():
    with pytest.raises(UsageError, match="does not fail"):
        ends_in_time(Uploads(breaks="2026"), None, "2025-07-01", Index(), print)


def test_a_command_that_never_passed_is_refused():
    with pytest.raises(UsageError, match="it fails with the packages of 256 weeks ago too"):
        ends_in_time(Uploads(breaks=""), None, "2025-07-01", Index(), print)


def test_what_a_project_requires_is_a_file_that_uv_reads(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["flask==2.2.2"]\n'
        'optional-dependencies = {test = ["pytest>=8"], docs = ["mkdocs"]}\n'
    )

    wish = write_requirements(tmp_path, ProjectPart(extras=("test",)), "3.11", tmp_path)

    assert sorted(wish.read_text().splitlines()) == ["-c limits.txt", "flask==2.2.2", "pytest>=8"]


def test_what_a_project_bounds_is_a_constraint(tmp_path):
    (tmp_path / "requirements.txt").write_text("-c bounds.txt\nflask\n")
    (tmp_path / "bounds.txt").write_text("werkzeug<4\n")

    wish = write_requirements(tmp_path, ProjectPart(), "3.11", tmp_path)

    assert (wish.read_text(), (tmp_path / "limits.txt").read_text()) == ("-c limits.txt\nflask\n", "werkzeug<4\n")


def test_a_python_that_the_project_does_not_take_is_refused(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.12"\ndependencies = ["flask"]\n'
    )

    with pytest.raises(UsageError, match=r"Cannot search with Python 3\.11: .*pyproject.toml:\d+ requires >=3\.12\."):
        write_requirements(tmp_path, ProjectPart(), "3.11", tmp_path)


def test_a_folder_without_requirements_is_refused(tmp_path):
    with pytest.raises(DataError, match="no file of it declares requirements"):
        write_requirements(tmp_path, ProjectPart(), "3.11", tmp_path)
