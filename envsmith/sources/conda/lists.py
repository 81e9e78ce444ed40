"""What ``conda list`` prints, as a table and as JSON."""

from __future__ import annotations

import json
import re

from envsmith.errors import DataError
from envsmith.lock.conda.names import clean, fold
from envsmith.sources.conda.parsing import NAME, VERSION, as_list, as_mapping, as_name, as_version
from envsmith.sources.conda.values import CondaFile

__all__ = ["read_list", "read_list_json"]

_PLATFORM = re.compile(r"(?:linux|osx|win|noarch|freebsd|emscripten|wasi)(?:-[a-z0-9]+)?")


def read_list(text: str, _platform: str | None, where: str) -> CondaFile:
    """Columns name, version, build, channel; rows of channel ``pypi`` were installed by pip. Raises ``DataError``."""
    conda: dict[str, str] = {}
    pip: dict[str, str] = {}
    builds: dict[str, str] = {}
    for line in text.splitlines():
        columns = line.split()
        if len(columns) < 2 or line.lstrip().startswith("#") or not NAME.fullmatch(columns[0]):
            continue
        if not VERSION.fullmatch(columns[1]) or not columns[1][0].isdigit():
            continue
        if columns[-1] in {"pypi", "<pip>"} or columns[2:3] == ["<pip>"] or columns[2:3] == ["pypi_0"]:
            pip[fold(columns[0])] = columns[1]
        else:
            conda[columns[0].lower()] = columns[1]
            builds |= {columns[0].lower(): columns[2]} if len(columns) > 2 else {}
    if not conda and not pip:
        raise DataError(f"{where}: no line of it reads NAME VERSION BUILD, as `conda list` prints them")
    return CondaFile(kind="conda-list", conda=conda, pip=pip, builds=builds)


def read_list_json(text: str, _platform: str | None, where: str) -> CondaFile:
    """Rows of channel or platform ``pypi`` were installed by pip. Raises ``DataError``."""
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {clean(str(error), 120)}") from error
    conda: dict[str, str] = {}
    pip: dict[str, str] = {}
    builds: dict[str, str] = {}
    platforms: dict[str, None] = {}
    for i, item in enumerate(as_list(rows, where, "the file")):
        row = as_mapping(item, where, f"[{i}]")
        name, version = (
            as_name(row.get("name"), where, f"[{i}].name"),
            as_version(row.get("version"), where, f"[{i}].version"),
        )
        if row.get("channel") == "pypi" or row.get("platform") == "pypi":
            pip[fold(name)] = version
            continue
        conda[name.lower()] = version
        builds[name.lower()] = str(row.get("build_string") or row.get("build") or "")
        if _PLATFORM.fullmatch(str(row.get("platform"))) and row.get("platform") != "noarch":
            platforms[str(row["platform"])] = None
    return CondaFile(kind="conda-list-json", conda=conda, pip=pip, builds=builds, platforms=tuple(platforms))
