"""From a dotted path to what it names, in all releases of a package at once.

A set of releases is an integer with a bit for each. A path is followed step by step: modules, names that are imported
from elsewhere, star imports, members of classes and of their bases.
"""

from __future__ import annotations

import builtins
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from keyword import iskeyword
from typing import Protocol

from envsmith.knowledge.names.decorators import is_handed_on
from envsmith.knowledge.names.dotted import is_below
from envsmith.knowledge.names.names_file import Head, ModuleLines
from envsmith.knowledge.names.signature_text import positional
from envsmith.knowledge.names.stars import is_brought
from envsmith.knowledge.names.whole_calls import WholeCall

# Folders that are not measured: nothing is said of modules in them.
UNMEASURED = frozenset({"tests", "test", "benchmarks", "examples", "docs"})
# Modules of protobuf, of which a builder makes the names when they are imported.
_GENERATED = "_pb2"
# What every module has: its own names, and those of its type.
_ALWAYS = frozenset({*dir(types.ModuleType), *vars(types.ModuleType("")), "__file__", "__path__"})
# Bases that add nothing to object, and those whose fields are the arguments.
_PLAIN_BASES = frozenset(
    {"abc.ABC", "typing.Generic", "typing.Protocol", "typing_extensions.Protocol", "builtins.object"}
)
_FIELD_BASES = frozenset({"msgspec.Struct", "typing.NamedTuple", "typing.TypedDict"})
# Its __getattr__ answers for parameters, buffers and modules that were set on the instance, and the reader sees those.
_CLOSED = frozenset({"torch.nn.modules.module.Module", "torch.nn.Module"})
# What a decorator takes by an old name: the argument that it becomes, and the function that hands it on while a release has it.
_HANDED_ON = {
    "use_auth_token": ("token", "huggingface_hub.utils._validators.smoothly_deprecate_use_auth_token"),
}
_DEEPEST = 24
# What has a hand in a call of a class, beside its ``__init__``. The last one is of classes below it.
_HOOKS = ("__new__", "__init_subclass__")

