"""What the import of a package runs: its modules in turn, the modules that they import, the functions called meanwhile."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from envsmith.names.scopes import Chain
from envsmith.names.uses import Guard, ModuleUses, Use, read_uses

# Calls of calls that are followed while a package is imported.
_DEPTH = 4
_MOST_RE_EXPORTS = 6
# What each text of a module takes. Most files are the same in the next release.
Memo = dict[tuple[str, str], "ModuleUses | None"]


class Stage(str, Enum):
    """What a missing name stops.

    ``IMPORT``: the import of the package. ``MAYBE``: the same where a condition on the way holds. ``MODULE``: the
    import of the module that names it. ``CALL``: a function.
    """

    IMPORT = "import"
    MAYBE = "maybe"
    MODULE = "module"
    CALL = "call"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A use, the module in which it stands, and what it stops."""

    use: Use
    module: str
    stage: Stage


class PackageUses:
    """What one release of a package takes from others, by stage."""

    def __init__(self, top: str, files: Mapping[str, bytes], *, skip: str = "", memo: Memo | None = None) -> None:
        """Take the sources of a package ``top`` (``megatron.core``) by path.

        Modules whose name matches ``skip`` are left out, with what only they import. Releases may share a ``memo``.
        """
        self._top = top
        self._files = files
        self._paths = {m: p for m, p in module_paths(files, top).items() if not (skip and re.search(skip, m))}
        self._memo = {} if memo is None else memo
        self._modules: dict[str, ModuleUses | None] = {}

    def module(self, name: str) -> ModuleUses | None:
        """Return what a module takes, or ``None`` for one that does not exist or that this Python cannot read."""
        if name not in self._modules:
            self._modules[name] = self._read(name)
        return self._modules[name]

    def _read(self, name: str) -> ModuleUses | None:
        path = self._paths.get(name)
        if path is None:
            return None
        source = self._files[path]
        key = (name, hashlib.sha256(source).hexdigest())
        if key not in self._memo:
            try:
                self._memo[key] = read_uses(source, name, package=path.endswith("/__init__.py"), own={self._top})
            except SyntaxError:
                self._memo[key] = None
        return self._memo[key]

    def places(self) -> Iterator[Place]:
        """Yield every use that nothing guards, with the worst that it stops."""
        run, maybe = self._run(certain=True), self._run(certain=False)
        for module in sorted(self._paths):
            content = self.module(module)
            for use in content.uses if content else ():
                if use.guard.caught or use.guard.version:
                    continue
                if (module, use.function) in run and not use.guard.branch:
                    stage = Stage.IMPORT
                elif (module, use.function) in maybe:
                    stage = Stage.MAYBE
                elif use.function is None and not use.guard.branch:
                    stage = Stage.MODULE
                else:
                    stage = Stage.CALL
                yield Place(use=use, module=module, stage=stage)

    def _run(self, *, certain: bool) -> set[tuple[str, str | None]]:
        """Return ``(module, None)`` for each module that is imported, ``(module, function)`` for what it calls."""
        visited: set[tuple[str, str | None]] = set()
        pending: list[tuple[str, str | None, int]] = [(self._top, None, 0)]
        while pending:
            module, function, depth = pending.pop()
            content = self.module(module)
            if (module, function) in visited or content is None:
                continue
            visited.add((module, function))
            for use in content.imports:
                if use.function == function and _is_way(use.guard, certain=certain):
                    pending += [(m, None, 0) for m in self._modules_in(use.chain)]
            for call in content.calls:
                if call.function == function and _is_way(call.guard, certain=certain) and depth < _DEPTH:
                    target = self._function(call.chain)
                    if target is not None:
                        pending += [(target[0], f, depth + 1) for f in (target[1], f"{target[1]}.__init__")]
        return visited

    def _modules_in(self, chain: Chain) -> Iterator[str]:
        """``a.b.c`` imports a, a.b and, where it is a module, a.b.c."""
        for depth in range(self._top.count(".") + 1, len(chain) + 1):
            name = ".".join(chain[:depth])
            if name in self._paths:
                yield name

    def _function(self, chain: Chain, depth: int = 0) -> tuple[str, str] | None:
        """Return the module that defines a function, through re-exports."""
        module, name = ".".join(chain[:-1]), chain[-1]
        content = self.module(module)
        if content is None or depth > _MOST_RE_EXPORTS:
            return None
        origin = content.names.get(name)
        if origin is not None and origin != chain:
            return self._function(origin, depth + 1)
        return module, name


def module_paths(files: Mapping[str, bytes], top: str) -> dict[str, str]:
    """Return the dotted name and the path of every module below a package (``megatron.core``)."""
    base = top.replace(".", "/")
    return {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in files
        if path.endswith(".py") and (path.startswith(base + "/") or path == base + ".py")
    }


def _is_way(guard: Guard, *, certain: bool) -> bool:
    """Return whether what runs is taken to come here. A way whose failure is caught never counts."""
    return not guard.caught and not (certain and (guard.version or guard.branch or guard.tests))
