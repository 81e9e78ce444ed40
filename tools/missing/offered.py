"""What a release offers: its modules, and the names that each of them has, read from the sources without running them.

Names that are made in C++ are known where the release brings stubs (``torch/_C/__init__.pyi``). A module that makes names at run time in a way
that is not read (``globals().update``, a module ``__getattr__`` without a table) is *open*: nothing is said of a name that is not found in it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from missing.archive import Sources

__all__ = ["Has", "Module", "Offered", "Signature"]

# torch/__init__.py copies what these two have into itself, name by name.
_COPIED = {"torch": ("torch._C", "torch._C._VariableFunctions")}
# Names at the left edge of a stub; that is all that is taken of one as long as torch/_C/_VariableFunctions.pyi (1.2 MB).
_STUBBED = re.compile(rb"^(?:def |class |async def )?([A-Za-z_]\w*)(?= *[:=(])", re.MULTILINE)
_HUGE = 100_000
_ALWAYS = frozenset(
    {"__name__", "__doc__", "__file__", "__path__", "__dict__", "__spec__", "__package__", "__class__", "__loader__"}
)


class Has(Enum):
    """``UNKNOWN``: it may be made at run time or in C++."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """What a function takes: ``names``; ``any_name`` when it has ``**kwargs``; at most ``positions`` without a name, ``None`` for ``*args``."""

    names: frozenset[str]
    any_name: bool
    positions: int | None
    needed: int


@dataclass(kw_only=True, slots=True)
class Module:
    """``names``: all that are bound; ``imported``: name -> (module, name there or None); ``texts``: its string constants; ``exported``: its ``__all__``."""

    names: set[str] = field(default_factory=set)
    imported: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)
    exported: set[str] | None = None
    functions: dict[str, list[Signature]] = field(default_factory=dict)
    lazy: bool = False
    open: bool = False
    source: bool = False
    stub: bool = False


class Offered:
    """Answers for one release. Modules are parsed when somebody asks for them."""

    def __init__(self, sources: Sources) -> None:
        self.version = sources.version
        self._files = sources.files
        self._compiled = sources.compiled
        self._modules: dict[str, Module | None] = {}
        self._folders = {
            ".".join(parts[:depth])
            for parts in (path.split("/") for path in sources.files)
            for depth in range(1, len(parts))
        }

    def exists(self, module: str) -> bool:
        """A module, a package or a folder that works as one."""
        return self.module(module) is not None or module in self._folders or module in self._compiled

    def module(self, name: str) -> Module | None:
        """``None`` when there is no source of that name."""
        if name not in self._modules:
            self._modules[name] = self._parse(name)
        return self._modules[name]

    def _parse(self, name: str) -> Module | None:
        base = name.replace(".", "/")
        found = [
            (p, self._files[p])
            for p in (f"{base}.py", f"{base}/__init__.py", f"{base}.pyi", f"{base}/__init__.pyi")
            if p in self._files
        ]
        if not found:
            return None
        module = Module(stars=list(_COPIED.get(name, ())))
        for path, source in found:
            package = name if "/__init__." in path else name.rpartition(".")[0]
            if path.endswith(".pyi"):
                module.names.update(m.decode() for m in _STUBBED.findall(source))
            module.source |= path.endswith(".py")
            module.stub |= path.endswith(".pyi")
            if len(source) > _HUGE and path.endswith(".pyi"):
                continue
            try:
                tree = ast.parse(source)
            except (SyntaxError, ValueError, RecursionError):
                module.open = True
                continue
            _collect(tree, module, package)
        return module

    def has(self, module: str, name: str) -> Has:
        """Whether ``from module import name`` works."""
        found = self._has(module, name, frozenset())
        known = self.module(module)
        if found is Has.NO and known is not None and known.stub and not known.source:
            return Has.UNKNOWN  # a stub of a C++ module need not be complete
        return found

    def _has(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> Has:
        if name in _ALWAYS or self.exists(f"{module}.{name}"):
            return Has.YES
        known = self.module(module)
        if known is None:
            return Has.UNKNOWN if self._made(module) else Has.NO
        if name in known.names:
            return Has.YES
        answers = [
            self._starred(star, name, seen | {(module, name)})
            for star in known.stars
            if (star, name) not in seen and star != module
        ]
        if Has.YES in answers or (known.lazy and not known.stub and name in known.texts):
            return Has.YES
        # A star import of a C++ module without stub may bring anything; a package with a stub of its own lists it there.
        return Has.UNKNOWN if (known.open or Has.UNKNOWN in answers) and not known.stub else Has.NO

    def _starred(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> Has:
        """Whether ``from module import *`` brings the name: what ``__all__`` lists, without one what has no underscore in front."""
        known = self.module(module)
        if known is not None and known.source:
            if known.exported is not None and name not in known.exported:
                return Has.NO
            if known.exported is None and name.startswith("_"):
                return Has.NO
        return self._has(module, name, seen)

    def _made(self, module: str) -> bool:
        """It is a module of C++, or one that such a module makes."""
        parts = module.split(".")
        return any(".".join(parts[:depth]) in self._compiled for depth in range(1, len(parts) + 1))

    def follow(self, chain: tuple[str, ...]) -> tuple[str, str | None]:
        """``torch.distributed.rpc.init_rpc`` -> the module as far as modules go, and the first name after it."""
        module = chain[0]
        for step in chain[1:]:
            deeper = f"{module}.{step}"
            known = self.module(module)
            if known is not None and step in known.imported:
                origin, name = known.imported[step]
                target = origin if name is None else f"{origin}.{name}"
                if self.exists(target):
                    module = target
                    continue
            if self.exists(deeper):
                module = deeper
                continue
            return module, step
        return module, None

    def signatures(self, module: str, name: str, depth: int = 0) -> list[Signature]:
        """Of a function or of a class' ``__init__``; empty when it is not known."""
        known = self.module(module)
        if known is None or depth > 6:
            return []
        if name in known.functions:
            return known.functions[name]
        if name in known.imported:
            origin, there = known.imported[name]
            return self.signatures(origin, there, depth + 1) if there else []
        return next((s for star in known.stars if (s := self.signatures(star, name, depth + 1))), [])


