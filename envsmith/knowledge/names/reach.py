"""What the import of a package runs: its modules in turn, the modules that they import, the functions called meanwhile."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from envsmith.knowledge.names.blocks import Blocks
from envsmith.knowledge.names.guards import Guard
from envsmith.knowledge.names.module_uses import ModuleUses, Use
from envsmith.knowledge.names.scopes import Chain
from envsmith.knowledge.names.uses import OpenModule

# Calls of calls that are followed while a package is imported.
_DEPTH = 4
_MOST_RE_EXPORTS = 6
# The package that is imported needs them, or the environment has them.
_PRESENT = frozenset({"torch", "tokenizers", "safetensors"})
_File = TypeVar("_File", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Memo(Generic[_File]):
    """What each text of a module takes at import, what its functions take, and the blocks of each module."""

    contents: dict[tuple[str, str | None, _File], ModuleUses | None] = field(default_factory=dict)
    later: dict[tuple[str, _File], tuple[Use, ...]] = field(default_factory=dict)
    blocks: dict[str, Blocks] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedUse:
    """A use, the module in which it stands, and the packages that must be installed for it to run."""

    use: Use
    module: str
    available: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedStop:
    """A ``raise``, its place, and the packages that must be installed for it to run."""

    path: str
    line: int
    available: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Step:
    """A module that is imported (no ``function``), or a function of it that is called meanwhile."""

    module: str
    function: str | None
    depth: int
    available: frozenset[str]


class PackageUses(Generic[_File]):
    """What the import of one release of a package takes from others."""

    def __init__(
        self,
        roots: Sequence[str],
        files: Mapping[str, _File],
        read: Callable[[_File], bytes],
        memo: Memo[_File] | None = None,
        parse: Callable[[str, bytes], ast.Module] | None = None,
    ) -> None:
        """Take the sources below ``roots`` by path. ``read`` returns the text of one, ``parse`` its tree.

        Releases may share a ``memo``: most files are the same in the next one.
        """
        self._roots = tuple(roots)
        self._files, self._text = files, read
        self._paths = {module: path for root in roots for module, path in module_paths(files, root).items()}
        self._memo: Memo[_File] = memo or Memo()
        self._parse = parse
        self._modules: dict[str, OpenModule | None] = {}

    def content(self, name: str, function: str | None = None) -> ModuleUses | None:
        """Return what a module takes at import, or what a function of it takes.

        ``None`` where the one or the other does not exist, or this Python cannot read it.
        """
        path = self._paths.get(name)
        if path is None:
            return None
        contents, key = self._memo.contents, (name, function, self._files[path])
        if key not in contents:
            module = self._open(name, path)
            if module is None:
                contents[key] = None
            else:
                contents[key] = module.at_import if function is None else module.function(function)
        return contents[key]

    def _open(self, name: str, path: str) -> OpenModule | None:
        if name not in self._modules:
            text, package = self._text(self._files[path]), path.endswith("/__init__.py")
            blocks = self._memo.blocks.setdefault(name, Blocks())
            parse = partial(self._parse, path) if self._parse else blocks.parse
            try:
                self._modules[name] = OpenModule(text, name, package=package, own=self._roots, parse=parse)
            except SyntaxError:
                self._modules[name] = None
        return self._modules[name]

    def at_import(self, entry: str) -> Iterator[PlacedUse]:
        """Yield every use that runs while a module, or a name of one, is imported, unless a guard takes its failure.

        A use that a condition other than ``hasattr`` or the presence of a package decides is left out.
        """
        return self._placed(entry, lambda content: content.uses)

    def gone_at_import(self, entry: str) -> Iterator[PlacedUse]:
        """Yield every name of the standard library that some Python lacks and the import of ``entry`` surely takes."""
        placed = self._placed(entry, lambda content: content.gone)
        return (each for each in placed if not (each.available or each.use.guard.tests))

    def _placed(self, entry: str, uses_of: Callable[[ModuleUses], Sequence[Use]]) -> Iterator[PlacedUse]:
        for step in self._run(tuple(entry.split("."))):
            content = self.content(step.module, step.function)
            for use in uses_of(content) if content else ():
                if use.function == step.function and self._is_certain(step.module, use.guard):
                    yield PlacedUse(use=use, module=step.module, available=self._available(step, use.guard))

    def paths_at_import(self, entry: str) -> Iterator[str]:
        """Yield the paths of the modules that the import of ``entry`` surely runs."""
        return (self._paths[step.module] for step in self._run(tuple(entry.split("."))) if not step.available)

    def stops(self, entry: str) -> Iterator[PlacedStop]:
        """Yield each ``raise`` that the import of ``entry`` surely comes to."""
        for step in self._run(tuple(entry.split("."))):
            content = self.content(step.module, step.function)
            for stop in content.stops if content else ():
                guard = stop.guard
                if stop.function == step.function and not guard.tests and self._is_certain(step.module, guard):
                    available = self._available(step, guard)
                    yield PlacedStop(path=self._paths[step.module], line=stop.line, available=available)

    def in_functions(self, entry: str) -> Iterator[PlacedUse]:
        """Yield what functions take when they are called, of the modules that the import of ``entry`` runs.

        Only what no condition but the presence of a package decides, and no guard takes the failure of.
        """
        for step in self._run(tuple(entry.split("."))):
            if step.function is not None:
                continue
            unsure = self._unsure_imports(step.module)
            for use in self._uses_later(step.module):
                guard = use.guard
                is_sure = not (guard.nested or guard.tests) and self._is_certain(step.module, guard)
                if is_sure and not any(use.chain[: len(chain)] == chain for chain in unsure):
                    yield PlacedUse(use=use, module=step.module, available=self._available(step, guard))

    def _unsure_imports(self, name: str) -> list[Chain]:
        """Return what a module imports under a condition or with a guard: its functions may have another one."""
        content = self.content(name)
        imports = (use for use in content.uses if use.imported) if content else ()
        return [use.chain for use in imports if use.guard.tests or not self._is_certain(name, use.guard)]

    def _uses_later(self, name: str) -> tuple[Use, ...]:
        path = self._paths[name]
        later, key = self._memo.later, (name, self._files[path])
        if key not in later:
            module = self._open(name, path)
            later[key] = module.uses_later() if module else ()
        return later[key]

    def _run(self, entry: Chain) -> Iterator[_Step]:
        """Yield what runs. What runs whatever is installed comes first."""
        visited: set[tuple[str, str | None]] = set()
        pending = deque(_Step(module, None, 0, frozenset()) for module in self._modules_in(entry))
        later: deque[_Step] = deque()
        while pending or later:
            step = (pending or later).popleft()
            content = self.content(step.module, step.function)
            if (step.module, step.function) in visited or content is None:
                continue
            visited.add((step.module, step.function))
            yield step
            for following in self._following(step, content):
                (later if following.available else pending).append(following)

    def _following(self, step: _Step, content: ModuleUses) -> Iterator[_Step]:
        for use in content.imports:
            if use.function == step.function and self._is_certain(step.module, use.guard) and not use.guard.tests:
                for module in self._modules_in(use.chain):
                    yield _Step(module, None, 0, self._available(step, use.guard))
        for call in content.calls if step.depth < _DEPTH else ():
            if call.function == step.function and self._is_certain(step.module, call.guard) and not call.guard.tests:
                target = self._function(call.chain)
                for function in (target[1], f"{target[1]}.__init__") if target else ():
                    yield _Step(target[0], function, step.depth + 1, self._available(step, call.guard))  # type: ignore[index]

    def _modules_in(self, chain: Chain, depth: int = 0) -> Iterator[str]:
        """Follow an import: ``a.b.c`` imports a, a.b and, where it is a module, a.b.c. A lazy module imports what it makes the name of."""
        for end in range(1, len(chain) + 1):
            name = ".".join(chain[:end])
            if name in self._paths:
                yield name
                continue
            content = self.content(name.rpartition(".")[0])
            target = content.lazy.get(chain[end - 1]) if content else None
            if target is not None and target != chain and depth < _MOST_RE_EXPORTS:
                yield from self._modules_in(target, depth + 1)

    def _is_certain(self, module: str, guard: Guard) -> bool:
        """Return whether what runs is taken to come here. A way whose failure is caught never counts."""
        if guard.caught or guard.version or guard.branch:
            return False
        return all(self._floor(module, package) is not None for package in guard.available)

    def _floor(self, module: str, package: str) -> str | None:
        """Return from which version on ``is_PACKAGE_available()`` holds in a module, ``""`` where it does not ask."""
        content, name = self.content(module), f"is_{package}_available"
        origin = self._function(content.names.get(name, (*module.split("."), name))) if content else None
        definition = self.content(origin[0]) if origin and package not in _PRESENT else None
        return definition.floors.get(package, "") if definition is not None else ""

    def _available(self, step: _Step, guard: Guard) -> frozenset[str]:
        """Return the packages that must be there (``accelerate``), or a release from one on (``accelerate>=0.26.0``)."""
        names = [name for name in guard.available if name not in _PRESENT]
        floors = ((name, self._floor(step.module, name)) for name in names)
        return step.available | {f"{name}>={floor}" if floor else name for name, floor in floors}

    def _function(self, chain: Chain, depth: int = 0) -> tuple[str, str] | None:
        """Return the module that defines a function, through re-exports."""
        module, name = ".".join(chain[:-1]), chain[-1]
        content = self.content(module)
        if content is None or depth > _MOST_RE_EXPORTS:
            return None
        origin = content.names.get(name)
        if origin is not None and origin != chain:
            return self._function(origin, depth + 1)
        return module, name


def module_paths(files: Collection[str], top: str) -> dict[str, str]:
    """Return the dotted name and the path of every module below a package (``megatron.core``)."""
    base = top.replace(".", "/")
    return {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in files
        if path.endswith(".py") and (path.startswith(base + "/") or path == base + ".py")
    }
