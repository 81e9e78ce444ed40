"""Where the knowledge lies, and a digest that changes whenever any of its files does."""

from __future__ import annotations

import hashlib
import os
import shlex
from pathlib import Path
from typing import NamedTuple

from envsmith.base.files import read_bounded
from envsmith.errors import DataError, UsageError

MATRIX_VARIABLE = "ENVSMITH_MATRIX"
_PARTS = (("releases", ".yaml"), ("rules", ".yaml"), ("tested", ".yaml"), ("wheels", ".yaml"), ("records", ".json"))
# Far above what people write (the largest file today is 0.1 MB), far below what exhausts memory.
MAX_FILE_BYTES = 8_000_000


class DataFiles(NamedTuple):
    """``root`` and the files below it that make up the knowledge, as relative names in a stable order."""

    root: Path
    names: tuple[str, ...]

    def stamp(self) -> str:
        """Return a key from name, size and times of every file: cheap, for finding the compiled form again.

        The time of the last change is the system's own: an edit that puts size and time of the content back is seen.
        """
        root = os.path.realpath(self.root)
        lines = [root]
        for name in self.names:
            try:
                status = os.stat(f"{root}/{name}")  # noqa: PTH116 - three hundred paths are not worth as many objects
                lines.append(f"{name} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}")
            except OSError as error:  # noqa: PERF203 - what reads it will say so
                lines.append(f"{name} {error.errno}")
        return hashlib.sha256(os.fsencode("\n".join(lines))).hexdigest()

    def records(self) -> dict[str, Path]:
        """Return the path of each record by name. They are read one by one: a bad one is left aside."""
        return {name: self.root / name for name in self.names if name.startswith("records/")}

    def read(self, name: str) -> bytes:
        """Return the bytes of one file. ``DataError`` when it cannot be read or is larger than any honest file."""
        return read_bounded(self.root / name, MAX_FILE_BYTES)


def find_matrix() -> Path:
    """Return the folder of the knowledge: what ``ENVSMITH_MATRIX`` names, else the packaged one, else the repository's.

    ``DataError`` without one.
    """
    named = os.environ.get(MATRIX_VARIABLE)
    if named:
        if not (Path(named) / "components.yaml").is_file():
            raise DataError(
                f"Cannot read {MATRIX_VARIABLE}={named}: it has no components.yaml.",
                hint=f"Unset {MATRIX_VARIABLE}, or point it to a copy of matrix/.",
            )
        return Path(named)
    package = Path(__file__).resolve().parents[2]
    for candidate in (package / "_matrix", package.parent / "matrix"):
        if (candidate / "components.yaml").is_file():
            return candidate
    raise DataError(
        "Cannot read the knowledge: matrix/components.yaml is not installed with envsmith.",
        hint=f"Install envsmith again, or point {MATRIX_VARIABLE} to a copy of matrix/.",
    )


def own_matrix() -> Path:
    """Return the folder of the knowledge that may be written to.

    :func:`find_matrix`, but where that is the installed package's, ``matrix/`` here.

    ``UsageError`` when there is none: what is written into an installed package is gone with the next upgrade.
    """
    folder = find_matrix()
    if folder.name != "_matrix" or os.environ.get(MATRIX_VARIABLE):
        return folder
    here = Path("matrix")
    if (here / "components.yaml").is_file():
        return here
    raise UsageError(
        "Cannot write to the knowledge of the installed package: an upgrade would remove what is written there.",
        hint=f"Make a copy: cp -r {shlex.quote(str(folder))} matrix. Then run this again here, or name a folder "
        f"with --matrix. With {MATRIX_VARIABLE}=$PWD/matrix every verb reads it.",
    )


def list_files(root: Path) -> DataFiles:
    """Return every file of the knowledge below ``root``. Hidden files are not part of it."""
    names = ["components.yaml", *(["runtime.yaml"] if (root / "runtime.yaml").is_file() else [])]
    for folder, suffix in _PARTS:
        try:
            entries = sorted(entry.name for entry in os.scandir(root / folder))
        except OSError:
            continue
        names += [f"{folder}/{name}" for name in entries if name.endswith(suffix) and not name.startswith(".")]
    return DataFiles(root, tuple(names))
