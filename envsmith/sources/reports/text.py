"""Bytes from anywhere -> text that is safe to look at: any encoding, any size, no escape sequences."""

from __future__ import annotations

import re
from typing import BinaryIO

__all__ = ["KEEP", "clean", "decode", "read_bounded"]

# What is looked at whole; of more, the first and the last part are kept, and of the rest only lines that talk of trouble.
KEEP = 6 << 20
_BLOCK = 1 << 20
_MIDDLE = 1 << 20
_LINE = 2000
_ESCAPE = re.compile(r"\x1b\[[0-?]{0,32}[ -/]{0,8}[@-~]|\x1b\][^\x07\x1b]{0,400}(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u0085\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)
_TROUBLE = re.compile(
    rb"[Ee]rror|WARN|[Ff]ail|[Cc]annot|[Ee]xception|NCCL|[Uu]nsupported|[Ii]ncompatible|[Mm]ismatch|not found|No module|undefined symbol|No such|fatal|refused"
)


def decode(data: bytes) -> str:
    """UTF-8, UTF-16 (with a mark, or recognised by its zero bytes), else Latin-1; never fails."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    head = data[:4000]
    if head and head.count(0) > len(head) // 4:
        big = head[0::2].count(0) > head[1::2].count(0)
        return data.decode("utf-16-be" if big else "utf-16-le", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        bad = data.decode("utf-8", errors="replace").count("\ufffd")
        return data.decode("utf-8", errors="replace") if bad * 20 < len(data) else data.decode("latin-1")


def clean(text: str) -> str:
    """Without escape sequences and control characters, with Unix line ends; what overwrites itself on a terminal becomes lines."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u0130", "I")
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    return _CONTROL.sub("", text)


def read_bounded(stream: BinaryIO) -> tuple[str, list[str]]:
    """The text of a stream and notes about what was left out. Memory stays within a few times :data:`KEEP`, whatever the size."""
    head = stream.read(KEEP)
    if len(head) < KEEP:
        return clean(decode(head)), []
    tail = b""
    middle: list[bytes] = []
    kept = skipped = 0
    while block := stream.read(_BLOCK):
        leaving = tail + block
        cut = max(0, len(leaving) - KEEP)
        gone, tail = leaving[:cut], leaving[cut:]
        skipped += len(gone)
        if gone and kept < _MIDDLE:
            for line in _troubled(gone):
                middle.append(line)
                kept += len(line) + 1
                if kept >= _MIDDLE:
                    break
    if not skipped:
        return clean(decode(head + tail)), []
    note = f"{skipped} bytes in the middle were searched for messages only"
    text = decode(head) + "\n" + decode(b"\n".join(middle)) + "\n" + decode(tail)
    return clean(text), [note]


def _troubled(block: bytes) -> list[bytes]:
    """Lines of a block that hold a word of trouble, each once, cut to what a line of a log has."""
    found: list[bytes] = []
    seen: set[bytes] = set()
    position = 0
    while match := _TROUBLE.search(block, position):
        start = max(block.rfind(b"\n", max(0, match.start() - _LINE), match.start()) + 1, match.start() - _LINE, 0)
        end = block.find(b"\n", match.end(), match.end() + _LINE)
        end = end if end >= 0 else min(len(block), match.end() + _LINE)
        line = block[start:end]
        key = line.translate(None, b"0123456789")
        if key not in seen:
            seen.add(key)
            found.append(line)
        position = max(end, match.end())
        if len(found) >= 2000:
            break
    return found
