"""A lock as a pixi project: exact versions, the platform, what is built beside torch."""

from __future__ import annotations

import dataclasses

import jsonschema
import pytest

from envsmith.errors import DataError, UsageError
from envsmith.files import read_toml
from envsmith.model.cell import Cell
from envsmith.model.lock import Artifact, CompiledSource, Lock, Pin
from envsmith.project.pixi_project import manifest_of, with_pixi

FILE = (Artifact(filename="x-1-py3-none-any.whl", sha256="a" * 64),)
CELL = Cell(
    components={"deepspeed": "0.19.8", "torch": "2.13.0+cu130", "cuda": "13.0", "python": "3.12"},
    chosen=("deepspeed", "torch", "cuda", "python"),
)
LOCK = Lock(
    cell=CELL,
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


def _manifest(text="", lock=LOCK, file="pixi.toml"):
    return read_toml(with_pixi(text, lock, file))


def test_a_new_manifest_has_every_version_of_the_lock():
    manifest = _manifest()

    jsonschema.validate(manifest, SCHEMA)
    assert manifest["dependencies"] == {"python": "3.12.*"}
    assert manifest["pypi-dependencies"] == {"deepspeed": "==0.19.8", "torch": "==2.13.0"}
    assert manifest["workspace"]["platforms"] == ["linux-64"]


def test_a_pyproject_gets_the_tables_of_pixi_and_keeps_the_rest():
    text = '[project]\nname = "x"  # mine\n\n[tool.pixi.workspace]\nchannels = ["mine"]\nplatforms = ["osx-arm64"]\n'
    merged = with_pixi(text, LOCK, "pyproject.toml")
    pixi = read_toml(merged)["tool"]["pixi"]

    assert merged.startswith('[project]\nname = "x"  # mine\n')
    assert pixi["workspace"] == {"channels": ["mine"], "platforms": ["osx-arm64", "linux-64"]}
    jsonschema.validate(pixi, SCHEMA)


def test_a_second_merge_changes_nothing():
    once = with_pixi("", LOCK, "pixi.toml")

    assert with_pixi(once, LOCK, "pixi.toml") == once


def test_what_is_compiled_against_torch_is_built_in_the_environment_with_its_build_requirements():
    compiled = dataclasses.replace(LOCK, compiled=(CompiledSource(name="flash-attn"),))
    manifest = _manifest(lock=compiled)

    jsonschema.validate(manifest, SCHEMA)
    assert manifest["pypi-options"] == {"no-build-isolation": ["flash-attn"]}
    assert manifest["pypi-dependencies"]["setuptools"] == "==80.9.0"


def test_a_ready_wheel_comes_from_its_address():
    pin = Pin(
        name="x", version="1", layer="framework", artifacts=FILE, address="https://host.test/x-1-py3-none-any.whl"
    )
    manifest = _manifest(lock=dataclasses.replace(LOCK, pins=(*LOCK.pins, pin)))

    jsonschema.validate(manifest, SCHEMA)
    assert manifest["pypi-dependencies"]["x"] == {"url": "https://host.test/x-1-py3-none-any.whl"}


def test_a_library_in_place_of_torch_s_is_an_override():
    forced = dataclasses.replace(LOCK, facts={"overrides": "nvidia-nccl-cu13==2.29.2 in place of 2.28.9"})

    assert _manifest(lock=forced)["pypi-options"]["dependency-overrides"] == {"nvidia-nccl-cu13": "==2.29.2"}


def test_what_is_not_toml_and_a_build_of_another_index_are_refused():
    with pytest.raises(DataError, match="not valid TOML"):
        with_pixi("[", LOCK, "pixi.toml")
    with pytest.raises(DataError, match="not a table"):
        with_pixi("dependencies = 1", LOCK, "pixi.toml")
    with pytest.raises(UsageError, match="PyTorch's own index"):
        with_pixi("", dataclasses.replace(LOCK, cell=dataclasses.replace(CELL, index="pytorch")), "pixi.toml")


def test_the_file_that_pixi_reads_already_is_the_one_that_changes(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert manifest_of(tmp_path).name == "pixi.toml"
    (tmp_path / "pyproject.toml").write_text("[tool.pixi.workspace]\n")
    assert manifest_of(tmp_path).name == "pyproject.toml"
    (tmp_path / "pixi.toml").write_text("")
    assert manifest_of(tmp_path).name == "pixi.toml"
