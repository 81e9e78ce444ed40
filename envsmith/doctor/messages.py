"""The messages of a text, each with what it names: packages, addresses, requirements that exclude each other, settings."""

from __future__ import annotations

import dataclasses
import re

from envsmith.doctor.conflicts import with_conflict
from envsmith.doctor.fitting_numbers import parts_between
from envsmith.doctor.lacks import lack_signatures
from envsmith.doctor.parties import OWNED, symbol_in, with_parties, with_peer
from envsmith.doctor.refusals import only_refusals, with_refusal
from envsmith.doctor.signatures import Hit, catalogue, find_hits


def read_messages(text: str, source: str) -> list[Hit]:
    """Return the messages of a text with what they are about.

    An undefined symbol is a message of its owner only.
    """
    messages = []
    for hit in find_hits(text, source, (*catalogue().signatures, *lack_signatures())):
        symbol = symbol_in(hit.text)
        if symbol and hit.signature.cause in OWNED and hit.signature.cause != symbol.cause:
            continue
        conflict = with_conflict(with_peer(with_parties(hit, text), text), text)
        named = _with_parts(conflict, text) if conflict else None
        if named and (refusal := with_refusal(named, text)) is not None:
            messages.append(refusal)
    return only_refusals(messages)


_PARALLEL = re.compile(r"(?:model|tensor)[ _-]?(?:model[ _-])?parallel|mp_rank|\btp\b", re.IGNORECASE)


def _with_parts(hit: Hit, text: str) -> Hit:
    """Return a message of two shapes with how many tensor-parallel parts one is of the other, where the text has some."""
    parts = parts_between(hit.groups.get("saved", ""), hit.groups.get("own", ""))
    if not parts or not _PARALLEL.search(text):
        return hit
    return dataclasses.replace(hit, groups={**hit.groups, "parts": str(parts)})
