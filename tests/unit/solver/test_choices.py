"""The golden cases in tests/golden/choices: what an experienced person would choose, and whether `solve` agrees."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from envsmith.cli.solve import solve
from envsmith.model.version import Spec

FOLDER = Path(__file__).parents[2] / "golden" / "choices"
CASES = [case for path in sorted(FOLDER.glob("*.yaml")) for case in yaml.safe_load(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["ask"]) for case in CASES])
def test_the_choice_is_one_that_an_experienced_person_would_make(case):
    result = CliRunner().invoke(solve, [*shlex.split(case["ask"]), "--json"], standalone_mode=False)

    answer = json.loads(result.stdout)
    assert answer["status"] == "solved", answer
    releases = answer["cell"]["components"]
    misfits = {name: releases.get(name) for name, spec in case["take"].items() if not _admits(spec, releases.get(name))}
    assert not misfits, f"{answer['cell']['id']}: {case['because']}"
    assert answer["cell"].get("index", "default") == case.get("index", answer["cell"].get("index", "default")), case[
        "because"
    ]


def test_there_are_forty_cases_and_more_each_with_its_reason():
    assert len(CASES) >= 40
    assert all(case["because"] and case["take"] for case in CASES)
    assert len({case["ask"] for case in CASES}) == len(CASES)


def _admits(spec, version):
    return version is not None and Spec.parse(spec).contains(version)
