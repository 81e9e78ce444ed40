"""The evidence of a launch as a file: appended each time the launch is judged, read back, put together with other hosts'.

The file has a value of JSON in each line. After the format's number an occasion is one line of the launch with the
verdict on it, and one line of each rank. A kind of call is written once, and calls name it by its number.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from envsmith.base.json_types import JsonFields
from envsmith.base.schema import Problems, UnreadableError, check, parse_json, to_json
from envsmith.base.text import without_secrets
from envsmith.errors import DataError
from envsmith.launch.ranks.causes import Blame
from envsmith.launch.ranks.decide import decide_end, verdict
from envsmith.launch.ranks.evidence import Call, LaunchEvidence, LaunchHost, RankEvidence

# The key by which such a file is recognised, and the number of its format.
KEY, FORMAT = "envsmith_evidence", 2
PATTERN = "evidence-*.jsonl"
# A file that has grown beyond this begins anew: of a launch that stalls again and again the last occasions count.
_MOST_BYTES = 64 << 20
# The fields of a call that many calls have in common.
_COMMON = ("group", "operation", "sizes", "dtypes", "state", "is_p2p", "place", "thread")


@dataclass(frozen=True)
class Occasion:
    """A launch as one host saw it at one time, in seconds of the epoch, and what `run` said of it."""

    evidence: LaunchEvidence
    verdict: Blame | None = None
    at: float = 0.0


class EvidenceFile:
    """The file of one launch on one host. Only its user can read it."""

    def __init__(self, path: Path, most_bytes: int = _MOST_BYTES) -> None:
        self.path, self.most_bytes = path, most_bytes
        self._shapes: dict[tuple[object, ...], int] = {}

    def append(self, evidence: LaunchEvidence, blame: Blame | None) -> None:
        """Add what is known of the launch by now, without secrets. ``OSError`` for a link, and a file that others may write."""
        begins = not self.path.exists() or self.path.stat().st_size > self.most_bytes
        rows: list[str] = []
        if begins:
            self._shapes.clear()
            rows.append(json.dumps({KEY: FORMAT}))
        launch = to_json(replace(evidence, ranks=()))
        occasion = {"launch": launch, "verdict": to_json(blame) if blame else None, "ranks": len(evidence.ranks)}
        rows.append(_private({**occasion, "at": time.time()}))
        rows += (row for one in evidence.ranks for row in self._rank(one))
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if begins else os.O_APPEND)
        with open(os.open(self.path, flags | os.O_NOFOLLOW, 0o600), "wb") as file:  # noqa: PTH123 - a descriptor
            if os.fstat(file.fileno()).st_mode & 0o022:
                raise PermissionError(errno.EPERM, "other users may write the file that is there")
            file.write("".join(f"{row}\n" for row in rows).encode())

    def _rank(self, one: RankEvidence) -> Iterator[str]:
        """Yield the line of a rank, after those of calls that no line had before."""
        rows = []
        for call in one.calls:
            shape = tuple(getattr(call, name) for name in _COMMON)
            if shape not in self._shapes:
                self._shapes[shape] = len(self._shapes)
                yield json.dumps({"shape": shape})
            rows.append([self._shapes[shape], call.sequence, float(round(call.at, 6)), call.ended])
        calls = json.dumps(rows, separators=(",", ":"))
        yield f'{_private({"rank": to_json(replace(one, calls=()))})[:-1]}, "calls": {calls}}}'


def _private(row: JsonFields) -> str:
    return without_secrets(json.dumps(row), mail="")


def is_evidence(text: str) -> bool:
    """Tell whether a text is such a file, by its beginning."""
    return f'"{KEY}"' in text[:200]


def read_occasions(lines: Iterable[str | bytes], source: str) -> list[Occasion]:
    """Return what a file holds, oldest first. One that was cut off as it was written is left out.

    Raises
    ------
    DataError
        It names every field that is wrong.

    """
    reader = _Reader(source)
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
        except UnreadableError as error:
            reader.broken = f"line {number}: {error}"
            continue
        reader.take(row, number)
    return reader.done()


class _Reader:
    """The lines of a file, taken one after the other."""

    def __init__(self, source: str) -> None:
        self.source, self.problems, self.broken = source, Problems(), ""
        self.format: object = None
        self.shapes: list[Call] = []
        self.occasions: list[Occasion] = []
        self.head, self.missing = Occasion(LaunchEvidence()), -1
        self.ranks: list[RankEvidence] = []

    def take(self, row: Any, number: int) -> None:
        """Take in one line. What follows a line that cannot be read is of another occasion."""
        where = f"line {number}"
        if not isinstance(row, dict) or (self.broken and "launch" not in row and KEY not in row):
            return
        if KEY in row:
            self.format, self.shapes = row[KEY], []
        elif "shape" in row:
            self.shapes.append(self._shape(row["shape"], where))
        elif "launch" in row:
            self.broken = ""
            launch = check(LaunchEvidence, row["launch"], self.source, self.problems, root=f"{where}: launch")
            blame = row.get("verdict")
            verdict = blame and check(Blame, blame, self.source, self.problems, root=f"{where}: verdict")
            at, count = row.get("at"), row.get("ranks")
            self.head = Occasion(launch or LaunchEvidence(), verdict or None, at if isinstance(at, float) else 0.0)
            self.ranks, self.missing = [], count if isinstance(count, int) else -1
        elif "rank" in row and self.missing > 0:
            one = check(RankEvidence, row["rank"], self.source, self.problems, root=f"{where}: rank")
            calls = self._calls(row.get("calls"), where)
            self.ranks.append(replace(one or RankEvidence(rank=-1), calls=calls))
            self.missing -= 1
        if self.missing == 0:
            evidence = replace(self.head.evidence, ranks=tuple(self.ranks))
            self.occasions.append(replace(self.head, evidence=evidence))
            self.missing = -1

    def _shape(self, values: Any, where: str) -> Call:
        row = dict(zip(_COMMON, values)) if isinstance(values, list) else {}
        call = check(Call, {"sequence": 0, **row}, self.source, self.problems, root=f"{where}: shape")
        return call or Call(group="", sequence=0, operation="")

    def _calls(self, rows: Any, where: str) -> tuple[Call, ...]:
        calls = []
        for row in rows if isinstance(rows, list) else ():
            if not (isinstance(row, list) and len(row) == 4 and self._has(row[0]) and isinstance(row[1], int)):
                self.problems.add(f"{self.source}: {where}: calls", f"`{str(row)[:60]}` is no call of this file")
                return ()
            at, ended = row[2], row[3]
            calls.append(
                _call(
                    self.shapes[row[0]],
                    row[1],
                    at if isinstance(at, float) else 0.0,
                    ended=ended is True if ended is not None else None,
                )
            )
        return tuple(calls)

    def _has(self, shape: object) -> bool:
        return isinstance(shape, int) and 0 <= shape < len(self.shapes)

    def done(self) -> list[Occasion]:
        """Return the occasions, or refuse the file."""
        hint = "Run the launch again with --evidence DIR."
        if self.format != FORMAT:
            raise DataError(f"Cannot read {self.source}: it is not evidence of this release.", hint=hint)
        self.problems.refuse(f"Cannot read {self.source}: it is not evidence of this release.", hint=hint)
        if not self.occasions:
            reason = self.broken or "it ends before its first verdict"
            raise DataError(f"Cannot read {self.source}: {reason}.", hint=hint)
        return self.occasions


def _call(shape: Call, sequence: int, at: float, *, ended: bool | None) -> Call:
    """Return a call of a shape. It is what ``replace`` returns, in a fifth of the time: a large launch has a million."""
    call = object.__new__(Call)
    call.__dict__.update(shape.__dict__, sequence=sequence, at=at, ended=ended)
    return call


def judge_occasions(files: Sequence[Sequence[Occasion]]) -> Blame | None:
    """Return the verdict on what the hosts of one launch kept: as it stood still, and as it ended."""
    attempt = max(each.evidence.attempt for file in files for each in file)
    last = [[each for each in file if each.evidence.attempt == attempt] for file in files]
    stored = [each.verdict for file in last for each in reversed(file) if each.verdict and each.verdict.ranks]
    if len(files) == 1 and stored:
        return stored[0]
    standing = [next((each for each in reversed(file) if each.evidence.stalled), None) for file in last]
    stalls = [each for each in standing if each]
    ends = [file[-1].evidence for file in last if file and not file[-1].evidence.stalled]
    went_on = any(_latest(end) > each.at > 0 for end in ends for each in stalls)
    of_stall = verdict(merged([each.evidence for each in stalls])) if stalls and not went_on else None
    answer = decide_end(of_stall, merged(ends)) if ends else of_stall
    if answer and answer.ranks:
        return answer
    certain = sorted(stored, key=lambda blame: (not blame.is_hang, blame.confidence != "high"))
    spoken = (each.verdict for file in last for each in reversed(file) if each.verdict)
    return next(iter(certain), answer or next(spoken, None))


def _latest(evidence: LaunchEvidence) -> float:
    return max((call.at for one in evidence.ranks for call in one.calls[-1:]), default=0.0)


def merged(pieces: Sequence[LaunchEvidence]) -> LaunchEvidence:
    """Return the evidence of all pieces. What two of them say of the same thing is taken from the first."""
    if len(pieces) == 1:
        return pieces[0]
    ranks: dict[int, RankEvidence] = {}
    for one in (one for piece in pieces for one in piece.ranks):
        ranks[one.rank] = _joined(ranks[one.rank], one) if one.rank in ranks else one
    return LaunchEvidence(
        ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        machines=_machines(machine for piece in pieces for machine in piece.machines),
        world=max((piece.world for piece in pieces), default=0),
        is_listed=any(piece.is_listed for piece in pieces),
        stalled=min((piece.stalled for piece in pieces if piece.stalled), default=0.0),
        attempt=max((piece.attempt for piece in pieces), default=0),
        communicators="".join(piece.communicators for piece in pieces),
        # A scheduler that ends the other hosts of a launch interrupts those alone.
        is_interrupted=bool(pieces) and all(piece.is_interrupted for piece in pieces),
        events=tuple(sorted((event for piece in pieces for event in piece.events), key=lambda event: event.at)),
        unread=tuple(dict.fromkeys(text for piece in pieces for text in piece.unread)),
        launcher=next((piece.launcher for piece in pieces if piece.launcher), None),
        sizes=next((piece.sizes for piece in pieces if piece.sizes), None),
        driver=next((piece.driver for piece in pieces if piece.driver), None),
        absent=next((piece.absent for piece in pieces if piece.absent), None),
        line=next((piece.line for piece in pieces if piece.line), 0),
    )


def _joined(first: RankEvidence, second: RankEvidence) -> RankEvidence:
    """Return what both say of a rank: what the first has nothing of is the second's."""
    names = [field.name for field in fields(first)]
    changes: dict[str, Any] = {
        name: getattr(second, name) for name in names if not getattr(first, name) and getattr(second, name)
    }
    own = [error for error in (first.error, second.error) if error]
    if len(own) == 2 and own[1].at and own[0].at and own[1].at < own[0].at:
        changes["error"] = own[1]
    changes["environment"] = {**second.environment, **first.environment}
    changes["stacks"] = first.stacks or second.stacks
    return replace(first, **changes)


def _machines(machines: Iterable[LaunchHost]) -> tuple[LaunchHost, ...]:
    """Return each host once, with the lines of all its logs."""
    hosts: dict[str, LaunchHost] = {}
    for each in machines:
        if (host := hosts.get(each.name)) is None:
            hosts[each.name] = each
            continue
        hosts[each.name] = replace(
            host,
            disks=host.disks or each.disks,
            oom_kills=max(host.oom_kills, each.oom_kills),
            kernel=tuple(dict.fromkeys([*host.kernel, *each.kernel])),
        )
    return tuple(hosts.values())
