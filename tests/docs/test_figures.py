"""The figures of the docs are those of the benches, and the pages show them."""

from __future__ import annotations

import datetime as dt
import importlib.util
import re
from pathlib import Path

import pytest

from envsmith.cli.app import run
from envsmith.smoke.plan import Plan

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("figures", ROOT / "tools" / "figures.py")
figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(figures)


@pytest.mark.slow
@pytest.mark.parametrize("count", figures.COUNTS, ids=lambda count: count.__name__)
def test_figures_that_a_bench_counts_are_those_of_the_file(count):
    counted = count()
    assert counted == {name: figures.read()[name]["result"] for name in counted}, "run tools/figures.py"


def test_figures_badges_names_and_counts_are_those_of_benches_records_and_registries():
    assert figures.differences() == [], "run tools/figures.py --show"


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("README.md", "Lightning, Ray Train", "Lightning"),
        ("action.yml", ", Horovod and PyTorch", " and Horovod"),
        ("docs/terms.md", "`ray`, ", ""),
        ("docs/terms.md", "the eight frameworks", "the five frameworks"),
        ("docs/how-to/wheels.md", "The 60 default builds", "The 59 default builds"),
    ],
)
def test_a_name_that_is_missing_and_a_count_that_is_old_are_put_right(file, old, new, monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    for path in {path for path, *_ in (*figures._NAMED, *figures._COUNTED)}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text(encoding="utf-8"), encoding="utf-8")
    text = (ROOT / file).read_text(encoding="utf-8")
    stale = " ".join(text.split()).replace(old, new) if file == "README.md" else text.replace(old, new)
    assert stale.count(new)
    (tmp_path / file).write_text(stale, encoding="utf-8")

    assert old in figures.names()[tmp_path / file]


def test_every_command_of_a_figure_names_files_that_exist():
    for name, figure in figures.read().items():
        for path in re.findall(r"(?:bench|tools|tests)/[\w./-]+", figure["command"]):
            assert (ROOT / path).exists(), f"{name}: {path}"


@pytest.mark.slow
def test_the_tables_of_proved_environments_are_those_of_the_records(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    # As of the day that the page names: what a record says expires.
    day = dt.date.fromisoformat(re.search(r"\. (\d{4}-\d\d-\d\d)\.$", page, re.MULTILINE)[1])
    noon = dt.datetime.combine(day, dt.time(12), dt.timezone.utc)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(noon.timestamp())))
    (tmp_path / "tables.md").write_text(page, encoding="utf-8")
    assert run(["matrix", "export", "--markdown", str(tmp_path / "tables.md")]) == 0
    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == page, (
        "run envsmith matrix export --markdown docs/tables.md"
    )


@pytest.mark.parametrize(
    ("page", "tier", "ranks", "text"),
    [
        ("explanation/smoke.md", "quick", 4, "{} cases: every operation"),
        ("explanation/smoke.md", "full", 4, "{} cases: dtype"),
        ("how-to/nodes.md", "full", 2, "{} cases for two ranks"),
    ],
)
def test_numbers_of_cases_are_those_of_the_plan(page, tier, ranks, text):
    plan = Plan.build({"torch": "2.15.0"}, tier=tier, ranks=ranks, backend="gloo")
    assert text.format(f"{len(plan.cases):,}") in (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_the_readme_is_one_screen_of_words():
    text = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(re.findall(r"\w[\w.+-]*", text)) <= 900
