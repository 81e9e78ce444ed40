"""A lock as part of a uv project: dependencies, constraints, and what is built beside torch."""

from __future__ import annotations

import dataclasses

import pytest

from envsmith.errors import DataError, UsageError
from envsmith.files import read_toml
from envsmith.model.cell import Cell
from envsmith.model.lock import Artifact, CompiledSource, Lock, Pin
from envsmith.project.uv_project import difference, merged

FILE = (Artifact(filename="x-1-py3-none-any.whl", sha256="a" * 64),)
CELL = Cell(
    components={"deepspeed": "0.19.8", "torch": "2.13.0+cu130", "cuda": "13.0", "python": "3.12"},
    chosen=("deepspeed", "torch", "cuda", "python"),
    further=("wandb>=0.15",),
)
LOCK = Lock(
    cell=CELL,
    request="",
    exclude_newer="2026-11-21",
    python_version="3.12",
    pins=tuple(
        Pin(name=name, version=version, layer="framework", artifacts=FILE)
        for name, version in (("deepspeed", "0.19.8"), ("torch", "2.13.0"), ("wandb", "0.31.0"))
    ),
)
PROJECT = '[project]\nname = "x"  # mine\ndependencies = ["torch>=2.4"]\n\n[tool.ruff]\nline-length = 99\n'


def test_versions_become_constraints_and_only_what_is_missing_a_dependency():
    document = read_toml(merged(PROJECT, LOCK))
    assert document["project"]["dependencies"] == ["torch>=2.4", "deepspeed==0.19.8", "wandb>=0.15"]
    uv = document["tool"]["uv"]
    assert uv["constraint-dependencies"] == ["deepspeed==0.19.8", "torch==2.13.0", "wandb==0.31.0"]
    assert uv["environments"] == [
        "sys_platform == 'linux' and platform_machine == 'x86_64' and python_version == '3.12'"
    ]


def test_what_is_not_uv_s_stays_as_it_is():
    text = merged(PROJECT, LOCK)
    assert 'name = "x"  # mine\n' in text
    assert "[tool.ruff]\nline-length = 99\n" in text


def test_a_second_merge_changes_nothing():
    once = merged(PROJECT, LOCK)
    assert merged(once, LOCK) == once
    assert difference(once, once, "pyproject.toml") == ""


def test_what_is_compiled_against_torch_is_built_beside_it():
    compiled = dataclasses.replace(LOCK, compiled=(CompiledSource(name="flash-attn"),))
    uv = read_toml(merged(PROJECT, compiled))["tool"]["uv"]
    assert uv["extra-build-dependencies"] == {"flash-attn": ["torch==2.13.0"]}


def test_a_build_that_only_pytorch_s_own_index_has_is_refused():
    elsewhere = dataclasses.replace(LOCK, cell=dataclasses.replace(CELL, index="pytorch"))
    with pytest.raises(UsageError, match="PyTorch's own index only"):
        merged(PROJECT, elsewhere)


@pytest.mark.parametrize("text", ["[project", "[tool.poetry]\n"])
def test_what_is_not_a_project_is_refused(text):
    with pytest.raises(DataError, match=r"pyproject\.toml"):
        merged(text, LOCK)
