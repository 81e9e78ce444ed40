"""Which distribution brings a module, where its name does not say it: read from the wheels, never guessed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from envsmith.base.files import read_bounded
from envsmith.base.schema import parse_document
from envsmith.knowledge.graph.location import find_matrix

_FILE = "modules.yaml"
_MAX_BYTES = 1 << 20


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


def distributions_behind(chain: Sequence[str]) -> Iterator[str]:
    """Yield distributions that a module imports, though the one it belongs to does not require them."""
    path = ".".join(chain) + "."
    for module, row in _document().get("behind", {}).items():
        if path.startswith(f"{module}."):
            yield row["distribution"]
