"""Bytes from anywhere -> text that is safe to look at: any encoding, any size, no escape sequences."""

from __future__ import annotations

import html
import itertools
import re
from typing import BinaryIO

from envsmith.base.text import clean as clean_text
from envsmith.doctor.read.dumps import MOST_BYTES, dump_line, is_dump

# What is looked at whole; of more, the first and the last part are kept, and of the rest only lines that talk of
# trouble.
KEEP = 6 << 20
_BLOCK = 1 << 20
_MIDDLE = 1 << 20
# What never ends is not read for ever.
_MOST = 8 << 30
_LINE = 2000
# What loggers and collectors of logs put before a line: a time and a level, or as vLLM does a level, a time and a file.
# What pages and pytest put there: the mark of a quotation, the E of an error.
_STAMP = (
    r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?:?[ \t]{1,4}"
    r"(?:- (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) - )?|>(?:[ \t]|$)|E {3}(?: {4})?"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./]{1,80}\.py:\d{1,5}\][ \t]?"
)
# The same with who speaks: `[rank3]:`, `[default0]:`, `12: ` (srun --label), `(EngineCore_0 pid=41)` of Ray and vLLM.
_PREFIX = re.compile(
    rf"^[ \t]{{0,4}}(?:{_STAMP}|\[[A-Za-z]{{0,10}}[ ]?\d{{1,5}}\]:[ \t]?|\d{{1,5}}:[ \t]"
    r"|\((?:[A-Za-z_][\w:.]{0,60} )?(?:rank=\d{1,5} )?pid=\w{1,20}(?:, ip=[\w.:-]{3,60})?\)[ \t]?)+"
)
_TIME = re.compile(_STAMP)
# pdsh, docker compose and kubectl name the host on every line.
_HOST = re.compile(r"([A-Za-z0-9][\w.-]{0,60})(?:: |[ \t]{0,12}\| )")
_WIDTHS = range(50, 301)
_ERROR_LINE = re.compile(r"\w{0,60}(?:Error|Exception|Warning): ")
# A colour whose escape character a terminal, an editor or a web page took away or wrote in letters.
_COLOUR = re.compile(r"(?:\\x1b|\\u001b|\\033|\\e|\^\[|\u241b)?\[(?:\d{1,3}(?:;\d{1,3}){0,4})?m(?!\])")
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|#39|#34|#x27);")
# Quotes that writers and web pages put in the place of straight ones.
_CURLY = str.maketrans("\u2018\u2019\u201a\u201c\u201d\u201e\u00b4", "'''\"\"\"'")
# All quotes as one, to compare texts in which a program, a logger or a person chose another.
QUOTES = str.maketrans('"`', "''")
_SYMBOL = re.compile(r"(symbol:? )([\"'`])(\w+)\2")
# What Python says of names, where a page or a person took their quotes away, and the words with which a sentence goes on.
_WORD = r"(?!(?:an?|the|that|this|named|called|from|in|of|for|to|or|and|with)\b)"
_NAME = rf"{_WORD}([A-Za-z_](?:[\w.]{{0,120}}\w)?)(?![\w'\"`])"
_NOTHING_BEHIND = r"(?=[ \t]{0,8}(?:$|\(|[.,;:](?:\s|$)))"
_UNQUOTED = tuple(
    (phrase, re.compile(pattern), quoted)
    for phrase, pattern, quoted in (
        ("cannot import name ", rf"(cannot import name ){_NAME}", r"\1'\2'"),
        ("cannot import name ", rf"(' from (?:partially initialized module )?){_NAME}{_NOTHING_BEHIND}", r"\1'\2'"),
        (" has no attribute ", rf"(\bmodule ){_NAME}(?= has no attribute )", r"\1'\2'"),
        (" object has no attribute ", rf"(^|[\s:]){_NAME}(?= object has no attribute )", r"\1'\2'"),
        ("' has no attribute ", rf"(' has no attribute ){_NAME}", r"\1'\2'"),
        ("' object has no attribute ", rf"(' object has no attribute ){_NAME}", r"\1'\2'"),
        ("No module named ", rf"(No module named ){_NAME}{_NOTHING_BEHIND}", r"\1'\2'"),
        ("got an unexpected keyword argument ", rf"(got an unexpected keyword argument ){_NAME}", r"\1'\2'"),
        ("required positional argument", rf"(required positional arguments?: ){_NAME}", r"\1'\2'"),
    )
)
# Of how many lines it is seen whether each begins with a host.
_FEW_LINES = 4000
_TROUBLE = re.compile(
    rb"[Ee]rror|WARN|[Ff]ail|[Cc]annot|[Ee]xception|NCCL|[Uu]nsupported|[Ii]ncompatible|[Mm]ismatch|not found"
    rb"|No module|undefined symbol|No such|fatal|refused"
)


