"""Real libraries' metadata: findings that a maintainer would agree with, none without evidence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from envsmith.project.ci.check import check_library
from envsmith.project.ci.jobs import make_matrix
from envsmith.project.ci.library import read_library
from envsmith.project.declared import read_metadata

CASES = Path(__file__).parents[3] / "cases" / "ci"
EXPECTED = yaml.safe_load((CASES / "expected.yaml").read_text(encoding="utf-8"))
FILES = sorted((CASES / "metadata").glob("*.METADATA"))


def _library(path: Path):
    text = path.read_text(encoding="utf-8")
    return read_library(path.parent / "nowhere", declaration=read_metadata(text, path.name)), text.splitlines()


def test_every_case_has_its_expectations():
    assert len(FILES) >= 17
    assert {f.name.removesuffix(".METADATA") for f in FILES} == set(EXPECTED)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_findings(path):
    expected = EXPECTED[path.name.removesuffix(".METADATA")]
    library, lines = _library(path)
    found = check_library(library)
    for located in found:
        assert located.finding.evidence, located.finding.rule
        assert located.finding.message
        assert located.file == path.name
        assert 1 <= located.line <= len(lines)
    told = [(f.finding.rule, lines[f.line - 1]) for f in found]
    for rule, text in expected["must"].items():
        assert any(r == rule and text in line for r, line in told), (rule, text, told)
    assert not {r for r, _ in told} & set(expected["never"])


@pytest.mark.parametrize("name", ["trl", "lightning", "colossalai"])
def test_a_matrix_can_be_made_of_them(name):
    library, _ = _library(CASES / "metadata" / f"{name}.METADATA")
    made = make_matrix(library)
    assert made.jobs
    assert len(made.jobs) <= 256
    assert not made.uncovered


def test_a_floor_is_offered_before_a_ceiling_keeps_people_from_what_is_new():
    text = "Metadata-Version: 2.1\nName: mylib\nVersion: 1.0\nRequires-Python: >=3.10\n"
    text += "Requires-Dist: transformers>=4.30\nRequires-Dist: accelerate>=0.20\n"
    library = read_library(CASES / "nowhere", declaration=read_metadata(text, "mylib"))
    fixes = {f.finding.rule: f.finding.fix or "" for f in check_library(library)}
    assert fixes["accelerate-keep-torch-compile"].startswith("declare accelerate>=1.3.0")
    assert fixes["transformers-accelerate-floor"].startswith("declare accelerate>=")
