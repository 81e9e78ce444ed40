"""Members that a package asks of an object that is of no package, written for other releases of the package.

``'LLaDAModelLM' object has no attribute 'all_tied_weights_keys'``: no package has such a class. Of the classes that
people derive theirs from (``bases`` of the words) one has the member in some releases and not in others. A constructor
of such a base may ask before the class has set what it needs (``constructors``). ``'tuple' object has no attribute
'get_seq_length'``: a package has a class with that member since a release, and got what went before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from envsmith.doctor.facts import Facts
from envsmith.doctor.lacks import Lack, bases_of, installed_version, is_in, likely_packages
from envsmith.doctor.vocabulary import words
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence

# The name of a member that tells whose it is has several words and so many letters.
_TELLING = 8
# Python's own types, of which a release may pass an object where a later one has a class.
_PLAIN = {each.__name__: each for each in (tuple, list, dict, set, str, int, float, bool)}
# What a tokenizer keeps its vocabulary in: where no call is seen, only that is asked too early.
_VOCABULARY = re.compile(r"vocab|tokenizer|(?:en|de)coder|^sp_|bpe|ranks")
# How many classes of a package may have the member that a plain object lacks: an interface and what follows it.
_FEW = 60

Manner = Literal["asked", "handed", "early", "plain"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedMember:
    """A member of ``base``, which the releases of ``presence`` have, or have and ask for.

    ``manner``: the package itself asks, hands it down no longer, asks early, or got a plain object. ``is_told`` where the
    text shows it.
    """

    base: str
    presence: Presence
    manner: Manner
    is_told: bool


def asked_member(lack: Lack, facts: Facts, index: NameIndex) -> AskedMember | None:
    """Return the member that an object of no package lacks, or ``None`` where its own base is just too old."""
    name = lack.owner.rpartition(".")[2]
    if lack.kind != "member":
        return None
    if name in _PLAIN:
        return _of_plain(lack, name, facts, index)
    if late := _set_late(lack, name, facts, index):
        return late
    members = [*_changed(lack, index)] if name[:1].isupper() else []
    if not members or _is_of_package(name, index):
        return None
    own, likely = bases_of(name), set(likely_packages(name, lack, facts, index))
    spoken = [each for each in members if each[0] in own or each[1].distribution in likely]
    for base, presence in sorted(spoken, key=lambda each: each[0] not in own) or _telling(lack, members):
        asking = _is_asked(lack, facts, presence)
        is_asked = presence.releases[-1] in presence.present if asking is None else asking
        if base in own and not (asking or (is_asked and index.is_set_later(presence.path))):
            return None
        if not (is_asked or _is_rare(lack.name)):
            continue
        is_told = bool(asking) and (base, presence) in spoken
        return AskedMember(base=base, presence=presence, manner="asked" if is_asked else "handed", is_told=is_told)
    return None


def _set_late(lack: Lack, name: str, facts: Facts, index: NameIndex) -> AskedMember | None:
    """Return the constructor that asks a class of one's own for what it sets only after that constructor has run."""
    of_name = (member for ending, member in words().constructors.items() if name.endswith(ending) and name != ending)
    presence = index.ask(next(of_name, ""))
    if presence is None:
        return None
    base, package = presence.path.rpartition(".")[0], presence.distribution
    own = index.ask(f"{base}.{lack.name}")
    is_of_base = own is None or bool(own.present)
    is_elsewhere = bool(lack.frames) and all(frame.package != package for frame in lack.frames)
    version = installed_version(package, facts)
    if is_of_base or is_elsewhere or (version and is_in(version, presence.present, presence.releases) is False):
        return None
    if any(index.definitions(name, each) for each in {package, *likely_packages(name, lack, facts, index)}):
        return None
    is_told = any(frame.package == package and frame.function == "__init__" for frame in lack.frames)
    if not is_told and (name.startswith("_") or not _VOCABULARY.search(lack.name)):
        return None
    return AskedMember(base=base, presence=presence, manner="early", is_told=is_told)


def _of_plain(lack: Lack, name: str, facts: Facts, index: NameIndex) -> AskedMember | None:
    """Return the class that a package has since a release, where an object of a type of Python's came in its place."""
    if not _is_rare(lack.name) or hasattr(_PLAIN[name], lack.name):
        return None
    asking = lack.frames[-1].package if lack.frames else None
    if lack.frames and asking not in index.distributions():
        return None
    of_bases = {index.distribution_of(base) or "": base for base in words().bases.values()}
    likely = (asking,) if asking else tuple(likely_packages(name, lack, facts, index)) or tuple(of_bases)
    classes = [path.rpartition(".")[0] for each in likely for path in index.callables_taking(lack.name, "", each)]
    presences = [presence for path in classes[:_FEW] if (presence := index.ask(path))]
    if not presences or len(classes) > _FEW or len({presence.distribution for presence in presences}) > 1:
        return None
    first = max(presences, key=lambda presence: len(presence.present))
    version = installed_version(first.distribution, facts)
    is_too_old = version and is_in(version, first.present, first.releases) is False
    member = index.ask(f"{first.path}.{lack.name}")
    has_come_later = member is None or _oldest(member) != _oldest(first)
    if is_too_old or has_come_later or any(presence.releases[0] not in presence.absent for presence in presences):
        return None
    return AskedMember(base=first.path, presence=first, manner="plain", is_told=bool(asking))


def _oldest(presence: Presence) -> str:
    return next((release for release in presence.releases if release in presence.present), "")


def _changed(lack: Lack, index: NameIndex) -> Iterator[tuple[str, Presence]]:
    """Yield the bases with the releases that have the member, where others surely or perhaps have it not."""
    for base in dict.fromkeys(words().bases.values()):
        presence = index.ask(f"{base}.{lack.name}")
        if presence and presence.present and (presence.absent or presence.unknown):
            yield base, presence


def _telling(lack: Lack, members: Sequence[tuple[str, Presence]]) -> Sequence[tuple[str, Presence]]:
    """Return the members where their name alone tells the package, because no other has it."""
    return members if _is_rare(lack.name) and len({presence.distribution for _, presence in members}) == 1 else ()


def _is_rare(name: str) -> bool:
    return "_" in name.strip("_") and len(name) >= _TELLING


def _is_of_package(name: str, index: NameIndex) -> bool:
    """Return whether a package has a class of that name: one to import, or any where classes to derive from are."""
    of_bases = {index.distribution_of(base) for base in words().bases.values()}
    at_root = (index.ask(f"{root}.{name}") for root in index.roots)
    return any(p and p.present for p in at_root) or any(index.definitions(name, each or "") for each in of_bases)


def _is_asked(lack: Lack, facts: Facts, presence: Presence) -> bool | None:
    """Return whether the package itself asks: its line is the innermost, or the stated release has the member."""
    if lack.frames:
        return lack.frames[-1].package == presence.distribution
    version = installed_version(presence.distribution, facts)
    return is_in(version, presence.present, presence.releases) if version else None
