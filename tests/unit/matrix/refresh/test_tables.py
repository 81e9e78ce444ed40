"""Files that are edited line by line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envsmith.errors import DataError
from envsmith.matrix.refresh.line_table import LineTable, flow

# gpu.yaml has three tables in one file; no updater keeps it.
RELEASES = sorted(p for p in (Path(__file__).parents[4] / "matrix" / "releases").glob("*.yaml") if p.stem != "gpu")
# The word `none` is quoted in its evidence there; an updater leaves such a line alone.
SPELT_BY_HAND = {"nccl", "cudnn"}
TEXT = """# head
component: demo
evidence:
  index: {kind: declared, source: "list", date: 2026-01-01, note: "a note"}
releases:
- {version: "1.0",   evidence: index}
# between
- {version: "2.0", evidence: [index]}
"""


def _key(record):
    return [int(n) for n in record["version"].split(".")]


@pytest.mark.parametrize("path", RELEASES, ids=lambda p: p.stem)
def test_every_file_of_releases_is_read_and_written_with_the_same_bytes(path):
    text = path.read_text(encoding="utf-8")
    assert LineTable.parse(text, path.name).text() == text


@pytest.mark.parametrize("path", [p for p in RELEASES if p.stem not in SPELT_BY_HAND], ids=lambda p: p.stem)
def test_every_record_that_an_updater_keeps_is_spelt_as_it_would_write_it(path):
    table = LineTable.parse(path.read_text(encoding="utf-8"), path.name)
    assert [line.text for line in table.lines if line.record is not None] == ["- " + flow(r) for r in table.records]


def test_a_replaced_record_changes_its_line_only():
    table = LineTable.parse(TEXT, "demo")
    assert table.replace(table.records[1], {"version": "2.0", "yanked": 'why: "so"', "evidence": ["index"]})
    assert table.text() == TEXT.replace(
        '- {version: "2.0", evidence: [index]}', '- {version: "2.0", yanked: "why: \\"so\\"", evidence: [index]}'
    )


def test_an_equal_record_keeps_its_spelling():
    table = LineTable.parse(TEXT, "demo")
    assert not table.replace(table.records[0], {"version": "1.0", "evidence": "index"})
    assert table.text() == TEXT


@pytest.mark.parametrize(("version", "line"), [("0.9", 5), ("1.5", 7), ("3.0", 8)])
def test_a_new_record_stands_in_order(version, line):
    table = LineTable.parse(TEXT, "demo")
    table.insert({"version": version, "evidence": "index"}, _key)
    assert table.text().split("\n")[line] == f'- {{version: "{version}", evidence: index}}'
    assert [r["version"] for r in table.records] == sorted(
        (r["version"] for r in table.records), key=lambda v: [int(n) for n in v.split(".")]
    )


def test_evidence_of_another_day_gets_a_key_of_its_own_once():
    table = LineTable.parse(TEXT, "demo")
    keys = {table.evidence_key("index", "declared", "list", "2026-02-03") for _ in range(2)}
    assert keys == {"index_2026_02_03"}
    assert table.text().count('  index_2026_02_03: {kind: declared, source: "list", date: 2026-02-03}\n') == 1
    assert table.evidence_key("index", "declared", "list", "2026-01-01") == "index"
    LineTable.parse(table.text(), "demo")


def test_evidence_that_every_line_left_is_folded_and_keeps_its_note():
    table = LineTable.parse(TEXT, "demo")
    key = table.evidence_key("index", "declared", "list", "2026-02-03")
    table.replace(table.records[0], {"version": "1.0", "evidence": key})
    table.fold_evidence("index", key)
    assert key in table.text(), "the second line still rests on the older reading"
    table.replace(table.records[1], {"version": "2.0", "evidence": [key]})
    table.fold_evidence("index", key)
    assert yaml.safe_load(table.text())["evidence"].keys() == {"index"}
    assert 'index: {kind: declared, source: "list", date: 2026-02-03, note: "a note"}' in table.text()


def test_a_file_without_evidence_gets_the_block():
    table = LineTable.parse('component: x\nreleases:\n- {version: "1", evidence: a}\n', "x")
    key = table.evidence_key("index", "declared", "list", "2026-02-03")
    assert yaml.safe_load(table.text())["evidence"][key]["source"] == "list"


@pytest.mark.parametrize(
    "text",
    ["", "component: x\n", "releases:\n- version: 1\n", "releases:\n- {version: [}\n", "releases:\nmore: keys\n"],
)
def test_what_is_not_one_record_a_line_is_refused(text):
    with pytest.raises(DataError):
        LineTable.parse(text, "demo")


TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\x85\u2028\u2029\ufeff\ufffe\uffff"), max_size=20
)


@given(
    st.dictionaries(
        st.sampled_from(["version", "yanked", "cuda", "evidence", "gpu", "date"]),
        st.one_of(TEXTS, st.booleans(), st.lists(TEXTS, max_size=3)),
    )
)
def test_a_record_reads_back_as_it_was_written(record):
    from envsmith.matrix.refresh.line_table import parse_record

    assert parse_record(flow(record), "x") == record
