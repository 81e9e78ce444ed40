"""Defaults of dataclasses that Python refuses from 3.11 on: an object of a class without a hash.

Before 3.11 a list, a dict and a set were refused alone. Since then ``dataclasses`` asks whether ``__hash__`` of the class
of the default is ``None``, as it is for every dataclass that is not frozen (``dataclasses.py`` of 3.11, ``_get_field``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from envsmith.knowledge.names.dotted import dotted
from envsmith.knowledge.names.own_classes import ClassPlace, OwnClasses
from envsmith.knowledge.names.scopes import Chain, bound_once, own_members

# The minor version of Python 3.
FIRST_REFUSING = 11
_MAKER, _FIELD = ("dataclasses", "dataclass"), ("dataclasses", "field")
# A field and a call of a class: of all texts that have the word, few have the one beside the other.
_CANDIDATE = re.compile(
    rb"^[ \t]+\w+[ \t]*:[^\n=#]*=\s*(?:[\w.]*\bfield\([^)]*?\bdefault\s*=\s*)?(?:\w+\.)*_*[A-Z]\w*\(", re.MULTILINE
)
# Bases that have the hash of ``object``.
_PLAIN: frozenset[Chain] = frozenset({("abc", "ABC"), ("typing", "Generic"), ("typing", "Protocol")})
# Members by which an object may be of another class than the one that is called, or is not the default itself.
_OPAQUE = frozenset({"__new__", "__get__", "__class__"})
_DEEPEST = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class RefusedDefault:
    """The field ``name`` of a dataclass at ``path:line``, and the call that is its default. ``maker`` is the class that is called."""

    path: str
    line: int
    owner: str
    name: str
    maker: str


def may_have_refused(text: bytes) -> bool:
    """Return whether a source is worth reading for them."""
    return b"dataclass" in text and _CANDIDATE.search(text) is not None


def refused_defaults(path: str, classes: OwnClasses) -> Iterator[RefusedDefault]:
    """Yield what Python refuses where a source is imported: of classes at its left edge, and of those inside them."""
    for place in classes.classes_of(path):
        yield from _of_class(path, place, classes)


def _of_class(path: str, place: ClassPlace, classes: OwnClasses) -> Iterator[RefusedDefault]:
    node = place.node
    inner = {part.name: ClassPlace(place.module, part) for part in node.body if isinstance(part, ast.ClassDef)}
    for part in inner.values():
        yield from _of_class(path, part, classes)
    # The last decorator is called first: those above it get no class that it refuses.
    if not node.decorator_list or _flags(node.decorator_list[-1], place, classes) is None:
        return
    fields, members = bound_once(node.body), own_members(node)
    for name, call in _defaults(place, classes):
        maker = dotted(call.func)
        target = inner.get(maker) if maker.partition(".")[0] in members else classes.find(place.module, maker)
        if name in fields and isinstance(target, ClassPlace) and has_no_hash(target, classes):
            yield RefusedDefault(path=path, line=call.lineno, owner=node.name, name=name, maker=target.node.name)


def _defaults(place: ClassPlace, classes: OwnClasses) -> Iterator[tuple[str, ast.Call]]:
    """Yield the fields of a dataclass whose default is a call: one that is assigned, or ``default`` of a call of ``field``."""
    for node in place.node.body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        default = node.value
        if isinstance(default, ast.Call) and classes.find(place.module, dotted(default.func)) == _FIELD:
            default = next((keyword.value for keyword in default.keywords if keyword.arg == "default"), None)
        is_field = not re.search(r"\b(?:ClassVar|InitVar)\b", ast.unparse(node.annotation))
        if is_field and isinstance(default, ast.Call):
            yield node.target.id, default


def has_no_hash(place: ClassPlace, classes: OwnClasses, depth: int = 0) -> bool | None:
    """Return whether ``__hash__`` of a class is ``None``, ``None`` where that cannot be read."""
    node, members = place.node, own_members(place.node)
    if node.keywords or members & _OPAQUE or depth > _DEEPEST or len(node.decorator_list) > 1:
        return None
    flags = _flags(node.decorator_list[0], place, classes) if node.decorator_list else {"eq": False}
    if flags is None:
        return None
    if "__hash__" in members or flags.get("unsafe_hash"):
        return False
    if flags.get("eq", True):
        return not flags.get("frozen", False)
    return True if "__eq__" in members else _inherits_none(place, classes, depth)


def _inherits_none(place: ClassPlace, classes: OwnClasses, depth: int) -> bool | None:
    answers = set[bool | None]()
    for base in place.node.bases:
        name = dotted(base.value if isinstance(base, ast.Subscript) else base)
        target = classes.find(place.module, name)
        if isinstance(target, ClassPlace):
            answers.add(has_no_hash(target, classes, depth + 1))
        elif name != "object" and target not in _PLAIN:
            return None
    return (answers or {False}).pop() if len(answers) < 2 else None


def _flags(decorator: ast.expr, place: ClassPlace, classes: OwnClasses) -> dict[str, bool] | None:
    """Return the arguments of ``@dataclass(…)``, ``None`` where a decorator is another one, or they are not written out."""
    call = decorator if isinstance(decorator, ast.Call) else None
    if classes.find(place.module, dotted(call.func if call else decorator)) != _MAKER:
        return None
    flags = {k.arg: k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)} if call else {}
    is_whole = not call or (len(flags) == len(call.keywords) and not call.args)
    return {name: bool(value) for name, value in flags.items() if name} if is_whole and None not in flags else None
