"""What NCCL's ``ncclras`` says of the ranks of a job, as text and as JSON: who does not answer, who is behind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from envsmith.ranks.evidence import Event, Evidence
from envsmith.schema import UnreadableError, parse_json

_COMMUNICATOR = re.compile(r"\s{0,8}#\d{1,5}-\d{1,5} \(([0-9a-f]{1,32})\) ([A-Z]{2,20})")
_MISSING = re.compile(r"\s{0,8}The missing ranks?: ([\d, -]{1,2000})")
_COUNTS = re.compile(r"\s{0,8}(\d{1,6}) ranks? ha(?:s|ve) launched up to operation (\d{1,15})")
_MEMBER = re.compile(r"\s{0,8}Rank (\d{1,6}) -- GPU \d{1,4} managed by process (\d{1,9}) on node (\S{1,100})")
_MOST = 4096


def read_ras(text: str) -> Evidence:
    """Return what a report of NCCL's RAS says. Its ranks are those of the communicator, so only the largest counts."""
    if '"communicators"' in text and '"missing_ranks"' in text:
        events = list(_of_json(text))
    elif "Communicators..." in text or _COMMUNICATOR.search(text):
        events = list(_of_text(text.splitlines()))
    else:
        return Evidence()
    return Evidence(events=tuple(events[:_MOST]))


def _of_text(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the missing ranks of every communicator, and those of which fewer have launched the last operation."""
    communicator, behind, most = "", "", 0
    for line in lines:
        if match := _COMMUNICATOR.match(line):
            communicator, behind, most = match[1], "", 0
        elif communicator and (match := _MISSING.match(line)):
            for rank in _numbers(match[1]):
                yield Event(
                    at=0.0, rank=rank, kind="unreachable", text=f"NCCL RAS: no data of rank {rank} of {communicator}"
                )
        elif communicator and (match := _COUNTS.match(line)):
            number = int(match[2])
            behind = f"launched up to operation {number}, others up to {most}" if number < most else ""
            most = max(most, number)
        elif behind and (match := _MEMBER.match(line)):
            text = f"NCCL RAS: rank {match[1]} (process {match[2]} on {match[3]}) has {behind}"
            yield Event(at=0.0, rank=int(match[1]), kind="fewer-calls", text=text)


def _numbers(text: str) -> list[int]:
    """Return the numbers of ``1, 4-6``."""
    numbers: list[int] = []
    for part in text.split(",")[:_MOST]:
        first, _, last = part.strip().partition("-")
        if first.isdigit() and len(first) < 7:
            stop = int(last) if last.strip().isdigit() and len(last) < 7 else int(first)
            numbers += range(int(first), min(stop, int(first) + _MOST) + 1)
    return numbers[:_MOST]


def _of_json(text: str) -> Iterator[Event]:
    try:
        value = parse_json(text[text.find("{") : text.rfind("}") + 1])
    except UnreadableError:
        return
    communicators = value.get("communicators") if isinstance(value, dict) else None
    rows = [row for row in communicators if isinstance(row, dict)] if isinstance(communicators, list) else []
    if not rows:
        return
    largest = max(rows, key=_size)
    for rank in _rows(largest.get("missing_ranks")):
        number, host, process = rank.get("rank"), str(rank.get("host", ""))[:100], rank.get("pid")
        if isinstance(number, int):
            words = f"NCCL RAS: rank {number} (process {process} on {host}) does not answer"
            yield Event(at=0.0, rank=number, kind="unreachable", text=words)
    yield from _fewer(list(_rows(largest.get("ranks"))))


def _size(row: Mapping[str, Any]) -> int:
    size = row.get("size")
    return size if isinstance(size, int) else 0


def _rows(value: object) -> Iterator[Mapping[str, Any]]:
    yield from (row for row in (value[:_MOST] if isinstance(value, list) else ()) if isinstance(row, dict))


def _fewer(ranks: list[Mapping[str, Any]]) -> Iterator[Event]:
    """Yield the minority that has called fewer collectives than the others."""
    counts: dict[int, int] = {}
    for row in ranks:
        number, calls = row.get("rank"), row.get("collective_counts")
        if isinstance(number, int) and isinstance(calls, dict):
            counts[number] = sum(count for count in calls.values() if isinstance(count, int))
    most = Counter(counts.values()).most_common(1)[0][0] if counts else 0
    behind = {number: count for number, count in counts.items() if count < most}
    for number, count in behind.items() if len(behind) * 2 < len(counts) else ():
        text = f"NCCL RAS: rank {number} has called {count} collectives, others {most}"
        yield Event(at=0.0, rank=number, kind="fewer-calls", text=text)
