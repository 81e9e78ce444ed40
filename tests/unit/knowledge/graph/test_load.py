"""The version graph survives the cache unchanged, and a stale, damaged or hostile cache is not an error."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys

import pytest

from envsmith.base.cache import cache_folder, store_entry
from envsmith.errors import DataError
from envsmith.knowledge.graph import load, tables
from envsmith.knowledge.graph.load import version_graph
from envsmith.knowledge.graph.location import find_matrix, list_files
from envsmith.knowledge.graph.read import read_knowledge


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    forget()


def forget():
    load.GRAPH.forget()
    load.TEXTS.forget()


@pytest.fixture
def kept(matrix, monkeypatch):
    """The graph, read from its files once, and its files in the cache by kind of table."""
    graph = version_graph(list_files(matrix.root))
    paths = {path.name.partition("-")[0]: path for path in cache_folder().iterdir()}
    forget()
    return graph, paths


def test_second_reading_comes_from_the_cache_and_is_equal(matrix, kept, monkeypatch):
    monkeypatch.setattr("envsmith.knowledge.graph.read.read_knowledge", lambda root: pytest.fail("read again"))
    again = version_graph(list_files(matrix.root))
    assert again.compiled == kept[0].compiled
    assert again.rule("alpha-old") == kept[0].rule("alpha-old")
    assert again.knowledge() == read_knowledge(matrix.root)


def test_texts_are_those_of_the_graph_though_a_file_has_changed_since(matrix, kept):
    again = version_graph(list_files(matrix.root))

    matrix.change("rules/alpha.yaml", "it is old", "it is quite old")

    assert again.knowledge() == kept[0].knowledge()


def test_texts_of_another_state_are_not_taken_for_those_of_the_graph(matrix, kept):
    again = version_graph(list_files(matrix.root))
    kept[1]["texts"].unlink()

    matrix.change("rules/alpha.yaml", "it is old", "it is quite old")

    with pytest.raises(DataError, match="its files changed meanwhile"):
        again.rule("alpha-old")


def test_changed_file_is_read_again(matrix, kept):
    matrix.change("rules/alpha.yaml", "it is old", "it is quite old")
    assert version_graph(list_files(matrix.root)).compiled.digest != kept[0].compiled.digest


def test_what_is_asked_together_is_answered_from_one_state_of_the_files(matrix, monkeypatch):
    monkeypatch.setenv("ENVSMITH_MATRIX", str(matrix.root))
    with tables.one_state():
        before = version_graph().compiled.digest
        matrix.change("rules/alpha.yaml", "it is old", "it is quite old")

        assert version_graph().compiled.digest == before
    assert version_graph().compiled.digest != before


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize("kind", ["graph", "texts"])
@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
        lambda content: content[:-7],
        lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
    ],
    ids=["empty", "cut", "a bit flipped"],
)
def test_damaged_cache_is_made_again(matrix, kept, change, kind):
    graph, paths = kept
    paths[kind].write_bytes(change(paths[kind].read_bytes()))
    again = version_graph(list_files(matrix.root))
    assert (again.compiled, again.knowledge()) == (graph.compiled, graph.knowledge())


@pytest.mark.parametrize("table", [load.GRAPH, load.TEXTS], ids=["graph", "texts"])
@pytest.mark.parametrize("content", [pickle.dumps(Evil()), b"[]", b"{}\n", b"[{},[],[],[0]]\n", b""])
def test_foreign_content_runs_no_code_and_is_made_again(matrix, kept, monkeypatch, tmp_path, content, table):
    graph, paths = kept
    monkeypatch.chdir(tmp_path)
    files = list_files(matrix.root)
    store_entry(paths[table.kind], table.key(files.stamp()), content)
    again = version_graph(files)
    assert (again.compiled, again.knowledge()) == (graph.compiled, graph.knowledge())
    assert not (tmp_path / "evil").exists()


def test_tables_of_the_wheel_are_taken_where_their_files_are_as_they_were(matrix, monkeypatch, tmp_path):
    files = list_files(matrix.root)
    graph = version_graph(files)
    (tmp_path / "brought").mkdir()
    for table in (load.GRAPH, load.TEXTS):
        (tmp_path / "brought" / table.kind).write_bytes(table.entry(files))
    monkeypatch.setattr(tables, "BROUGHT", tmp_path / "brought")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    copy = list_files(shutil.copytree(matrix.root, tmp_path / "installed"))
    with monkeypatch.context() as during:
        during.setattr("envsmith.knowledge.graph.read.read_knowledge", lambda root: pytest.fail("read again"))
        installed = version_graph(copy).knowledge()
    (tmp_path / "installed/rules/alpha.yaml").write_text((matrix.root / "rules/alpha.yaml").read_text() + "\n")

    changed = version_graph(copy)

    assert installed == graph.knowledge()
    assert changed.compiled.digest != graph.compiled.digest


def test_tables_of_a_wheel_are_the_same_bytes_wherever_they_are_made(matrix, tmp_path):
    first = load.GRAPH.entry(list_files(matrix.root))
    copy = shutil.copytree(matrix.root, tmp_path / "elsewhere")

    assert load.GRAPH.entry(list_files(copy)) == first


def test_the_whole_compiled_graph_of_another_matrix_is_not_taken_for_this_one(matrix, kept, monkeypatch):
    graph, paths = kept
    content = {kind: path.read_bytes() for kind, path in paths.items()}
    matrix.change("rules/alpha.yaml", "it is old", "it is quite old")
    changed = version_graph(list_files(matrix.root)).knowledge()
    others = [path for path in cache_folder().iterdir() if path not in paths.values()]
    forget()

    for other in others:
        other.write_bytes(content[other.name.partition("-")[0]])

    assert version_graph(list_files(matrix.root)).knowledge() == changed != graph.knowledge()


def test_an_edit_that_puts_size_and_time_back_is_read(matrix, kept):
    path = matrix.root / "rules/alpha.yaml"
    status = path.stat()
    path.write_text(path.read_text().replace("it is old", "it is odd"))

    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert version_graph(list_files(matrix.root)).rule("alpha-old").cause == "it is odd"


def test_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch, matrix):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert version_graph(list_files(matrix.root)).knowledge().rules


def test_variable_names_another_matrix(matrix, monkeypatch):
    monkeypatch.setenv("ENVSMITH_MATRIX", str(matrix.root))
    assert find_matrix() == matrix.root
    monkeypatch.setenv("ENVSMITH_MATRIX", str(matrix.root / "nowhere"))
    with pytest.raises(DataError, match="ENVSMITH_MATRIX"):
        find_matrix()


def test_warm_solve_imports_no_library_of_the_cold_one(matrix):
    code = (
        "import sys, envsmith; envsmith.solve(envsmith.Request(frameworks={'alpha': envsmith.Spec.parse('*')}));"
        "print([name for name in ('networkx', 'yaml', 'pydantic', 'envsmith.knowledge.graph.read') if name in sys.modules])"
    )
    matrix.change("releases/torch.yaml", 'cuda: "12.1", evidence', 'cuda: "12.1", python: ["3.10"], evidence')
    matrix.write(
        "releases/python.yaml",
        "component: python\nevidence: {g: {kind: documented, source: g, date: 2026-01-01}}\n"
        'releases:\n- {version: "3.10", evidence: g}\n',
    )
    environment = os.environ | {"ENVSMITH_MATRIX": str(matrix.root)}
    cold, warm = (
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert "yaml" in cold
    assert "networkx" not in cold
    assert warm.strip() == "[]"
