"""The matrix as data: cells by their newest record, CSV, feed, tables; `matrix list`, `show` and `merge`."""

import datetime as dt
import json
from importlib import import_module
from xml.etree import ElementTree as ET

import pytest
from records_help import cell, record

from envsmith.base.files import MARK, write_folder
from envsmith.cli.app import run
from envsmith.errors import UsageError
from envsmith.knowledge.graph.expiry import load_expiry
from envsmith.knowledge.graph.location import find_matrix
from envsmith.matrix.builds import gpus_json, torch_json
from envsmith.matrix.cells import Status, cell_states
from envsmith.matrix.tables import (
    EXPORT,
    cell_texts,
    csv_text,
    export_texts,
    feed_text,
    markdown_table,
    with_table,
)
from envsmith.model.record import Expected, Failure, Rung, put_record, read_records
from envsmith.solver import default_solver

TODAY = dt.date(2026, 12, 1)


@pytest.fixture
def root(tmp_path):
    """A folder with the table of expiry and records of three cells."""
    (tmp_path / "expiry.yaml").write_bytes((find_matrix() / "expiry.yaml").read_bytes())
    (tmp_path / "matrix.schema.json").write_bytes((find_matrix() / "matrix.schema.json").read_bytes())
    folder = tmp_path / "records"
    put_record(folder, record(passed=False, expected=Expected.GOOD, symptom="=cmd|'/c calc'"))
    put_record(folder, record(started="2026-11-22T12:00:00+00:00", expected=Expected.GOOD))
    put_record(
        folder,
        record(passed=False, cell=cell(framework="0.8.1"), expected=Expected.BAD, rules=("deepspeed-torch-six",)),
    )
    lacking = Failure(rung=Rung.FRAMEWORK_CPU, symptom="Found no NVIDIA driver", of_host=True)
    put_record(folder, record(passed=False, failure=lacking, cell=cell(framework="0.10.3"), expected=Expected.GOOD))
    return tmp_path


def states_of(root, today=TODAY):
    return cell_states(read_records(root / "records"), load_expiry(root, ["2.15.0", "2.6.0+cu124"]), today)


@pytest.fixture
def document(root):
    builds = {
        "2.15.0+cu132": {"status": "possible", "rules": [], "cell": "x"},
        "2.6.0+cu124": {"status": "possible", "rules": [], "cell": "y"},
    }
    return {
        "schema": 1,
        "generated": "2026-12-01T00:00:00Z",
        "frameworks": [
            {
                "name": "deepspeed",
                "title": "DeepSpeed",
                "short": "ds",
                "releases": [{"version": v, "date": None} for v in ("0.16.4", "0.10.3", "0.8.1")],
            }
        ],
        "stacks": [],
        "torch": [{"version": v, "platform": "linux-64", "index": "default"} for v in builds],
        "cells": [s.to_json() for s in states_of(root)],
        "grid": {
            "deepspeed": {v: dict(builds) for v in ("0.16.4", "0.10.3")}
            | {"0.8.1": {"2.6.0+cu124": {"status": "forbidden", "rules": ["r"], "cell": None}}}
        },
    }


def test_the_table_of_stacks_has_a_row_for_each_cell_with_its_packages(document):
    good, bad = (c for c in document["cells"] if c["status"] in {"proved", "failed"})
    good["components"]["peft"] = bad["components"]["peft"] = "0.17.1"
    document["stacks"] = [{"name": "small", "requires": {"peft": "*"}, "cells": [good["id"], bad["id"]]}]
    text = with_table("<!-- envsmith:matrix stacks -->\n<!-- envsmith:end -->\n", document)
    rows = [line.partition("peft ")[2] for line in text.splitlines() if line.startswith("| small")]
    assert sorted(rows) == [f"0.17.1 | **fails** ({bad['rules'][0]}) |", "0.17.1 | proved |"]


def test_a_stack_that_fails_says_nothing_of_its_framework(document):
    lacking = next(c for c in document["cells"] if c["status"] == "not shown")
    assert "not shown" in markdown_table(document, "deepspeed").partition("proved, fails")[0]
    document["stacks"] = [{"name": "small", "requires": {}, "cells": [lacking["id"]]}]
    assert "not shown" not in markdown_table(document, "deepspeed").partition("proved, fails")[0]


def test_the_newest_record_speaks_for_a_cell_and_the_older_stays_listed(root):
    state = next(s for s in states_of(root) if s.id.startswith("ds0.16.4"))
    assert state.status is Status.PROVED
    assert [r.passed for r in state.records] == [True, False]


