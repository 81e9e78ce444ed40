"""The compiled files of a published release beside a stated torch."""

from __future__ import annotations

import io
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from release_index import Ranges

from envsmith.lock.index.index import IndexFile
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.project.published.compiled import CompiledRelease

# torch exports it from 2.8 on.
_NEW = "_ZNK3c107SymBool14guard_or_falseEPKcl"
_WHEEL = "nobody_knows-1.2-cp312-cp312-manylinux_2_28_x86_64.whl"


def release(
    folder: Path, libraries: dict[str, str], *, large: str = "", linked: tuple[str, ...] = ()
) -> CompiledRelease:
    """Return a release whose libraries call one function each, ``""`` for none.

    ``large`` is one of more bytes than are read, to which those after it are ``linked``.
    """
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on this machine")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, symbol in libraries.items():
            source, target = folder / f"{name}.c", folder / f"{name}.so"
            source.write_text(
                f"extern void {symbol}(void);\nvoid run(void) {{ {symbol}(); }}\n" if symbol else "int x;"
            )
            others = [f"-L{folder}", "-Wl,--no-as-needed", f"-l:{large}.so"] if name in linked else []
            subprocess.run(["gcc", "-shared", "-fPIC", "-o", target, source, *others], check=True, timeout=60)
            archive.writestr(f"nobody_knows/{name}.so", target.read_bytes() + bytes((25 << 20) * (name == large)))
    return CompiledRelease(
        name="nobody-knows",
        version="1.2",
        file=IndexFile(filename=_WHEEL, url=_WHEEL, version="1.2", size=len(buffer.getvalue())),
        fetcher=Ranges(files={_WHEEL: buffer.getvalue()}),
        evidence=Evidence(kind=EvidenceKind.MEASURED, source=_WHEEL, date="2024-01-02"),
    )


def test_a_file_that_needs_what_the_stated_torch_does_not_export_is_a_warning(tmp_path):
    compiled = release(tmp_path, {"core4": _NEW, "core5": _NEW, "other": ""})

    [finding] = compiled.not_linking("2.7.0", "linux-64")

    assert (finding.rule, finding.severity) == ("release-linking", Severity.WARNING)
    assert finding.message == (
        "nobody-knows 1.2 fails where its compiled files are loaded: nobody_knows/core4.so needs "
        f"{_NEW}, which torch 2.7.0+cu126 does not export"
    )
    assert finding.needs["torch"].startswith(">=2.8.0")
    assert compiled.not_linking("2.8.0", "linux-64") == []


def test_of_a_large_wheel_the_files_that_stand_for_themselves_are_read(tmp_path):
    alone = release(tmp_path, {"flash": _NEW, "common": _NEW}, large="flash")
    linked = release(tmp_path, {"flash": "", "common": _NEW}, large="flash", linked=("common",))

    [finding] = alone.not_linking("2.7.0", "linux-64")

    assert "nobody_knows/common.so needs" in finding.message
    assert linked.not_linking("2.7.0", "linux-64") == []


def test_of_files_for_several_releases_one_that_loads_is_enough(tmp_path):
    compiled = release(tmp_path, {"torch27": "", "torch28": _NEW})

    assert compiled.not_linking("2.7.0", "linux-64") == []


def test_a_torch_whose_symbols_nobody_read_is_silent(tmp_path):
    compiled = release(tmp_path, {"core": _NEW})

    assert compiled.not_linking("1.1.0", "linux-64") == []
