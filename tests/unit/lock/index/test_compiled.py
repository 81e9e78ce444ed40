"""Compiled files of a wheel, remote and local, and whether they link with a build of torch."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import zipfile

import pytest

from envsmith.errors import ContentError, NetworkError
from envsmith.knowledge.symbols.elf import Binary
from envsmith.knowledge.symbols.table import SymbolTable
from envsmith.lock.index.compiled import measure, read_needs
from envsmith.matrix.refresh.linking import build_exports, with_builds
from envsmith.model.cell import Platform
from envsmith.model.wheel import ReadyWheel, WheelTarget

NAME = "demo-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
URL = f"https://index.test/{NAME}"
SOURCE = "extern void _ZN2at1aEv(void); void go(void) { _ZN2at1aEv(); }"
ADDRESS = "https://host.test/d/ext-1.0-cp311-cp311-linux_x86_64.whl"
WHEEL = ReadyWheel(
    distribution="ext",
    version="1.0",
    address=ADDRESS,
    sha256="a" * 64,
    publisher="its/project",
    official=True,
    evidence=(),
)


@pytest.fixture
def wheel(tmp_path, make_wheel):
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on this machine")
    source, library = tmp_path / "demo.c", tmp_path / "_C.so"
    source.write_text("extern int torch_second(void); int run(void) { return torch_second(); }")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    return make_wheel({"demo/_C.so": library.read_bytes(), "demo/text.so": b"not one", "demo/a.py": b""})


def test_a_wheel_on_the_index_and_the_same_file_here_are_read_alike(tmp_path, fetcher, wheel):
    fetcher.files[URL] = wheel
    (tmp_path / NAME).write_bytes(wheel)
    digest = hashlib.sha256(wheel).hexdigest()

    remote = read_needs(f"{URL}#sha256={digest}", fetcher)
    local = read_needs(str(tmp_path / NAME), fetcher)

    assert remote == local
    assert remote.sha256 == digest
    assert remote.symbols == {"torch_second"}
    assert [member.name for member in remote.members] == ["demo/_C.so"]


def test_a_file_that_is_not_there_is_refused(tmp_path, fetcher):
    with pytest.raises(ContentError, match=r"^Cannot read .*missing\.whl"):
        read_needs(str(tmp_path / "missing.whl"), fetcher)


def target(torch: str) -> WheelTarget:
    return WheelTarget(python="3.11", torch=torch, cuda="12.8", platform=Platform.LINUX_64)


@pytest.fixture
def table(tmp_path):
    """Torch 2.8.0 exports what the wheel needs, 2.9.0 does not."""
    builds = []
    for version, symbols in (("2.8.0+cu128", ["_ZN2at1aEv"]), ("2.9.0+cu128", ["_ZN2at1bEv"])):
        facts = {"version": version, "platform": "linux-64", "file": "f", "sha256": "0", "date": "2026-11-22"}
        builds.append(build_exports(facts, ("libc10.so",), [Binary("x86_64", exports=frozenset(symbols))]))
    (tmp_path / "torch.bin").write_bytes(with_builds(None, builds))
    return SymbolTable(tmp_path)


@pytest.fixture
def served(fetcher, tmp_path):
    """The wheel at its address, with a library that needs one symbol of torch."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler is here")
    path = tmp_path / "ext.so"
    (tmp_path / "ext.c").write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", str(tmp_path / "ext.c"), "-o", str(path)], check=True, timeout=60)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ext/ext.so", path.read_bytes())
        archive.writestr("ext-1.0.dist-info/METADATA", "Name: ext\nVersion: 1.0\n")
    fetcher.files[ADDRESS] = buffer.getvalue()
    return fetcher


def test_a_wheel_whose_symbols_the_torch_exports_links(served, table):
    link = measure(WHEEL, target("2.8.0+cu128"), served, table)

    assert str(link) == "links with torch 2.8.0+cu128: measured"


def test_a_symbol_that_the_torch_lacks_is_named(served, table):
    link = measure(WHEEL, target("2.9.0+cu128"), served, table)

    assert (link.verdict, link.missing) == ("fails", "_ZN2at1aEv")
    assert "lacks _ZN2at1aEv: measured" in str(link)


def test_a_torch_that_was_not_measured_is_unknown(served, table):
    link = measure(WHEEL, target("2.15.0+cu132"), served, table)

    assert link.verdict == "unknown"
    assert str(link) == "torch 2.15.0+cu132 was not measured"


def test_a_wheel_that_cannot_be_reached_is_a_network_error(fetcher, table):
    with pytest.raises(NetworkError):
        measure(WHEEL, target("2.8.0+cu128"), fetcher, table)
