"""A refresh measures which torch a compiled wheel links with, and writes it as a rule."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from envsmith.knowledge.graph.load import knowledge
from envsmith.knowledge.symbols.elf import Binary
from envsmith.knowledge.symbols.table import SymbolTable
from envsmith.matrix.refresh.linking import build_exports, update_linking, with_builds
from envsmith.matrix.refresh.shared import RefreshRun


@pytest.fixture
def table(tmp_path):
    exports = []
    for version, symbols in (("2.0.0+cu117", ["torch_old"]), ("2.1.0+cu121", ["torch_old", "torch_new"])):
        build = {"version": version, "platform": "linux-64", "file": "f", "sha256": "0" * 64, "date": "2026-12-03"}
        exports.append(build_exports(build, ["torch/lib/libc10.so"], [Binary("x86_64", exports=frozenset(symbols))]))
    (tmp_path / "torch.bin").write_bytes(with_builds(None, exports))
    return SymbolTable(tmp_path)


@pytest.fixture
def publish(world, tmp_path, make_wheel):
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on this machine")

    def publish_(version, symbol, needed=None):
        library, source = tmp_path / "_C.so", tmp_path / "c.c"
        linked = []
        if needed:
            (tmp_path / "empty.c").write_text("")
            linked = ["-Wl,--no-as-needed", tmp_path / needed]
            soname = f"-Wl,-soname,{needed}"
            command = ["gcc", "-shared", soname, "-o", tmp_path / needed, tmp_path / "empty.c"]
            subprocess.run(command, check=True, timeout=60)
        source.write_text(f"extern int {symbol}(void); int run(void) {{ return {symbol}(); }}")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, *linked], check=True, timeout=60)
        name = f"torchao-{version}-cp39-abi3-manylinux_2_28_x86_64.whl"
        world.publish("torchao", name, make_wheel({"torchao/_C.abi3.so": library.read_bytes()}), "2026-12-01")

    return publish_


@pytest.fixture
def context(index, tmp_path):
    return RefreshRun(index=index, components=None, today="2026-12-03", cache=tmp_path)


def records(*versions, torch="*"):
    return {"torchao": [{"version": version, "requires": {"torch": torch}} for version in versions]}


def test_releases_that_link_with_the_same_torch_share_a_row(publish, table, context):
    publish("0.1.0", "torch_old")
    publish("0.2.0", "torch_new")
    publish("0.3.0", "torch_new")

    text, summary = update_linking(None, records("0.1.0", "0.2.0", "0.3.0"), table, context)

    assert '# any: torchao: "==0.1.0"' in text
    assert '{when: {torchao: "==0.2.0 || ==0.3.0", platform: linux-64}, needs: {torch: ">=2.1.0"}}' in text
    assert "torchao 0.2.0: links with torch >=2.1.0" in summary


def test_a_library_of_another_cuda_does_not_count(publish, table, context):
    publish("0.1.0", "torch_new", needed="libcudart.so.12")

    text, _ = update_linking(None, records("0.1.0"), table, context)

    assert 'needs: {torch: ">=2.1.0"}' in text


def test_what_was_measured_is_not_read_again(publish, table, context, world):
    publish("0.2.0", "torch_new")
    publish("0.3.0", "torch_of_a_nightly")
    text, _ = update_linking(None, records("0.2.0", "0.3.0"), table, context)
    world.asked.clear()

    assert '# none: torchao: "==0.3.0"' in text
    assert update_linking(text, records("0.2.0", "0.3.0"), table, context) == (text, [])
    assert not [address for address in world.asked if address.endswith(".whl")]


def test_a_release_whose_metadata_pins_torch_is_not_measured(publish, table, context, world):
    publish("0.2.0", "torch_new")

    assert update_linking(None, records("0.2.0", torch="==2.1.0"), table, context) == (None, [])
    assert not [address for address in world.asked if address.endswith(".whl")]


def test_another_component_keeps_its_rows(publish, table, context):
    publish("0.2.0", "torch_new")
    text, _ = update_linking(None, records("0.2.0"), table, context)
    before = text.replace("torchao", "tensordict")

    text, _ = update_linking(before, records("0.2.0"), table, context)

    assert "id: torchao-links-torch" in text
    assert "id: tensordict-links-torch" in text


@pytest.mark.parametrize(
    ("component", "release", "torch"),
    [("torchao", "0.12.0", "==2.8.0"), ("torchao", "0.18.0", ">=2.11.0"), ("xformers", "0.0.35", ">=2.10.0")],
)
def test_the_committed_rule_names_the_torch_of_every_measured_release(component, release, torch):
    rule = next(r for r in knowledge().rules if r.id == f"{component}-links-torch")
    needs = {
        release: row.needs["torch"].text for row in rule.rows for release in row.when[component].text.split(" || ")
    }
    assert needs[f"=={release}"] == torch
    assert {entry.kind.value for row in rule.rows for entry in row.evidence} == {"measured"}
