"""The script that reads what is installed inside a cell, and the reader of its answer."""

from __future__ import annotations

import subprocess
import sys

import pytest

from envsmith.engine.content import INSPECT_SCRIPT, parse_inspection
from envsmith.errors import ContentError


def run(path):
    script = f"import sys; sys.path.insert(0, {str(path)!r})\n{INSPECT_SCRIPT}"
    return subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True).stdout


def test_the_script_names_distributions_normalised_and_the_interpreter(tmp_path):
    info = tmp_path / "My_Odd.Name-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: My_Odd.Name\nVersion: 1.2\n")
    found = parse_inspection(run(tmp_path))
    assert found["my-odd-name"] == "1.2"
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))


def test_torch_is_reported_by_its_own_file_without_being_imported(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcuda is missing')")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.9.1+cu128'\ncuda = '12.8'\n")
    found = parse_inspection(run(tmp_path))
    assert (found["torch.version"], found["cuda.version"]) == ("2.9.1+cu128", "12.8")


def test_a_torch_without_cuda_is_cpu(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.9.1+cpu'\ncuda = None\n")
    assert parse_inspection(run(tmp_path))["cuda.version"] == "cpu"


def test_a_broken_version_file_is_told_and_fails_no_script(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    assert parse_inspection(run(tmp_path))["torch.version"].startswith("unreadable")


@pytest.mark.parametrize(
    "output",
    [
        "",
        "noise\n",
        "ENVSMITH-CONTENT {",
        "ENVSMITH-CONTENT []",
        'ENVSMITH-CONTENT {"a": 1}',
        'ENVSMITH-CONTENT {"a": "1"}',
    ],
)
def test_what_is_no_answer_is_refused(output):
    with pytest.raises(ContentError):
        parse_inspection(output)


def test_warnings_around_the_answer_are_passed_over():
    assert parse_inspection('warning: x\nENVSMITH-CONTENT {"python": "3.12.1"}\n') == {"python": "3.12.1"}


def test_hostile_names_are_dropped_and_versions_bounded():
    found = parse_inspection('ENVSMITH-CONTENT {"python": "3.12.1", "a\\u001b[31m": "1", "x": "' + "9" * 500 + '"}')
    assert set(found) == {"python", "x"}
    assert len(found["x"]) == 128
