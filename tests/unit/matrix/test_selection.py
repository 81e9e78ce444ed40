"""The campaign that follows frameworks: which cell, on which day, and that what is proved is left alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from packaging.version import Version

from envsmith.frameworks import FRAMEWORKS
from envsmith.knowledge.graph.load import knowledge
from envsmith.knowledge.graph.location import find_matrix, list_files
from envsmith.matrix.campaign.composer import Composer
from envsmith.matrix.campaign.newest import plan_newest, unproved
from envsmith.solver import default_solver, solver_of

_COMPOSER = Composer(default_solver(), pythons=("3.10", "3.11", "3.12"))


@pytest.mark.parametrize("name", ["accelerate", "lightning", "ray", "deepspeed", "torch"])
def test_the_cell_of_a_followed_framework_has_its_newest_release(name: str) -> None:
    plan = plan_newest([name], _COMPOSER, last_day="2026-11-22", tier="quick")
    releases = {r.version.partition("+")[0] for r in default_solver().knowledge().releases[name] if not r.yanked}
    newest = max((v for v in releases if not Version(v).is_prerelease), key=Version)
    (job,) = plan.jobs
    assert job.cell.components[name].partition("+")[0] == newest


def test_packages_are_seen_as_of_the_day_on_which_the_newest_release_came() -> None:
    plan = plan_newest(["accelerate"], _COMPOSER, last_day="2020-01-01", tier="quick")
    assert plan.exclude_newer > "2020-01-01"
    later = plan_newest(["accelerate"], _COMPOSER, last_day="2100-01-01", tier="quick")
    assert later.exclude_newer == "2100-01-01"


def test_a_cell_that_is_proved_is_not_run_again() -> None:
    plan = plan_newest(["accelerate", "ray"], _COMPOSER, last_day="2026-11-22", tier="quick")
    first, second = plan.jobs
    assert unproved(plan, {first.id}) == (second,)
    assert unproved(plan, {first.id, second.id}) == ()


def test_a_new_cell_gives_a_plan_of_another_name_so_that_a_folder_of_runs_begins_anew() -> None:
    names = {plan_newest([name], _COMPOSER, last_day="2026-11-22", tier="quick").name for name in FRAMEWORKS}
    assert len(names) == len(FRAMEWORKS)


def test_the_newest_release_is_taken_though_an_older_one_has_more_proofs(tmp_path: Path) -> None:
    matrix = tmp_path / "matrix"
    shutil.copytree(find_matrix(), matrix, ignore=shutil.ignore_patterns("names", "symbols", "lightning2.6.6*"))
    composer = Composer(solver_of(knowledge(list_files(matrix))), pythons=("3.11", "3.12"))
    (job,) = plan_newest(["lightning"], composer, last_day="2026-11-22", tier="quick").jobs
    assert job.cell.components["lightning"] == "2.6.6"
