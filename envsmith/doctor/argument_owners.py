"""Whose a callable is that a message names without its package: told by the argument, of all that were measured.

Packages that the text speaks of come first. Beyond them the argument must be rare: one package, or copies of one, that
ever gained or lost it on a callable of that name. Every class has a constructor: only the classes at the root of a
package, those that people call, are guessed by it.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envsmith.doctor.facts import Facts
from envsmith.doctor.lacks import (
    CONSTRUCTORS,
    Lack,
    Question,
    by_position,
    called_by,
    has_taken,
    installed_version,
    is_in,
)
from envsmith.knowledge.names.changed_arguments import COUNTED, WANTED
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence

# How many places of a package are asked. Of more callables than that, which changed, a message does not tell which.
_ASKED, _FEW = 40, 4
# A decorator of a method hands on what it was given by name: `return fn(self, **kwargs)`.
_OF_METHOD = re.compile(r"\(self, ?\*\*\w+\)\s?$")
# In how many packages an argument may have come or gone, so that it is told whose it is.
_RARE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ArgumentOwner:
    """A package that may be meant, with the ``paths`` of its callables below its root.

    ``is_override`` where the package calls a method of one's own in the place of its own.
    """

    question: Question
    presence: Presence
    paths: frozenset[str]
    is_override: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ArgumentOwners:
    """Those that fit. ``is_guess`` where nothing in the text speaks of them."""

    owners: tuple[ArgumentOwner, ...]
    is_guess: bool

    @property
    def are_one(self) -> bool:
        """Return whether one package fits, or copies of it: the same path below another root."""
        first = self.owners[0].paths
        return all(any(_is_copy(a, b) for a in first for b in owner.paths) for owner in self.owners)


def owners_of_argument(lack: Lack, facts: Facts, index: NameIndex) -> ArgumentOwners | None:
    """Return the packages that may be meant by a message about an argument, or ``None`` where nothing tells them."""
    what = {"argument": lack.name, "required": f"{lack.name}{WANTED}", "positional": COUNTED}.get(lack.kind)
    if not what or not lack.name:
        return None
    for name in _names(lack):
        candidates = index.changed(name, what)
        spoken = [each for each in candidates if _is_spoken_of(each, lack, facts)]
        rare = candidates if len(candidates) <= _RARE else ()
        owners = [owner for each in spoken or rare if (owner := _owner(each, name, lack, facts, index))]
        if name in CONSTRUCTORS and not spoken:
            owners = [owner for owner in owners if _is_at_root(owner.question.path, index)]
        if owners:
            owners.sort(key=lambda owner: -len(owner.presence.releases))
            return ArgumentOwners(owners=tuple(owners), is_guess=not spoken)
    return None


def _names(lack: Lack) -> Iterator[str]:
    """Yield the names of what is called: of a constructor that of its class, where the message or the call says it."""
    head, _, last = lack.owner.rpartition(".")
    if last not in CONSTRUCTORS:
        yield last
    elif head:
        yield head.rpartition(".")[2]
    elif lack.kind == "argument":
        classes = [name for call in called_by(lack) if (name := call.rpartition(".")[2])[:1].isupper()]
        yield from dict.fromkeys(classes)
        if not classes:
            yield "__init__"


def _is_spoken_of(distribution: str, lack: Lack, facts: Facts) -> bool:
    """Return whether a package is stated, calls or is named in the text."""
    if installed_version(distribution, facts) or any(frame.package == distribution for frame in lack.frames):
        return True
    words = r"[-_ ]".join(map(re.escape, distribution.split("-")))
    return bool(re.search(rf"(?<![\w/\\.-]){words}(?![\w-])", lack.around, re.IGNORECASE))


def _owner(distribution: str, name: str, lack: Lack, facts: Facts, index: NameIndex) -> ArgumentOwner | None:
    """Return what the callables of that name in a package answer together, or ``None`` where they explain nothing."""
    argument = "" if lack.kind == "positional" else lack.name
    root = next(root for root, of in index.roots.items() if of == distribution)
    paths = index.callables_taking(name, argument, distribution)
    answers: dict[str, list[_Answer]] = defaultdict(list)
    for path in paths[:_ASKED]:
        if answer := _answer(path, lack, index):
            answers[_below_module(path)].append(answer)
    changes = [answer for each in answers.values() if (answer := _joined(each)).lacking and answer.presence.present]
    overrides = {answer.is_override for answer in changes}
    if len(paths) > _ASKED or len(overrides) != 1 or (overrides == {False} and len(changes) > _FEW):
        return None
    lacking = frozenset[str]().union(*(answer.lacking for answer in changes))
    present = frozenset[str]().union(*(answer.presence.present for answer in changes)) - lacking
    best = max(changes, key=lambda answer: len(answer.presence.present))
    version = installed_version(distribution, facts)
    if not present or (version and is_in(version, present, best.presence.releases)):
        return None
    presence = dataclasses.replace(best.presence, present=present, absent=frozenset(best.presence.releases) - present)
    below = frozenset(path.removeprefix(f"{root}.") for path in paths)
    return ArgumentOwner(question=best.question, presence=presence, paths=below, is_override=best.is_override)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """What is known of one callable: the releases of ``presence`` fit the call, those that are ``lacking`` do not."""

    question: Question
    presence: Presence
    lacking: frozenset[str]
    is_override: bool


def _answer(path: str, lack: Lack, index: NameIndex) -> _Answer | None:
    """Return what the releases that have a callable say of the call, or ``None`` where it is another one."""
    is_override = _is_overridden(path, lack)
    caller = lack.frames[-1] if lack.frames else None
    is_caller = caller and not _OF_METHOD.search(caller.source) and caller.package == index.distribution_of(path)
    if not is_override and (is_caller or not _fits(path, lack)):
        return None  # a package gives its own callables what they take
    argument = by_position(path, lack.name) if lack.kind == "positional" else lack.name
    question = Question(path=path, argument=argument, is_guess=True)
    presence, existence = index.ask(path, argument), index.ask(path)
    if presence is None or existence is None:
        return None
    if lack.kind == "positional" and not (is_override or has_taken(question, lack, index)):
        return None
    if lack.kind == "required" and not is_override:
        wanting = presence.present - index.optional(path, lack.name)
        presence = dataclasses.replace(presence, present=existence.present - wanting, successor=None)
    lacking = existence.present - presence.present
    if is_override and lack.kind != "required":  # the releases fit that do not give what one's own method does not take
        presence, lacking = (
            dataclasses.replace(presence, present=lacking - presence.unknown, successor=None),
            presence.present,
        )
    return _Answer(question=question, presence=presence, lacking=lacking, is_override=is_override)


def _joined(answers: Sequence[_Answer]) -> _Answer:
    """Return one answer for a callable that releases have in several modules."""
    best = max(answers, key=lambda answer: len(answer.presence.present))
    present = frozenset[str]().union(*(answer.presence.present for answer in answers))
    lacking = frozenset[str]().union(*(answer.lacking for answer in answers)) - present
    return dataclasses.replace(best, presence=dataclasses.replace(best.presence, present=present), lacking=lacking)


def _is_at_root(path: str, index: NameIndex) -> bool:
    presence = index.ask(f"{path.partition('.')[0]}.{path.rpartition('.')[2]}")
    return presence is not None and bool(presence.present)


def _is_copy(path: str, twin: str) -> bool:
    return f".{path}".endswith(f".{twin}") or f".{twin}".endswith(f".{path}")


def _below_module(path: str) -> str:
    """Return a class, a method or a function without its module: ``Trainer.log``."""
    parts = path.split(".")
    first = next((at for at, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    return ".".join(parts[first:])


def _is_overridden(path: str, lack: Lack) -> bool:
    """Return whether the message is about a method of one's own in the place of that one."""
    owner, _, method = lack.owner.rpartition(".")
    of = path.split(".")[-2]
    if method in CONSTRUCTORS or not of[:1].isupper():
        return False
    if owner:
        return owner.rpartition(".")[2] != of
    return lack.kind == "required" and method.startswith("on_")


def _fits(path: str, lack: Lack) -> bool:
    """Return whether a callable may be the one that the message is about: its class is that of the message."""
    owner, _, method = lack.owner.rpartition(".")
    return not owner or method in CONSTRUCTORS or owner.rpartition(".")[2] == path.split(".")[-2]
