"""Shared libraries compiled in the test, and a table of three builds made of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from envsmith.knowledge.symbols.elf import Binary, read_binary


@pytest.fixture
def compile_library(tmp_path):
    """Return a function that compiles C source into ``NAME.so`` and reads it."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc on this machine")

    def compile_(name: str, source: str, *flags: str) -> tuple[Path, Binary]:
        target = tmp_path / f"{name}.so"
        code = tmp_path / f"{name}.c"
        code.write_text(source)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}.so", "-o", target, code, *flags], check=True, timeout=60
        )
        with target.open("rb") as file:
            return target, read_binary(file, target.name)

    return compile_
