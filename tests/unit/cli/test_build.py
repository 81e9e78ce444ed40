"""What the end of a build says: how to use what was built, and nothing of what does not concern it."""

from __future__ import annotations

from pathlib import Path

import pytest

from envsmith.builder.engines.base import Built
from envsmith.builder.options import BuildOutcome
from envsmith.cli.build import _OF_IMAGES, _SAID, _show
from envsmith.model.cell import Cell, Platform
from envsmith.model.lock import Lock

CELL = Cell(components={"torch": "2.13.0", "python": "3.11"}, chosen=(), platform=Platform.LINUX_64, index="default")
LOCK = Lock(cell=CELL, request="r", exclude_newer="2026-11-20", python_version="3.11", pins=())


def _shown(built: Built | None, capsys: pytest.CaptureFixture[str]) -> str:
    outcome = BuildOutcome(cell=CELL, lock=LOCK, directory=Path("out/cell"), files=tuple(_SAID), built=built)
    _show(outcome)
    return capsys.readouterr().out


def _environment() -> Built:
    place = Path.cwd() / "out" / "cell" / "venv"
    usage = (("to use it", f"source {place}/bin/activate"),)
    return Built(
        digest="sha256:" + "1" * 64, kind="venv", reference=str(place), python=f"{place}/bin/python", usage=usage
    )


def test_end_of_an_environment_says_how_it_is_used_and_nothing_of_images(capsys: pytest.CaptureFixture[str]) -> None:
    shown = _shown(_environment(), capsys)
    assert "to use it  source out/cell/venv/bin/activate\n" in shown
    assert (
        len(
            {
                line.index(word)
                for line in shown.splitlines()
                for word in (_SAID["lock.json"], "venv sha256")
                if word in line
            }
        )
        == 1
    )
    assert not [name for name in _OF_IMAGES if f"out/cell/{name} " in shown]


@pytest.mark.parametrize("built", [None, Built(digest="sha256:1", kind="image", reference="cell:1", python="")])
def test_end_of_an_image_or_of_a_lock_names_every_file(built: Built | None, capsys: pytest.CaptureFixture[str]) -> None:
    shown = _shown(built, capsys)
    assert all(f"out/cell/{name} " in shown for name in _SAID)
    assert ("docker run --rm -it cell:1" in shown) == (built is not None)
