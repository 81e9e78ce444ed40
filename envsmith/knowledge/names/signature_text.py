"""Functions and classes as text: arguments, bases, the attributes that methods set."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from envsmith.knowledge.names.blocks import remember
from envsmith.knowledge.names.decorators import is_harmless, name_of, under
from envsmith.knowledge.names.dotted import constant, dotted
from envsmith.knowledge.names.handing import Function, handing

# Decorators that take an argument by its old name too, which their own first argument says (transformers and trl:
# ``@deprecate_kwarg("tokenizer", version="5.0.0", new_name="processing_class")``).
_OLD_NAME = "deprecate_kwarg"
_PROPERTIES = ("property", "getter", "classproperty", "lazyproperty")
# ``self.trainer.datamodule = …``, also with an annotation. Who reads it in a text that is no code only says less.
_GIVEN = re.compile(rb"^[ \t]*(?:\w+\.){0,4}?(\w+)\.(\w+)(?: ?:[^=\n]{1,80})? = ", re.MULTILINE)
_REGISTERS = {"register_buffer", "register_parameter", "add_module", "register_module"}


def function_text(node: Function, *, method: bool) -> str:
    """Return ``(a,b=,*,c,**``. A method loses its first argument, and a property is a value."""
    return remember(node, "text", lambda: _function_text(node, method=method))


def _function_text(node: Function, *, method: bool) -> str:
    names = [name_of(d) for d in node.decorator_list]
    if any(n.endswith(_PROPERTIES) for n in names):
        return "="
    bound = method and "staticmethod" not in names
    old = [name for d in node.decorator_list if (name := _old_name(d))]
    unknown = [d for d in node.decorator_list if not (is_harmless(d) or _old_name(d))]
    mark = under(unknown) if unknown else "" if method else handing(node)
    return f"{mark}({','.join(_with_old_names([*_arguments(node.args, bound=bound)], old))}"


def _old_name(decorator: ast.expr) -> str | None:
    """Return the old name of an argument that a decorator still takes."""
    if not isinstance(decorator, ast.Call) or name_of(decorator).rpartition(".")[2] != _OLD_NAME:
        return None
    words = [*decorator.args[:1], *(k.value for k in decorator.keywords if k.arg == "old_name")]
    return constant(words[0]) if words else None


def _with_old_names(words: list[str], old: list[str]) -> list[str]:
    """Return arguments with further ones that are taken by name alone."""
    added = [f"{name}=" for name in old if name not in words and f"{name}=" not in words]
    if not added:
        return words
    end = words.index("**") if "**" in words else len(words)
    mark = [] if "*" in words or "|" in words else ["|"]
    return [*words[:end], *mark, *added, *words[end:]]


def _arguments(arguments: ast.arguments, *, bound: bool) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    plain = len(positional) - len(arguments.defaults)
    for at, argument in enumerate(positional):
        if at == len(arguments.posonlyargs) and at > (1 if bound else 0):
            yield "/"
        if not (bound and at == 0):
            yield argument.arg + ("" if at < plain else "=")
    if arguments.posonlyargs and not arguments.args:
        yield "/"
    if arguments.vararg is not None:
        yield "*"
    elif arguments.kwonlyargs:
        yield "|"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield argument.arg + ("" if default is None else "=")
    if arguments.kwarg is not None:
        yield "**"


def positional(words: Sequence[str]) -> list[str]:
    """Return those of the words of a function that are taken by position."""
    ends = [words.index(mark) for mark in ("*", "|", "**") if mark in words]
    return [word for word in words[: min(ends, default=len(words))] if word and word != "/"]


def class_text(node: ast.ClassDef) -> str:
    """Return ``:Base,module.Other``, with ``@`` in front where a decorator writes ``__init__`` from the fields."""
    bases = [dotted(b.value if isinstance(b, ast.Subscript) else b) for b in node.bases]
    keywords = {k.arg for k in node.keywords}
    names = [name_of(d).rpartition(".")[2] for d in node.decorator_list]
    fields = any(n.endswith("dataclass") or n in {"define", "frozen", "attrs", "attrib", "s"} for n in names)
    is_filled = any(map(_brings_members, node.decorator_list))
    dynamic = ["?"] if is_filled or ("metaclass" in keywords and not _abstract(node)) else []
    return ("@" if fields else "") + ":" + ",".join([*(b if _plain(b) else "?" for b in bases), *dynamic])


def _brings_members(decorator: ast.expr) -> bool:
    """Return whether a decorator of a class is arguments names in a list: pandas' ``@inherit_names(["ceil"], Timestamps)``."""
    arguments = [*decorator.args, *(k.value for k in decorator.keywords)] if isinstance(decorator, ast.Call) else []
    return any(isinstance(each, (ast.List, ast.Tuple, ast.BinOp, ast.ListComp)) for each in arguments)


def _abstract(node: ast.ClassDef) -> bool:
    metaclass = next(dotted(k.value) for k in node.keywords if k.arg == "metaclass")
    return metaclass.endswith(("ABCMeta", "Singleton"))


def _plain(base: str) -> bool:
    return all(part.isidentifier() for part in base.split("."))


def instance_names(node: ast.ClassDef) -> frozenset[str]:
    """Return what methods set on ``self``. ``*`` stands for a name that is computed."""
    return frozenset(name for method in node.body for name in _set_in(method))


def attributes_given(source: bytes) -> frozenset[str]:
    """Return ``trainer:datamodule`` for each attribute that a module gives another object, which a name or attribute holds."""
    pairs = ((name.decode().strip("_"), attribute.decode()) for name, attribute in _GIVEN.findall(source))
    return frozenset(f"{name}:{attribute}" for name, attribute in pairs if name not in {"self", "cls", ""})


def _set_in(method: ast.stmt) -> frozenset[str]:
    if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) or not method.args.args:
        return frozenset()
    if any(dotted(decorator) == "staticmethod" for decorator in method.decorator_list):
        return frozenset()
    own = method.args.args[0].arg
    return remember(
        method, "names_set", lambda: frozenset(name for inner in ast.walk(method) for name in _set_on(inner, own))
    )


def _set_on(node: ast.AST, own: str) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        if isinstance(node.value, ast.Name) and node.value.id == own:
            yield node.attr
    elif isinstance(node, ast.Call):
        callee = dotted(node.func)
        words = node.args
        if callee == "setattr" and len(words) > 1 and dotted(words[0]) == own:
            yield constant(words[1]) or "*"
        elif callee.rpartition(".")[2] in _REGISTERS and callee.startswith(f"{own}.") and words:
            yield constant(words[0]) or "*"
        elif callee == f"{own}.__dict__.update":
            yield "*"
