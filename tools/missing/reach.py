"""What the import of a package runs: its modules in turn, the modules that they import, the functions that they call while they are imported."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from missing.archive import Sources
from missing.offered import modules_of
from missing.used import Guard, Read, Use, read_module

__all__ = ["Place", "Release", "Stage"]

# A function called at import that calls a function that calls a function: deeper than this nobody follows.
_DEPTH = 4


class Stage(str, Enum):
    """``IMPORT``: ``import PACKAGE`` fails. ``MAYBE``: it fails where a condition on the way holds. ``MODULE``: the import of that module fails.

    ``CALL``: a function of it fails.
    """

    IMPORT = "import"
    MAYBE = "maybe"
    MODULE = "module"
    CALL = "call"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A use, where it stands (``module``, with the line in the use) and what it stops."""

    use: Use
    module: str
    stage: Stage


class Release:
    """One release of a package that uses others. Modules whose name matches ``skip`` are left out, with what only they import."""

    _reads: dict[tuple[str, str], Read | None] = {}  # noqa: RUF012 - shared on purpose: most files are the same in the next release

    def __init__(self, sources: Sources, own: str, others: Iterable[str], skip: str = "") -> None:
        self.version = sources.version
        self.sha256 = sources.sha256
        self._own = own
        self._others = tuple(others)
        self._files = sources.files
        paths = modules_of(sources.files, own)
        self._paths = {m: p for m, p in paths.items() if not (skip and re.search(skip, m))}
        self._known: dict[str, Read | None] = {}

    def read(self, module: str) -> Read | None:
        """``None`` for a module that is not there or that this Python cannot read."""
        if module not in self._known:
            self._known[module] = self._read(module)
        return self._known[module]

    def _read(self, module: str) -> Read | None:
        path = self._paths.get(module)
        if path is None:
            return None
        source = self._files[path]
        key = (module, hashlib.sha256(source).hexdigest())
        if key not in self._reads:
            try:
                package = path.endswith("/__init__.py")
                self._reads[key] = read_module(source, module, package=package, own=self._own, others=self._others)
            except (SyntaxError, ValueError, RecursionError):
                self._reads[key] = None
        return self._reads[key]

    def places(self) -> Iterator[Place]:
        """Every use that nothing guards, with the worst that it stops."""
        run, maybe = self._run(certain=True), self._run(certain=False)
        for module in sorted(self._paths):
            read = self.read(module)
            for use in read.uses if read else ():
                if use.guard.caught or use.guard.version:
                    continue
                if (module, use.function) in run and not use.guard.branch:
                    yield Place(use=use, module=module, stage=Stage.IMPORT)
                elif (module, use.function) in maybe:
                    yield Place(use=use, module=module, stage=Stage.MAYBE)
                elif use.function is None and not use.guard.branch:
                    yield Place(use=use, module=module, stage=Stage.MODULE)
                else:
                    yield Place(use=use, module=module, stage=Stage.CALL)

    def _run(self, *, certain: bool) -> set[tuple[str, str | None]]:
        """``(module, None)`` for each module that is imported for certain, ``(module, function)`` for what is called meanwhile."""
        seen: set[tuple[str, str | None]] = set()
        todo: list[tuple[str, str | None, int]] = [(self._own, None, 0)]
        while todo:
            module, function, depth = todo.pop()
            read = self.read(module)
            if (module, function) in seen or read is None:
                continue
            seen.add((module, function))
            for use in read.imports:
                if use.function == function and _taken(use.guard, certain=certain):
                    todo += [(m, None, 0) for m in self._modules_in(use.chain)]
            for call in read.calls:
                if call.function == function and _taken(call.guard, certain=certain) and depth < _DEPTH:
                    target = self._function(call.chain)
                    if target is not None:
                        todo += [(target[0], f, depth + 1) for f in (target[1], f"{target[1]}.__init__")]
        return seen

    def _modules_in(self, chain: tuple[str, ...]) -> Iterator[str]:
        """``a.b.c`` imports a, a.b and, where it is a module, a.b.c."""
        for depth in range(self._own.count(".") + 1, len(chain) + 1):
            name = ".".join(chain[:depth])
            if name in self._paths:
                yield name

    def _function(self, chain: tuple[str, ...], depth: int = 0) -> tuple[str, str] | None:
        """The module that defines it, through re-exports."""
        module, name = ".".join(chain[:-1]), chain[-1]
        read = self.read(module)
        if read is None or depth > 6:
            return None
        origin = read.names.get(name)
        if origin is not None and origin != chain:
            return self._function(origin, depth + 1)
        return module, name


def _taken(guard: Guard, *, certain: bool) -> bool:
    """Whether the way is taken; ways whose failure is caught never count."""
    return not guard.caught and not (certain and (guard.version or guard.branch or guard.asked))