def decode(data: bytes) -> str:
    """Return the text of UTF-8, of UTF-16 (with a mark, or recognised by its zero bytes), else of Latin-1."""
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
    """Return ``text`` as :func:`envsmith.base.text.clean` does, without what a page or an editor made of its characters.

    Letters keep their length in the other case.
    """
    text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text) if "&" in text else text
    return _COLOUR.sub("", clean_text(text)).translate(_CURLY).replace("\u0130", "I")


def mended(text: str) -> str:
    """Return ``text`` line for line without escapes of a string and quotes around a symbol, and with those around names.

    Where a cut took the closing quote from a line, it is there again.
    """
    text = _SYMBOL.sub(r"\1\3", text.replace("\\'", "'").replace('\\"', '"'))
    lines = [_requoted(line) for line in text.split("\n")]
    return "\n".join(line + "'" if line.translate(QUOTES).count("'") % 2 else line for line in lines)


def _requoted(line: str) -> str:
    for phrase, pattern, quoted in _UNQUOTED:
        if phrase in line:
            line = pattern.sub(quoted, line)
    return line


def read_bounded(stream: BinaryIO) -> tuple[str, list[str]]:
    """Return the text of a stream and notes about what was left out. Memory stays within a few times :data:`KEEP`."""
    head = stream.read(KEEP)
    if is_dump(head):
        return _read_dump(head, stream)
    if len(head) < KEEP:
        return clean(decode(head)), []
    tail = b""
    middle: list[bytes] = []
    kept_bytes = skipped = 0
    while skipped < _MOST and (block := stream.read(_BLOCK)):
        leaving = tail + block
        cut = max(0, len(leaving) - KEEP)
        gone, tail = leaving[:cut], leaving[cut:]
        skipped += len(gone)
        if gone and kept_bytes < _MIDDLE:
            for line in _troubled(gone):
                middle.append(line)
                kept_bytes += len(line) + 1
                if kept_bytes >= _MIDDLE:
                    break
    if not skipped:
        return clean(decode(head + tail)), []
    note = f"{skipped} bytes in the middle were searched for messages only"
    if skipped >= _MOST:
        note += ", and what follows them was not read"
    text = decode(head) + "\n" + decode(b"\n".join(middle)) + "\n" + decode(tail)
    return clean(text), [note]


def _read_dump(head: bytes, stream: BinaryIO) -> tuple[str, list[str]]:
    """Return a dump of the flight recorder as a line of JSON, or a note that says why it is none."""
    data = head + stream.read(MOST_BYTES + 1 - len(head))
    if len(data) > MOST_BYTES:
        return "", [f"not read: a dump of more than {MOST_BYTES >> 20} MiB"]
    try:
        return dump_line(data) + "\n", []
    except ValueError as error:
        return "", [f"not read as a flight recorder's dump: {error}"]


def _troubled(block: bytes) -> list[bytes]:
    """Return the lines of a block that hold a word of trouble, each once, cut to what a line of a log has."""
    results: list[bytes] = []
    keys: set[bytes] = set()
    position = 0
    while match := _TROUBLE.search(block, position):
        start = max(block.rfind(b"\n", max(0, match.start() - _LINE), match.start()) + 1, match.start() - _LINE, 0)
        end = block.find(b"\n", match.end(), match.end() + _LINE)
        end = end if end >= 0 else min(len(block), match.end() + _LINE)
        line = block[start:end]
        key = line.translate(None, b"0123456789")
        if key not in keys:
            keys.add(key)
            results.append(line)
        position = max(end, match.end())
        if len(results) >= 2000:
            break
    return results


def unprefixed(text: str) -> str:
    """Return ``text`` without what a launcher puts before each line: a time, a rank, a host."""
    return "\n".join(line for _, line in spoken(text))


