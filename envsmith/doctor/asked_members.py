"""Members that a package asks of an object whose class is one's own, written for other releases of the package.

``'LLaDAModelLM' object has no attribute 'all_tied_weights_keys'``: no package has such a class. Of the classes that
people derive theirs from (``bases`` of the words) one has the member in some releases and not in others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envsmith.doctor.facts import Facts
from envsmith.doctor.lacks import Lack, bases_of, installed_version, is_in, likely_packages
from envsmith.doctor.vocabulary import words
from envsmith.knowledge.names.name_index import NameIndex
from envsmith.knowledge.names.presence import Presence

# The name of a member that tells whose it is has several words and so many letters.
_TELLING = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedMember:
    """A member of ``base``, which the releases of ``presence`` have.

    ``is_asked`` where the package itself asks for it, ``is_told`` where the text shows that it does.
    """

    base: str
    presence: Presence
    is_asked: bool
    is_told: bool


def asked_member(lack: Lack, facts: Facts, index: NameIndex) -> AskedMember | None:
    """Return the member of a base that an object of one's own lacks, or ``None`` where its own base is just too old."""
    name = lack.owner.rpartition(".")[2]
    members = [*_changed(lack, index)] if lack.kind == "member" and name[:1].isupper() else []
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
        return AskedMember(base=base, presence=presence, is_asked=is_asked, is_told=is_told)
    return None


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