def test_what_a_host_lacks_is_no_failure_and_no_disagreement(root):
    entry = next(s for s in states_of(root) if s.id.startswith("ds0.10.3")).to_json()
    assert (entry["status"], entry["agrees"], entry["symptom"]) == ("not shown", None, "Found no NVIDIA driver")


def test_agreement_is_what_the_graph_said_and_the_run_did(root):
    told = {s.id[:8]: s.to_json()["agrees"] for s in states_of(root)}
    assert told["ds0.16.4"] is True
    assert told["ds0.8.1-"] is True


def test_a_stale_cell_counts_less_and_says_so(root):
    entry = next(s for s in states_of(root, dt.date(2030, 1, 1)) if s.id.startswith("ds0.16.4")).to_json()
    assert (entry["stale"], entry["rung"], entry["counts_as"]) == (True, "framework step(cpu)", "locked")


def test_the_csv_has_a_line_a_cell_and_no_formula(root):
    lines = csv_text(
        s.to_json() for s in cell_states(read_records(root / "records")[:1], load_expiry(root, ["2.6.0"]), TODAY)
    )
    assert lines.startswith("id,framework,version,torch,")
    assert not any(part.startswith("=") for part in lines.split(","))


def test_a_cells_file_holds_its_records_and_commands(root, document):
    texts = cell_texts(document, {r.name: r for r in read_records(root / "records")})
    value = json.loads(texts["cells/ds0.16.4-torch2.6.0-cu124-py312.json"])
    assert len(value["records"]) == 2
    assert value["records"][0]["schema"] == 2
    assert (
        value["commands"]["venv"]
        == "envsmith build --framework deepspeed==0.16.4 --torch 2.6.0 --cuda 12.4 --python 3.12 --engine venv"
    )


def test_the_feed_tells_of_a_cell_that_was_mended(root, document):
    text = feed_text(document, read_records(root / "records"), "https://example.org/m/")
    space = {"a": "http://www.w3.org/2005/Atom"}
    feed = ET.fromstring(text)
    titles = [e.text for e in feed.findall("a:entry/a:title", space)]
    assert titles[0] == "ds0.16.4-torch2.6.0-cu124-py312: failed before, proved now (venv)"
    assert len(titles) == 4
    assert len({e.text for e in feed.findall("a:entry/a:id", space)}) == 4
    assert feed.find("a:entry/a:link", space).get("href").startswith("https://example.org/m/cells/")


def test_a_control_character_does_not_break_the_feed(root, document):
    put_record(root / "records", record(passed=False, symptom="\x1b[31mred\x00", cell=cell(framework="0.17.2")))
    ET.fromstring(feed_text(document, read_records(root / "records"), ""))


def test_a_table_goes_between_the_markers_and_nowhere_else(document):
    text = "before\n<!-- envsmith:matrix deepspeed -->\nold\n<!-- envsmith:end -->\nafter\n"
    made = with_table(text, document)
    assert made.startswith("before\n<!-- envsmith:matrix deepspeed -->\n| deepspeed | torch 2.15.0 | torch 2.6.0 |")
    assert made.endswith("<!-- envsmith:end -->\nafter\n")
    assert "| 0.16.4 | possible | proved |" in made
    assert "| 0.8.1 |  | **fails** |" in made
    assert with_table(made, document) == made


def test_a_row_of_a_table_is_a_series_and_names_the_release_that_was_run():
    ran = {"framework": "x", "torch": "2.9.1+cu128"}
    document = {
        "generated": "2026-12-01",
        "grid": {
            "x": {
                "1.2.10": {
                    "2.9.1+cu128": {"status": "possible"},
                    "2.9.0+cu128": {"status": "possible"},
                    "2.8.0+cu128": {},
                },
                "1.2.9": {"2.9.1+cu128": {"status": "possible"}},
                "1.2.8": {},
                "1.1.4": {"2.9.1+cu128": {"status": "possible"}},
            }
        },
        "cells": [
            {**ran, "id": "x1.2.9", "version": "1.2.9", "status": "failed"},
            {**ran, "id": "x1.2.8", "version": "1.2.8", "status": "proved"},
        ],
        "stacks": [],
    }
    table = markdown_table(document, "x").splitlines()
    assert table[:4] == [
        "| x | torch 2.9.1 |",
        "|---|---|",
        "| 1.2.10 | proved (1.2.8) |",
        "| 1.1.4 | possible |",
    ]
    assert document["cells"].pop()
    assert "| 1.2.10 | **fails** (1.2.9) |" in markdown_table(document, "x")


def test_a_file_without_markers_is_refused(document):
    with pytest.raises(UsageError, match="markers"):
        with_table("nothing", document)
    with pytest.raises(UsageError, match="no such framework"):
        markdown_table(document, "flashspeed")


