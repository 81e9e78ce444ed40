"""Reads what the Conda world leaves lying around and gives the versions in it, in the words of the cell.

``conda-lock.yml``, ``pixi.lock``, ``environment.yml``, ``conda list`` (text and ``--json``) and ``@EXPLICIT`` files. The text is
hostile: size, depth and aliases are bounded before anything is built from it, and every failure is a ``DataError``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from envsmith.errors import DataError
from envsmith.sources.conda.environment import read_environment
from envsmith.sources.conda.lists import read_list, read_list_json
from envsmith.sources.conda.locks import read_conda_lock, read_explicit, read_pixi_lock
from envsmith.sources.conda.parsing import MAX_BYTES, load_yaml, split_filename
from envsmith.sources.conda.values import CondaFile, components_of

__all__ = ["CondaFile", "components_of", "kind_of", "load_yaml", "read_conda_file", "split_filename"]

_READERS: Mapping[str, Callable[[str, str | None, str], CondaFile]] = {
    "conda-lock": read_conda_lock,
    "pixi-lock": read_pixi_lock,
    "environment": read_environment,
    "conda-list": read_list,
    "conda-list-json": read_list_json,
    "explicit": read_explicit,
}


def kind_of(text: str) -> str | None:
    """``conda-lock``, ``pixi-lock``, ``environment``, ``conda-list``, ``conda-list-json``, ``explicit``; ``None`` for something else."""
    head = text[:20000]
    if re.search(r"^@EXPLICIT\s*$", head, re.MULTILINE):
        return "explicit"
    if head.lstrip().startswith("["):
        return "conda-list-json" if '"base_url"' in head or '"dist_name"' in head or '"channel"' in head else None
    if re.search(r"^# packages in environment at ", head, re.MULTILINE) or re.search(
        r"^#\s*Name\s+Version\s+Build", head, re.MULTILINE
    ):
        return "conda-list"
    if re.search(r"^environments:", head, re.MULTILINE) and re.search(r"^version:\s*\d", head, re.MULTILINE):
        return "pixi-lock"
    if re.search(r"^metadata:", head, re.MULTILINE) and re.search(r"^\s+content_hash:", head, re.MULTILINE):
        return "conda-lock"
    if re.search(r"^dependencies:", text, re.MULTILINE):
        return "environment"
    return None


def read_conda_file(
    text: str, *, kind: str | None = None, platform: str | None = None, where: str = "input"
) -> CondaFile:
    """The versions of a file, its kind recognised unless given; of a lock for several platforms those of ``platform``.

    ``DataError`` names ``where`` and what is wrong.
    """
    if len(text) > MAX_BYTES:
        raise DataError(f"{where}: {len(text)} characters are more than a Conda file has ({MAX_BYTES})")
    found = kind or kind_of(text)
    reader = _READERS.get(found or "")
    if reader is None:
        raise DataError(
            f"{where}: not a Conda file",
            hint="known are conda-lock.yml, pixi.lock, environment.yml, conda list, @EXPLICIT",
        )
    return reader(text, platform, where)
