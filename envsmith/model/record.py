"""A record: the outcome of a run on a cell, never an opinion."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from envsmith.base import ssh
from envsmith.base.files import read_bounded, write_whole
from envsmith.base.json_types import JsonFields
from envsmith.base.schema import (
    UNWRITTEN,
    AsJson,
    Checked,
    Flag,
    Problems,
    UnreadableError,
    WrongValueError,
    check,
    exactly,
    not_empty,
    parse_document,
    strict,
    text_of,
    written,
)
from envsmith.base.text import names_here, places_here, redact_values
from envsmith.errors import DataError, LeftAsideWarning, os_errors
from envsmith.model.cell import CellId
from envsmith.model.version import version_key

# Schema 1 (until 2026-11-21) listed every case by name and every case's seconds: 10 kB a record.
SCHEMA = 2
# A record is at most 4 kB, so that ten thousand of them are read in a second: what is long is cut, and the number of
# what was left out is named.
_MAX_BAD = 6
_MAX_TEXT = 220
_MAX_LOG = 600
_HOST = ("cpus", "memory_bytes", "kernel", "machine", "os", "container", "driver", "gpus", "links", "rdma")
_LOADED = (
    "python", "glibc", "torch", "torch_git", "cuda", "cxx11_abi", "numpy", "nccl", "nccl_runtime", "cudnn", "installed",
    "backend_implementation", "nccl_transport",
)  # fmt: skip


class Rung(str, Enum):
    """The evidence ladder of DESIGN.md, lowest first."""

    SOLVED = "solved"
    LOCKED = "locked"
    INSTALLED = "installed"
    IMPORTED = "imported"
    COLLECTIVES_CPU = "collectives(cpu)"
    FRAMEWORK_CPU = "framework step(cpu)"
    COLLECTIVES_GPU = "collectives(gpu)"
    FRAMEWORK_GPU = "framework step(gpu)"


class Verdict(str, Enum):
    """What became of one case of a smoke test."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    WRONG = "wrong"
    ERROR = "error"
    HANG = "hang"
    CRASH = "crash"
    UNSUPPORTED = "unsupported-as-expected"
    UNEXPECTED = "unexpectedly-supported"
    REGRESSED = "regressed"
    SKIPPED = "skipped"
    NOT_RUN = "not-run"
    BELOW_FLOOR = "below-floor"

    @property
    def good(self) -> bool:
        """Return whether the case does not speak against the cell."""
        return self in {Verdict.PASS, Verdict.UNSUPPORTED, Verdict.SKIPPED, Verdict.UNEXPECTED}


# Facts of a machine or of what was imported, as the agent found them.
Facts: TypeAlias = JsonFields


class Unmet(str, Enum):
    """What a case or a step that was not run would have needed."""

    TIME = "time"
    MEMORY = "memory"
    GPU = "gpu"


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class CaseOutcome(AsJson):
    """``case`` is the case's name (``all_reduce[float32,sum,1027]``).

    ``seconds`` is the slowest rank's time, ``blame`` one sentence. ``is_known`` tells that it is wrong as
    ``matrix/collectives.yaml`` says.
    """

    case: str
    verdict: Verdict
    seconds: float | None = field(default=None, metadata=UNWRITTEN)
    blame: str | None = None
    unmet: Unmet | None = field(default=None, metadata=UNWRITTEN, compare=False)
    is_known: bool = field(default=False, metadata=UNWRITTEN, compare=False)


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Cases(AsJson):
    """The cases of a run: counts of verdicts, the bad cases, and the hash of the ``list`` of all that were to run."""

    list: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    bad: tuple[CaseOutcome, ...] = ()

    @classmethod
    def of(cls, outcomes: Iterable[CaseOutcome], case_list: str) -> Cases:
        """Count outcomes and keep the first bad ones."""
        counts = Counter(case.verdict.value for case in outcomes)
        bad = [
            replace(case, blame=_cut(case.blame or "", _MAX_TEXT))
            for case in outcomes
            if not case.verdict.good or case.verdict is Verdict.UNEXPECTED
        ]
        return cls(list=case_list, counts=dict(sorted(counts.items())), bad=tuple(bad[:_MAX_BAD]))


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFailure:
    """How a step failed.

    ``error`` is what the first rank raised, ``quote`` all that other programs said of it. ``exits`` are the codes of
    processes that fell. ``in_import`` tells that it did not come beyond the import of its framework.
    """

    error: str = ""
    quote: str = ""
    exits: tuple[int, ...] = ()
    in_import: bool = False


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome(AsJson):
    """One framework step (``deepspeed zero-2 fp32``): its verdict, what was observed, why it was not run."""

    name: str
    verdict: Verdict
    seconds: float | None = None
    detail: str = ""
    facts: Facts = field(default_factory=dict)
    unmet: Unmet | None = field(default=None, metadata=UNWRITTEN, compare=False)
    failure: StepFailure | None = field(default=None, metadata=UNWRITTEN, compare=False)

    def trimmed(self) -> StepOutcome:
        """Return the step with the facts that say what it proved. A trace stands in the failure's log."""
        facts = {k: v for k, v in self.facts.items() if k != "trace" and not k.startswith("losses")}
        seconds = None if self.seconds is None else round(self.seconds, 1)
        return replace(self, seconds=seconds, detail=_cut(self.detail, _MAX_TEXT), facts=facts)


