"""A lock as part of a uv or a pixi project: dependencies, exact versions, and what is built beside torch."""

from __future__ import annotations

import dataclasses

import jsonschema
import pytest

from envsmith.base.files import read_toml
from envsmith.errors import DataError, UsageError
from envsmith.model.cell import Cell
from envsmith.model.lock import Artifact, CompiledSource, Lock, Pin
from envsmith.project.uv_and_pixi import difference, manifest_of, merged, with_pixi

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


BARE = Cell(
    components={"deepspeed": "0.19.8", "torch": "2.13.0+cu130", "cuda": "13.0", "python": "3.12"},
    chosen=("deepspeed", "torch", "cuda", "python"),
)
BARE_LOCK = Lock(
    cell=BARE,
    request="",
    exclude_newer="2026-11-21",
    python_version="3.12",
    pins=tuple(
        Pin(name=name, version=version, layer="framework", artifacts=FILE)
        for name, version in (("deepspeed", "0.19.8"), ("torch", "2.13.0"))
    ),
    build_pins=(Pin(name="setuptools", version="80.9.0", layer="build", artifacts=FILE),),
)
# What pixi's manifest may hold, of the tables that are written here: read from schema/schema.json of prefix-dev/pixi at
# 2b25fc76 (2026-08-21). The whole files were validated against that schema on 2026-11-23.
_TEXT = {"type": "string", "minLength": 1}
_SPECS = {"type": "object", "additionalProperties": _TEXT}
_URL = {"type": "object", "required": ["url"], "additionalProperties": False, "properties": {"url": _TEXT}}
SCHEMA = {
    "type": "object",
    "required": ["workspace"],
    "additionalProperties": False,
    "properties": {
        "workspace": {
            "type": "object",
            "required": ["channels"],
            "additionalProperties": False,
            "properties": {
                "name": _TEXT,
                "channels": {"type": "array", "items": _TEXT},
                "platforms": {"type": "array", "items": {"enum": ["linux-64", "linux-aarch64", "osx-arm64"]}},
            },
        },
        "system-requirements": {"type": "object", "additionalProperties": False, "properties": {"libc": _TEXT}},
        "dependencies": _SPECS,
        "pypi-dependencies": {"type": "object", "additionalProperties": {"anyOf": [_TEXT, _URL]}},
        "pypi-options": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"no-build-isolation": {"type": "array", "items": _TEXT}, "dependency-overrides": _SPECS},
        },
    },
}


def _manifest(text="", lock=BARE_LOCK, file="pixi.toml"):
    return read_toml(with_pixi(text, lock, file))


def test_a_new_manifest_has_every_version_of_the_lock():
    manifest = _manifest()

    jsonschema.validate(manifest, SCHEMA)
    assert manifest["dependencies"] == {"python": "3.12.*"}
    assert manifest["pypi-dependencies"] == {"deepspeed": "==0.19.8", "torch": "==2.13.0"}
    assert manifest["workspace"]["platforms"] == ["linux-64"]


def test_a_pyproject_gets_the_tables_of_pixi_and_keeps_the_rest():
    text = '[project]\nname = "x"  # mine\n\n[tool.pixi.workspace]\nchannels = ["mine"]\nplatforms = ["osx-arm64"]\n'
    merged = with_pixi(text, BARE_LOCK, "pyproject.toml")
    pixi = read_toml(merged)["tool"]["pixi"]

    assert merged.startswith('[project]\nname = "x"  # mine\n')
    assert pixi["workspace"] == {"channels": ["mine"], "platforms": ["osx-arm64", "linux-64"]}
    jsonschema.validate(pixi, SCHEMA)


def test_a_second_merge_changes_no_manifest():
    once = with_pixi("", BARE_LOCK, "pixi.toml")

    assert with_pixi(once, BARE_LOCK, "pixi.toml") == once


def test_what_is_compiled_against_torch_is_built_in_the_environment_with_its_build_requirements():
    compiled = dataclasses.replace(BARE_LOCK, compiled=(CompiledSource(name="flash-attn"),))
    manifest = _manifest(lock=compiled)

    jsonschema.validate(manifest, SCHEMA)
    assert manifest["pypi-options"] == {"no-build-isolation": ["flash-attn"]}
    assert manifest["pypi-dependencies"]["setuptools"] == "==80.9.0"


def test_a_ready_wheel_comes_from_its_address():
    pin = Pin(
        name="x", version="1", layer="framework", artifacts=FILE, address="https://host.test/x-1-py3-none-any.whl"
    )
    manifest = _manifest(lock=dataclasses.replace(BARE_LOCK, pins=(*BARE_LOCK.pins, pin)))

    jsonschema.validate(manifest, SCHEMA)
    assert manifest["pypi-dependencies"]["x"] == {"url": "https://host.test/x-1-py3-none-any.whl"}


def test_a_library_in_place_of_torch_s_is_an_override():
    nccl = Pin(name="nvidia-nccl-cu13", version="2.29.2", layer="torch", artifacts=FILE)
    forced = dataclasses.replace(BARE_LOCK, pins=(*BARE_LOCK.pins, nccl), facts={"overrides": "in any words"})

    assert _manifest(lock=forced)["pypi-options"]["dependency-overrides"] == {"nvidia-nccl-cu13": "==2.29.2"}


def test_what_is_not_toml_and_a_build_of_another_index_are_refused():
    with pytest.raises(DataError, match="not valid TOML"):
        with_pixi("[", BARE_LOCK, "pixi.toml")
    with pytest.raises(DataError, match="not a table"):
        with_pixi("dependencies = 1", BARE_LOCK, "pixi.toml")
    with pytest.raises(UsageError, match="PyTorch's own index"):
        with_pixi("", dataclasses.replace(BARE_LOCK, cell=dataclasses.replace(BARE, index="pytorch")), "pixi.toml")


def test_the_file_that_pixi_reads_already_is_the_one_that_changes(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert manifest_of(tmp_path).name == "pixi.toml"
    (tmp_path / "pyproject.toml").write_text("[tool.pixi.workspace]\n")
    assert manifest_of(tmp_path).name == "pyproject.toml"
    (tmp_path / "pixi.toml").write_text("")
    assert manifest_of(tmp_path).name == "pixi.toml"
