"""An environment read from its files."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from envsmith.doctor.mend.environment import read_environment
from envsmith.errors import UsageError


def test_a_folder_without_pyvenv_cfg_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is not a virtual environment"):
        read_environment(tmp_path)


def test_an_environment_without_packages_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("version = 3.11.7\n")

    with pytest.raises(UsageError, match="does not name a Python, or it has no site-packages"):
        read_environment(tmp_path)


def test_markers_are_those_of_the_environment_s_own_python(tmp_path: Path) -> None:
    info = tmp_path / "lib/python3.9/site-packages/a-1.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "pyvenv.cfg").write_text("version_info = 3.9.18\n")
    lines = [
        "Requires-Dist: b; python_version < '3.10' and implementation_version < '3.10'",
        "Requires-Dist: c; python_version >= '3.10'",
    ]
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", "Name: A", "Version: 1", *lines, ""]))

    environment = read_environment(tmp_path)

    assert [(name, d.version) for name, d in environment.distributions.items()] == [("a", "1")]
    assert [requirement.name for requirement in environment.edges("a")] == ["b"]
    assert not environment.has(Requirement("b"))


def test_an_odd_metadata_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").write_text("version = 3.11.7\n")
    texts = {
        "latin": b"Name: latin\nVersion: 1\nSummary: caf\xe9\nRequires-Dist: b\n",
        "compares": b"Name: compares\nVersion: 1\nRequires-Dist: b; python_version ~= 'x'\nRequires-Dist: c\n",
        "asks": b"Name: asks\nVersion: 1\nRequires-Dist: b; 'x' in extras\n",
        "deep": b"Name: deep\nVersion: 1\nRequires-Dist: b; " + b"(" * 9999 + b"os_name > '3'" + b")" * 9999 + b"\n",
        "wild": b"Name: ../../wild\nVersion: 1\n",
        "undated": b"Name: undated\nVersion: today\n",
        "empty": b"",
    }
    for name, text in texts.items():
        info = tmp_path / f"lib/python3.11/site-packages/{name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_bytes(text)

    environment = read_environment(tmp_path)

    assert sorted(environment.distributions) == ["asks", "compares", "deep", "latin"]
    assert [r.name for name in ("latin", "compares") for r in environment.edges(name)] == ["b", "c"]
    assert sorted(line.split("-1.dist-info")[0].split("/")[-1].split(" ")[0] for line in environment.odd) == [
        "asks",
        "compares",
        "deep",
        "empty",
        "undated",
        "wild",
    ]