def of_last_speaker(text: str) -> str:
    """Return the lines of the process that wrote the last one, or every line where nothing says whose that is."""
    lines = spoken(text)
    return "\n".join(line for speaker, line in lines if speaker == lines[-1][0] or not lines[-1][0])


def by_speaker(text: str) -> tuple[list[int], list[str]]:
    """Return the lines, those of each process together, and which of the text each is (from 0)."""
    lines = spoken(text)
    first: dict[str, int] = {}
    for number, (speaker, _) in enumerate(lines):
        first.setdefault(speaker, number)
    order = sorted(range(len(lines)), key=lambda number: first[lines[number][0]])
    return order, [lines[number][1] for number in order]


def spoken(text: str) -> list[tuple[str, str]]:
    """Return each line without what a launcher puts before it, and the rank or host that this names."""
    parted = []
    for line in text.split("\n"):
        end = match.end() if (match := _PREFIX.match(line)) else 0
        parted.append((_TIME.sub("", line[:end]).strip(), line[end:]))
    heads = [_HOST.match(line) for _, line in itertools.islice((p for p in parted if p[1].strip()), _FEW_LINES)]
    hosts = {head[0] for head in heads if head}
    if len(heads) < 4 or not 0 < len(hosts) <= max(2, len(heads) // 4) or heads.count(None) > len(heads) * 0.2:
        return parted
    return [(match[1], line[match.end() :]) if (match := _HOST.match(line)) else (who, line) for who, line in parted]


def unwrapped(text: str) -> list[tuple[str, list[int]]]:
    """Return ``text`` as it was before its lines were broken at one width, and where characters were taken out.

    A terminal breaks in the middle of a word, a writer at a blank when the next word would not have fitted. Nothing is
    returned when no width shows.
    """
    lines = text.split("\n")
    lengths = [len(line) for line in lines]
    width = max(lengths, default=0)
    results = []
    if width in _WIDTHS and lengths.count(width) > 1:
        results.append(_joined_at(lines, width))
    # A path without a blank stays longer than the rest, so the width may be that of the others.
    blank = max((len(line) for line in lines if " " in line.strip()), default=0)
    # Of a message alone no line need reach the width: it is no less than the narrowest.
    widths = sorted({max(each, _WIDTHS.start) for each in (width, blank)})
    flowed = [*(_reflowed(lines, each) for each in widths if each in _WIDTHS), _with_whole_errors(lines)]
    return [*results, *((each, []) for each in dict.fromkeys(flowed) if each != text)]


def _with_whole_errors(lines: list[str]) -> str:
    """Return the lines with each error in one, where a writer broke it: every line but its last is as long as it can be."""
    result_lines: list[str] = []
    at = 0
    while at < len(lines):
        error = list(itertools.takewhile(str.strip, lines[at:])) if _ERROR_LINE.match(lines[at]) else []
        flowed = _reflowed(error, max([_WIDTHS.start, *map(len, error)]))
        is_broken = len(error) > 1 and "\n" not in flowed
        result_lines.append(flowed if is_broken else lines[at])
        at += len(error) if is_broken else 1
    return "\n".join(result_lines)


def whole_line(text: str, position: int) -> str:
    """Return the line at ``position`` to its end, also where a terminal or a writer broke it."""
    following = text[text.rfind("\n", 0, position) + 1 :]
    line = following.partition("\n")[0]
    wholes = (joined.partition("\n")[0] for joined, _breaks in unwrapped(following))
    return next((joined for joined in wholes if len(joined) > len(line)), line)


def _joined_at(lines: list[str], width: int) -> tuple[str, list[int]]:
    parts: list[str] = []
    breaks: list[int] = []
    at = 0
    for line in lines:
        is_whole = len(line) < width
        parts.append(line + "\n" if is_whole else line)
        at += len(parts[-1])
        if not is_whole:
            breaks.append(at)
    return "".join(parts)[: -1 if lines and len(lines[-1]) < width else None], breaks


def _reflowed(lines: list[str], width: int) -> str:
    """Return the lines with a blank for each line end that a greedy writer made, so that places stay what they were."""
    parts = []
    for line, following in itertools.pairwise([*lines, ""]):
        word = following.partition(" ")[0]
        broken = bool(line and word) and len(line) + 1 + len(word) > width
        parts.append(line + (" " if broken else "\n"))
    return "".join(parts)[:-1]