def _collect(tree: ast.Module, module: Module, package: str) -> None:
    listed = _all(tree)
    if listed is not None:
        module.exported = (module.exported or set()) | listed
    for node in statements(tree.body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            module.names.add(node.name)
            if node.name == "__getattr__":
                module.lazy = True
            _sign(node, module)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                module.names.add(alias.asname or alias.name.split(".")[0])
                if alias.asname:
                    module.imported[alias.asname] = (alias.name, None)
        elif isinstance(node, ast.ImportFrom):
            _from(node, module, package)
        else:
            _bound(node, module)
    text = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    if module.lazy:
        module.texts.update(t for t in text if t.isidentifier())


def _all(tree: ast.Module) -> set[str] | None:
    """``__all__`` where it is plain lists of strings, whatever way they are put together; ``None`` for none or another kind."""
    found: set[str] = set()
    seen = False
    for node in statements(tree.body):
        value: ast.expr | None = None
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
                value = node.value
        elif isinstance(node, ast.Expr) and ast.unparse(node).startswith(("__all__.extend(", "__all__.append(")):
            value = node.value.args[0] if isinstance(node.value, ast.Call) and node.value.args else None
        if value is None:
            continue
        seen = True
        items = value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]
        if not all(isinstance(i, ast.Constant) and isinstance(i.value, str) for i in items):
            return None
        found |= {i.value for i in items if isinstance(i, ast.Constant) and isinstance(i.value, str)}
    return found if seen else None


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs at import, inside ``if``, ``try``, ``with`` and loops too."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from statements(getattr(node, part, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from statements(handler.body)


def _from(node: ast.ImportFrom, module: Module, package: str) -> None:
    origin = absolute(node, package)
    for alias in node.names:
        if alias.name == "*":
            module.stars.append(origin)
        else:
            module.names.add(alias.asname or alias.name)
            module.imported[alias.asname or alias.name] = (origin, alias.name)


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The module that a ``from`` names, relative ones made absolute."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    kept = parts[: len(parts) - node.level + 1]
    return ".".join([*kept, *([node.module] if node.module else [])])


def _bound(node: ast.stmt, module: Module) -> None:
    """Names that an assignment, a loop, a ``with`` or a walrus binds; and what makes a module open."""
    for inner in _shallow(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            module.names.add(inner.id)
        elif isinstance(inner, ast.Call):
            _called(inner, module)
        elif isinstance(inner, ast.Subscript) and isinstance(inner.ctx, ast.Store):
            base = ast.unparse(inner.value)
            if base == "sys.modules" or "_LazyModule" in base:
                module.lazy = True
            elif base.startswith(("globals()", "vars()", "locals()")):
                module.open = True


def _called(call: ast.Call, module: Module) -> None:
    what = ast.unparse(call.func)
    if what in {"globals().update", "vars().update", "sys.modules[__name__].__dict__.update"} or (
        what == "setattr" and call.args and "__name__" in ast.unparse(call.args[0])
    ):
        module.open = True
    elif what in {"_LazyModule", "lazy.attach", "lazy_loader.attach"}:
        module.lazy = True


def _shallow(node: ast.AST) -> Iterator[ast.AST]:
    """A statement's own expressions: not its nested statements, not bodies of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.Lambda)):
            yield child
            yield from _shallow(child)


def _sign(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, module: Module) -> None:
    if isinstance(node, ast.ClassDef):
        inits = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        plain = not any(isinstance(n, ast.FunctionDef) and n.name == "__new__" for n in node.body)
        found = [_signature(n, bound=True) for n in inits] if plain and not node.keywords else []
    else:
        found = [] if node.decorator_list and _changing(node) else [_signature(node, bound=False)]
    module.functions.setdefault(node.name, []).extend(found)


def _changing(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A decorator that may give the function other arguments; the usual ones of torch do not."""
    keep = (
        "contextmanager",
        "overload",
        "_exception_logger",
        "_time_logger",
        "deprecated",
        "no_grad",
        "wraps",
        "compatibility",
        "lru_cache",
        "cache",
    )
    return not all(ast.unparse(d).split("(")[0].endswith(keep) for d in node.decorator_list)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, *, bound: bool) -> Signature:
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args][1 if bound else 0 :]
    names = {a.arg for a in (*arguments.args, *arguments.kwonlyargs)}
    return Signature(
        names=frozenset(names),
        any_name=arguments.kwarg is not None,
        positions=None if arguments.vararg is not None else len(plain),
        needed=len(plain) - len(arguments.defaults) + sum(d is None for d in arguments.kw_defaults),
    )


def modules_of(files: Mapping[str, bytes], top: str) -> dict[str, str]:
    """Dotted name -> path of every module below the package ``top`` (``megatron.core``)."""
    base = top.replace(".", "/")
    found = {}
    for path in files:
        if path.endswith(".py") and (path.startswith(base + "/") or path == base + ".py"):
            found[path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = path
    return found