def test_an_export_is_written_whole_and_what_is_gone_is_removed(root, document, tmp_path):
    output = tmp_path / "site"
    write_folder(output, EXPORT, {**export_texts(document, root), "cells/gone.json": "{}"})
    (output / "index.html").write_text("mine")
    (output / "cells" / "foreign.json").write_text("mine")
    texts = export_texts(document, root)
    write_folder(output, EXPORT, texts)
    names = {p.relative_to(output).as_posix() for p in output.rglob("*") if p.is_file()}
    assert names >= {
        "matrix.json",
        "matrix.csv",
        "feed.xml",
        "matrix.schema.json",
        "index.html",
        "cells/foreign.json",
    }
    assert "cells/gone.json" not in names
    assert names == {*texts, MARK, "index.html", "cells/foreign.json"}
    before = {p: p.stat().st_mtime_ns for p in output.rglob("*") if p.is_file()}
    write_folder(output, EXPORT, texts)
    assert before == {p: p.stat().st_mtime_ns for p in output.rglob("*") if p.is_file()}


def test_torch_builds_tell_what_they_run_on():
    known = default_solver().knowledge()
    builds = {(b["version"], b["platform"]): b for b in torch_json(find_matrix(), known)}
    build = builds["2.9.1+cu128", "linux-64"]
    assert build["default"] is True
    assert (build["cuda"], build["nccl"], build["driver"]) == ("12.8", "2.27.5", ">=525.60.13")
    assert "sm_90" in build["gpus"]
    assert "sm_121" in build["gpus"]
    assert "sm_62" not in build["gpus"]
    assert builds["2.9.1+cpu", "linux-64"]["driver"] is None if ("2.9.1+cpu", "linux-64") in builds else True
    h100 = next(g for g in gpus_json(known) if "h100" in g["names"])
    assert h100["gpu"] == "sm_90"


# -- the command line


def test_list_and_show_speak_of_the_records_that_are_there(root, capsys, monkeypatch):
    for name in ("components.yaml", "releases", "rules", "runtime.yaml", "tested"):
        (root / name).symlink_to(find_matrix() / name)
    monkeypatch.setenv("ENVSMITH_MATRIX", str(root))
    assert run(["matrix", "list", "--format", "json", "--status", "proved"]) == 0
    assert [c["id"] for c in json.loads(capsys.readouterr().out)] == ["ds0.16.4-torch2.6.0-cu124-py312"]
    assert run(["matrix", "list", "--framework", "deepspeed<0.9"]) == 0
    out = capsys.readouterr().out
    assert "ds0.8.1" in out
    assert "ds0.16.4" not in out
    assert run(["matrix", "show", "ds0.16.4-torch2.6.0-cu124-py312"]) == 0
    assert "framework step(cpu)" in capsys.readouterr().out
    assert run(["matrix", "show", "ds9.9.9-torch2.6.0-cu124-py312"]) == 1


def test_merge_takes_a_campaigns_records(root, tmp_path, capsys):
    put_record(tmp_path / "campaign" / "records", record(cell=cell(framework="0.17.6")))
    assert run(["matrix", "merge", str(tmp_path / "campaign"), "--matrix", str(root)]) == 0
    assert "ds0.17.6" in capsys.readouterr().out
    assert len(read_records(root / "records")) == 5


def test_merge_leaves_an_installed_package_alone(tmp_path, monkeypatch, capsys):
    """Only a matrix of the user's is written to: one in this folder, or one that is named."""
    packaged = tmp_path / "site-packages" / "envsmith" / "_matrix"
    packaged.mkdir(parents=True)
    import_module("envsmith.cli.merge")  # else they would keep what stands there for this test alone
    import_module("envsmith.cli.refresh")
    monkeypatch.setattr("envsmith.knowledge.graph.location.find_matrix", lambda: packaged)
    monkeypatch.delenv("ENVSMITH_MATRIX", raising=False)
    put_record(tmp_path / "campaign" / "records", record())
    monkeypatch.chdir(tmp_path)
    assert run(["matrix", "merge", "campaign"]) == 2
    said = capsys.readouterr().err
    assert f"cp -r {packaged} matrix" in said
    assert "--matrix" in said
    assert run(["matrix", "refresh", "--offline", "--write"]) == 2
    (tmp_path / "matrix").mkdir()
    (tmp_path / "matrix" / "components.yaml").write_text("")
    assert run(["matrix", "merge", "campaign"]) == 0
    assert "taken into matrix/records" in capsys.readouterr().err
    assert len(read_records(tmp_path / "matrix" / "records")) == 1
    assert list(packaged.iterdir()) == []
