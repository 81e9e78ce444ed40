"""The doctor's own files of ``matrix/``: read when they are needed, checked, and kept as values until one of them changes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from envsmith.errors import DataError
from envsmith.files import cache_folder
from envsmith.graph.files import DataFiles, find_matrix
from envsmith.model.rule import Evidence
from envsmith.schema import Problems, UnreadableError, check, parse_document

_Value = TypeVar("_Value")
_READ: dict[tuple[str, str], Any] = {}


def cached_table(kind: str, names: tuple[str, ...], read: Callable[[DataFiles], _Value]) -> _Value:
    """Return what ``read`` makes of these files below ``matrix/``, from the cache while none of them changed."""
    files = DataFiles(find_matrix(), names)
    try:
        key = (kind, files.stamp())
    except OSError as error:
        raise DataError(
            f"{error.filename}: cannot be read: {error.strerror}", hint="take the whole of matrix/"
        ) from error
    if key not in _READ:
        _READ[key] = _kept(*key, lambda: read(files))
    value: _Value = _READ[key]
    return value


def _kept(kind: str, stamp: str, make: Callable[[], _Value]) -> _Value:
    path = Path(cache_folder() / f"{kind}-{stamp[:32]}.pickle")
    with suppress(
        OSError, pickle.PickleError, AttributeError, ImportError, EOFError, TypeError, ValueError, IndexError
    ):
        cached: _Value = pickle.loads(path.read_bytes())  # noqa: S301 - our own file, in the user's own cache
        return cached
    value = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".new")
        temporary.write_bytes(pickle.dumps(value, protocol=5))
        temporary.replace(path)
    return value


def named_evidence(name: str, content: bytes, problems: Problems) -> tuple[Any, Mapping[str, Evidence]]:
    """Return a parsed document and the sources that its head names under ``evidence:``."""
    try:
        document = parse_document(name, content)
    except UnreadableError as error:
        problems.add(name, str(error))
        return None, {}
    rows = document.get("evidence") if isinstance(document, dict) else None
    sources = {
        str(key): check(Evidence, row, name, problems, root=f"evidence.{key}")
        for key, row in (rows.items() if isinstance(rows, dict) else ())
    }
    return document, {key: source for key, source in sources.items() if source}
