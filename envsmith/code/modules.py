"""Which distribution brings a module, where its name does not say it: read from the wheels, never guessed."""

from __future__ import annotations

from functools import lru_cache

from envsmith.files import read_bounded
from envsmith.graph.location import find_matrix
from envsmith.schema import parse_document

_FILE = "modules.yaml"
_MAX_BYTES = 1 << 20


@lru_cache(maxsize=1)
def distributions_by_module() -> dict[str, str]:
    """Return the distribution of each module that ``matrix/modules.yaml`` lists."""
    path = find_matrix() / _FILE
    if not path.is_file():
        return {}
    rows = parse_document(_FILE, read_bounded(path, _MAX_BYTES))["distributions"]
    modules: dict[str, str] = {}
    for distribution, row in rows.items():
        for module in row["modules"]:
            modules.setdefault(module, distribution)
    return modules
