"""What single ranks left: dumps of the recorder, stacks, torchelastic's error files, lines of NCCL's Inspector."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from envsmith.base.files import open_input
from envsmith.base.json_types import JsonFields, number_in, object_in
from envsmith.base.schema import parse_object
from envsmith.doctor.read.pasted import read_bounded
from envsmith.errors import UsageError
from envsmith.frameworks import added_frameworks
from envsmith.launch.ranks.evidence import Call, Frame, LaunchEvidence, RankError, RankEvidence, ThreadStack, user_place
from envsmith.launch.ranks.recorder import MOST_CALLS, calls_of, groups_of
from envsmith.launch.ranks.stored import PATTERN, Occasion, is_evidence, read_occasions
from envsmith.launch.ranks.traces import faulthandler_dumps, py_spy_stacks

Lines = Sequence[tuple[str, str]]
_RANK = re.compile(r"\[?(?:default)?[Rr]ank ?(\d{1,5})\]?:?")
# Names of files that belong to one rank: torchrun's folders, DeepSpeed, srun, torch's dumps, our own.
_FILE_OF_RANK = re.compile(
    r"(?:^|/)attempt_\d+/(\d{1,5})/[^/]+$|rank[_-]?(\d{1,5})(?=[^/\d][^/]*$|$)|slurm-\d+[_.](\d{1,5})\.(?:out|err)$"
)
_STACKS = re.compile(r"(?:Current thread|Thread) 0x[0-9a-fA-F]{4,}|Thread (?:\d{1,10}|0x[0-9A-Fa-f]+) \(\w")
_TRACE = re.compile(r'\s{0,8}File "([^"\n]{1,400})", line (\d{1,7}), in (\S{1,120})')
_MOST_ROWS = 20_000
# Packages in whose files a rank waits or fails on behalf of a script.
_PACKAGES = {framework.module.partition(".")[0] for framework in added_frameworks().values()}
_PACKAGES |= {"torch", "transformers", "datasets", "peft", "trl", "numpy", "apex", "flash_attn", "transformer_engine"}
_PACKAGES |= {"pytorch_lightning", "nemo", "verl", "fsspec", "torchdata", "aiohttp", "requests", "urllib3", "PIL"}


def rank_of_speaker(speaker: str) -> int | None:
    """Return the rank that a launcher puts before a line: ``[rank3]:``."""
    match = _RANK.fullmatch(speaker)
    return int(match[1]) if match else None


def rank_of_file(name: str) -> int | None:
    """Return the rank that the name of a file says, or ``None``."""
    match = _FILE_OF_RANK.search(name)
    return next((int(number) for number in match.groups() if number), None) if match else None


def read_remains(source: str, lines: Lines) -> LaunchEvidence:
    """Return what the lines of each rank hold of dumps, stacks and error files."""
    speakers: dict[int, list[str]] = {}
    own = rank_of_file(source)
    for speaker, line in lines:
        rank = rank_of_speaker(speaker)
        if (rank := own if rank is None else rank) is not None:
            speakers.setdefault(rank, []).append(line)
    ranks = [_rank(rank, own_lines) for rank, own_lines in sorted(speakers.items())]
    inspected = _inspected(line for _, line in lines)
    telling = tuple(one for one in (*ranks, *inspected) if one.calls or one.stacks or one.error)
    return LaunchEvidence(
        ranks=telling, world=max((len(group.ranks) for one in ranks for group in one.groups), default=0)
    )


def _rank(rank: int, lines: Sequence[str]) -> RankEvidence:
    dump: JsonFields = {}
    error: RankError | None = None
    for line in lines:
        if line.startswith("{") and (value := _object(line)):
            dump = value if "entries" in value else dump
            error = _elastic_error(value) or error
    return RankEvidence(rank=rank, calls=calls_of(dump), groups=groups_of(dump), stacks=_stacks(lines), error=error)


def _object(line: str) -> JsonFields:
    """Return the JSON object of a line, an empty one where it is of no kind that is read here."""
    is_read = any(key in line for key in ('"entries"', '"py_callstack"', '"coll_sn"'))
    return parse_object(line) if is_read else {}


def _stacks(lines: Sequence[str]) -> tuple[ThreadStack, ...]:
    """Return the stacks of the last dump of faulthandler or py-spy."""
    if not any(_STACKS.match(line) for line in lines):
        return ()
    text = "\n".join(lines)
    if "most recent call first" not in text:
        return tuple(_with_paths(stack) for stack in py_spy_stacks(text))
    dumps = faulthandler_dumps(text)
    return dumps[-1][1] if dumps else ()


def _with_paths(stack: ThreadStack) -> ThreadStack:
    """Return a stack of py-spy with paths that tell libraries from scripts: it cuts the folder of packages off."""
    return replace(stack, frames=tuple(replace(frame, file=_path(frame.file)) for frame in stack.frames))


def _path(file: str) -> str:
    name = file.partition("/")[0].removesuffix(".py")
    if file.startswith(("/", "<")):
        return file
    if name in sys.stdlib_module_names:
        return f"/lib/python3.0/{file}"
    return f"/site-packages/{file}" if name in _PACKAGES else file


def _elastic_error(value: JsonFields) -> RankError | None:
    """Return the error of a file that torch's ``@record`` writes."""
    message = object_in(value, "message")
    extra = object_in(message, "extraInfo")
    if "extraInfo" not in message:
        return None
    trace = str(extra.get("py_callstack", ""))[: 1 << 18].strip().splitlines()
    frames = [Frame(function=m[3], file=m[1], line=int(m[2])) for line in trace if (m := _TRACE.match(line))]
    stamp = str(extra.get("timestamp", ""))
    text = trace[-1] if trace else str(message.get("message", ""))
    return RankError(
        error=text.strip()[:600],
        place=user_place(reversed(frames)),
        at=float(stamp) if stamp.isdigit() and len(stamp) < 12 else 0.0,
    )


