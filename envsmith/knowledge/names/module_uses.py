"""What one module takes of other packages and of its own: uses, methods in the place of others, attributes, stops."""

from __future__ import annotations

from dataclasses import dataclass, field

from envsmith.knowledge.names.guards import Guard
from envsmith.knowledge.names.scopes import Chain

# The function of what runs only when a file is the program itself.
MAIN = "__main__"


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """One name that is taken: ``("torch", "distributed", "log")`` for ``torch.distributed.log``, aliases resolved.

    ``function`` is the outermost function around it (``Class.method`` in a class), ``None`` at module level and
    :data:`MAIN` under ``if __name__ == "__main__"``. ``imported``: by an import statement, which makes modules of its
    parents. ``member``: the chain goes through an object of a class, so that what the object is given at run time may
    have it. ``arguments`` are those that a call names, and ``#2`` where it gives as many by position.
    ``values`` are what it writes out of them: ``copy=False``, and ``#1=str`` for a text in the first place. ``attributes`` are
    the attributes that are taken of what a followed call returns, see ``calls.attributes_of``. ``call`` is what it gives
    in all, see :func:`~envsmith.knowledge.names.whole_calls.whole_call`.
    """

    chain: Chain
    line: int
    function: str | None
    imported: bool = False
    member: bool = False
    arguments: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    attributes: frozenset[str] = frozenset()
    call: str = ""
    guard: Guard = field(default_factory=Guard)

    @property
    def questions(self) -> tuple[str, ...]:
        """Return what is asked of a name that is called: each argument, and whether they are enough."""
        return (*self.arguments, *([self.call] if self.call else []))


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """A method that stands in the place of one of another package: ``chain`` is that one, ``text`` what it takes itself.

    ``text`` is as :func:`~envsmith.knowledge.names.signature_text.function_text` writes it.
    """

    chain: Chain
    line: int
    text: str
    guard: Guard


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """An attribute, of which packages have none any more, of an object of which nothing is known."""

    name: str
    line: int
    guard: Guard


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """A ``raise``, and the function in which it stands."""

    line: int
    function: str | None
    guard: Guard


@dataclass(kw_only=True, slots=True)
class ModuleUses:
    """What one module takes. ``uses``: from other packages. ``imports`` and ``calls``: of its own package.

    ``overrides`` are methods of its classes whose only base is a class of another package, ``members`` attributes that
    packages have no more, and ``defined`` functions of its own with such names. ``gone`` are names of the
    standard library that some Python does not have any more.

    ``names`` are its own imports by the name they get, ``lazy`` those that it makes when they are asked for.
    ``stops`` are its ``raise`` statements. ``floors`` are packages of which a function like ``is_peft_available`` asks for a version, see ``floors.floor_of``.
    ``unseen`` are lines that choose a name at run time, and the package they choose from where that is known.
    """

    uses: list[Use] = field(default_factory=list)
    gone: list[Use] = field(default_factory=list)
    overrides: list[Override] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    imports: list[Use] = field(default_factory=list)
    calls: list[Use] = field(default_factory=list)
    names: dict[str, Chain] = field(default_factory=dict)
    lazy: dict[str, Chain] = field(default_factory=dict)
    floors: dict[str, str | None] = field(default_factory=dict)
    unseen: list[tuple[int, str]] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
