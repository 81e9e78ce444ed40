"""envsmith as a wheel of its own files."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

from envsmith.pack.own_wheel import own_wheel


def test_the_wheel_runs_from_its_own_files(tmp_path: Path) -> None:
    name, data = own_wheel()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(tmp_path)

    command = [
        sys.executable,
        "-c",
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import envsmith.__main__ as m; print(m.__file__); m.main()",
    ]
    answer = subprocess.run(
        [*command, str(tmp_path), "solve", "-f", "deepspeed"], capture_output=True, text=True, check=False
    )

    assert name.endswith("-py3-none-any.whl")
    assert answer.stdout.startswith(f"{tmp_path}/envsmith/__main__.py\ncell ds"), answer.stderr


def test_the_same_files_give_the_same_bytes() -> None:
    assert own_wheel() == own_wheel()
