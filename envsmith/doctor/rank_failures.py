"""What texts say of the ranks of one launch, read into evidence, and the verdict on it as a finding."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from signal import SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV, SIGTERM

from envsmith.base.json_types import JsonFields, number_in, numbers_in, object_in, objects_in
from envsmith.base.schema import parse_object
from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, Weight
from envsmith.doctor.read.pasted import spoken
from envsmith.doctor.read.remains import rank_of_speaker, read_remains
from envsmith.launch.ranks.causes import Blame, Cause
from envsmith.launch.ranks.deaths import STORE_KEY, absent_in, sizes_in
from envsmith.launch.ranks.decide import verdict
from envsmith.launch.ranks.errors import SIZES
from envsmith.launch.ranks.evidence import (
    LIBRARY,
    ExitStatus,
    Frame,
    LaunchEvent,
    LaunchEvidence,
    LaunchHost,
    RankError,
    RankEvidence,
    place_of,
)
from envsmith.launch.ranks.stored import Occasion, judge_occasions, merged
from envsmith.model.finding import Finding
from envsmith.model.rule import Evidence as Source
from envsmith.model.rule import EvidenceKind, Severity

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


def blame_texts(
    texts: Sequence[tuple[str, str]], stored: Mapping[str, Sequence[Occasion]] | None = None
) -> tuple[str, Blame] | None:
    """Return the verdict on what all texts say together, and the text in which it stands.

    What `run` kept says more than any text: ``stored`` has its files by their names.
    """
    if stored and (answer := judge_occasions(list(stored.values()))) and (answer.ranks or not texts):
        return next(iter(stored)), answer
    pieces = [(source, read_evidence(source, text)) for source, text in texts]
    pieces = [(source, piece) for source, piece in pieces if piece.ranks or piece.events or piece.machines]
    answer = verdict(merged([piece for _, piece in pieces])) if pieces else None
    if answer is None:
        return None
    places = [source for source, text in texts if answer.quote and answer.quote[:80] in text]
    return (places or [source for source, _ in pieces or texts])[0], answer


def read_evidence(source: str, text: str) -> LaunchEvidence:
    """Return what one text says of the ranks of a launch: its launcher, the ranks themselves, the host, NCCL."""
    lines = spoken(text)[:_MOST_LINES]
    return merged([_of_launcher(lines), read_remains(source, lines), read_host_logs(text), read_ras(text)])


def _of_launcher(lines: Sequence[tuple[str, str]]) -> LaunchEvidence:
    """Return what a launcher's text says of its ranks: errors by rank, exit statuses, the size of the world."""
    plain = "\n".join(line for _, line in lines)
    errors = dict(_errors(lines))
    ends = {int(rank): (int(status), int(pid)) for rank, status, pid in _ROW.findall(plain)}
    for status, rank, pid in _FIRST.findall(plain):
        ends.setdefault(int(rank), (int(status), int(pid)))
    sizes, key = SIZES.search(plain), STORE_KEY.search(plain)
    stated = [int(size) for size in _SIZE.findall(plain)]
    speakers = {rank for speaker, _ in lines if (rank := rank_of_speaker(speaker)) is not None}
    mark = sizes or key
    return LaunchEvidence(
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
    return RankEvidence(rank=rank, error=error, exit=ExitStatus(code=end[0]), pid=end[1])


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


# What the kernel, Slurm and Kubernetes say of the processes of a launch: who was ended, and by whom.

_KERNEL = re.compile(
    r"NVRM: Xid|[Oo]ut of memory: Killed process|oom-kill:constraint|oom_reaper: reaped|segfault at |traps: .{0,80}trap |"
    r"general protection fault|I/O error, dev |nvidia-nvswitch|NVRM: GPU .{0,60}fallen off"
)
# The kernel's word for a process that may be a rank, or a worker of its data loader.
_ENDED_FOR_MEMORY = re.compile(r"[Oo]ut of memory: Killed process \d{1,9} \((?:python|pt_|torch|ray|train)[^)]{0,40}\)")
_TASKS = re.compile(r"srun: error: (\S{1,100}): tasks? ([\d,-]{1,400}): (.{1,80})$")
_STEP_ENDED = re.compile(
    r"srun: (?:Job step aborted|Terminating StepId)|slurmstepd: error: \*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED"
)
# Launchers that start several ranks in one task.
_LAUNCHER = re.compile(
    r"torch[./]distributed[./](?:elastic|run)|torchrun|[./]launcher[./]launch|[./]commands[./]launch"
)
_WORDS = {
    "Killed": -SIGKILL, "Out Of Memory": -SIGKILL, "Segmentation fault": -SIGSEGV, "Aborted": -SIGABRT,
    "Bus error": -SIGBUS, "Floating point exception": -SIGFPE, "Terminated": -SIGTERM,
}  # fmt: skip
_STATUS = re.compile(r"Exited with exit code (\d{1,3})")
_COMMUNICATOR = re.compile(r"\s{0,8}#\d{1,5}-\d{1,5} \(([0-9a-f]{1,32})\) ([A-Z]{2,20})")
_MISSING = re.compile(r"\s{0,8}The missing ranks?: ([\d, -]{1,2000})")
_COUNTS = re.compile(r"\s{0,8}(\d{1,6}) ranks? ha(?:s|ve) launched up to operation (\d{1,15})")
_MEMBER = re.compile(r"\s{0,8}Rank (\d{1,6}) -- GPU \d{1,4} managed by process (\d{1,9}) on node (\S{1,100})")
_MOST_KERNEL_LINES, _MOST = 200, 4096


def read_host_logs(text: str) -> LaunchEvidence:
    """Return what a text says of the host and of the tasks that a scheduler started on it."""
    lines = text.splitlines()
    kernel = [line.strip()[:400] for line in lines if _KERNEL.search(line)][:_MOST_KERNEL_LINES]
    kills = sum(bool(_ENDED_FOR_MEMORY.search(line)) for line in kernel)
    machines = (LaunchHost(oom_kills=kills, kernel=tuple(kernel)),) if kernel else ()
    tasks = () if _LAUNCHER.search(text) else tuple(_tasks(lines))
    pods = _pods(text) if '"containerStatuses"' in text else LaunchEvidence()
    return LaunchEvidence(
        ranks=(*tasks, *pods.ranks),
        machines=(*machines, *pods.machines),
        launcher=ExitStatus(code=None) if tasks or pods.ranks else None,
    )


def _tasks(lines: Iterable[str]) -> Iterator[RankEvidence]:
    """Yield the ends of Slurm's tasks, which are ranks where each starts one. After the first end Slurm ends the rest."""
    ended, is_cancelled = set[int](), False
    for line in lines:
        if _STEP_ENDED.search(line):
            is_cancelled = True
        elif match := _TASKS.search(line):
            status = _status(match[3])
            for task in _numbers(match[2]):
                if status is not None and task not in ended:
                    ended.add(task)
                    by_launcher = status == -SIGTERM or (is_cancelled and status == -SIGKILL)
                    yield RankEvidence(rank=task, host=match[1], exit=ExitStatus(code=status, by_launcher=by_launcher))


def _status(words: str) -> int | None:
    if match := _STATUS.match(words):
        code = int(match[1])
        return 128 - code if 128 < code < 128 + 65 else code
    return next((status for word, status in _WORDS.items() if words.startswith(word)), None)


def _pods(text: str) -> LaunchEvidence:
    """Return how the containers of pods ended, as ``kubectl get pods -o json`` says it, where a pod says its rank."""
    value = parse_object(text[text.find("{") : text.rfind("}") + 1])
    ranks, machines = [], []
    for pod in (objects_in(value, "items") or (value,))[:_MOST]:
        if (rank := _rank_of_pod(pod)) is not None and (end := _end_of(pod)):
            name = str(object_in(pod, "metadata").get("name", ""))[:100]
            ranks.append(RankEvidence(rank=rank, host=name, exit=_exit_of(end)))
            if end.get("reason") == "OOMKilled":
                machines.append(LaunchHost(name=name, oom_kills=1))
    return LaunchEvidence(ranks=tuple(ranks), machines=tuple(machines))


def _rank_of_pod(pod: JsonFields) -> int | None:
    """Return the rank that a pod's own variable or its job's label says."""
    for container in objects_in(object_in(pod, "spec"), "containers"):
        for row in objects_in(container, "env"):
            if row.get("name") == "RANK" and str(row.get("value")).isdigit():
                return int(str(row["value"])[:6])
    labels = object_in(object_in(pod, "metadata"), "labels")
    index = str(labels.get("batch.kubernetes.io/job-completion-index", ""))[:6]
    return int(index) if index.isdigit() else None


def _end_of(pod: JsonFields) -> JsonFields | None:
    """Return how the first container of a pod ended: now, or before its restart."""
    statuses = objects_in(object_in(pod, "status"), "containerStatuses")
    ends = (object_in(object_in(status, key), "terminated") for status in statuses for key in ("state", "lastState"))
    return next(filter(None, ends), None)


def _exit_of(end: JsonFields) -> ExitStatus:
    code, stamp = end.get("exitCode"), str(end.get("finishedAt", ""))
    try:
        at = dt.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        at = 0.0
    if not isinstance(code, int) or not 0 <= code < 256:
        return ExitStatus(code=None, at=at)
    return ExitStatus(code=128 - code if 128 < code < 128 + 65 else code, at=at)


# What NCCL's ``ncclras`` says, as text and as JSON: who does not answer, who is behind.


def read_ras(text: str) -> LaunchEvidence:
    """Return what a report of NCCL's RAS says. Its ranks are those of the communicator, so only the largest counts."""
    if '"communicators"' in text and '"missing_ranks"' in text:
        events = list(_of_json(text))
    elif "Communicators..." in text or _COMMUNICATOR.search(text):
        events = list(_of_text(text.splitlines()))
    else:
        return LaunchEvidence()
    return LaunchEvidence(events=tuple(events[:_MOST]))


def _of_text(lines: Iterable[str]) -> Iterator[LaunchEvent]:
    """Yield the missing ranks of every communicator, and those of which fewer have launched the last operation."""
    communicator, behind, most = "", "", 0
    for line in lines:
        if match := _COMMUNICATOR.match(line):
            communicator, behind, most = match[1], "", 0
        elif communicator and (match := _MISSING.match(line)):
            for rank in _numbers(match[1]):
                yield LaunchEvent(
                    at=0.0, rank=rank, kind="unreachable", text=f"NCCL RAS: no data of rank {rank} of {communicator}"
                )
        elif communicator and (match := _COUNTS.match(line)):
            number = int(match[2])
            behind = f"launched up to operation {number}, others up to {most}" if number < most else ""
            most = max(most, number)
        elif behind and (match := _MEMBER.match(line)):
            text = f"NCCL RAS: rank {match[1]} (process {match[2]} on {match[3]}) has {behind}"
            yield LaunchEvent(at=0.0, rank=int(match[1]), kind="fewer-calls", text=text)


def _numbers(text: str) -> list[int]:
    """Return the numbers of ``1, 4-6``."""
    numbers: list[int] = []
    for part in text.split(",")[:_MOST]:
        first, _, last = part.strip().partition("-")
        if first.isdigit() and len(first) < 7:
            stop = int(last) if last.strip().isdigit() and len(last) < 7 else int(first)
            numbers += range(int(first), min(stop, int(first) + _MOST) + 1)
    return numbers[:_MOST]


def _of_json(text: str) -> Iterator[LaunchEvent]:
    rows = objects_in(parse_object(text[text.find("{") : text.rfind("}") + 1]), "communicators")
    largest = max(rows, key=lambda row: number_in(row, "size"), default={})
    for rank in objects_in(largest, "missing_ranks")[:_MOST]:
        number, host, process = rank.get("rank"), str(rank.get("host", ""))[:100], rank.get("pid")
        if isinstance(number, int):
            words = f"NCCL RAS: rank {number} (process {process} on {host}) does not answer"
            yield LaunchEvent(at=0.0, rank=number, kind="unreachable", text=words)
    yield from _fewer(objects_in(largest, "ranks")[:_MOST])


def _fewer(ranks: Iterable[JsonFields]) -> Iterator[LaunchEvent]:
    """Yield the minority that has called fewer collectives than the others."""
    counted = [row for row in ranks if isinstance(row.get("rank"), int) and "collective_counts" in row]
    counts = {number_in(row, "rank"): sum(numbers_in(row, "collective_counts").values()) for row in counted}
    most = Counter(counts.values()).most_common(1)[0][0] if counts else 0
    behind = {number: count for number, count in counts.items() if count < most}
    for number, count in behind.items() if len(behind) * 2 < len(counts) else ():
        text = f"NCCL RAS: rank {number} has called {count} collectives, others {most}"
        yield LaunchEvent(at=0.0, rank=number, kind="fewer-calls", text=text)