class Expected(str, Enum):
    """What the version graph said of a cell before it was run."""

    GOOD = "good"
    WARNED = "warned"
    BAD = "bad"
    UNKNOWN = "unknown"


class Fault(str, Enum):
    """Whose fault a failure is. Only ``cell`` speaks against a cell."""

    CELL = "cell"
    HOST = "host"
    UNKNOWN = "unknown"


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Failure(AsJson):
    """Why the climb ended: the ``rung`` not reached, the ``symptom`` that a user sees, the last lines of the ``log``.

    ``of_host``: this host lacks what the rung needs (a GPU, a CPU extension), or the cause is unknown. It says nothing
    against the cell. ``fault`` says which of the two.
    """

    rung: Rung
    symptom: str
    of_host: Flag = False
    log: tuple[str, ...] = ()
    fault: Fault | None = field(default=None, metadata=written(when_set=True))

    def trimmed(self) -> Failure:
        """Return what a record may hold."""
        return replace(self, symptom=_cut(self.symptom, _MAX_TEXT), log=tuple(_last(self.log)))


def _cell(text: str, _context: object) -> str:
    if len(text) > _MAX_CELL or str(CellId.parse(text)) != text:
        raise WrongValueError("not a cell id in its one spelling")
    return text


def _version(text: str, _context: object) -> str:
    version_key(text)
    return text


def _time(text: str, _context: object) -> str:
    try:
        if _TIME.fullmatch(text):
            dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
            return text
    except ValueError:
        pass
    raise WrongValueError("not a time of this century", "write it as 2026-11-21T13:00:00+00:00")


_MAX_CELL = 200
_TIME = re.compile(r"20\d{2}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?(?:Z|[+-]\d{2}:\d{2})")
_Time = Annotated[str, text_of(40), Checked(_time)]
_Engine = Annotated[str, text_of(20, re.compile("[a-z]{1,20}"), "docker, venv, …")]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Record(AsJson):
    """The outcome of one run, made, written and read in this shape. ``name`` is that of the file it was read from.

    ``lock``, ``environment`` and ``image`` are digests. ``loaded`` are versions as loaded in the cell, not as declared.
    Times are UTC ISO 8601, durations seconds. ``expected`` and ``rules`` are what the graph said before. ``earlier``
    are attempts of the same run that failed before this one. ``bandwidth`` holds the peak of each operation when that
    tier was run.
    """

    schema: Annotated[int, exactly(SCHEMA, f"this envsmith reads schema {SCHEMA}")] = SCHEMA
    cell: Annotated[str, text_of(), Checked(_cell)]
    components: Mapping[str, Annotated[str, Checked(_version)]]
    campaign: str | None = None
    expected: Expected | None = None
    rules: tuple[str, ...] = ()
    lock: str
    engine: _Engine
    environment: str
    image: str | None = None
    rungs: Annotated[tuple[Rung, ...], not_empty("rungs of the ladder belong here")]
    passed: Flag
    summary: str
    failure: Failure | None = None
    earlier: tuple[Failure, ...] = ()
    started: _Time
    seconds: Mapping[str, float]
    host: Facts
    loaded: Facts
    backend: str
    ranks: int
    cases: Cases = field(default_factory=Cases)
    steps: tuple[StepOutcome, ...] = ()
    bandwidth: Mapping[str, Mapping[str, float]] | None = field(default=None, metadata=written(when_set=True))
    notes: tuple[str, ...] = ()
    name: str = field(default="", metadata=UNWRITTEN)

    @property
    def rung(self) -> Rung:
        """Return the highest rung that was proved."""
        return max(self.rungs, key=_LADDER.__getitem__)

    @property
    def moment(self) -> dt.datetime:
        """Return the time of the run in UTC."""
        return dt.datetime.fromisoformat(self.started.replace("Z", "+00:00")).astimezone(dt.timezone.utc)

    @property
    def day(self) -> str:
        """Return the ISO day of the run."""
        return self.started[:10]

    @property
    def flaky(self) -> bool:
        """Return whether it passed, but not at once."""
        return self.passed and bool(self.earlier)

    @property
    def of_host(self) -> bool:
        """Return whether the host lacked what the next rung needs: the run says nothing against the cell."""
        return not self.passed and (self.failure is None or self.failure.of_host)

    def trimmed(self) -> Record:
        """Return what a new file holds: about 4 kB at most, 10 kB with the dozen steps of the framework tier."""
        return replace(
            self,
            summary=_cut(self.summary, _MAX_TEXT),
            failure=self.failure.trimmed() if self.failure else None,
            earlier=tuple(failure.trimmed() for failure in self.earlier),
            seconds={k: round(v, 1) for k, v in self.seconds.items()},
            host={k: self.host[k] for k in _HOST if k in self.host},
            loaded={k: self.loaded[k] for k in _LOADED if self.loaded.get(k) is not None},
            steps=tuple(step.trimmed() for step in self.steps),
            bandwidth=self.bandwidth or None,
            notes=tuple(_cut(note, _MAX_TEXT) for note in self.notes[:_MAX_BAD]),
        )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _last(lines: Sequence[str]) -> Sequence[str]:
    """Return the last lines that fit."""
    last: list[str] = []
    room = _MAX_LOG
    for line in reversed(lines):
        room -= min(len(line), 200) + 4
        if room < 0:
            break
        last.append(_cut(line, 200))
    return last[::-1]


