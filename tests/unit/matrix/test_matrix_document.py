"""The document over the real knowledge: judging every framework with every torch takes seconds, so it is made once."""

import datetime as dt
import json

import pytest
from click.testing import CliRunner

from envsmith.cli.app import cli
from envsmith.frameworks import beside_core
from envsmith.knowledge.graph.location import find_matrix
from envsmith.matrix import document as module
from envsmith.matrix import grid
from envsmith.matrix.grid import default_builds, grid_json
from envsmith.model.cell import Request
from envsmith.model.version import Spec
from envsmith.solver import default_solver

MOMENT = dt.datetime(2026, 11, 21, 12, tzinfo=dt.timezone.utc)


@pytest.fixture(scope="module")
def document():
    solver = default_solver()
    full = module.grid_json

    def some(solver, **how):
        """The newest two releases of each framework are enough for the shape."""
        kept = grid.stable
        grid.stable = lambda releases: (
            kept(releases)[:2] if releases and releases[0].component != "torch" else kept(releases)
        )
        try:
            return full(solver, **how)
        finally:
            grid.stable = kept

    module.grid_json = some
    try:
        return module.document(find_matrix(), solver, moment=MOMENT)
    finally:
        module.grid_json = grid_json


def test_the_document_is_what_its_schema_says(document):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((find_matrix() / "matrix.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(json.loads(json.dumps(document))))
    assert [f"{list(e.path)}: {e.message[:200]}" for e in errors] == []


def test_the_schema_refuses_what_is_something_else(document):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((find_matrix() / "matrix.schema.json").read_text())
    broken = {**document, "cells": [{**document["cells"][0], "status": "splendid"}]}
    assert not jsonschema.Draft202012Validator(schema).is_valid(broken)


def test_every_rule_that_forbids_is_told(document):
    named = {
        r for row in document["grid"].values() for cells in row.values() for e in cells.values() for r in e["rules"]
    }
    assert named
    assert named <= document["rules"].keys()


def test_the_grid_knows_what_colossal_ai_declares(document):
    entry = document["grid"]["colossalai"]["0.5.0"]["2.9.1+cu128"]
    assert entry["status"] == "forbidden"
    assert "colossalai-declares-torch" in entry["rules"]


def test_a_pair_is_judged_as_if_it_were_the_only_one(document):
    solver, different = default_solver(), []
    for framework, rows in document["grid"].items():
        for version, row in rows.items():
            for build in list(row)[::4]:
                wishes = {beside_core(framework): Spec.exactly(version), "torch": Spec.exactly(build)}
                posed = solver.pose(Request(constraints=wishes))
                stuck, answer = solver.stuck(posed.problem), solver.best(posed)
                rules = sorted({group.rule for group in stuck.groups}) if stuck else []
                if (rules, str(answer.cell.id) if answer else None) != (row[build]["rules"], row[build]["cell"]):
                    different.append((framework, version, build))
    assert different == []


def test_stdout_is_json_whatever_a_rule_is_called(document, monkeypatch):
    assert any(rule.endswith("-token") for rule in document["rules"])
    monkeypatch.setattr("envsmith.cli.matrix._document", lambda _folder: document)
    result = CliRunner().invoke(cli, ["matrix", "export"], catch_exceptions=False)
    assert json.loads(result.stdout)["rules"].keys() == document["rules"].keys()


def test_the_default_builds_are_one_a_release():
    builds = default_builds(default_solver().knowledge())
    assert builds[0].startswith("2.15")
    releases = [b.partition("+")[0] for b in builds]
    assert len(releases) == len(set(releases))
    assert not any(b.endswith("+cpu") for b in builds)


def test_the_same_moment_gives_the_same_bytes(document):
    assert document["generated"] == "2026-11-21T12:00:00Z"
    assert json.dumps(document) == json.dumps(json.loads(json.dumps(document)))
