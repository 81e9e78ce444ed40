"""Bake file, dev container and Apptainer definition of a lock; hostile values are refused."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess

import pytest

from envsmith.builder.image.companions import apptainer, bake, companions, devcontainer
from envsmith.builder.image.dockerfile import image_files
from envsmith.errors import UsageError
from envsmith.model.lock import CompiledSource

# Keys of the dev container specification's base and image schemas that we use or may use.
DEVCONTAINER_KEYS = {
    "name", "image", "containerUser", "remoteUser", "updateRemoteUserUID", "runArgs", "customizations", "hostRequirements",
}  # fmt: skip
BAKE_KEYS = {"context", "dockerfile", "platforms", "tags", "args", "secret", "output"}


def test_a_bake_file_has_a_target_for_every_cell_and_builds_all_by_default(locks):
    document = json.loads(bake({"one": locks.deepspeed(), "two": locks.megatron()}))
    assert set(document) == {"variable", "group", "target"}
    assert document["group"]["default"]["targets"] == sorted(document["target"])
    for name, target in document["target"].items():
        assert re.fullmatch(r"[a-zA-Z0-9_-]+", name)
        assert set(target) == BAKE_KEYS
        assert target["tags"][0].startswith("envsmith/cell:")
    assert {t["context"] for t in document["target"].values()} == {"one", "two"}


def test_the_secrets_of_a_bake_file_are_files_that_variables_name(locks):
    document = json.loads(bake({"one": locks.deepspeed()}))
    (target,) = document["target"].values()
    assert document["variable"] == {f"ENVSMITH_SECRET_{name}": {"default": ""} for name in ("CA", "UV", "NETRC")}
    assert 'ENVSMITH_SECRET_CA != "" ? ["id=ca,src=${ENVSMITH_SECRET_CA}"] : []' in target["secret"]
    assert "env=" not in target["secret"]


def test_a_dev_container_runs_the_cell_s_image_as_its_user(locks):
    document = json.loads(devcontainer(locks.deepspeed()))
    assert set(document) <= DEVCONTAINER_KEYS
    assert document["image"] == f"envsmith/cell:{locks.deepspeed().cell.id}"
    assert document["remoteUser"] == "cell"
    assert document["hostRequirements"] == {"gpu": "optional"}
    assert "hostRequirements" not in json.loads(devcontainer(locks.deepspeed(cuda="cpu", torch="2.13.0+cpu")))


def test_an_apptainer_definition_on_a_registry_s_base_installs_the_lock_by_itself(locks):
    lock = locks.deepspeed()

    text = apptainer(lock)

    header = [line for line in text.splitlines() if line and not line.startswith("#")][:2]
    assert header == ["Bootstrap: docker", f"From: python@{lock.base.digest}"]
    assert re.findall(r"^%(\w+)", text, re.MULTILINE) == ["files", "post", "labels", "environment", "runscript", "test"]
    section = text.split("%files\n")[1].split("\n%")[0]
    copied = set(re.findall(r"^    (\S+) /cell/", section, re.MULTILINE))
    assert copied - {"steps"} <= {*image_files(lock)}
    assert "requirements.txt" in copied
    assert text.count("--require-hashes") == 2


def test_an_apptainer_definition_of_what_is_compiled_takes_the_layout_and_keeps_the_host_s_packages_out(locks):
    text = apptainer(dataclasses.replace(locks.deepspeed(), compiled=(CompiledSource(name="apex"),)))
    header = [line for line in text.splitlines() if line and not line.startswith("#")][:2]
    assert header == ["Bootstrap: oci", "From: ./oci"]
    assert re.findall(r"^%(\w+)", text, re.MULTILINE) == ["labels", "environment", "runscript", "test"]
    assert "PYTHONNOUSERSITE=1" in text


@pytest.mark.skipif(not shutil.which("sh"), reason="no shell")
def test_the_sections_of_the_definition_are_valid_shell(locks):
    text = apptainer(locks.deepspeed())
    for section in ("post", "environment", "runscript", "test"):
        body = text.split(f"%{section}\n")[1].split("\n%")[0]
        subprocess.run(["sh", "-n"], input=body, text=True, check=True)


@pytest.mark.parametrize("render", [apptainer, devcontainer, lambda lock: bake({".": lock})])
@pytest.mark.parametrize("version", ['1.0"; id', "1.0\n%post\n    id", "$(id)", "1.0 x"])
def test_hostile_values_are_refused(locks, render, version):
    lock = locks.deepspeed()
    cell = dataclasses.replace(lock.cell, components={**lock.cell.components, "deepspeed": version})
    with pytest.raises((UsageError, ValueError)):
        render(dataclasses.replace(lock, cell=cell))


def test_a_folder_that_leads_elsewhere_is_refused(locks):
    with pytest.raises(UsageError):
        bake({"../elsewhere": locks.deepspeed()})


def test_a_lock_without_a_base_has_none(locks):
    assert companions(dataclasses.replace(locks.deepspeed(), base=None)) == {}