def _inspected(lines: Iterable[str]) -> list[RankEvidence]:
    """Return the collectives that NCCL's Inspector wrote, one object a line, by the rank in its communicator.

    Only the largest communicator has ranks that are those of the launch.
    """
    rows: list[tuple[str, int, int, Call]] = []
    for line in lines:
        if len(rows) < _MOST_ROWS and '"coll_sn"' in line and (value := _object(line)) and (row := _inspection(value)):
            rows.append(row)
    largest = max((row[1] for row in rows), default=0)
    groups = {row[0] for row in rows if row[1] == largest}
    if len(groups) != 1:
        return []
    calls: dict[int, list[Call]] = {}
    for group, _, rank, call in rows:
        if group in groups:
            calls.setdefault(rank, []).append(call)
    return [
        RankEvidence(rank=rank, calls=tuple(sorted(own, key=lambda call: call.sequence)[-MOST_CALLS:]), world=largest)
        for rank, own in sorted(calls.items())
    ]


def _inspection(value: JsonFields) -> tuple[str, int, int, Call] | None:
    head, work = object_in(value, "header"), object_in(value, "coll_perf")
    rank, size, number = head.get("rank"), head.get("n_ranks"), work.get("coll_sn")
    length, stamp = work.get("coll_msg_size_bytes"), object_in(value, "metadata").get("dump_timestamp_us")
    if not all(isinstance(each, int) and 0 <= each < 1 << 48 for each in (rank, size, number)):
        return None
    call = Call(
        group=str(head.get("id", ""))[:100],
        sequence=number_in(work, "coll_sn"),
        operation=re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(work.get("coll", "")))[:100].lower(),
        sizes=((length,),) if isinstance(length, int) else (),
        state="completed",
        at=stamp / 1e6 if isinstance(stamp, int) and 0 < stamp < 1 << 60 else 0.0,
        ended=True,
    )
    return call.group, number_in(head, "n_ranks"), number_in(head, "rank"), call


