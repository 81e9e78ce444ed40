"""What a cell needs of its image (`matrix/runtime.yaml`): compilers, nvcc, packages, by flavour and CUDA."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from envsmith.errors import DataError, LockError
from envsmith.knowledge.graph.fields import load_table
from envsmith.knowledge.graph.load import components, knowledge
from envsmith.knowledge.graph.runtime import (
    Runtime,
    load_runtime,
    needs_of,
    nvcc_cuda,
    source_for,
    sources_of,
    toolkit_requirements,
)
from envsmith.model.cell import DEVEL, TRAIN, Request
from envsmith.model.lock import BuiltWheel, Compile, GivenArchive, parse_lock
from envsmith.model.rule import Severity
from envsmith.model.version import Spec

RUNTIME = load_runtime()


def test_names_are_those_of_components():
    """A need for a name that no cell can have would never be met."""
    known = set(components().by_name)
    assert {row.component for row in RUNTIME.needs} <= known


def test_a_devel_image_needs_what_a_runtime_image_needs_and_nvcc(locks):
    lock = locks.deepspeed()
    assert needs_of(lock, RUNTIME) == ("c++", "headers")
    assert needs_of(dataclasses.replace(lock, flavour=DEVEL), RUNTIME) == ("c++", "headers", "nvcc")


def test_a_train_image_needs_what_launches_on_several_nodes_and_no_nvcc(locks):
    assert needs_of(dataclasses.replace(locks.deepspeed(), flavour=TRAIN), RUNTIME) == ("c++", "cluster", "headers")
    assert toolkit_requirements(locks.deepspeed().cell, TRAIN) == ()


def test_a_cell_without_cuda_needs_no_nvcc(locks):
    lock = dataclasses.replace(locks.deepspeed(cuda="cpu", torch="2.13.0+cpu"), flavour=DEVEL)
    assert "nvcc" not in needs_of(lock, RUNTIME)
    assert toolkit_requirements(lock.cell, DEVEL) == ()


def test_a_need_may_be_one_of_some_releases_only(locks):
    rows = tuple(dataclasses.replace(row, releases=Spec.parse("<0.19")) for row in RUNTIME.needs)
    old = dataclasses.replace(RUNTIME, needs=rows)
    assert needs_of(locks.deepspeed(), old) == ()
    assert needs_of(locks.deepspeed(deepspeed="0.18.5"), old) == ("c++", "headers")


def test_the_toolkit_is_asked_for_at_the_minor_of_the_cell_s_cuda(locks):
    asked = toolkit_requirements(locks.deepspeed().cell, DEVEL)
    assert "nvidia-cuda-nvcc==13.0.*" in asked
    assert toolkit_requirements(locks.deepspeed().cell, "runtime") == ()


@pytest.mark.parametrize("cuda", ["12.8", "11.8"])
def test_a_toolkit_that_the_index_does_not_have_is_refused_with_a_reason(locks, cuda):
    cell = locks.deepspeed(cuda=cuda, torch="2.9.1+cu128").cell
    with pytest.raises(LockError, match=r"nvcc|no toolkit is known") as caught:
        toolkit_requirements(cell, DEVEL)
    assert any("deepspeed needs nvcc" in line for line in caught.value.details)


def test_every_problem_of_the_file_is_listed_at_once(tmp_path):
    data = {
        "evidence": {"e": {"kind": "measured", "date": "2026-11-21", "source": "s"}},
        "needs": [
            {"component": "x", "flavour": "runtime", "needs": ["fortran"], "why": "w", "evidence": "e"},
            {"component": "x", "flavour": "slim", "needs": [], "why": "w", "evidence": "e"},
            {"component": "x", "flavour": "devel", "needs": []},
            "text",
        ],
        "toolkits": [{"cuda": "13", "home": "../x", "evidence": "e"}, {"cuda": "12", "evidence": "e"}],
    }
    (tmp_path / "runtime.yaml").write_text(json.dumps(data))
    with pytest.raises(DataError) as caught:
        load_table(Runtime, "runtime.yaml", tmp_path)
    assert [re.sub(r"^runtime\.yaml: (\w+\[\d\]).*", r"\1", d) for d in caught.value.details] == [
        f"needs[{n}]" for n in (0, 1, 2, 2, 3)
    ] + [
        "toolkits[0]",
        "toolkits[1]",
    ]


def test_what_is_new_in_a_lock_reads_back_and_leaves_older_locks_alone(locks):
    lock = locks.deepspeed()
    assert not {"flavour", "os_source", "wheels"} & set(lock.to_json())
    wheels = (BuiltWheel(name="deepspeed", filename="deepspeed-0.19.8-py3-none-any.whl", sha256="1" * 64),)
    full = dataclasses.replace(lock, flavour=DEVEL, os_source="snapshot 20260805T000000Z", wheels=wheels)
    back = parse_lock(full.text(), where="x")
    assert (back.flavour, back.os_source, back.wheels) == (full.flavour, full.os_source, full.wheels)
    assert full.name == f"{lock.cell.id}-devel"
    assert lock.name == str(lock.cell.id)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("flavour", "slim"),
        ("os_source", "mirror $(id)"),
        ("wheels", [{"name": "x", "filename": "../x", "sha256": "1" * 64}]),
    ],
)
def test_hostile_values_in_a_lock_are_refused(locks, key, value):
    document = {**locks.deepspeed().to_json(), key: value}
    with pytest.raises(DataError):
        parse_lock(json.dumps(document), where="x")


def test_what_is_compiled_is_told_the_architectures_that_were_asked_for(locks):
    source = source_for("flash-attn")
    assert source.toolkit
    one = dict(source.compiled(locks.deepspeed(gpu="sm_90").cell).variables)
    assert (one["FLASH_ATTN_CUDA_ARCHS"], one["TORCH_CUDA_ARCH_LIST"]) == ("90", "9.0")
    two = dict(source.compiled(locks.deepspeed(gpu="sm_90,sm_100").cell).variables)
    assert (two["FLASH_ATTN_CUDA_ARCHS"], two["TORCH_CUDA_ARCH_LIST"]) == ("90;100", "9.0;10.0")
    # Without any the package's own list holds; no binary is fetched all the same.
    none = dict(source.compiled(locks.deepspeed().cell).variables)
    assert none == {"FLASH_ATTENTION_FORCE_BUILD": "TRUE"}
    assert source_for("numpy") is None


def test_an_optional_source_is_compiled_only_when_the_user_speaks_of_it(locks):
    lock = locks.deepspeed(gpu="sm_90")
    assert sources_of(lock.pins, lock.cell) == ()
    told = Compile(variables={"deepspeed": (("DS_BUILD_FUSED_ADAM", "1"), ("TORCH_CUDA_ARCH_LIST", "8.0"))})
    (source,) = sources_of(lock.pins, lock.cell, told)
    made = source.compiled(lock.cell, told)
    assert (made.name, made.toolkit, made.archive) == ("deepspeed", True, "")
    # The user's word is the last.
    assert dict(made.variables) == {
        "DS_ACCELERATOR": "cuda",
        "DS_BUILD_FUSED_ADAM": "1",
        "DS_ENABLE_NINJA": "1",
        "TORCH_CUDA_ARCH_LIST": "8.0",
    }
    with pytest.raises(LockError, match="the lock compiles nothing called torch"):
        sources_of(lock.pins, lock.cell, Compile(variables={"torch": (("X", "1"),)}))


@pytest.mark.parametrize(
    ("code", "cuda", "toolkit"), [(True, "13.0", True), (False, "13.0", False), (True, "cpu", False)]
)
def test_an_archive_that_nobody_knows_gets_nvcc_for_cuda_code_in_a_cuda_cell(locks, code, cuda, toolkit):
    lock = locks.deepspeed(cuda=cuda, gpu="sm_90")
    pins = (*lock.pins, locks.pin("my-ops", "1.0", "framework", sdist=True))
    archive = GivenArchive(
        name="my-ops", version="1.0", address="https://host.example/a.tar.gz", sha256="0" * 64, size=1, cuda=code
    )
    told = Compile(archives=(archive,))
    (source,) = sources_of(pins, lock.cell, told)
    made = source.compiled(lock.cell, told)
    assert (made.toolkit, made.archive) == (toolkit, archive.address)
    assert dict(made.variables) == ({"TORCH_CUDA_ARCH_LIST": "9.0"} if toolkit else {})


def test_a_lock_with_compiled_sources_is_read_back(locks):
    source = source_for("transformer-engine-torch").compiled(locks.deepspeed(gpu="sm_90").cell)
    lock = dataclasses.replace(locks.deepspeed(), compiled=(source,))
    assert parse_lock(lock.text(), where="lock.json").compiled == (source,)
    given = dataclasses.replace(lock, compiled=(dataclasses.replace(source, archive="https://host.example/te.tar.gz"),))
    assert parse_lock(given.text(), where="lock.json").compiled == given.compiled
    with pytest.raises(DataError, match="compiled"):
        parse_lock(given.text().replace("https://host", "https://user@host"), where="lock.json")
    for broken in ('"NVTE_CUDA_ARCHS": "90$(id)"', '"nvte": "90"'):
        with pytest.raises(DataError, match="compiled"):
            parse_lock(lock.text().replace('"NVTE_CUDA_ARCHS": "90"', broken), where="lock.json")


def test_rows_of_sources_are_read_strictly(tmp_path):
    evidence = {"e": {"kind": "measured", "date": "2026-11-21", "source": "s"}}
    rows = [
        {"distribution": "x y", "toolkit": True, "requires": [], "evidence": "e"},
        {"distribution": "apex", "toolkit": "yes", "requires": [], "evidence": "e"},
        {"distribution": "apex", "toolkit": True, "requires": ["=="], "evidence": "e"},
        {"distribution": "apex", "toolkit": True, "requires": [], "variables": {"A": "$(id)"}, "evidence": "e"},
        {"distribution": "apex", "toolkit": True, "requires": []},
    ]
    (tmp_path / "runtime.yaml").write_text(
        json.dumps({"evidence": evidence, "needs": [], "toolkits": [], "sources": rows})
    )
    with pytest.raises(DataError) as caught:
        load_table(Runtime, "runtime.yaml", tmp_path)
    assert [re.sub(r"^runtime\.yaml: (\w+\[\d\]).*", r"\1", d) for d in caught.value.details] == [
        f"sources[{n}]" for n in range(5)
    ]


def test_what_is_compiled_is_a_rule_of_the_version_graph_for_what_is_to_be_locked():
    rules = {rule.id: rule for rule in knowledge().rules if rule.locking}

    (nvcc, *_), (unreadable, *_), (compiled, *_) = (
        rules[f"flash-attn-{what}-none"].rows for what in ("nvcc", "unreadable", "compiled")
    )

    assert {c: s.text for c, s in nvcc.needs.items()} == {"cuda": "==13.*"}
    assert "no nvcc for CUDA 12" in nvcc.cause
    assert set(nvcc.when) == {"flash-attn"}
    assert unreadable.when["flash-attn"].contains("2.7.3")
    assert not unreadable.when["flash-attn"].contains("2.7.4.post1")
    assert compiled.severity is Severity.NOTE
    assert "minutes on 64 cores" in compiled.cause
    assert {"apex-nvcc", "transformer-engine-nvcc", "deepspeed-unreadable"} <= set(rules)
    assert "deepspeed-nvcc" not in rules  # compiled beforehand only when the user says so


def test_a_devel_image_is_asked_for_with_a_cuda_whose_nvcc_the_index_has():
    asked = Request(frameworks=["deepspeed"])
    cuda, reason = nvcc_cuda(asked, DEVEL)

    assert cuda.contains("13.0")
    assert not any(cuda.contains(version) for version in ("12.8", "cpu"))
    assert "no nvcc for CUDA 12" in reason
    assert nvcc_cuda(asked, "runtime") is None
    assert nvcc_cuda(dataclasses.replace(asked, constraints={"cuda": "cpu"}), DEVEL) is None