Beyond = Callable[["NamePlace", "str | None", "str | None"], "bool | None"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NamePlace:
    """What a path names in some releases. ``kind``: module, class, function, value, or external (another package)."""

    bits: int
    kind: str
    module: str
    name: str = ""
    body: str = ""

    @property
    def path(self) -> str:
        """Return the dotted path of the definition."""
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """All that a path names, and the releases of which nothing can be said."""

    places: tuple[NamePlace, ...] = ()
    unknown: int = 0

    @property
    def bits(self) -> int:
        """Return the releases in which something was reached."""
        return _union(p.bits for p in self.places)


@dataclass(frozen=True, kw_only=True, slots=True)
class Availability:
    """Releases that have it, and those that may have it."""

    present: int = 0
    unknown: int = 0

    def __or__(self, later: Availability) -> Availability:
        """Return what one of two says."""
        return Availability(present=self.present | later.present, unknown=self.unknown | later.unknown)


def _union(masks: Iterable[int]) -> int:
    bits = 0
    for mask in masks:
        bits |= mask
    return bits


class Names(Protocol):
    """The names of one distribution: of a file that holds them all, or read where they are published."""

    head: Head

    def module(self, name: str) -> ModuleLines | None:
        """Return the lines of a module, or ``None`` where no release has it."""
        ...

    def may_bind(self, module: str, name: str) -> bool:
        """Return whether a module may bind a name: ``False`` where its text alone tells that it does not."""
        ...

    def modules_defining(self, name: str) -> tuple[str, ...]:
        """Return the modules in which a class or function of that name is written."""
        ...

    def callables_taking(self, name: str, argument: str) -> tuple[str, ...]:
        """Return the dotted paths of the callables of a name that take an argument, in any release."""
        ...


class Walk:
    """Follows paths through the names of one distribution."""

    def __init__(self, file: Names, beyond: Beyond) -> None:
        self._file = file
        self._beyond = beyond
        self._roots = file.head.roots
        self._path: set[tuple[str, str, bool]] = set()  # what is being looked up: an import in a circle adds nothing
        self._followed: dict[str, Reached] = {}
        self.is_sample = file.head.is_sample
        self.files = file.head.releases
        self.releases = tuple(m.version for m in self.files)
        self.date = max((m.date for m in file.head.releases), default="")
        self._everything = (1 << len(self.releases)) - 1
        self._pure = _union(1 << at for at, m in enumerate(self.files) if m.filename.endswith("-none-any.whl"))
        self.unread = file.head.unread

    def versions(self, bits: int) -> frozenset[str]:
        """Return the releases of a set of bits."""
        return frozenset(v for at, v in enumerate(self.releases) if bits >> at & 1)

    def module(self, name: str) -> ModuleLines | None:
        """Return a module's lines."""
        return self._file.module(name)

    def as_module(self, path: str) -> Availability:
        """Return the releases in which a path is a module, a file or a folder.

        A package may have modules of another one where it binds what that one has, or an object that loads it later:
        ``tensorflow.keras`` is found there.
        """
        facts = self.module(path)
        present = facts.bits if facts else 0
        parent, _, name = path.rpartition(".")
        above = self.module(parent)
        names = (name, "__path__")
        unknown = _union(having for each in names for body, having in above.of(each) if body == "~") if above else 0
        if above and above.bits & ~present:
            unknown |= _union(
                p.bits for p in self.find(parent, name, above.bits).places if p.kind in {"external", "value"}
            )
        if parent and not (above and above.bits == self._everything):
            unknown |= self.as_module(parent).unknown
        unknown = self._everything if self._unmeasured(path) else unknown | self._may_be_compiled(facts)
        return Availability(present=present, unknown=unknown & ~present)

    def _may_be_compiled(self, facts: ModuleLines | None) -> int:
        """Return the releases of which a wheel without compiled modules was read, where others have compiled this one."""
        is_compiled = facts is not None and any(body == "!" for body, _ in facts.of("*"))
        return self._pure & ~facts.bits if facts is not None and is_compiled else 0

    def is_compiled(self, path: str) -> bool:
        """Return whether a release has a name from a compiled module."""
        modules = {place.module for place in self.follow(path).places}
        facts = (self.module(name) for name in modules)
        return any(body == "!" for module in facts if module for body, _ in module.of("*"))

    def modules_defining(self, name: str) -> tuple[str, ...]:
        """Return the modules in which a class or function of that name is written."""
        return self._file.modules_defining(name)

    # -- paths --------------------------------------------------------------------------------------------------------

    def callables_taking(self, name: str, argument: str) -> tuple[str, ...]:
        """Return the paths of the callables of that name that take an argument, in any release."""
        return self._file.callables_taking(name, argument)

    def root_of(self, path: str) -> str:
        """Return the import root of the distribution that a path begins with, empty for another one."""
        return max((r for r in self._roots if f"{path}.".startswith(f"{r}.")), key=len, default="")

    def follow(self, path: str) -> Reached:
        """Return what a dotted path names."""
        if path in self._followed:
            return self._followed[path]
        reached = self._follow(path)
        if not self._path:  # inside of another question, what that one looks up adds nothing here
            self._followed[path] = reached
        return reached

    def _follow(self, path: str) -> Reached:
        root = self.root_of(path)
        if not root:
            return Reached(unknown=self._everything)
        facts = self.module(root)
        start = NamePlace(bits=facts.bits if facts else 0, kind="module", module=root)
        return self._steps(Reached(places=(start,)), path[len(root) + 1 :].split(".") if path != root else ())

    def _steps(self, reached: Reached, names: Sequence[str], depth: int = 0) -> Reached:
        for name in names:
            places: list[NamePlace] = []
            unknown = reached.unknown
            for place in reached.places:
                inner = self._step(place, name, depth)
                places += inner.places
                unknown |= inner.unknown
            reached = Reached(places=tuple(places), unknown=unknown)
        return reached

    def _step(self, place: NamePlace, name: str, depth: int) -> Reached:
        if place.kind == "module":
            return self.find(place.module, name, place.bits, depth=depth)
        if place.kind == "class":
            return self.member(place, name, depth)
        if place.kind == "external":
            return self._external(place, name)
        return Reached(unknown=place.bits)

    def _external(self, place: NamePlace, name: str) -> Reached:
        below = replace(place, name=f"{place.name}.{name}".lstrip("."))
        if below.path in _PLAIN_BASES | _FIELD_BASES:
            return Reached(places=(below,))
        answer = _of_builtin(place, name) if place.module == "builtins" else self._beyond(place, name, None)
        if answer is None:
            return Reached(unknown=place.bits)
        return Reached(places=(below,) if answer else ())

    # -- modules ------------------------------------------------------------------------------------------------------

    def find(self, module: str, name: str, bits: int, *, star: bool = False, depth: int = 0) -> Reached:
        """Return what a module binds a name to in those releases. With ``star`` only what a star import brings."""
        step = (module, name, star)
        if step in self._path:
            return Reached()
        self._path.add(step)
        try:
            return self._find(module, name, bits, star=star, depth=depth)
        finally:
            self._path.remove(step)

    def _find(self, module: str, name: str, bits: int, *, star: bool, depth: int) -> Reached:
        facts = self.module(module)
        if not bits or depth > _DEEPEST:
            return Reached(unknown=bits)
        if facts is None:
            return Reached(unknown=bits if self._unmeasured(module) else 0)
        unknown = bits & ~facts.bits if self._unmeasured(module) else 0
        bits &= facts.bits
        if name in _ALWAYS:
            return Reached(places=(NamePlace(bits=bits, kind="value", module=module, name=name),))
        places: list[NamePlace] = []
        below = None if star else self.module(f"{module}.{name}")
        # A module that is there decides what is below it, unless its own __getattr__ hands names on (numpy.core).
        settled = below.bits & ~_union(having for _, having in below.of("__getattr__")) if below is not None else 0
        listed = 0  # the module lists the name, and something else binds it
        for body, having in facts.of(name):
            covered = bits & having & ~(settled if body == "~" else 0)
            if body == "*":
                listed = covered
            elif covered and not (star and not is_brought(name, body)):
                reached = self._bound(module, name, body, covered, depth)
                places += reached.places
                unknown |= reached.unknown
        if below is not None:  # it can be imported, whatever the package itself makes of it
            places.append(NamePlace(bits=bits & below.bits, kind="module", module=f"{module}.{name}"))
        unknown |= bits & self._may_be_compiled(below)
        remaining = bits & ~_union(p.bits for p in places)
        is_generated = module.endswith(_GENERATED) and not (star and name.startswith("_"))
        if remaining and below is None and (is_generated or (not star and name in UNMEASURED)):
            unknown |= remaining
        wide = self._wide(module, name, remaining, facts, star=star, depth=depth)
        places += wide.places
        listed &= ~_union(place.bits for place in places)
        return Reached(places=tuple(places), unknown=unknown | wide.unknown | listed)

    def _wide(self, module: str, name: str, bits: int, facts: ModuleLines, *, star: bool, depth: int) -> Reached:
        """Return what star imports bring, and the releases in which the module makes names at run time."""
        places: list[NamePlace] = []
        unknown = 0
        # A name that the stub of another release has would be in that of this one too, and a private one is not brought.
        stubbed = 0 if not star else bits if name.startswith("_") else facts.described if facts.of(name) else 0
        for body, having in facts.of("*"):
            covered = having & bits
            if not covered:
                continue
            if star and body.startswith("-"):
                continue
            if body.lstrip("-") == "?":
                unknown |= covered
            elif body == "!":
                unknown |= covered & ~stubbed
            elif body.startswith("?"):
                unknown |= covered if name.endswith(body[1:]) and not star else 0
            elif body.lstrip("-").startswith(">"):
                reached = self._star(module, body.lstrip("-")[1:], name, covered, depth)
                places += reached.places
                unknown |= reached.unknown
                bits &= ~reached.bits
        return Reached(places=tuple(places), unknown=unknown)

    def _star(self, module: str, origin: str, name: str, bits: int, depth: int) -> Reached:
        if origin.startswith("="):
            steps = origin[1:].split(".")
            sources = self._steps(self.find(module, steps[0], bits, depth=depth + 1), steps[1:], depth + 1)
            inner = [self._step(p, name, depth + 1) for p in sources.places if not name.startswith("__")]
            return Reached(places=tuple(q for r in inner for q in r.places), unknown=_union(r.unknown for r in inner))
        if not is_below(origin, self._roots) and self.module(f"{module}.{origin}") is not None:
            origin = f"{module}.{origin}"  # a dot is missing where only type checkers read it (transformers' xlstm)
        if not is_below(origin, self._roots):
            return self._star_beyond(origin, name, bits)
        if origin == module or not self._file.may_bind(origin, name):
            return Reached()
        reached = self.find(origin, name, bits, star=True, depth=depth + 1)
        facts = self.module(origin)
        if facts is None or self.module(f"{module}.{name}") is None:
            return reached
        # What is a module in another release, the stub of a compiled one would list if that one brought it.
        return replace(reached, unknown=reached.unknown & ~facts.described)

    def _star_beyond(self, origin: str, name: str, bits: int) -> Reached:
        """Return what a star import of another package brings: what all its releases have, or perhaps anything."""
        if name.startswith("_"):
            return Reached()
        place = NamePlace(bits=bits, kind="external", module=origin, name=name)
        is_there = self._beyond(NamePlace(bits=bits, kind="module", module=origin), name, None)
        return Reached(places=(place,)) if is_there else Reached(unknown=bits)

    def _bound(self, module: str, name: str, body: str, bits: int, depth: int) -> Reached:
        """Return what one line binds a name to."""
        text = body.lstrip("?+-")
        place = NamePlace(bits=bits, kind="value", module=module, name=name, body=text)
        if _is_function(text):
            return Reached(places=(replace(place, kind="function"),))
        if text.startswith((":", "@:")):
            return Reached(places=(replace(place, kind="class"),))
        if text.startswith(">"):
            return self._imported(place, text[1:], depth)
        if text.startswith("=") and len(text) > 1:
            steps = text[1:].split(".")
            target = self._steps(self.find(module, steps[0], bits, depth=depth + 1), steps[1:], depth + 1)
            return self._or_value(place, target)
        if text.startswith(("~", "*")):
            return Reached(unknown=bits)
        return Reached() if text.startswith("^") else Reached(places=(place,))

    def _imported(self, place: NamePlace, text: str, depth: int) -> Reached:
        origin, _, name = text.partition(":")
        if name and (origin, name) == (place.module, place.name):  # a package that imports its own module
            origin, name = f"{origin}.{name}", ""
        if not is_below(origin, self._roots):
            return Reached(places=(replace(place, kind="external", module=origin, name=name, body=""),))
        if name and (origin, name) != (place.module, place.name):
            return self._or_value(place, self.find(origin, name, place.bits, depth=depth + 1))
        if name:  # ``from . import part`` in the package itself
            origin, name = f"{origin}.{name}", ""
        facts = self.module(origin)
        if facts is None:
            return Reached(places=(place,))
        module = replace(place, kind="module", module=origin, name="", body="", bits=place.bits & facts.bits)
        return self._or_value(place, Reached(places=(module,)))

    @staticmethod
    def _or_value(place: NamePlace, target: Reached) -> Reached:
        """Return the target, and the name as a value where the target is not seen: it is bound all the same."""
        remaining = place.bits & ~target.bits
        return Reached(places=(*target.places, *([replace(place, bits=remaining)] if remaining else [])))

    def _unmeasured(self, module: str) -> bool:
        """Return whether a module may exist unseen: below a folder that is not measured, or inside a compiled module."""
        parts = module.split(".")
        if UNMEASURED & set(parts):
            return True
        above = (self.module(".".join(parts[:depth])) for depth in range(len(parts) - 1, 0, -1))
        nearest = next((m for m in above if m is not None), None)
        return nearest is not None and any(body == "!" for body, _ in nearest.of("*"))

    # -- classes ------------------------------------------------------------------------------------------------------

    def member(self, place: NamePlace, name: str, depth: int) -> Reached:
        """Return a member of a class, its own or one of its bases."""
        facts = self.module(place.module)
        if facts is None or depth > _DEEPEST:
            return Reached(unknown=place.bits)
        places: list[NamePlace] = []
        for body, having in facts.of(f"{place.name}.{name}"):
            if bits := place.bits & having:
                places += self._member_place(place, name, body, bits)
        remaining = place.bits & ~_union(p.bits for p in places)
        if remaining and hasattr(object, name) and name != "__init__":
            return Reached(places=(*places, replace(place, kind="value", name=f"{place.name}.{name}", bits=remaining)))
        unknown = 0
        for base in self._bases(place, remaining, depth):
            reached = self._step(base, name, depth + 1) if base.kind in {"class", "external"} else None
            places += reached.places if reached else ()
            unknown |= reached.unknown if reached else base.bits
        if not facts.has_members(place.name):  # a stub that only names a class of C++ tells nothing of it
            unknown |= remaining & _union(having for body, having in facts.of("*") if body == "!")
        if place.path not in _CLOSED:
            unknown |= remaining & _union(having for body, having in facts.of(f"{place.name}.*"))
        remaining &= ~_union(p.bits for p in places)
        if name == "__init__" and remaining & ~unknown:  # that of object, where no base has one
            places.append(replace(place, kind="value", name=f"{place.name}.{name}", bits=remaining & ~unknown))
        return Reached(places=tuple(places), unknown=unknown & remaining)

    @staticmethod
    def _member_place(place: NamePlace, name: str, body: str, bits: int) -> Iterator[NamePlace]:
        text = body.lstrip("?")
        kind = "function" if _is_function(text) else "class" if text.startswith((":", "@:")) else "value"
        yield NamePlace(bits=bits, kind=kind, module=place.module, name=f"{place.name}.{name}", body=text)

    def _bases(self, place: NamePlace, bits: int, depth: int) -> Iterator[NamePlace]:
        """Yield the bases of a class in those releases. A base that is not seen is a value."""
        for base in place.body.partition(":")[2].split(","):
            if not base or not bits:
                continue
            steps = base.split(".")
            target = Reached()
            if base != "?":
                scope = place.name.rpartition(".")[0]
                target = self._steps(self._in_scope(place, scope, steps[0], bits, depth + 1), steps[1:], depth + 1)
            for target_place in target.places:
                if target_place.path not in _PLAIN_BASES:
                    yield target_place
            remaining = bits & ~target.bits
            if remaining and len(steps) == 1 and hasattr(builtins, base):
                if base != "object":
                    yield NamePlace(bits=remaining, kind="external", module="builtins", name=base)
            elif remaining:
                yield NamePlace(bits=remaining, kind="value", module=place.module, name=base)

    def _in_scope(self, place: NamePlace, scope: str, name: str, bits: int, depth: int) -> Reached:
        if scope:
            facts = self.module(place.module)
            if facts is not None and facts.of(f"{scope}.{name}"):
                outer = NamePlace(bits=bits, kind="class", module=place.module, name=scope, body=":")
                return self.member(outer, name, depth)
        return self.find(place.module, name, bits, depth=depth)

    # -- answers ------------------------------------------------------------------------------------------------------

    def summed(self, reached: Reached) -> Availability:
        """Return the releases of what was reached."""
        return Availability(present=reached.bits, unknown=reached.unknown & ~reached.bits)

    def arguments(self, path: str) -> tuple[str, ...]:
        """Return the names of the arguments that a function has in any release."""
        bodies = (place.body for place in self.follow(path).places if place.kind == "function")
        return tuple(dict.fromkeys(name for body in bodies for name in named(body)))

    def accepts(self, reached: Reached, argument: str) -> Availability:
        """Return the releases in which a function, or ``__init__`` of a class, takes an argument by name.

        ``#5`` asks for five arguments by position. A method does not count the object that it is called of.
        """
        answer = Availability(unknown=reached.unknown)
        for place in reached.places:
            answer |= self._takes(place, argument, 0)
        if argument in _HANDED_ON:
            new, helper = _HANDED_ON[argument]
            taken, helped = self.accepts(reached, new), self.follow(helper).bits
            answer |= Availability(present=taken.present & helped, unknown=taken.unknown & helped)
        return Availability(present=answer.present, unknown=answer.unknown & ~answer.present)

    def completes(self, reached: Reached, call: WholeCall) -> tuple[Availability, dict[str, int]]:
        """Return the releases in which a call gives all that is wanted, and those that want each parameter that it leaves out.

        Of a class it is its own ``__init__`` that says so, where nothing else has a hand in what a call of it does. What
        its own ``__new__`` wants it wants too.
        """
        present, unknown, wanting = 0, reached.unknown | (self._everything & ~reached.bits), defaultdict[str, int](int)
        for place in reached.places:
            refused = 0
            for maker in self._texts(place, "__new__") if place.kind == "class" else ():
                for name in self._lacking(maker, call) or ():
                    sure = self._plainly_made(place, maker.bits, hooks=_HOOKS[1:])
                    wanting[name] |= sure
                    refused |= sure
            functions = self._texts(place, "__init__") if place.kind == "class" else [place]
            unknown |= place.bits & ~(refused | _union(function.bits for function in functions))
            for function in functions:
                lacking, sure = self._lacking(function, call), function.bits
                if lacking is None:
                    sure = 0
                elif lacking and place.kind == "class":
                    sure = self._plainly_made(place, function.bits)
                unknown |= function.bits & ~(sure | refused)
                present |= sure if lacking == () else 0
                for name in lacking or ():
                    wanting[name] |= sure
        surely = {name: bits & ~(present | unknown) for name, bits in wanting.items()}
        return Availability(present=present, unknown=unknown & ~present), {
            n: bits for n, bits in surely.items() if bits
        }

    def _lacking(self, function: NamePlace, call: WholeCall) -> tuple[str, ...] | None:
        """Return what a call leaves out, ``None`` where a decorator or a compiled module may want something else."""
        mark, bracket, text = function.body.partition("(")
        facts = self.module(function.module)
        is_compiled = facts is None or any(body == "!" and function.bits & having for body, having in facts.of("*"))
        return call.lacks(text.split(",")) if bracket and mark[:1] in {"", "&"} and not is_compiled else None

    def _texts(self, place: NamePlace, method: str) -> list[NamePlace]:
        """Return each text of a method that a class has itself. One that may be another keeps its mark."""
        facts = self.module(place.module)
        texts = facts.of(f"{place.name}.{method}") if facts else ()
        return [replace(place, bits=place.bits & having, body=text) for text, having in texts]

    def _plainly_made(self, place: NamePlace, bits: int, depth: int = 0, *, hooks: tuple[str, ...] = _HOOKS) -> int:
        """Return those of some releases in which a call of a class does no more than call its ``__init__``.

        A metaclass, the ``hooks``, a decorator that writes ``__init__`` and a base that is not seen do: ``__new__``, and of a
        base what it does with classes below it.
        """
        facts = self.module(place.module)
        if facts is None or depth > _DEEPEST or place.body.startswith("@"):
            return 0
        own = hooks if depth else hooks[:-1]
        bits &= place.bits & ~_union(having for hook in own for _, having in facts.of(f"{place.name}.{hook}"))
        for base in self._bases(place, bits, depth):
            if base.kind == "class":
                bits &= ~base.bits | self._plainly_made(base, bits & base.bits, depth + 1, hooks=hooks)
            elif not (base.kind == "external" and (base.module == "builtins" or base.path in _CLOSED | _PLAIN_BASES)):
                bits &= ~base.bits
        return bits

    def _takes(self, place: NamePlace, argument: str, depth: int) -> Availability:
        if place.kind == "function":
            return self._listed(place, argument)
        if place.kind == "external":
            answer = self._beyond(place, None, argument) if place.module != "builtins" else None
            return Availability(present=place.bits if answer else 0, unknown=place.bits if answer is None else 0)
        if place.kind != "class" or depth > _DEEPEST:
            return Availability(unknown=place.bits)
        return self._constructed(place, argument, depth)

    def _constructed(self, place: NamePlace, argument: str, depth: int) -> Availability:
        """Return what a class takes: its own ``__init__``, its fields, or what its bases take."""
        facts = self.module(place.module)
        if facts is None:
            return Availability(unknown=place.bits)
        answer = Availability()
        remaining = place.bits
        for method in ("__init__", "__new__"):
            signatures = facts.of(f"{place.name}.{method}")
            for body, having in signatures:
                if bits := remaining & having:
                    function = replace(place, name=f"{place.name}.{method}", bits=bits, body=body.lstrip("?"))
                    answer |= self._listed(function, argument)
            remaining &= ~_union(having for _, having in signatures)
        members = [(body.lstrip("?"), having) for body, having in facts.of(f"{place.name}.{argument}")]
        fields = _union(having for body, having in members if body.startswith("!"))
        # A hook of the class or of a base may write ``__init__`` (transformers >=5.4 makes dataclasses this way).
        hooks = _union(having for _, having in facts.of(f"{place.name}.__init_subclass__"))
        hooked = (place.bits if depth else remaining) & hooks
        if place.body.startswith("@"):  # attrs takes ``x = attrib()``, and ``_x`` as ``x``
            hooked |= remaining & ~fields & _union(having for _, having in members)
            hooked |= remaining & _union(having for _, having in facts.of(f"{place.name}._{argument}"))
        answer |= Availability(unknown=hooked)
        bases = list(self._bases(place, remaining, depth))
        if argument.startswith("#") and (place.body.startswith("@") or any(b.kind == "external" for b in bases)):
            return answer | Availability(unknown=remaining)
        if place.body.startswith("@") or any(b.kind == "external" for b in bases):
            answer |= Availability(present=remaining & fields)
        else:  # a decorator that is not known for it may make a dataclass
            answer |= Availability(unknown=remaining & fields)
        remaining &= ~fields
        for base in bases:
            if base.path not in _FIELD_BASES and base.bits & remaining:
                answer |= self._takes(replace(base, bits=base.bits & remaining), argument, depth + 1)
        return answer

    def _listed(self, place: NamePlace, argument: str) -> Availability:
        """Return whether a function of that text takes an argument by name, through the decorators above it."""
        mark, bracket, text = place.body.partition("(")
        if not bracket:
            return Availability(unknown=place.bits)
        words = text.split(",")
        if argument.startswith("#"):
            return _by_position(place, words, int(argument[1:]))
        by_name = words[words.index("/") + 1 :] if "/" in words else words
        if argument in by_name or f"{argument}=" in by_name:
            return Availability(present=place.bits)  # a wrapper that is not seen passes it on
        if "**" in words or mark == "~" or (mark.startswith("~") and not argument.isidentifier()):
            return Availability(unknown=place.bits)
        decorators = mark.split("~")[1:]
        return Availability(unknown=_union(place.bits & ~self._handing_on(place, d, argument) for d in decorators))

    def _handing_on(self, place: NamePlace, decorator: str, argument: str) -> int:
        """Return the releases in which a decorator surely hands on an argument to the function of a place."""
        first, *steps = decorator.partition("[")[0].split(".")
        scope = place.name.rpartition(".")[0]
        reached = self._steps(self._in_scope(place, scope, first, place.bits, 1), steps, 1)
        open_places = (each.bits for each in reached.places if not is_handed_on(argument, decorator, each.body))
        return reached.bits & ~(reached.unknown | _union(open_places))

    # -- what replaced it ---------------------------------------------------------------------------------------------

    def successor(self, path: str, argument: str | None, reached: Reached, answer: Availability) -> str | None:
        """Return what replaced a name that the newest release lacks: what a message says, or where it is defined now."""
        newest = 1 << len(self.releases) >> 1
        having = answer.present | answer.unknown
        if having & newest or not having:
            return None
        last = 1 << (having.bit_length() - 1)
        name = argument or path.rpartition(".")[2]
        for place in (p for p in reached.places if p.bits & last):
            facts = self.module(place.module)
            for body, bits in facts.of(name) if facts else ():
                # A message that shows an import line begins with a word of Python's, and one on what a class is
                # called with names an argument.
                of_call = argument is None and name[:1].isupper() and body[1:].islower() and "." not in body
                if body.startswith("^") and bits & (last | newest) and not (iskeyword(body[1:]) or of_call):
                    return body[1:]
            now = self.follow(place.path)
            if argument is None and place.path != path and now.bits & newest:
                return place.path
        return None


def named(text: str) -> list[str]:
    """Return the names of the arguments in the text of a function."""
    return [name for word in text.partition("(")[2].split(",") if (name := word.removesuffix("=")).isidentifier()]


def _by_position(place: NamePlace, words: Sequence[str], count: int) -> Availability:
    """Return whether a function with these arguments takes as many by position."""
    if len(positional(words)) >= count or "*" in words:
        return Availability(present=place.bits)
    return Availability(unknown=place.bits if place.body.startswith("~") else 0)


def _is_function(text: str) -> bool:
    return text.startswith(("(", "~", "&")) and "(" in text


def _of_builtin(place: NamePlace, name: str) -> bool | None:
    kind = getattr(builtins, place.name, None)
    return hasattr(kind, name) if kind is not None else None
