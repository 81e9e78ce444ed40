"""Cells of the solver against the package index: twenty, drawn by a seed, are accepted by ``uv pip install --dry-run`` with hashes."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest

from envsmith.lock.index.interpreters import find_interpreter
from envsmith.lock.index.uv import Uv
from envsmith.lock.pip_files import layer_text
from envsmith.lock.resolve import lock_pip
from envsmith.model.cell import Cell, Request
from envsmith.model.version import Spec
from envsmith.solver import default_solver

pytestmark = [pytest.mark.integration, pytest.mark.network]

SEED = 20261121
DAY = "2026-11-19"
FRAMEWORKS = ("deepspeed", "megatron-core", "colossalai")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def drawn() -> list[Cell]:
    """Twenty cells without warnings whose torch is the index's default build: a draw over all three frameworks and four Pythons."""
    solver = default_solver()
    pool: list[list[Cell]] = []
    for framework in FRAMEWORKS:
        for python in PYTHONS:
            request = Request(frameworks={framework: Spec.parse("*")}, constraints={"python": Spec.parse(python)})
            answers = islice(solver.cells(solver.pose(request)), 1500)
            clean = {"warning", "pre", "yanked"}
            pool.append([a.cell for a in answers if clean <= a.avoided and a.cell.index == "default"])
    draw = random.Random(SEED)
    found: list[Cell] = []
    while len(found) < 20:
        cell = draw.choice(draw.choice([p for p in pool if p]))
        if cell not in found:
            found.append(cell)
    return found


@pytest.mark.parametrize("number", range(20))
def test_drawn_cell_is_accepted_by_uv_with_hashes(number: int, tmp_path: Path) -> None:
    cell = drawn()[number]
    interpreter = find_interpreter(cell.components["python"])
    if interpreter is None:
        pytest.skip(f"Python {cell.components['python']} is not on this host")
    pinned = lock_pip(cell, exclude_newer=DAY)
    names = {p.name: p.version for p in pinned.pins}
    framework = cell.frameworks[0]
    assert names[framework] == cell.components[framework]
    assert names["torch"] == cell.components["torch"].split("+")[0]
    (tmp_path / "r.txt").write_text(layer_text(pinned.pins))
    (tmp_path / "b.txt").write_text(layer_text(pinned.build_pins))
    uv = Uv()
    uv.check(["venv", "--quiet", "--python", str(interpreter.path), str(tmp_path / "v")], work="create the environment")
    command = ["pip", "install", "--dry-run", "--require-hashes", "--python", str(tmp_path / "v" / "bin" / "python")]
    command += ["--build-constraint", str(tmp_path / "b.txt")] if pinned.build_pins else []
    uv.check([*command, "-r", str(tmp_path / "r.txt")], work=f"try {cell.id}")
