"""What a stub says of a module that can be imported: stubs have names for type checkers too."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator

from envsmith.knowledge.names.dotted import constant, dotted

_OPEN = "* ?"
_TYPE_BASES = frozenset({"Protocol", "TypedDict"})


def additions(stub: Iterable[str], source: frozenset[str], compiled: Collection[str] = ()) -> frozenset[str]:
    """Return the lines of a stub that hold where the module has a source with those lines.

    The source decides which names exist. The stub counts for what the source makes at run time, for the signature of
    what the source binds to a value, and for what it takes from ``compiled`` modules. Values of the stub come from a star
    import of the source. A class of which the stub lists more members than the source writes is given them elsewhere.
    """
    if _OPEN in source:
        return frozenset(stub)
    bodies = [(name, body.lstrip("?+-")) for name, _, body in (line.partition(" ") for line in source)]
    vague = {name for name, body in bodies if body in {"=", "~"} or body[1:].partition(":")[0] in compiled}
    names = {name for name, _ in bodies}
    members = {name for name, _, body in (line.partition(" ") for line in stub) if "." in name and name not in names}
    owners = {owner for owner in (name.rpartition(".")[0] for name in members) if owner in names - vague}
    has_star = any(name == "*" and body.startswith(">") for name, body in bodies)
    return frozenset(
        {line for line in stub if line.partition(" ")[0].partition(".")[0] in vague}
        | {line for line in stub if has_star and _is_public_value(line) and line.partition(" ")[0] not in names}
        | {f"{owner}.* ?" for owner in owners}
    )


def _is_public_value(line: str) -> bool:
    name, _, body = line.partition(" ")
    return body.startswith("=") and "." not in name and not name.startswith("_")


def without_types(tree: ast.Module) -> ast.Module:
    """Return a stub without what only a type checker reads: imports that it does not pass on, and private types."""
    listed = {constant(item) for node in tree.body if _is_list_of_names(node) for item in ast.walk(node)}
    return ast.Module(
        body=[node for statement in tree.body for node in _importable(statement, listed)], type_ignores=[]
    )


def _is_list_of_names(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(dotted(target) == "__all__" for target in targets)


def _importable(node: ast.stmt, listed: set[str]) -> Iterator[ast.stmt]:
    if isinstance(node, ast.ImportFrom):
        names = [a for a in node.names if a.name in {"*", a.asname} or (a.asname or a.name) in listed]
        if names:
            yield ast.ImportFrom(module=node.module, names=names, level=node.level)
    elif isinstance(node, ast.Import):
        names = [a for a in node.names if a.asname == a.name or (a.asname or a.name) in listed]
        if names:
            yield ast.Import(names=names)
    elif not _is_private_type(node):
        yield node


def _is_private_type(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        bases = {dotted(b.value if isinstance(b, ast.Subscript) else b).rpartition(".")[2] for b in node.bases}
        return node.name.startswith("_") and bool(bases & _TYPE_BASES)
    if isinstance(node, ast.AnnAssign) and not dotted(node.annotation).endswith("TypeAlias"):
        return False
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return dotted(target).startswith("_") and not dotted(target).startswith("__")
