"""What the text of a launcher says of its ranks, read into evidence, and the verdict on it as a finding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.read.pasted import spoken
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence as Source
from envsmith.model.rule import EvidenceKind, Severity
from envsmith.ranks.blame import Blame, Cause
from envsmith.ranks.deaths import SIZES, STORE_KEY, absent_in, sizes_in
from envsmith.ranks.evidence import Evidence, Exit, Frame, RankError, RankEvidence
from envsmith.ranks.places import LIBRARY, place_of

EVIDENCE = Source(
    kind=EvidenceKind.MEASURED,
    source="outputs of torchrun 2.15 on gloo with three ranks, one fault injected into each",
    date="2026-11-22",
)
# The ids of its findings. Signatures name them as what explains their messages.
KINDS = frozenset(cause.kind for cause in Cause)
_RANK = re.compile(r"\[?(?:default)?[Rr]ank ?(\d{1,5})\]?:?")
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception|Interrupt|Exit|Warning|Timeout|Failure)\b(?::.*)?$"
)
_FRAME = re.compile(r'\s{0,8}File "(?P<file>[^"\n]{1,400})", line (?P<line>\d{1,7}), in (?P<function>\S{1,120})')
# torchrun's table of what failed, and what its agent noticed first.
_ROW = re.compile(r"rank\s*: (\d{1,5}) \(local_rank: \d+\)\s*\n\s*exitcode\s*: (-?\d{1,5}) \(pid: (\d+)\)")
_FIRST = re.compile(r"failed \(exitcode: (-?\d{1,5})\) local_rank: (\d{1,5}) \(pid: (\d+)\)")
_TABLE = re.compile(r"Root Cause \(first observed failure\)")
_SIZE = re.compile(r"\b(?:world_size|size|WORLD_SIZE)[=: ]{1,3}(\d{1,5})\b")
_MOST_LINES = 100_000


def read_launch(text: str) -> Evidence:
    """Return what a text says of the ranks of a launch: errors by rank, exit statuses, the size of the world."""
    lines = spoken(text)[:_MOST_LINES]
    plain = "\n".join(line for _, line in lines)
    errors = dict(_errors(lines))
    exits = {int(rank): int(status) for rank, status, _ in _ROW.findall(plain)}
    for status, rank, _ in _FIRST.findall(plain):
        exits.setdefault(int(rank), int(status))
    sizes, key = SIZES.search(plain), STORE_KEY.search(plain)
    stated = [int(size) for size in _SIZE.findall(plain)]
    speakers = {rank for speaker, _ in lines if (rank := _rank_of(speaker)) is not None}
    mark = sizes or key
    return Evidence(
        ranks=tuple(
            RankEvidence(rank=rank, error=errors.get(rank), exit=Exit(code=exits[rank]) if rank in exits else None)
            for rank in sorted({*errors, *exits})
        ),
        world=max([*stated, *(rank + 1 for rank in {*speakers, *exits})], default=0),
        is_listed=bool(_TABLE.search(plain)),
        sizes=sizes_in(plain),
        absent=absent_in(plain),
        line=plain.count("\n", 0, mark.start()) + 1 if mark else 0,
    )


def of_blame(source: str, answer: Blame) -> Diagnosed:
    """Return what is said of a launch as a finding. It warns: which rank failed is no fault of the versions."""
    finding = Finding(
        rule=answer.kind,
        severity=Severity.WARNING,
        components={},
        message=answer.message,
        evidence=(EVIDENCE,),
        fix=answer.fix,
        symptom=answer.quote[:300],
        stage="train",
    )
    return Diagnosed(
        finding=finding,
        confidence=answer.confidence,
        score=Weight.SYMPTOM + 1,
        taxonomy=Taxonomy(stage="train", group="negative", cause=answer.kind, pattern="model-or-script-fix"),
        where=f"{source}:{answer.line}",
        quote=answer.quote,
        confirmed=True,
        position=0,
    )


def _errors(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[int, RankError]]:
    """Yield the last error of each rank, with the last place in its traceback that is no library's."""
    frames: dict[int, str] = {}
    errors: dict[int, RankError] = {}
    for number, (speaker, line) in enumerate(lines, 1):
        rank = _rank_of(speaker)
        if rank is None:
            continue
        if frame := _FRAME.match(line):
            if not LIBRARY.search(frame["file"]):
                frames[rank] = place_of(Frame(function=frame["function"], file=frame["file"], line=int(frame["line"])))
        elif _EXCEPTION.match(line):
            errors[rank] = RankError(error=line.strip()[:600], place=frames.get(rank, ""), line=number)
    yield from errors.items()


def _rank_of(speaker: str) -> int | None:
    match = _RANK.fullmatch(speaker)
    return int(match[1]) if match else None