# A folder of logs: one text for what the ranks wrote, each line with its rank, and one for each other file.

# Files of a folder that are read, and how deep it may be.
_MOST_FILES, _DEEPEST = 2000, 6
# Of each file of a rank the end is what matters.
_KEPT_LINES = 20_000
_MOST_REMARKS = 20
# Hosts of one launch, and where the beginning of their files says what they are.
_MOST_HOSTS, _HEAD = 4096, 200
_TEXT = re.compile(
    r"\.(?:log|out|err|txt|jsonl?|ya?ml|lock|toml|pickle|pkl|dump)$|rank[_-]?\d+$"
    r"|(?:^|/)(?:stdout|stderr|dmesg|nvidia-smi|ncclras|py-spy|pyspy|faulthandler|flight|nccl)[^/]*$"
)


def read_kept(source: str) -> dict[str, list[Occasion]]:
    """Return what `envsmith run` kept in a file, or in a folder and below it, by the names of the files."""
    place = Path(source)
    paths = sorted(path for path in place.rglob(PATTERN) if path.is_file()) if place.is_dir() else [place]
    occasions: dict[str, list[Occasion]] = {}
    for path in paths[:_MOST_HOSTS]:
        name = path.relative_to(place).as_posix() if path != place else source
        if path.is_file():
            with open_input(path, UsageError) as file:
                head = file.readline(_HEAD)
                if is_evidence(head.decode(errors="replace")):
                    occasions[name] = read_occasions(chain([head], file), name)
    return occasions


def read_folder(folder: Path) -> list[tuple[str, str, list[str]]]:
    """Return ``(source, text, notes)`` of a folder, without what :func:`read_kept` reads.

    ``UsageError`` where it holds no file of text.

    What several ranks wrote into files of their own becomes one text, each line marked with its rank, the file first
    that was written to last the longest ago: the rank that ended first stands first.
    """
    ranks: list[tuple[float, int, str]] = []
    texts: list[tuple[str, str, list[str]]] = []
    remarks: list[str] = []
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        with open_input(path, UsageError) as file:
            text, notes = read_bounded(file)
        if (rank := rank_of_file(name)) is None:
            texts.append((name, text, notes))
        else:
            ranks.append((path.stat().st_mtime, rank, text))
            remarks += [f"{name}: {note}" for note in notes][: _MOST_REMARKS - len(remarks)]
    if ranks:
        lines = [
            f"[rank{rank}]: {line.removeprefix(f'[rank{rank}]: ')}"  # torch's own mark of a traceback
            for _, rank, text in sorted(ranks)
            for line in _end(text)
        ]
        note = f"{len(ranks)} files of {len({rank for _, rank, _ in ranks})} ranks"
        texts.insert(0, (f"{folder.name}: ranks", "\n".join(lines) + "\n", [note, *remarks]))
    if not texts:
        raise UsageError(
            f"Cannot read {folder}: no file in it is a text.",
            hint="Give a folder of logs, such as torchrun's --log-dir.",
        )
    return texts


def has_texts(folder: Path) -> bool:
    """Tell whether :func:`read_folder` finds anything there."""
    return next(_files(folder), None) is not None


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that are texts, in the order of their names."""
    count = 0
    for place, folders, names in os.walk(folder):
        folders.sort()
        if len(Path(place).relative_to(folder).parts) >= _DEEPEST:
            folders.clear()
        for name in sorted(names):
            path = Path(place, name)
            is_text = _TEXT.search(path.as_posix()) and not path.match(PATTERN)
            if count < _MOST_FILES and is_text and path.is_file() and not path.is_symlink():
                count += 1
                yield path


def _end(text: str) -> list[str]:
    return text.splitlines()[-_KEPT_LINES:]
