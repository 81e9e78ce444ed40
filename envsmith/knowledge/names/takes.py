"""What the import of a release takes from other packages, as lines of a file beside theirs.

A line is a name and how it is taken: ``torch.compiler.is_compiling =deepspeed.utils ?torch.compiler``. ``=`` is the
module that takes it, ``@`` the function that does so when it is called, ``:`` an import statement, ``(`` the arguments
by name, ``+`` a package that must be installed (``+accelerate>=0.26.0``), ``?`` and ``!`` a ``hasattr`` that holds or
does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envsmith.knowledge.names.reach import PlacedUse

SUFFIX = ".takes"


@dataclass(frozen=True, kw_only=True, slots=True)
class Take:
    """One name that the import of a package takes."""

    path: str
    module: str
    function: str = ""
    imported: bool = False
    arguments: tuple[str, ...] = ()
    available: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def line(self) -> str:
        """Return the line that :func:`parse` reads."""
        words = [self.path, f"={self.module}", *([f"@{self.function}"] if self.function else [])]
        words += [":"] if self.imported else []
        words += [f"({','.join(self.arguments)}"] if self.arguments else []
        marked = (("+", self.available), ("?", self.holds), ("!", self.lacks))
        return " ".join([*words, *(f"{mark}{name}" for mark, names in marked for name in names)])


def parse(line: str) -> Take:
    """Return what :meth:`Take.line` wrote."""
    path, *words = line.split(" ")
    by_mark: dict[str, list[str]] = {mark: [] for mark in "=@:(+?!"}
    for word in words:
        by_mark[word[0]].append(word[1:])
    return Take(
        path=path,
        module=by_mark["="][0],
        function="".join(by_mark["@"]),
        imported=bool(by_mark[":"]),
        arguments=tuple(name for names in by_mark["("] for name in names.split(",")),
        available=tuple(by_mark["+"]),
        holds=tuple(by_mark["?"]),
        lacks=tuple(by_mark["!"]),
    )


def takes_of(places: Iterable[PlacedUse], *, later: bool = False) -> list[Take]:
    """Return each name once that places take: where the fewest conditions decide about it.

    ``later``: in functions, when they are called.

    Members of objects are left out: what an object is given at run time may have them.
    """
    takes: dict[tuple[str, bool, tuple[str, ...]], Take] = {}
    for place in places:
        use = place.use
        path = ".".join(use.chain)
        if use.member or (len(use.chain) < 2 and not use.imported):
            continue
        tests = {
            holds: sorted({".".join((*t.chain, t.name)) for t in use.guard.tests if t.holds is holds})
            for holds in (True, False)
        }
        take = Take(
            path=path,
            module=place.module,
            function=use.function or "" if later else "",
            imported=use.imported,
            arguments=use.arguments,
            available=tuple(sorted(place.available)),
            holds=tuple(tests[True]),
            lacks=tuple(tests[False]),
        )
        key = (path, take.imported, take.arguments)
        takes[key] = min(takes.get(key, take), take, key=_conditions)
    return list(takes.values())


def _conditions(take: Take) -> tuple[int, str, str]:
    return len(take.available) + len(take.holds) + len(take.lacks), take.module, take.function
