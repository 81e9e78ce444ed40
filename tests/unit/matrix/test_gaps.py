"""Rules that the refresh makes of what imports take and releases lack."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith.knowledge.graph.read import read_knowledge
from envsmith.knowledge.names.name_index import SUMMARY
from envsmith.knowledge.names.names_file import Head, MeasuredRelease, Table, encode
from envsmith.knowledge.names.takes import Take
from envsmith.matrix.refresh.gaps import FILE, plan_gaps
from envsmith.matrix.refresh.updates import apply

_USERS, _OFFERED = ("1.0", "1.1", "2.0", "3.0"), ("1.0", "2.0", "3.0")
_NAMES: Table = {"offer": {"": 0b111, "new (": 0b110, "newest (": 0b100, "old (": 0b001}}


def head(name: str, versions: tuple[str, ...]) -> Head:
    releases = tuple(MeasuredRelease(version=v, date="2024-01-01", filename="", sha256="") for v in versions)
    return Head(distribution=name, reader=1, roots=(name,), releases=releases)


def line(name: str) -> str:
    return Take(path=f"offer.{name}", module="user.part", imported=True).line()


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    rows = [{"name": n, "role": "companion", "short": n, "title": n, "distributions": [n]} for n in ("user", "offer")]
    (tmp_path / "components.yaml").write_text(json.dumps({"components": rows}))
    for folder in ("names", "rules"):
        (tmp_path / folder).mkdir()
    (tmp_path / "names" / "packages.yaml").write_text("packages: {user: {entries: [user], parts: [user.extra]}}")
    (tmp_path / "names" / SUMMARY).write_text("distribution\troots\noffer\toffer\nuser\tuser\n")
    (tmp_path / "names" / "offer.names").write_bytes(encode(head("offer", _OFFERED), _NAMES))
    return tmp_path


def take(matrix: Path, lines: dict[str, int]) -> None:
    table = {"user": {line(name): bits for name, bits in lines.items()}}
    (matrix / "names" / "user.takes").write_bytes(encode(head("user", _USERS), table))


def rows(matrix: Path) -> list[tuple[str, str, str]]:
    apply(plan_gaps(matrix, "2026-01-01"))
    rules = (
        [r for r in read_knowledge(matrix).rules if r.id == "user-imports-offer"] if (matrix / FILE).exists() else []
    )
    return [(str(w.when["user"]), str(w.needs["offer"]), w.symptom or "") for rule in rules for w in rule.rows]


def error(name: str) -> str:
    return f"ImportError: cannot import name '{name}' from 'offer'"


def declare(matrix: Path, version: str, spec: str) -> None:
    evidence = {"kind": "declared", "source": "METADATA", "date": "2026-01-01"}
    release = {"version": version, "date": "2024-01-01", "requires": {"offer": spec}, "evidence": evidence}
    (matrix / "releases").mkdir(exist_ok=True)
    (matrix / "releases" / "user.yaml").write_text(json.dumps({"component": "user", "releases": [release]}))


def test_a_name_that_neighbouring_releases_take_is_one_row(matrix):
    take(matrix, {"new": 0b0011, "old": 0b1000})

    assert rows(matrix) == [(">=1.0,<=1.1", ">=2.0", error("new")), ("==3.0", "<2.0", error("old"))]


def test_of_two_names_the_one_that_more_releases_lack_says_it_all(matrix):
    take(matrix, {"new": 0b1111, "newest": 0b0100})

    assert rows(matrix) == [
        (">=1.0,<=3.0", ">=2.0", error("new")),
        ("==2.0", ">=3.0", error("newest")),
    ]


def test_a_pair_that_the_metadata_forbids_makes_no_rule(matrix):
    take(matrix, {"new": 0b0100})
    declare(matrix, "2.0", ">=2.0")

    assert rows(matrix) == []


def test_of_a_name_that_came_and_went_only_the_new_end_is_said(matrix):
    names = {"offer": {"": 0b111, "short (": 0b010}}
    (matrix / "names" / "offer.names").write_bytes(encode(head("offer", _OFFERED), names))
    take(matrix, {"short": 0b0100})
    declare(matrix, "2.0", "<3.0")

    assert rows(matrix) == [("==2.0", ">=2.0", error("short"))]


def test_a_second_run_writes_nothing_whatever_the_day(matrix):
    take(matrix, {"new": 0b1111})
    apply(plan_gaps(matrix, "2026-01-01"))

    assert plan_gaps(matrix, "2026-02-02") == ()


def test_the_day_changes_with_the_rows(matrix):
    take(matrix, {"new": 0b1111})
    apply(plan_gaps(matrix, "2026-01-01"))
    take(matrix, {"newest": 0b1111})

    (change,) = plan_gaps(matrix, "2026-02-02")

    assert "date: 2026-02-02" in change.new
    assert "date: 2026-01-01" not in change.new


def test_what_stops_a_part_is_a_warning_that_hides_no_error(matrix):
    table = {"user": {line("new"): 0b0001}, "user.extra": {line("newest"): 0b0001}}
    (matrix / "names" / "user.takes").write_bytes(encode(head("user", _USERS), table))

    apply(plan_gaps(matrix, "2026-01-01"))

    (rule,) = (r for r in read_knowledge(matrix).rules if r.id == "user-imports-offer")
    assert [(r.severity.value, r.needs["offer"].text) for r in rule.rows] == [("error", ">=2.0"), ("warning", ">=3.0")]


def call(matrix: Path, name: str) -> None:
    line = Take(path=f"offer.{name}", module="user.part", function="Part.run", imported=True).line()
    (matrix / "names" / "user.takes").write_bytes(encode(head("user", _USERS), {"user": {line: 0b1111}}))


def test_what_a_function_imports_when_it_is_called_is_a_warning_that_names_it(matrix):
    call(matrix, "old")

    apply(plan_gaps(matrix, "2026-01-01"))

    rule = next(rule for rule in read_knowledge(matrix).rules if rule.id == "user-calls-offer")
    row = rule.rows[0]
    assert (str(row.when["user"]), str(row.needs["offer"]), row.severity.value) == (">=1.0,<=3.0", "<2.0", "warning")
    assert row.cause == "user.part.Part.run imports offer.old when it is called."


def test_what_another_distribution_may_put_into_a_shared_folder_makes_no_rule(matrix):
    names = matrix / "names"
    (names / SUMMARY).write_text("distribution\troots\noffer\toptimum\nuser\tuser\n")
    offered = replace(head("offer", _OFFERED), roots=("optimum",))
    (names / "offer.names").write_bytes(encode(offered, {"optimum": _NAMES["offer"]}))
    line = Take(path="optimum.old", module="user.part", function="Part.run", imported=True).line()
    (names / "user.takes").write_bytes(encode(head("user", _USERS), {"user": {line: 0b1111}}))

    assert plan_gaps(matrix, "2026-01-01") == ()


def test_a_name_that_came_later_than_a_function_may_need_makes_no_rule(matrix):
    call(matrix, "new")

    assert plan_gaps(matrix, "2026-01-01") == ()


def test_a_function_is_not_said_to_fail_with_every_release_that_its_package_allows(matrix):
    call(matrix, "old")
    declare(matrix, "3.0", ">=2.0")

    apply(plan_gaps(matrix, "2026-01-01"))

    rule = next(rule for rule in read_knowledge(matrix).rules if rule.id == "user-calls-offer")
    assert str(rule.rows[0].when["user"]) == ">=1.0,<=2.0"


def test_a_row_names_the_module_that_takes_the_name_in_its_releases(matrix):
    table = {"user": {"offer.new =user.before :": 0b0011, "offer.new =user.now :": 0b1000}}
    (matrix / "names" / "user.takes").write_bytes(encode(head("user", _USERS), table))
    apply(plan_gaps(matrix, "2026-01-01"))

    rule = next(r for r in read_knowledge(matrix).rules if r.id == "user-imports-offer")

    assert [row.cause for row in rule.rows] == [
        "The import of user takes offer.new in user.before.",
        "The import of user takes offer.new in user.now.",
    ]


def test_of_a_package_with_an_older_name_its_releases_before_are_read_too(matrix):
    table = json.loads((matrix / "components.yaml").read_text())
    table["components"][0]["distributions"] = ["user", "old-user"]
    (matrix / "components.yaml").write_text(json.dumps(table))
    packages = "packages: {user: {entries: [user], parts: [user.extra]}, old-user: {entries: [old_user]}}"
    (matrix / "names" / "packages.yaml").write_text(packages)
    take(matrix, {"new": 0b1000})
    older = {"old_user": {"offer.newest =old_user :": 0b1}}
    (matrix / "names" / "old-user.takes").write_bytes(encode(head("old-user", ("0.9",)), older))

    assert rows(matrix) == [("==0.9", ">=3.0", error("newest")), ("==3.0", ">=2.0", error("new"))]
