"""Modules that make names when they are asked for: which names, read from their tables.

Read are the tables of transformers, trl and diffusers (``_import_structure``), of huggingface_hub and scientific
packages (``attach``), of vllm and ray (``{"LLM": ".entrypoints.llm:LLM"}``), and loops over ``dir(other)``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from envsmith.knowledge.names.dotted import constant, dotted

_MAKERS = ("_LazyModule", "LazyModule", "attach", "_attach", "lazy_import", "lazy_attach", "attach_stub")
# ``globals()[…] =``, and the same under a name that a module gave it.
_WRITES = re.compile(r"globals(?:\(\))?\[")
_LONGEST = 100
_NAMESPACES = {"globals()", "vars()", "locals()"}
_NAMES = dict[str, frozenset[str]]


def makes_names(tree: ast.Module) -> bool:
    """Return whether a module answers for names that no statement binds."""
    for node in statements(tree.body):
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            return True
        called = node.value if isinstance(node, (ast.Assign, ast.Expr)) else None
        if isinstance(called, ast.Call) and dotted(called.func).rpartition(".")[2] in _MAKERS:
            return True
    return False


def answers_for_members(tree: ast.Module) -> bool:
    """Return whether ``__getattr__`` of a module answers for the members of a class (``if name in enum.__members__:``)."""
    functions = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "__getattr__")
    return any(isinstance(n, ast.Attribute) and n.attr == "__members__" for f in functions for n in ast.walk(f))


def names_of_table(tree: ast.Module) -> set[str]:
    """Return the names for which a module answers by a table: ``__getattr__ = deprecation_getattr(__name__, TABLE)`` (jax).

    A name whose entry ends with ``None`` is refused.
    """
    assigned = {dotted(n.targets[0]): n.value for n in statements(tree.body) if isinstance(n, ast.Assign)}
    answer = assigned.get("__getattr__")
    arguments = [dotted(each) for each in answer.args] if isinstance(answer, ast.Call) else []
    table = assigned.get(arguments[1]) if len(arguments) > 1 and arguments[0] == "__name__" else None
    rows = zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ()
    return {constant(key) for key, value in rows if not _is_refused(value)} - {""}


def _is_refused(value: ast.expr) -> bool:
    last = value.elts[-1] if isinstance(value, ast.Tuple) and value.elts else value
    return isinstance(last, ast.Constant) and last.value is None


def lists_folder(tree: ast.Module) -> bool:
    """Return whether a package answers for what the packages in its folder list: ``define_import_structure(_file)``."""
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and dotted(n.func) == "define_import_structure")
    return any(dotted(c.args[0]) in {"_file", "__file__"} for c in calls if c.args)


def endings(node: ast.ClassDef) -> set[str]:
    """Return the endings of names for which a class of modules has an answer of its own: ``if name.endswith("Fast"):``."""
    if not any(dotted(base).rpartition(".")[2] == "ModuleType" for base in node.bases):
        return set()
    methods = (m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__getattr__")
    tests = (n.test for m in methods for n in ast.walk(m) if isinstance(n, ast.If))
    calls = (t for t in tests if isinstance(t, ast.Call) and dotted(t.func) == "name.endswith" and t.args)
    return {text for call in calls if (text := constant(call.args[0])).isidentifier()}


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield what runs at import, inside ``if``, ``try``, ``with`` and loops too."""
    for node in body:
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body)


def texts_of(tree: ast.Module) -> set[str]:
    """Return the texts of a module that may be names: it might answer for each of them, or refuse it."""
    texts = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {t for t in texts if t.isidentifier()}


def aliases_of(tree: ast.Module) -> set[str]:
    """Return the texts of a module that may be names of modules which it makes: ``f"{__name__}.name"`` and ``name``."""
    texts = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {name for text in texts if len(text) < _LONGEST and (name := text.removeprefix(".")).isidentifier()}


def names_put(tree: ast.Module, root: str) -> set[str]:
    """Return ``torchaudio:load`` for each name that a module puts into another one of its package by text.

    ``for name in ["load", "save"]: setattr(torchaudio, name, …)`` puts two. Who sets names that it looks up wraps what is
    there (ray, torch). A table of where names went may answer for them too:
    ``{"pydantic.json:pydantic_encoder": "pydantic.deprecated.json:pydantic_encoder"}``.
    """
    loops = {n.target.id: n.iter for n in ast.walk(tree) if isinstance(n, ast.For) and isinstance(n.target, ast.Name)}
    put = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) == "setattr" and len(node.args) == 3:
            module, name = dotted(node.args[0]), node.args[1]
            listed = loops.get(name.id) if isinstance(name, ast.Name) else name
            parts = listed.elts if isinstance(listed, (ast.List, ast.Tuple)) else [listed]
            put |= {f"{module}:{constant(part)}" for part in parts}
        elif isinstance(node, ast.Dict):
            put |= {constant(key) for key, value in zip(node.keys, node.values, strict=True) if ":" in constant(value)}
        elif isinstance(node, ast.DictComp) and isinstance(node.key, ast.JoinedStr) and node.key.values:
            start, listed = constant(node.key.values[0]), node.generators[0].iter
            put |= {f"{start}{constant(part)}" for part in getattr(listed, "elts", ())}
    return {each for each in put if re.fullmatch(rf"{root}(\.\w+)*:\w+", each)}


