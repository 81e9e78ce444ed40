"""The document over the real knowledge: judging every framework with every torch takes seconds, so it is made once."""

import datetime as dt
import json

import pytest

from envsmith.knowledge.graph.location import find_matrix
from envsmith.matrix import document as module
from envsmith.matrix import grid
from envsmith.matrix.grid import default_builds, grid_json
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


def test_the_default_builds_are_one_a_release():
    builds = default_builds(default_solver().knowledge())
    assert builds[0].startswith("2.15")
    releases = [b.partition("+")[0] for b in builds]
    assert len(releases) == len(set(releases))
    assert not any(b.endswith("+cpu") for b in builds)


def test_the_same_moment_gives_the_same_bytes(document):
    assert document["generated"] == "2026-11-21T12:00:00Z"
    assert json.dumps(document) == json.dumps(json.loads(json.dumps(document)))
