"""The table of symbols: questions, growth by a build, and files that are not one."""

from __future__ import annotations

import pytest
import yaml

from envsmith.errors import DataError
from envsmith.knowledge.graph.location import find_matrix
from envsmith.knowledge.symbols.elf import Binary
from envsmith.knowledge.symbols.symbols_file import Stored
from envsmith.knowledge.symbols.table import SymbolTable, spec_of
from envsmith.matrix.refresh.linking import build_exports, with_builds

OLD, NEW, BOTH = "_ZN2at3oldEv", "_ZN2at3newEv", "_ZN2at4bothEv"


def exports(version, symbols, platform="linux-64", libraries=("libc10.so",)):
    build = {
        "version": version,
        "platform": platform,
        "file": f"torch-{version}.whl",
        "sha256": version,
        "date": "2026-11-22",
    }
    return build_exports(
        build, [f"torch/lib/{name}" for name in libraries], [Binary("x86_64", exports=frozenset(symbols))]
    )


@pytest.fixture
def folder(tmp_path):
    builds = [
        exports("2.0.0+cu117", [OLD, BOTH]),
        exports("2.1.0+cu121", [NEW, BOTH]),
        exports("2.2.0+cu121", [NEW, BOTH]),
    ]
    (tmp_path / "torch.bin").write_bytes(with_builds(None, builds))
    return tmp_path


def test_a_symbol_says_which_builds_have_it(folder):
    builds = SymbolTable(folder).builds_exporting(NEW)
    assert [b.version for b in builds.present] == ["2.1.0+cu121", "2.2.0+cu121"]
    assert [b.version for b in builds.absent] == ["2.0.0+cu117"]
    assert builds.spec() == ">=2.1.0"


def test_a_symbol_of_torch_that_no_build_exports_is_absent_everywhere_and_one_of_others_is_not_judged(folder):
    assert SymbolTable(folder).builds_exporting("_ZN2at7nowhereEv").spec() == ""
    assert SymbolTable(folder).builds_exporting("PyObject_Call") is None


def test_what_each_build_lacks_of_many_symbols_is_listed(folder):
    lacking = {b.version: symbols for b, symbols in SymbolTable(folder).missing([NEW, OLD, BOTH, "cudaMalloc"]).items()}
    assert lacking == {"2.0.0+cu117": [NEW], "2.1.0+cu121": [OLD], "2.2.0+cu121": [OLD]}


def test_a_build_that_is_added_leaves_the_others_as_they_were(folder):
    data = with_builds(Stored((folder / "torch.bin").read_bytes()), [exports("2.0.1+cu117", [OLD])])
    (folder / "torch.bin").write_bytes(data)
    table = SymbolTable(folder)
    assert [b.version for b in table.builds] == ["2.0.0+cu117", "2.0.1+cu117", "2.1.0+cu121", "2.2.0+cu121"]
    assert table.builds_exporting(OLD).spec() == "<=2.0.1"
    assert table.builds_exporting(BOTH).spec() == "<=2.0.0 || >=2.1.0"


def test_a_build_that_is_read_again_is_replaced(folder):
    before = (folder / "torch.bin").read_bytes()
    changed = with_builds(Stored(before), [exports("2.2.0+cu121", [OLD])])
    assert with_builds(Stored(changed), [exports("2.2.0+cu121", [NEW, BOTH])]) == before


def test_the_default_build_answers_for_a_release_and_another_build_does_not(folder):
    table = SymbolTable(folder)
    assert table.find("2.1.0", "linux-64").version == "2.1.0+cu121"
    assert table.find("2.1.0+cu118", "linux-64") is None
    assert table.find("2.1.0", "linux-aarch64") is None
    assert table.nearest("2.1.0+cu118", "linux-64").version == "2.1.0+cu121"


@pytest.mark.parametrize(
    ("present", "absent", "spec"),
    [
        (["2.0", "2.1"], ["2.2"], "<=2.1"),
        (["2.1"], ["2.0", "2.2"], "==2.1"),
        (["2.0", "2.2"], ["2.1"], "<=2.0 || >=2.2"),
        (["2.9", "2.10"], ["2.8"], ">=2.9"),
        (["2.0"], [], "*"),
        ([], ["2.0"], ""),
        (["2.0", "2.1"], ["2.1", "2.2"], "<=2.0"),
    ],
)
def test_releases_become_a_spec(present, absent, spec):
    assert spec_of(present, absent) == spec


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d + b"x", lambda _: b"", lambda d: b"x" + d[1:]])
def test_a_file_that_is_not_whole_is_refused(folder, damage):
    path = folder / "torch.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match="Cannot read"):
        _ = SymbolTable(folder).builds


# The committed table, on what reports and measurements by hand said.


def test_the_symbol_of_the_old_string_is_in_no_build_after_the_change_of_the_interface():
    builds = SymbolTable(find_matrix() / "symbols").builds_exporting("_ZN3c105ErrorC2ENS_14SourceLocationESs")
    assert builds.of("linux-64").spec() == "<=2.6.0"
    assert builds.of("linux-aarch64").spec() == "<=2.5.1"


def test_every_default_build_that_the_matrix_lists_was_measured():
    listed = {
        (line["version"], line["platform"], line["sha256"])
        for line in yaml.safe_load((find_matrix() / "releases" / "torch.yaml").read_text())["builds"]
        if line.get("index") == "default"
    }
    assert listed == {(b.version, b.platform, b.sha256) for b in SymbolTable(find_matrix() / "symbols").builds}
