"""The file that says which builds export a symbol: hashes of the symbols in order, each with a set of builds.

A name of a symbol has a hundred bytes, and there are two hundred thousand of them, so five bytes of a hash stand for
it: one wrong "exported" in five million questions. Symbols share few sets of builds, so each set is stored once. A
question is a binary search over bytes that are not unpacked.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HASH = 5
_MAGIC = b"envsmith symbols 1\n"
# Length of the header, number of symbols, number of sets, bytes of a set.
_SIZES = struct.Struct("<IIHH")
_MAX_HEADER = 16 << 20


def hash_of(symbol: str) -> bytes:
    """Return what stands for a symbol."""
    return hashlib.blake2b(symbol.encode("ascii", "replace"), digest_size=HASH).digest()


class _Hashes(Sequence[bytes]):
    """Hashes of equal length, one behind the other, as a sequence that can be searched."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data) // HASH

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._data[place * HASH : (place + 1) * HASH]


class Stored:
    """One file: its header, and for each symbol a set of builds as the bits of a number."""

    def __init__(self, data: bytes) -> None:
        """Read the file. ``ValueError`` when it is not one, or is cut."""
        if not data.startswith(_MAGIC):
            raise ValueError("it is not a table of symbols")
        header, symbols, sets, width = _SIZES.unpack_from(data, len(_MAGIC))
        start = len(_MAGIC) + _SIZES.size
        if len(data) != start + header + symbols * (HASH + 2) + sets * width:
            raise ValueError("it is cut")
        self.header: dict[str, Any] = json.loads(_unpacked(data[start : start + header]))
        hashes, numbers = start + header, start + header + symbols * HASH
        self._hashes = _Hashes(data[hashes:numbers])
        self._numbers = data[numbers : numbers + 2 * symbols]
        masks = data[numbers + 2 * symbols :]
        self._masks = [int.from_bytes(masks[n * width : (n + 1) * width], "little") for n in range(sets)]

    def mask(self, symbol: str) -> int:
        """Return the builds that export a symbol, as bits. 0 when none does."""
        key = hash_of(symbol)
        place = bisect_left(self._hashes, key)
        return self._mask_at(place) if place < len(self._hashes) and self._hashes[place] == key else 0

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        return ((key, self._mask_at(place)) for place, key in enumerate(self._hashes))

    def _mask_at(self, place: int) -> int:
        return self._masks[int.from_bytes(self._numbers[2 * place : 2 * place + 2], "little")]


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(data, _MAX_HEADER)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise ValueError("its header is cut or too long")
    return text


def packed(header: Mapping[str, Any], masks: Mapping[bytes, int], builds: int) -> bytes:
    """Return the file of ``masks``, sets of ``builds`` builds by the hash of each symbol."""
    width = (builds + 7) // 8
    sets = sorted(set(masks.values()))
    if len(sets) >= 1 << 16:
        raise ValueError("more different sets of builds than two bytes number")
    numbers = {mask: number for number, mask in enumerate(sets)}
    keys = sorted(masks)
    text = zlib.compress(json.dumps(header, sort_keys=True, separators=(",", ":")).encode(), 9)
    return b"".join(
        (
            _MAGIC,
            _SIZES.pack(len(text), len(keys), len(sets), width),
            text,
            *keys,
            *(numbers[masks[key]].to_bytes(2, "little") for key in keys),
            *(mask.to_bytes(width, "little") for mask in sets),
        )
    )
