"""The compiled knowledge survives the cache unchanged, and a stale, broken or hostile cache is no error."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from envsmith.errors import DataError
from envsmith.files import cache_folder, read_cache, write_cache
from envsmith.graph import load
from envsmith.graph.files import find_matrix, list_files
from envsmith.graph.load import knowledge_from_json, knowledge_to_json
from envsmith.graph.network import load as network_load
from envsmith.graph.read import read_knowledge
from envsmith.solve.problem import Compiled, compile_knowledge


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(load, "_READ", {})


def test_knowledge_survives_the_cache_unchanged(matrix):
    knowledge = read_knowledge(matrix.root)
    assert knowledge_from_json(json.loads(json.dumps(knowledge_to_json(knowledge)))) == knowledge


def test_compiled_form_survives_the_cache_unchanged(matrix):
    compiled = compile_knowledge(read_knowledge(matrix.root))
    assert Compiled.from_json(json.loads(json.dumps(compiled.to_json()))) == compiled


def test_second_reading_comes_from_the_cache(matrix, monkeypatch):
    files = list_files(matrix.root)
    first = load.knowledge_of(files)
    monkeypatch.setattr(load, "_READ", {})
    monkeypatch.setattr("envsmith.graph.read.read_knowledge", lambda root: pytest.fail("read again"))
    assert load.knowledge_of(files) == first


def test_changed_file_is_read_again(matrix):
    first = load.knowledge_of(list_files(matrix.root))
    matrix.change("rules/alpha.yaml", "it is old", "it is quite old")
    assert load.knowledge_of(list_files(matrix.root)).digest != first.digest


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema": 1}', '{"schema": 1, "key": "KEY", "value": {"rules": 7}}', "\x80\x04}q."]
)
def test_broken_or_hostile_cache_is_ignored(matrix, monkeypatch, text):
    files = list_files(matrix.root)
    first = load.knowledge_of(files)
    (path,) = cache_folder().glob("knowledge-*.json")
    path.write_text(text.replace("KEY", files.stamp()), encoding="utf-8")
    monkeypatch.setattr(load, "_READ", {})
    assert load.knowledge_of(files) == first


def test_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch, matrix):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load.knowledge_of(list_files(matrix.root)).rules
    assert read_cache("knowledge", list_files(matrix.root).stamp()) is None


def test_cache_folder_follows_xdg_and_falls_back_to_home(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/path")
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(cache_folder()) == "/home/someone/.cache/envsmith"


def test_old_cache_files_are_removed():
    for number in range(20):
        write_cache("compiled", f"{number:064d}"[::-1], {})
    assert len(list(cache_folder().glob("compiled-*.json"))) <= 13
    assert not list(cache_folder().glob(".new-*"))


def test_variable_names_another_matrix(matrix, monkeypatch):
    monkeypatch.setenv("ENVSMITH_MATRIX", str(matrix.root))
    assert find_matrix() == matrix.root
    monkeypatch.setenv("ENVSMITH_MATRIX", str(matrix.root / "nowhere"))
    with pytest.raises(DataError, match="ENVSMITH_MATRIX"):
        find_matrix()


def test_graph_holds_components_releases_and_rules_with_evidence(matrix):
    graph = network_load(matrix.root)
    assert graph.nodes["torch"]["kind"] == "component"
    assert graph.nodes["torch", "2.1.0+cu118"]["index"] == "default"
    edges = {d["rule"]: d for _, _, d in graph.out_edges(("torch", "2.1.0+cu118"), data=True) if "rule" in d}
    assert edges["torch-bundles-nccl"]["spec"] == "==2.18.1"
    assert edges["torch-bundles-nccl"]["evidence"][0].source == "the notes"
    three = ("rule", "alpha-old#0")
    assert set(graph.successors(three)) == {"alpha", "torch", "gcc"}


def test_solving_imports_neither_networkx_nor_yaml(matrix, tmp_path):
    code = "import sys, envsmith; envsmith.solve(envsmith.Request(frameworks={'alpha': envsmith.Spec.parse('*')})); print('networkx' in sys.modules, 'yaml' in sys.modules)"
    matrix.change("releases/torch.yaml", 'cuda: "12.1", evidence', 'cuda: "12.1", python: ["3.10"], evidence')
    environment = os.environ | {"ENVSMITH_MATRIX": str(matrix.root)}
    python = matrix.root / "releases/python.yaml"
    python.write_text(
        'component: python\nevidence: {g: {kind: documented, source: g, date: 2026-01-01}}\nreleases:\n- {version: "3.10", evidence: g}\n'
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[1].split() == ["False", "False"]
