"""envsmith as a wheel of its own files."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from envsmith.base.files import read_toml
from envsmith.builder.pack.local_wheels import is_package, own_requirements, own_wheel
from envsmith.knowledge.graph.location import find_matrix


def test_the_wheel_runs_from_its_own_files(tmp_path: Path) -> None:
    wheel = own_wheel()
    with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
        archive.extractall(tmp_path)
        names = set(archive.namelist())

    command = [
        sys.executable,
        "-c",
        "import sys; sys.path.insert(0, sys.argv.pop(1)); import envsmith.__main__ as m; print(m.__file__); m.main()",
    ]
    answer = subprocess.run([*command, str(tmp_path), "version"], capture_output=True, text=True, check=False)

    assert wheel.filename.endswith("-py3-none-any.whl")
    assert re.match(rf"{tmp_path}/envsmith/__main__\.py\nenvsmith \S+ \(matrix of \d", answer.stdout), answer.stderr
    matrix = find_matrix()
    assert {f"envsmith/_matrix/{path.relative_to(matrix)}" for path in matrix.rglob("*.yaml")} <= names


def test_of_a_checkout_the_requirements_are_those_of_its_own_file() -> None:
    declared = read_toml((Path(__file__).parents[4] / "pyproject.toml").read_text())["project"]["dependencies"]

    assert own_requirements() == tuple(declared)


def test_the_same_files_give_the_same_bytes() -> None:
    assert own_wheel.__wrapped__() == own_wheel()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("pyproject.toml", "[build-system]\nrequires = []\n", True),
        ("pyproject.toml", "[project]\nname = 'a'\ndependencies = []\n", False),
        ("setup.py", "", True),
        ("requirements.txt", "torch\n", False),
    ],
)
def test_a_folder_is_a_package_when_it_says_how_it_is_built(
    tmp_path: Path, name: str, text: str, *, expected: bool
) -> None:
    (tmp_path / name).write_text(text)

    assert is_package(tmp_path) == expected