# Records as files: written whole under a name that their content gives, and read back. Two campaigns never write one
# name for two records, so their results are merged by copying.


_LADDER = {rung: number for number, rung in enumerate(Rung)}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.[a-z]{1,20}-[0-9a-f]{12}\.json")
_MAX_BYTES = 64_000
# What a build writes beside its lock.
RECORD_FILE = "record.json"
# What stands behind a record's name in that of its signature: by an SSH key, or by sigstore without a key.
KEYLESS_SUFFIX = ".sigstore"
SIGNATURES = (ssh.SUFFIX, KEYLESS_SUFFIX)
# Files that are named of a folder full of broken ones.
_MAX_SHOWN = 5


def record_text(record: Record, **places: Path) -> str:
    """Return a record as it is written and published.

    JSON that people can read in a diff, without what is the business of this machine alone.

    ``places`` are folders by the word that stands for them (``cell`` is ``.``), besides those that every machine has.
    """
    # A user who is called as a package is would change what the record is about.
    own = [record.cell, record.engine, record.backend, *record.components, *(step.name for step in record.steps)]
    keep = frozenset(re.findall(r"[\w-]+", " ".join(own)))
    text = redact_values(record.trimmed().to_json(), places_here(**places), names_here(keep))
    return json.dumps(text, indent=1, ensure_ascii=False) + "\n"


def record_name(cell: str, engine: str, text: str) -> str:
    """Return ``<cell>.<engine>-<12 hex digits of the text's sha256>.json``."""
    return f"{cell}.{engine}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def put_record(folder: Path, record: Record, **places: Path) -> Path:
    """Write a record into ``folder``, complete or not at all.

    ``places`` as for :func:`record_text`. ``StorageError``.
    """
    text = record_text(record, state=folder.parent, **places)
    path = folder / record_name(record.cell, record.engine, text)
    write_whole(path, text)
    return path


def read_record(name: str, content: bytes) -> Record:
    """Return the record that a file holds. ``DataError`` lists every problem of it."""
    problems = Problems()
    record = _read(name, content, problems)
    if record is None:
        hint = "Run the cell again. Only envsmith writes records."
        raise DataError(f"Cannot read {name}: it is not a record.", details=problems.lines, hint=hint)
    return record


def _read(name: str, content: bytes, problems: Problems) -> Record | None:
    try:
        document = parse_document(".json", content)
    except UnreadableError as error:
        problems.add(name, str(error))
        return None
    return check_record(document, name, problems)


