"""``--keep NAME``: the version of the project's lock, else of the active environment."""

from __future__ import annotations

import pytest

from envsmith.cli.keep import versions_to_keep
from envsmith.errors import UsageError


def test_the_version_to_keep_is_that_of_the_project_s_lock(tmp_path):
    (tmp_path / "uv.lock").write_text(
        'version = 1\nrequires-python = ">=3.11"\n[[package]]\nname = "torch"\nversion = "2.9.1"\n'
    )
    (demand,) = versions_to_keep(["torch"], tmp_path, environ={}).demands
    assert str(demand.requirement) == "torch==2.9.1"
    assert demand.where == f"--keep: {tmp_path}/uv.lock"


def test_the_version_to_keep_is_that_of_the_active_environment(tmp_path):
    info = tmp_path / "lib/python3.11/site-packages/wandb-0.20.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wandb\nVersion: 0.20.1\n")
    (demand,) = versions_to_keep(["wandb"], None, environ={"VIRTUAL_ENV": str(tmp_path)}).demands
    assert str(demand.requirement) == "wandb==0.20.1"


def test_what_is_nowhere_cannot_be_kept(tmp_path):
    with pytest.raises(UsageError, match="Cannot keep torch"):
        versions_to_keep(["torch"], tmp_path, environ={})
