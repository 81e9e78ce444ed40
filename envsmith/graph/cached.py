"""The installed knowledge, read once per state of its files."""

from __future__ import annotations

from envsmith.graph.cache import read_cache, write_cache
from envsmith.graph.data import DataFiles, find_matrix, list_files
from envsmith.model.rule import Knowledge

__all__ = ["knowledge", "knowledge_of"]

_READ: dict[str, Knowledge] = {}


def knowledge() -> Knowledge:
    """All that envsmith knows. :class:`envsmith.errors.DataError` lists every problem of its files."""
    return knowledge_of(list_files(find_matrix()))


def knowledge_of(files: DataFiles) -> Knowledge:
    """The knowledge in ``files``, from the cache when they did not change."""
    from envsmith.graph.store import knowledge_from_json, knowledge_to_json

    stamp = files.stamp()
    if stamp in _READ:
        return _READ[stamp]
    kept = read_cache("knowledge", stamp)
    if kept is not None:
        try:
            _READ[stamp] = knowledge_from_json(kept)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            kept = None
    if kept is None:
        from envsmith.graph.read import read_knowledge

        _READ[stamp] = read_knowledge(files.root)
        write_cache("knowledge", stamp, knowledge_to_json(_READ[stamp]))
    return _READ[stamp]
