"""What texts say of the ranks of one launch, read into evidence, and the verdict on it as a finding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.read.host_logs import read_host_logs, read_ras
from envsmith.doctor.read.pasted import spoken
from envsmith.doctor.read.remains import rank_of_speaker, read_remains
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence as Source
from envsmith.model.rule import EvidenceKind, Severity
from envsmith.ranks.causes import Blame, Cause
from envsmith.ranks.deaths import SIZES, STORE_KEY, absent_in, sizes_in
from envsmith.ranks.decide import verdict
from envsmith.ranks.evidence import LIBRARY, Evidence, Exit, Frame, RankError, RankEvidence, place_of
from envsmith.ranks.stored import is_evidence, merged
from envsmith.ranks.stored import read_evidence as read_stored

EVIDENCE = Source(
    kind=EvidenceKind.MEASURED,
    source="outputs of torchrun 2.15 on gloo with three ranks, one fault injected into each",
    date="2026-11-22",
)
# The ids of its findings. Signatures name them as what explains their messages.
KINDS = frozenset(cause.kind for cause in Cause)
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


def blame_texts(texts: Sequence[tuple[str, str]]) -> tuple[str, Blame] | None:
    """Return the verdict on what all texts say together, and the text in which it stands."""
    pieces = [(source, read_evidence(source, text)) for source, text in texts]
    pieces = [(source, piece) for source, piece in pieces if piece.ranks or piece.events or piece.machines]
    answer = verdict(merged([piece for _, piece in pieces])) if pieces else None
    if answer is None:
        return None
    places = [source for source, text in texts if answer.quote and answer.quote[:80] in text]
    return (places or [source for source, _ in pieces])[0], answer


def read_evidence(source: str, text: str) -> Evidence:
    """Return what one text says of the ranks of a launch: its launcher, the ranks themselves, the host, NCCL."""
    if is_evidence(text):
        return read_stored(text, source)
    lines = spoken(text)[:_MOST_LINES]
    return merged([_of_launcher(lines), read_remains(source, lines), read_host_logs(text), read_ras(text)])


def read_launch(text: str) -> Evidence:
    """Return what a launcher's text says of its ranks: errors by rank, exit statuses, the size of the world."""
    return _of_launcher(spoken(text)[:_MOST_LINES])


def _of_launcher(lines: Sequence[tuple[str, str]]) -> Evidence:
    plain = "\n".join(line for _, line in lines)
    errors = dict(_errors(lines))
    ends = {int(rank): (int(status), int(pid)) for rank, status, pid in _ROW.findall(plain)}
    for status, rank, pid in _FIRST.findall(plain):
        ends.setdefault(int(rank), (int(status), int(pid)))
    sizes, key = SIZES.search(plain), STORE_KEY.search(plain)
    stated = [int(size) for size in _SIZE.findall(plain)]
    speakers = {rank for speaker, _ in lines if (rank := rank_of_speaker(speaker)) is not None}
    mark = sizes or key
    return Evidence(
        ranks=tuple(_rank(rank, errors.get(rank), ends.get(rank)) for rank in sorted({*errors, *ends})),
        world=max([*stated, *(rank + 1 for rank in {*speakers, *ends})], default=0),
        is_listed=bool(_TABLE.search(plain)),
        sizes=sizes_in(plain),
        absent=absent_in(plain),
        line=plain.count("\n", 0, mark.start()) + 1 if mark else 0,
    )


def _rank(rank: int, error: RankError | None, end: tuple[int, int] | None) -> RankEvidence:
    if end is None:
        return RankEvidence(rank=rank, error=error)
    return RankEvidence(rank=rank, error=error, exit=Exit(code=end[0]), pid=end[1])


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
        rank = rank_of_speaker(speaker)
        if rank is None:
            continue
        if frame := _FRAME.match(line):
            if not LIBRARY.search(frame["file"]):
                frames[rank] = place_of(Frame(function=frame["function"], file=frame["file"], line=int(frame["line"])))
        elif _EXCEPTION.match(line):
            errors[rank] = RankError(error=line.strip()[:600], place=frames.get(rank, ""), line=number)
    yield from errors.items()
