"""Ready wheels of compiled extensions, as a solver uses them: read once per state of their files.

A reading from the cache imports nothing of how the files are written.
"""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path

from envsmith.knowledge.graph.location import DataFiles, find_matrix
from envsmith.knowledge.graph.tables import Table
from envsmith.model.project_name import normal_name
from envsmith.model.wheel import ReadyWheel

_FOLDER = "wheels"
_PUBLISHERS_FILE = f"{_FOLDER}/publishers.yaml"


def catalogued(root: Path | None = None) -> tuple[str, ...]:
    """Return the distributions of the catalogue, sorted."""
    folder = (root or find_matrix()) / _FOLDER
    return tuple(sorted(p.stem for p in folder.glob("*.yaml") if p.stem != "publishers"))


@lru_cache(maxsize=64)
def ready_wheels(distribution: str, root: Path | None = None) -> tuple[ReadyWheel, ...]:
    """Return every ready wheel of a distribution, in the order of its file. ``DataError`` for a broken file."""
    root, name = root or find_matrix(), normal_name(distribution)
    if name == "publishers" or not (root / _FOLDER / f"{name}.yaml").is_file():
        return ()
    return wheels_table(name).load(_files(name, root))


@cache
def wheels_table(name: str) -> Table[tuple[ReadyWheel, ...]]:
    """Return the table of a distribution's ready wheels."""
    return Table(
        f"wheels-{name}",
        lambda: _files(name, find_matrix()),
        tuple[ReadyWheel, ...],
        lambda files: _read(name, files.root),
    )


def _files(name: str, root: Path) -> DataFiles:
    return DataFiles(root, (f"{_FOLDER}/{name}.yaml", _PUBLISHERS_FILE))


def _read(name: str, root: Path) -> tuple[ReadyWheel, ...]:
    from envsmith.knowledge.graph.wheel_files import read_wheels  # only who has no cache waits for it

    return read_wheels(name, root)
