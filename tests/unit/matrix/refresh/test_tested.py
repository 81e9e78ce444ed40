"""What a clone of a framework says was tested."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from envsmith.errors import DataError, UsageError
from envsmith.frameworks.colossalai import compatibility_rows, cuda_ext_rows
from envsmith.frameworks.megatron_core import uv_lock_rows
from envsmith.knowledge.graph.read import read_knowledge
from envsmith.matrix.refresh.updates import apply

RELEASES = """component: colossalai
evidence:
  index: {kind: declared, source: "list", date: 2026-01-01}
releases:
- {version: "0.5.0", requires: {torch: ">=2.2.0,<=2.5.1"}, evidence: index}
- {version: "0.6.0", requires: {torch: ">=2.6.0"}, evidence: index}
"""
TESTED = """# A comment that stays.
framework: colossalai
evidence:
  v0_5_0_compatibility: {kind: documented, source: "hpcaitech/ColossalAI .compatibility @v0.5.0 (abc)", date: 2026-01-01}
tested:
- {version: "0.5.0",  torch: "2.5.1", cuda: "12.4", kind: ci, evidence: v0_5_0_compatibility}
"""


def _git(folder, *words):
    settings = [
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "tag.gpgsign=false",
    ]
    subprocess.run(["git", "-C", str(folder), *settings, *words], check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "clone"
    folder.mkdir()
    _git(folder, "init", "-q")
    for tag, compatibility in (
        ("v0.5.0", "2.3.0-12.1.0\n2.5.1-12.4.1\n"),
        ("v0.6.0", "2.5.1-12.4.1\n2.6.0-12.6.3\nrubbish\n"),
        ("v9.9.9", "2.9.0-13.0\n"),
    ):
        (folder / ".compatibility").write_text(compatibility)
        _git(folder, "add", ".compatibility")
        _git(folder, "commit", "-q", "-m", tag)
        _git(folder, "tag", tag)
    _git(folder, "tag", "nightly")
    return folder


@pytest.fixture
def tested(knowledge):
    (knowledge / "releases/colossalai.yaml").write_text(RELEASES)
    (knowledge / "tested").mkdir()
    path = knowledge / "tested/colossalai.yaml"
    path.write_text(TESTED)
    return path


def test_tags_of_a_clone_add_what_the_table_does_not_say(plan, clone, tested, world, knowledge):
    found = plan(checkouts={"colossalai": clone})
    apply(found.changes)
    rows = yaml.safe_load(tested.read_text())["tested"]
    assert [(r["version"], r["torch"], r["cuda"], r["evidence"]) for r in rows] == [
        ("0.5.0", "2.3.0", "12.1", "v0_5_0_compatibility"),
        ("0.5.0", "2.5.1", "12.4", "v0_5_0_compatibility"),
        ("0.6.0", "2.6.0", "12.6", "v0_6_0_compatibility"),
    ]
    assert set(TESTED.splitlines()) <= set(tested.read_text().splitlines())
    assert world.asked == [], "with checkouts alone the index is not asked"
    assert {t.torch.text for t in read_knowledge(knowledge).tested} == {"2.3.0", "2.5.1", "2.6.0"}


def test_a_second_reading_of_the_clone_finds_nothing(plan, clone, tested):
    apply(plan(checkouts={"colossalai": clone}).changes)
    assert plan(checkouts={"colossalai": clone}).changes == ()


def test_evidence_names_file_tag_and_commit(plan, clone, tested):
    apply(plan(checkouts={"colossalai": clone}).changes)
    commit = subprocess.run(
        ["git", "-C", clone, "rev-parse", "--short=12", "v0.6.0"], check=True, capture_output=True, text=True
    ).stdout.strip()
    entry = yaml.safe_load(tested.read_text())["evidence"]["v0_6_0_compatibility"]
    assert entry["source"] == f"hpcaitech/ColossalAI .compatibility @v0.6.0 ({commit})"
    assert str(entry["date"]) == "2026-12-03"


def test_a_folder_that_is_no_clone_is_a_usage_error(plan, tested, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="not a git repository"):
        plan(checkouts={"colossalai": tmp_path / "empty"})


def test_a_clone_without_tags_is_told(plan, tested, tmp_path):
    (tmp_path / "bare").mkdir()
    _git(tmp_path / "bare", "init", "-q")
    with pytest.raises(DataError, match="no tag"):
        plan(checkouts={"colossalai": tmp_path / "bare"})


def test_a_framework_that_nothing_is_read_from_is_a_usage_error(plan, tmp_path):
    with pytest.raises(UsageError, match="nothing is read"):
        plan(checkouts={"deepspeed": tmp_path})


@pytest.mark.parametrize(
    "text", ["", "\0", "[]", "{", '{"build": 3}', '{"build": [3, {}, {"torch_command": 1}]}', "[" * 10_000]
)
def test_files_that_are_not_understood_give_no_rows(text):
    assert cuda_ext_rows(text) == compatibility_rows(text) == uv_lock_rows(text) == []


def test_the_three_kinds_of_files_give_their_rows():
    command = "pip install torch==2.5.1 torchvision==0.20.1 --index-url https://example.org/cu124"
    assert cuda_ext_rows(f'{{"build": [{{"torch_command": "{command}", "cuda_image": "x/cuda-conda:12.4"}}]}}') == [
        {"torch": "2.5.1", "cuda": "12.4", "kind": "build"}
    ]
    assert compatibility_rows("2.5.1-12.4.1\n") == [{"torch": "2.5.1", "cuda": "12.4", "kind": "ci"}]
    assert uv_lock_rows('name = "torch"\nversion = "2.11.0"\n\nname = "torch"\nversion = "2.9.0a0"\n') == [
        {"torch": "2.11.0", "kind": "lock"}
    ]
