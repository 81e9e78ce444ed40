"""Which distribution brings a module, where its name does not say it: read from the wheels, never guessed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from envsmith.base.files import read_bounded
from envsmith.base.schema import parse_document
from envsmith.knowledge.graph.location import find_matrix

_FILE = "modules.yaml"
_MAX_BYTES = 1 << 20
# How alike a name is to that of a module that it misspells.
_ALIKE = 0.9


@lru_cache(maxsize=1)
def _document() -> Mapping[str, Any]:
    path = find_matrix() / _FILE
    document: Mapping[str, Any] = parse_document(_FILE, read_bounded(path, _MAX_BYTES)) if path.is_file() else {}
    return document


@lru_cache(maxsize=1)
def distributions_by_module() -> dict[str, str]:
    """Return the distribution of each module that ``matrix/modules.yaml`` lists."""
    modules: dict[str, str] = {}
    for distribution, row in _document().get("distributions", {}).items():
        for module in row["modules"]:
            modules.setdefault(module, distribution)
    return modules


def near_module(name: str) -> str | None:
    """Return the listed module that a name misspells, or ``None``. One that differs in digits is another module."""
    modules = distributions_by_module()
    near = [] if name in modules else difflib.get_close_matches(name, modules, n=1, cutoff=_ALIKE)
    return next((each for each in near if re.findall(r"\d", each) == re.findall(r"\d", name)), None)


def is_shared(module: str) -> bool:
    """Return whether other distributions put modules into the folder of a module (optimum-intel brings optimum.intel)."""
    return module in _document().get("shared", {})


def distributions_behind(chain: Sequence[str]) -> Iterator[str]:
    """Yield distributions that a module imports, though the one it belongs to does not require them."""
    path = ".".join(chain) + "."
    for module, row in _document().get("behind", {}).items():
        if path.startswith(f"{module}."):
            yield row["distribution"]
