"""An index of tiny packages with a regression in it, and a search in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from lock_helpers import uv_for
from tiny_index import TinyIndex, wheel

from envsmith.doctor.bisect.journal import open_journal
from envsmith.doctor.bisect.trials import Trials
from envsmith.lock.index.uv import Uv

# app imports shape.round_off, which shape 2.0 does not have; the other packages are bystanders.
_APP = "from shape import round_off\nimport helper\n"


@pytest.fixture
def broken_index(tmp_path: Path) -> TinyIndex:
    index = TinyIndex(tmp_path / "index")
    index.add("app", wheel("app", "1.0", ["shape", "helper"], {"app.py": _APP}))
    old, new = {"shape.py": "round_off = 1\n"}, {"shape.py": "round_up = 1\n"}
    releases = [("1.0", old), ("1.1", old), ("1.2", old), ("2.0", new), ("2.1", new)]
    index.add("shape", *(wheel("shape", version, (), files) for version, files in releases))
    for name in ("helper", "other", "third"):
        index.add(name, wheel(name, "1.0"), wheel(name, "1.1"))
    return index


@pytest.fixture
def uv_of_index(broken_index: TinyIndex, tmp_path: Path) -> Uv:
    return uv_for(broken_index.url, tmp_path / "uv-cache")


@pytest.fixture
def trials(uv_of_index: Uv, tmp_path: Path):
    with open_journal(tmp_path / "search") as journal:
        yield Trials(
            command=("python", "-c", "import app"), folder=tmp_path / "search", journal=journal, uv=uv_of_index
        )
