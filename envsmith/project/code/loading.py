"""Which files of a project are only loaded once something of it runs: no program and no import loads them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from envsmith.knowledge.names.module_uses import Use
from envsmith.knowledge.names.scopes import Chain

# Folders from which a project imports, beside those above a file.
LAYOUTS = ("src",)


def loaded_later(imports: Mapping[str, Sequence[Use]], root: str) -> frozenset[str]:
    """Return the files that the project imports only in functions and under conditions, or from such files.

    ``imports`` are those of each file within the project, ``root`` the name in front of relative ones. What nobody
    imports is a program.
    """
    modules = {_dotted(PurePosixPath(file)): file for file in imports}
    at_once: dict[str, set[str]] = {file: set() for file in imports}
    imported: set[str] = set()
    for file, uses in imports.items():
        for use in uses:
            targets = {path for path in _files(use.chain, PurePosixPath(file), modules, root) if path != file}
            imported |= targets
            if use.function is None and not (use.guard.branch or use.guard.asks):
                at_once[file] |= targets
    loaded = set(imports) - imported
    waiting = list(loaded)
    while waiting:
        further = at_once[waiting.pop()] - loaded
        loaded |= further
        waiting += further
    return frozenset(set(imports) - loaded)


def _dotted(path: PurePosixPath) -> Chain:
    parts = path.with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def _files(chain: Chain, path: PurePosixPath, modules: Mapping[Chain, str], root: str) -> Iterator[str]:
    """Yield the files that an import loads: the module, and the packages that it stands in."""
    bases = [()] if chain[0] == root else [*(folder.parts for folder in path.parents), *((name,) for name in LAYOUTS)]
    names = chain[1:] if chain[0] == root else chain
    for base in bases:
        files = [modules[where] for depth in range(1, len(names) + 1) if (where := (*base, *names[:depth])) in modules]
        if files:
            yield from files
            return
