"""A refresh measures what a new build of torch exports, once."""

from __future__ import annotations

import io
import shutil
import subprocess
import zipfile

import pytest

from envsmith.errors import DataError
from envsmith.knowledge.symbols.table import SymbolTable
from envsmith.matrix.refresh.updates import apply

SYMBOL = "_ZN3c105firstEv"


@pytest.fixture
def torch_with(tmp_path, make_torch_wheel):
    """Return a wheel of torch whose libc10.so exports one symbol."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on this machine")

    def build(symbol):
        library, source = tmp_path / "libc10.so", tmp_path / "c10.c"
        source.write_text(f"int {symbol}(void) {{ return 1; }}")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
        wheel = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(make_torch_wheel())) as old, zipfile.ZipFile(wheel, "w") as new:
            for name in old.namelist():
                new.writestr(name, library.read_bytes() if name.endswith("/libc10.so") else old.read(name))
        return wheel.getvalue()

    return build


@pytest.fixture
def refreshed(knowledge, plan, world, torch_with):
    (knowledge / "symbols").mkdir()
    world.pages["torch"] = [e for e in world.pages["torch"] if "-2.16.0-" not in e["filename"]]
    world.publish("torch", "torch-2.16.0-cp311-cp311-manylinux_2_28_x86_64.whl", torch_with(SYMBOL), "2026-12-02")
    changes = plan("torch").changes
    apply(changes)
    return changes


def test_a_new_build_is_in_the_table_with_its_symbols(refreshed, knowledge):
    builds = SymbolTable(knowledge / "symbols").builds_exporting(SYMBOL)
    assert [b.version for b in builds.present] == ["2.16.0+cu134"]
    assert any("2.16.0+cu134 (linux-64): 1 symbols" in line for change in refreshed for line in change.summary)
    assert any("torch.bin differ" in change.diff(root=knowledge) for change in refreshed)


def test_a_second_run_reads_no_library_again(refreshed, plan, world):
    world.asked.clear()
    assert plan("torch").changes == ()
    assert not [address for address in world.asked if address.endswith(".whl")]


def test_a_wheel_that_was_exchanged_takes_the_place_of_the_old_one(refreshed, knowledge, plan, world, torch_with):
    world.pages["torch"] = [e for e in world.pages["torch"] if "-2.16.0-" not in e["filename"]]
    body = torch_with("_ZN3c106secondEv")
    world.publish("torch", "torch-2.16.0-1-cp311-cp311-manylinux_2_28_x86_64.whl", body, "2026-12-05")

    apply(plan("torch").changes)

    table = SymbolTable(knowledge / "symbols")
    assert [b.version for b in table.builds_exporting("_ZN3c106secondEv").present] == ["2.16.0+cu134"]
    assert table.builds_exporting(SYMBOL).present == ()


def test_a_table_that_changed_in_the_meantime_is_not_overwritten(knowledge, plan, world, torch_with, refreshed):
    world.pages["torch"] = [e for e in world.pages["torch"] if "-2.16.0-" not in e["filename"]]
    world.publish(
        "torch", "torch-2.16.0-1-cp311-cp311-manylinux_2_28_x86_64.whl", torch_with("_ZN2at1xEv"), "2026-12-05"
    )
    changes = [c for c in plan("torch").changes if c.path.name == "torch.bin"]
    path = knowledge / "symbols" / "torch.bin"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(DataError, match="was changed while the refresh ran"):
        apply(changes)
