"""The Dockerfile that podman and buildah build: a step is another when a file that it mounts is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from envsmith.engines.buildah_file import with_keys
from envsmith.image.context import write_context
from envsmith.model.cell import Cell
from envsmith.model.lock import Lock

TEXT = """# a cell
FROM tool AS uv
RUN --mount=type=bind,source=uv.txt,target=/dev/uv.txt get

# torch
FROM tool AS ground
RUN --mount=type=bind,from=uv,source=/uv,target=/dev/uv \\
    --mount=type=bind,source=steps,target=/dev/steps --mount=type=bind,source=torch.txt,target=/dev/torch.txt install
RUN --mount=type=bind,source=framework.txt,target=/dev/framework.txt install
"""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "steps").mkdir()
    for name in ("uv.txt", "torch.txt", "framework.txt", "steps/cell.sh"):
        (tmp_path / name).write_text(name)
    return tmp_path


def steps(context: Path, text: str = TEXT) -> list[str]:
    joined = with_keys(text, context).replace("\\\n", "")
    return [line for line in joined.splitlines() if line.startswith("RUN")]


@pytest.mark.parametrize(
    ("name", "same"), [("uv.txt", 0), ("torch.txt", 1), ("steps/cell.sh", 1), ("framework.txt", 2)]
)
def test_a_step_and_what_follows_is_another_when_a_file_that_it_mounts_is(context: Path, name: str, same: int) -> None:
    before = steps(context)

    (context / name).write_text("changed")

    assert [one == two for one, two in zip(before, steps(context), strict=True)] == [n < same for n in range(3)]


def test_the_name_of_a_cell_in_a_comment_makes_no_step_another(context: Path) -> None:
    assert steps(context, TEXT.replace("# a cell", "# another cell")) == steps(context)


def test_a_stage_is_mounted_through_one_without_steps(context: Path) -> None:
    lines = with_keys(TEXT, context).splitlines()

    assert lines[2] == "FROM uv AS uv-kept"
    assert lines[4].startswith("RUN --mount=type=bind,from=uv-kept,source=/uv,")


def test_two_frameworks_on_one_torch_share_their_first_steps(locks: ModuleType, tmp_path: Path) -> None:
    first = locks.deepspeed(locks.PACKAGES)
    cell = Cell(components={"megatron-core": "0.16.1", "torch": "2.13.0+cu130", "python": "3.12"}, chosen=("torch",))
    second = replace(first, cell=cell, pins=(first.pins[0], locks.pin("megatron-core", "0.16.1", "framework")))

    deepspeed, megatron = (written_steps(lock, tmp_path / str(n)) for n, lock in enumerate((first, second)))

    to_torch = 4
    assert deepspeed[:to_torch] == megatron[:to_torch]
    assert "requirements-torch.txt" in megatron[to_torch - 1]
    assert deepspeed[-1] != megatron[-1]


def written_steps(lock: Lock, folder: Path) -> list[str]:
    folder.mkdir()
    write_context(lock, folder)
    return steps(folder, (folder / "Dockerfile").read_text())