def star_of_loop(node: ast.For | ast.AsyncFor | ast.While) -> str | None:
    """Return the module of ``for name in dir(module): globals()[name] = …``, or of ``module.__dir__()``."""
    if not isinstance(node, ast.For) or not isinstance(node.iter, ast.Call):
        return None
    function = dotted(node.iter.func)
    name = dotted(node.iter.args[0]) if function == "dir" and node.iter.args else function.removesuffix(".__dir__")
    copies = name != function and _WRITES.search(ast.unparse(node))
    return f"={name}" if copies and name and "()" not in name else None


def names_of_loop(node: ast.For | ast.AsyncFor | ast.While) -> frozenset[str] | None:
    """Return the names that a loop binds by text, ``None`` where that cannot be read.

    ``for op in ("sqrt", "cos"): globals()[f"sym_{op}"] = …`` binds two. A loop over stand-ins for what is missing
    (diffusers) binds none where nothing is missing.
    """
    if not isinstance(node, ast.For):
        return None
    if "dummy" in ast.unparse(node.iter):
        return frozenset()
    if not isinstance(node.iter, (ast.Tuple, ast.List)) or not isinstance(node.target, ast.Name):
        return None
    assigned = {dotted(s.targets[0]): s.value for s in node.body if isinstance(s, ast.Assign)}
    stored = [n for n in ast.walk(node) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]
    keys = [assigned.get(dotted(n.slice), n.slice) for n in stored if dotted(n.value) in _NAMESPACES]
    names = {_filled(key, node.target.id, constant(item)) for key in keys for item in node.iter.elts}
    return frozenset(names) if names and "" not in names else None


def _filled(key: ast.expr, variable: str, text: str) -> str:
    """Return a text that is the variable or contains it, ``""`` for any other."""
    parts = key.values if isinstance(key, ast.JoinedStr) else [key]
    values = [p.value if isinstance(p, ast.FormattedValue) else p for p in parts]
    texts = [text if dotted(value) == variable else constant(value) for value in values]
    return "".join(texts) if text and all(texts) else ""


def lazy_names(node: ast.stmt, package: str) -> _NAMES:
    """Return the names that one statement adds to a table, each with where it comes from."""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(node.value, ast.Dict):
            return _of_dict(node.value, package)
        if isinstance(target, ast.Subscript) and node.value is not None:
            return _of_list(target.slice, node.value, package)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        if isinstance(call.func, ast.Attribute) and call.func.attr in {"extend", "append", "update"} and call.args:
            if isinstance(call.func.value, ast.Subscript):
                return _of_list(call.func.value.slice, call.args[0], package)
            if isinstance(call.args[0], ast.Dict):
                return _of_dict(call.args[0], package)
    if isinstance(node, (ast.Assign, ast.Expr)) and isinstance(node.value, ast.Call):
        keywords = {k.arg: k.value for k in node.value.keywords}
        table = keywords.get("submod_attrs")
        return _of_dict(table, package) if isinstance(table, ast.Dict) else {}
    return {}


def _of_dict(table: ast.Dict, package: str) -> _NAMES:
    names: _NAMES = {}
    for key, value in zip(table.keys, table.values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            continue
        if isinstance(value, (ast.List, ast.Tuple, ast.Set)) and not _is_pair(value):
            names |= _of_list(key, value, package)
        elif key.value.isidentifier() and (place := _place(key.value, value, package)):
            names[key.value] = frozenset({place})
    return names


def _is_pair(value: ast.List | ast.Tuple | ast.Set) -> bool:
    """Return whether it is ``("module.path", "name")``."""
    texts = [constant(item) for item in value.elts]
    return isinstance(value, ast.Tuple) and len(texts) == 2 and "." in texts[0]


def _place(name: str, value: ast.expr, package: str) -> str:
    """Return ``>module:name`` for ``".llm:LLM"``, ``".llm"`` or ``("pkg.llm", "LLM")``."""
    if isinstance(value, ast.Tuple) and _is_pair(value):
        return f">{_absolute(constant(value.elts[0]), package)}:{constant(value.elts[1])}"
    module, _, attribute = constant(value).partition(":")
    if not module or not all(p.isidentifier() for p in module.lstrip(".").split(".")):
        return ""
    if not module.startswith(".") and module.partition(".")[0] != package.partition(".")[0]:
        return ""
    return f">{_absolute(module, package)}:{attribute or name}"


def _of_list(key: ast.expr, value: ast.expr, package: str) -> _NAMES:
    module = constant(key)
    if not module or not all(p.isidentifier() for p in module.lstrip(".").split(".")):
        return {}
    items = value.elts if isinstance(value, (ast.List, ast.Tuple, ast.Set)) else [value]
    place = _absolute(module if module.startswith(".") else f".{module}", package)
    names: _NAMES = {
        text: frozenset({f">{place}:{text}"}) for i in items if (text := constant(i)) and text.isidentifier()
    }
    if "." not in module:
        names[module] = frozenset({f">{place}"})
    return names


def _absolute(module: str, package: str) -> str:
    level = len(module) - len(module.lstrip("."))
    if not level:
        return module
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - level + 1], *([module[level:]] if module[level:] else [])])
