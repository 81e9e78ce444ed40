"""Star imports written out as the names that they bring, so that a question reads one module and not all below it.

A star stays where more may come with it: from another package, a compiled module, names made at run time, a circle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from envsmith.knowledge.names.dotted import is_below
from envsmith.knowledge.names.names_file import Table

_ALL = -1  # the bits of every release


@dataclass(slots=True)
class _Brought:
    """What a star import of a module brings: names, each with bits of releases, and the bits where more may come."""

    names: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    open_bits: int = 0


def is_brought(name: str, body: str) -> bool:
    """Return whether a star import brings a name that a line binds."""
    marks = body[:2]
    return "+" in marks if name.startswith("_") else not ("-" in marks or body == "~" or body.startswith("^"))


def write_out(table: Table, roots: Sequence[str]) -> None:
    """Replace the star imports of a table by the names that they bring."""
    closure = _Closure(table, roots)
    changes = {module: dict(closure.expanded(module)) for module in table}
    for module, lines in changes.items():
        for line, bits in lines.items():
            if bits:
                table[module][line] = table[module].get(line, 0) | bits if line[:2] != "* " else bits
            else:
                del table[module][line]


class _Closure:
    def __init__(self, table: Table, roots: Sequence[str]) -> None:
        self._table = table
        self._roots = roots
        self._known: dict[str, _Brought] = {}
        self._open: set[str] = set()

    def expanded(self, module: str) -> Iterator[tuple[str, int]]:
        """Yield the lines of a module that change: names with the bits to add, stars with the bits that stay."""
        lines = self._table[module]
        added: dict[str, int] = defaultdict(int)
        stars = [line for line in lines if line.startswith(("* >", "* ->")) and ">=" not in line]
        direct = _bound(lines) if stars else {}
        for line in stars:
            origin = self._origin(module, line.partition(">")[2])
            brought = self._of(origin) if origin else _Brought(open_bits=_ALL)
            for name, bits in brought.names.items():
                new = bits & lines[line] & ~direct.get(name, 0)
                for mark, some in _marks(name, new, lines, listed="->" in line):
                    added[f"{name} {mark}>{origin}:{name}"] |= some
            added[line] = lines[line] & brought.open_bits
        yield from ((line, bits) for line, bits in added.items() if bits or line in lines)

    def _origin(self, module: str, text: str) -> str:
        """Return the module of the package that a star names, ``""`` for one of another package."""
        if not is_below(text, self._roots) and f"{module}.{text}" in self._table:
            return f"{module}.{text}"  # a dot is missing where only type checkers read it (transformers' xlstm)
        return text if is_below(text, self._roots) and text in self._table else ""

    def _of(self, module: str) -> _Brought:
        if module in self._open:
            return _Brought(open_bits=_ALL)
        if module not in self._known:
            self._open.add(module)
            self._known[module] = self._read(module)
            self._open.remove(module)
        return self._known[module]

    def _read(self, module: str) -> _Brought:
        lines, brought = self._table[module], _Brought()
        for line, bits in lines.items():
            name, _, body = line.partition(" ")
            if name == "*":
                self._follow(module, body, bits, brought)
            elif name and "." not in name and is_brought(name, body):
                brought.names[name] |= bits
        return brought

    def _follow(self, module: str, body: str, bits: int, brought: _Brought) -> None:
        """Add what a module's own star, or its being open, means for a star import of it."""
        if body.startswith("-") or (body.startswith("?") and body != "?"):
            return
        origin = self._origin(module, body[1:]) if body.startswith(">") and not body.startswith(">=") else ""
        inner = self._of(origin) if origin and origin != module else _Brought(open_bits=0 if origin else _ALL)
        brought.open_bits |= inner.open_bits & bits
        for name, having in inner.names.items():
            if not name.startswith("_"):
                brought.names[name] |= having & bits


def _bound(lines: Mapping[str, int]) -> dict[str, int]:
    """Return the releases in which a module itself surely binds each name."""
    bound: dict[str, int] = defaultdict(int)
    for line, bits in lines.items():
        name, _, body = line.partition(" ")
        if body.lstrip("?+-") not in {"~", "*"} and not body.startswith(("?", "^")):
            bound[name] |= bits
    return bound


def _marks(name: str, bits: int, lines: Mapping[str, int], *, listed: bool) -> Iterator[tuple[str, int]]:
    """Yield the mark of a written-out name, with the releases for which it says whether a star passes the name on."""
    in_list = lines.get(f"{name} *", 0) if listed else _ALL
    private = name.startswith("_")
    yield "+" if private and listed else "", bits & in_list
    yield "" if private else "-", bits & ~in_list
