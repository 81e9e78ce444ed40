"""`envsmith init` and `envsmith ci` as a maintainer types them: files written, formats, limits, exit codes."""

from __future__ import annotations

import dataclasses
import json
from xml.etree import ElementTree as ET

import pytest
import yaml

from envsmith.cli.app import run

PYPROJECT = '[project]\nname = "mylib"\nversion = "1.0.0"\nrequires-python = ">=3.8"\ndependencies = [\n  "torch>=2.6,<2.12",\n  "deepspeed>=0.16",\n  "numpy>=1.26",\n]\n'


@pytest.fixture
def root(tmp_path):
    (tmp_path / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
    return tmp_path


def test_init_writes_what_the_reader_accepts(root, capsys):
    assert run(["init", str(root)]) == 0
    assert run(["ci", "check", str(root), "--format", "json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out[out.index("{") :])["library"] == "mylib"
    assert run(["init", str(root)]) == 2
    assert run(["init", str(root), "--force"]) == 0


def test_the_schema_accepts_what_init_writes_and_knows_every_key(root, capsys):
    jsonschema = pytest.importorskip("jsonschema")
    from envsmith.project.ci.library import Config

    assert run(["ci", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["properties"]) == {field.name for field in dataclasses.fields(Config)}
    run(["init", str(root)])
    jsonschema.validate(yaml.safe_load((root / "envsmith.yaml").read_text(encoding="utf-8")), schema)
    for bad in ({"axes": ["pyton"]}, {"limit": 0}, {"frob": 1}, {"runners": {"tpu": "x"}}, {"axes": ["gpu"]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


def test_every_format_of_the_matrix(root, capsys):
    assert run(["ci", "matrix", str(root), "--format", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    jobs = made["jobs"]
    assert made["uncovered"] == []
    assert {j["torch"] for j in jobs} & {"2.11.0", "2.6.0"} == {"2.11.0", "2.6.0"}
    assert not any(j["torch"].startswith(("2.12", "2.13", "2.5")) for j in jobs)
    assert run(["ci", "matrix", str(root), "--format", "gitlab"]) == 0
    listed = yaml.safe_load(capsys.readouterr().out)["parallel"]["matrix"]
    assert [e["ENVSMITH_ID"] for e in listed] == [j["id"] for j in jobs]
    assert run(["ci", "matrix", str(root), "--format", "nox"]) == 0
    text = capsys.readouterr().out
    module: dict[str, object] = {}
    exec(
        text.replace("import nox\n", "").replace("nox.param", "dict_of"),
        {"dict_of": lambda *a, **more: (more["id"], a)},
        module,
    )
    assert [c[0] for c in module["CELLS"]] == [j["id"] for j in jobs]
    assert run(["ci", "matrix", str(root)]) == 0


def test_newest_and_oldest_are_there_and_failures_are_expected(root, capsys):
    run(["ci", "matrix", str(root), "--format", "json"])
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    good = [j for j in jobs if j["expect"] == "pass"]
    torches = {j["torch"] for j in good}
    assert "2.11.0" in torches
    assert "2.6.0" in torches
    for job in jobs:
        assert (job["expect"] == "fail") == bool(job.get("rule"))


def test_a_limit_is_kept_and_what_it_leaves_out_is_told(root, capsys):
    (root / "envsmith.yaml").write_text("limit: 6\nknown_bad: 1\n", encoding="utf-8")
    assert run(["ci", "matrix", str(root), "--format", "json"]) == 0
    captured = capsys.readouterr()
    made = json.loads(captured.out)
    assert len(made["jobs"]) <= 6
    assert made["uncovered"]
    assert "left out by the limit" in captured.err


def test_findings_as_junit_and_exit_codes(root, capsys):
    assert run(["ci", "check", str(root), "--format", "junit"]) == 0
    suite = ET.fromstring(capsys.readouterr().out.split("\n", 1)[1])
    assert int(suite.get("tests")) == len(suite.findall("testcase"))
    assert run(["ci", "check", str(root), "--fail-on", "warning"]) == 1


def test_ranges_without_a_cell_are_an_error_with_a_repair(root, capsys):
    (root / "pyproject.toml").write_text(
        PYPROJECT.replace("torch>=2.6,<2.12", "torch<2.0").replace("deepspeed>=0.16", "colossalai>=0.5"),
        encoding="utf-8",
    )
    assert run(["ci", "check", str(root), "--format", "json"]) == 1
    (finding,) = [f for f in json.loads(capsys.readouterr().out)["findings"] if f["rule"] == "ci-no-cell"]
    assert finding["fix"]
    assert finding["evidence"]
    assert run(["ci", "matrix", str(root)]) == 1


@pytest.mark.parametrize("name", ["GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"])
def test_outside_of_a_runner_its_files_are_missed_with_a_hint(root, monkeypatch, capsys, name):
    monkeypatch.delenv(name, raising=False)
    verb = (
        ["ci", "matrix", str(root), "--github-output"]
        if name == "GITHUB_OUTPUT"
        else ["ci", "check", str(root), "--summary"]
    )
    assert run(verb) == 2
    assert name in capsys.readouterr().err


def test_each_verb_is_listed_with_its_own_sentence(capsys):
    assert run(["ci", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "check Do the declared ranges" in said
    assert "matrix Jobs that hold" in said
    assert "run Run one job" in said


def test_a_folder_where_the_configuration_belongs_is_told(root, capsys):
    (root / "envsmith.yaml").mkdir()
    assert run(["ci", "check", str(root)]) == 3
    assert "envsmith.yaml: it is a folder" in capsys.readouterr().err