def check_record(document: Any, name: str, problems: Problems) -> Record | None:
    """Return the record of a parsed document, ``None`` when there are problems, which are noted.

    Every record that is read anywhere passes here: what comes out can be compared, dated and printed.
    """
    if not _finite(document):
        problems.add(name, "a number is not finite, or has more than 63 bits")
        return None
    if isinstance(document, dict):
        document = {**document, "name": name}
    record = check(Record, document, name, problems)
    parts = CellId.parse(record.cell).components if record else ()
    wrong = [(part, version) for part, version in parts if record and record.components.get(part, version) != version]
    for part, version in wrong:
        problems.add(f"{name}: components.{part}", f"the cell says {version}")
    return None if wrong else record


def _finite(document: Any) -> bool:
    """Return whether every number can be compared and printed."""
    todo = [document]
    while todo:
        value = todo.pop()
        if isinstance(value, (dict, list)):
            todo += value.values() if isinstance(value, dict) else value
        elif isinstance(value, (int, float)) and not abs(value) < 1 << 63:
            return False
    return True


def sound_records(files: Mapping[str, Path]) -> tuple[dict[str, Record], tuple[str, ...]]:
    """Return the records of ``files`` by name, and a line for each file that is left aside because it is not one."""
    records, lines = {}, []
    for name, path in files.items():
        problems = Problems()
        try:
            record = _read(name, read_bounded(path, _MAX_BYTES), problems)
        except DataError as error:
            record = None
            problems.add(name, error.message)
        if record is not None:
            records[name] = record
            continue
        suffix = f" (and {len(problems.lines) - 1} more problems)" if len(problems.lines) > 1 else ""
        lines.append(f"{problems.lines[0]}{suffix}; this record is left aside")
    if (surplus := len(lines) - _MAX_SHOWN) > 0:
        lines[_MAX_SHOWN:] = [f"{surplus} more records are left aside"]
    return records, tuple(lines)


def read_records(folder: Path) -> tuple[Record, ...]:
    """Return every record of a folder, by name. ``StorageError`` when it cannot be read.

    A file that is not a record is left aside with a warning: one bad file must not end what the others can answer.
    """
    names: list[str] = []
    with os_errors(f"read {folder}"), suppress(FileNotFoundError):
        names = sorted(e.name for e in os.scandir(folder) if e.name.endswith(".json") and not e.name.startswith("."))
    records, left_aside = sound_records({name: folder / name for name in names})
    for line in left_aside:
        warnings.warn(f"{folder.name}/{line}", LeftAsideWarning, stacklevel=2)
    return tuple(records.values())


def merge(sources: Iterable[Path], target: Path) -> tuple[Sequence[str], int]:
    """Copy the records of ``sources`` into ``target``: the names that are new, and how many were there already.

    A source is a file, a folder of records, a folder with one in ``records/`` (a campaign's, a smoke test's), a cell's
    folder with its ``record.json``, or a folder of cells' folders. A record is taken only when it parses. A build's
    ``record.json`` gets the name that its content gives, any other file must have it. ``DataError`` and
    ``StorageError``. What was copied before an error stays. A signature that stands beside a record goes with it.
    """
    new, present = [], 0
    for source in sources:
        for path in records_of(source):
            name, text = _checked(path)
            for suffix in SIGNATURES:
                signature = path.with_name(path.name + suffix)
                if signature.is_file():
                    write_whole(target / (name + suffix), read_bounded(signature, _MAX_BYTES).decode())
            if (target / name).exists():
                present += 1
                continue
            write_whole(target / name, text)
            new.append(name)
    return new, present


def records_of(source: Path) -> list[Path]:
    """Return the files that a source stands for. ``DataError`` when it is a folder without any."""
    if not source.is_dir():
        return [source]
    inside = source / "records"
    if inside.is_dir() or (source / "plan.json").is_file():  # a campaign that has just begun has no records yet
        return sorted(inside.glob("*.json"))
    one = source / RECORD_FILE
    files = [one] if one.is_file() else sorted(source.glob(f"*/{RECORD_FILE}")) or sorted(source.glob("*.json"))
    if not files:
        raise DataError(
            f"Cannot read {source}: it holds no records.",
            hint="Name a record, a folder of records, a campaign's folder or what envsmith build -o wrote.",
        )
    return files


def _checked(path: Path) -> tuple[str, str]:
    """Return name and text of a record that may be taken."""
    content = read_bounded(path, _MAX_BYTES)
    record, text = read_record(str(path), content), content.decode()
    name = record_name(record.cell, record.engine, text)
    if (path.name not in {name, RECORD_FILE}) or not _NAME.fullmatch(name):
        raise DataError(
            f"Cannot use {path}: its name does not belong to its content.",
            hint="Run the cell again. The record was changed after it was written.",
        )
    return name, text
