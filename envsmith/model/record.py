"""A record: the outcome of a run on a cell, never an opinion."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from envsmith.errors import DataError, StorageError
from envsmith.files import write_whole
from envsmith.text import places_here, redact_values

# Schema 1 (until 2026-11-21) listed every case by name and every case's seconds: 10 kB a record.
SCHEMA = 2
# A record is at most 4 kB, so that ten thousand of them are read in a second: what is long is cut, and the number of what was left out is told.
_MAX_BAD = 6
_MAX_TEXT = 220
_MAX_LOG = 600
_HOST = ("cpus", "memory_bytes", "kernel", "machine", "os", "container", "driver", "gpus")
_LOADED = (
    "python", "glibc", "torch", "torch_git", "cuda", "cxx11_abi", "numpy", "nccl", "nccl_runtime", "cudnn", "installed", "backend_implementation",
    "nccl_transport",
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
        """True when the case does not speak against the cell."""
        return self in {Verdict.PASS, Verdict.UNSUPPORTED, Verdict.SKIPPED, Verdict.UNEXPECTED}


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseOutcome:
    """``case`` is the case's name (``all_reduce[float32,sum,1027]``); ``seconds`` the slowest rank's time; ``blame`` one sentence."""

    case: str
    verdict: Verdict
    seconds: float | None = None
    blame: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutcome:
    """One framework step: ``name`` (``deepspeed zero-2 fp32``), verdict, what was observed, the reason when it was not run."""

    name: str
    verdict: Verdict
    seconds: float | None = None
    detail: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


class Expected(str, Enum):
    """What the version graph said of a cell before it was run."""

    GOOD = "good"
    WARNED = "warned"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why the climb ended: the ``rung`` that was not reached, ``symptom`` in one line as a user sees it, the ``log``'s last lines.

    ``of_host``: this host lacks what the rung needs (a GPU, a CPU extension); it says nothing against the cell.
    """

    rung: Rung
    symptom: str
    log: tuple[str, ...] = ()
    of_host: bool = False

    def to_json(self) -> dict[str, object]:
        """Cut to what a record may hold."""
        symptom = _cut(self.symptom, _MAX_TEXT)
        return {"rung": self.rung.value, "symptom": symptom, "of_host": self.of_host, "log": list(_last(self.log))}


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Written once per run; ``loaded`` are versions as loaded in the cell, not as declared. Times are UTC ISO 8601, durations seconds."""

    cell_id: str
    components: Mapping[str, str]
    lock_digest: str
    engine: str
    environment_digest: str
    rungs: tuple[Rung, ...]
    passed: bool
    summary: str
    started: str
    seconds: Mapping[str, float]
    host: Mapping[str, object]
    loaded: Mapping[str, object]
    backend: str
    ranks: int
    cases: tuple[CaseOutcome, ...] = ()
    steps: tuple[StepOutcome, ...] = ()
    image: str | None = None
    notes: tuple[str, ...] = ()
    case_list: str = ""
    failure: Failure | None = None
    expected: Expected | None = None
    rules: tuple[str, ...] = ()
    campaign: str | None = None
    earlier: tuple[Failure, ...] = ()
    bandwidth: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Schema 2, about 4 kB at most; the framework tier, with a dozen steps, 10 kB. Passing cases are counted, the others named; ``case_list`` is the hash of all that were to run.

        ``bandwidth`` stands there when that tier was run: per operation the peak. ``expected`` and ``rules`` are what the graph said before; ``earlier`` are attempts of the same run that failed before this one.
        """
        counts: dict[str, int] = {}
        for case in self.cases:
            counts[case.verdict.value] = counts.get(case.verdict.value, 0) + 1
        bad = [c for c in self.cases if not c.verdict.good or c.verdict is Verdict.UNEXPECTED]
        return {
            "schema": SCHEMA,
            "cell": self.cell_id,
            "components": dict(self.components),
            "campaign": self.campaign,
            "expected": self.expected.value if self.expected else None,
            "rules": list(self.rules),
            "lock": self.lock_digest,
            "engine": self.engine,
            "environment": self.environment_digest,
            "image": self.image,
            "rungs": [r.value for r in self.rungs],
            "passed": self.passed,
            "summary": _cut(self.summary, _MAX_TEXT),
            "failure": self.failure.to_json() if self.failure else None,
            "earlier": [e.to_json() for e in self.earlier],
            "started": self.started,
            "seconds": {k: round(v, 1) for k, v in self.seconds.items()},
            "host": {k: self.host[k] for k in _HOST if k in self.host},
            "loaded": {k: self.loaded[k] for k in _LOADED if self.loaded.get(k) is not None},
            "backend": self.backend,
            "ranks": self.ranks,
            "cases": {
                "list": self.case_list,
                "counts": dict(sorted(counts.items())),
                "bad": [
                    {"case": c.case, "verdict": c.verdict.value, "blame": _cut(c.blame or "", _MAX_TEXT)}
                    for c in bad[:_MAX_BAD]
                ],
            },
            "steps": [_step(step) for step in self.steps],
            **({"bandwidth": {op: dict(row) for op, row in self.bandwidth.items()}} if self.bandwidth else {}),
            "notes": [_cut(note, _MAX_TEXT) for note in self.notes[:_MAX_BAD]],
        }


def _step(step: StepOutcome) -> dict[str, object]:
    """A step with the facts that say what it proved; a trace stands in the failure's log."""
    facts = {k: v for k, v in step.facts.items() if k != "trace" and not k.startswith("losses")}
    seconds = None if step.seconds is None else round(step.seconds, 1)
    return {
        "name": step.name,
        "verdict": step.verdict.value,
        "seconds": seconds,
        "detail": _cut(step.detail, _MAX_TEXT),
        "facts": facts,
    }


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _last(lines: Sequence[str]) -> Sequence[str]:
    """The last lines that fit."""
    kept: list[str] = []
    room = _MAX_LOG
    for line in reversed(lines):
        room -= min(len(line), 200) + 4
        if room < 0:
            break
        kept.append(_cut(line, 200))
    return kept[::-1]


# Records as files: written whole under a name that their content gives, read back as values, and how long each counts.
#
# Two campaigns never write one name for two records, so their results are merged by copying. What is read is hostile until it is parsed;
# ten thousand records are read in less than a second (``bench/records.py``), so the parser looks at what is used and at nothing twice.


_LADDER = {rung.value: number for number, rung in enumerate(Rung)}
_RUNGS = {rung.value: rung for rung in Rung}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.[a-z]{1,20}-[0-9a-f]{12}\.json")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?(?:Z|[+-]\d{2}:\d{2})")
_MAX_BYTES = 64_000
# What a build writes beside its lock.
_BUILT = "record.json"
# Problems that are shown of a folder full of them.
_MAX_TOLD = 40


def record_text(record: Record, **places: Path) -> str:
    """A record as it is written and published: JSON that people can read in a diff, without what is the business of this machine alone.

    ``places`` are folders by the word that stands for them (``cell`` is ``.``), besides those that every machine has.
    """
    text = redact_values(record.to_json(), places_here(**places))
    return json.dumps(text, indent=1, ensure_ascii=False) + "\n"


def record_name(cell: str, engine: str, text: str) -> str:
    """``<cell>.<engine>-<12 hex digits of the text's sha256>.json``."""
    return f"{cell}.{engine}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"


def put_record(folder: Path, record: Record, **places: Path) -> Path:
    """Write a record into ``folder``, complete or not at all; ``places`` as for :func:`record_text`. ``StorageError``."""
    text = record_text(record, state=folder.parent, **places)
    path = folder / record_name(record.cell_id, record.engine, text)
    write_whole(path, text)
    return path


@dataclass(frozen=True, slots=True)
class Stored:
    """A record that was read: ``name`` is its file's, ``data`` the whole document, the rest what everybody asks for.

    ``rung`` is the highest that was proved; ``day`` the ISO day of the run.
    """

    name: str
    cell: str
    engine: str
    components: Mapping[str, str]
    passed: bool
    rung: Rung
    day: str
    started: str
    data: Mapping[str, Any]

    @property
    def failure(self) -> Mapping[str, Any] | None:
        """``{"rung", "symptom", "of_host", "log"}`` of a climb that ended early."""
        return self.data.get("failure")

    @property
    def flaky(self) -> bool:
        """It passed, but not at once."""
        return self.passed and bool(self.data.get("earlier"))

    @property
    def of_host(self) -> bool:
        """The host lacked what the next rung needs: the run says nothing against the cell."""
        failure = self.failure
        return not self.passed and (failure is None or failure.get("of_host") is True)


def parse_record(name: str, content: bytes) -> Stored:
    """One record. ``ValueError`` says which key is wrong."""
    if len(content) > _MAX_BYTES:
        raise ValueError(f"larger than {_MAX_BYTES} bytes")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None
    if type(data) is not dict:
        raise ValueError("a record is an object")
    schema = data.get("schema")
    if schema != SCHEMA:
        raise ValueError(
            f"schema {schema!r}; this envsmith reads {SCHEMA} (tools/migrate_records.py brings 1 to {SCHEMA})"
        )
    cell, engine, started = data.get("cell"), data.get("engine"), data.get("started")
    components, rungs, passed = data.get("components"), data.get("rungs"), data.get("passed")
    if type(cell) is not str or type(engine) is not str:
        raise ValueError("`cell` and `engine` are texts")
    if type(started) is not str or not _DAY.fullmatch(started):
        raise ValueError("`started` is a time such as 2026-11-21T13:00:00+00:00")
    if type(components) is not dict or not all(type(v) is str for v in components.values()):
        raise ValueError("`components` maps names to versions")
    if type(rungs) is not list or not rungs or any(type(r) is not str or r not in _LADDER for r in rungs):
        raise ValueError("`rungs` lists rungs of the ladder")
    if type(passed) is not bool:
        raise ValueError("`passed` is true or false")
    failure = data.get("failure")
    if failure is not None and (type(failure) is not dict or type(failure.get("symptom")) is not str):
        raise ValueError("`failure` has a `symptom`, or is null")
    rung = _RUNGS[max(rungs, key=_LADDER.__getitem__)]
    return Stored(name, cell, engine, components, passed, rung, started[:10], started, data)


def read_records(folder: Path) -> tuple[Stored, ...]:
    """Every record of a folder, by name. ``DataError`` lists every file that is none; ``StorageError`` when it cannot be read."""
    found: list[Stored] = []
    problems: list[str] = []
    try:
        names = sorted(e.name for e in os.scandir(folder) if e.name.endswith(".json") and not e.name.startswith("."))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StorageError(f"{folder}: cannot be read: {error.strerror or error}") from None
    for name in names:
        try:
            found.append(parse_record(name, _content(f"{folder}/{name}")))
        except (ValueError, OSError) as error:  # noqa: PERF203
            problems.append(f"{name}: {error}")
    if problems:
        more = [f"and {len(problems) - _MAX_TOLD} more"] if len(problems) > _MAX_TOLD else []
        raise DataError(
            f"{folder}: {len(problems)} file{'s are' if len(problems) > 1 else ' is'} no record",
            details=[*problems[:_MAX_TOLD], *more],
            hint="remove what is no record, or bring it to the present schema",
        )
    return tuple(found)


def _content(path: str) -> bytes:
    """The bytes of a small file by three system calls; a file object costs twice that, ten thousand times."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, _MAX_BYTES + 1)
    finally:
        os.close(handle)


def merge(sources: Iterable[Path], target: Path) -> tuple[Sequence[str], int]:
    """Copy the records of ``sources`` into ``target``: the names that are new, and how many were there already.

    A source is a file, a folder of records, a folder with one in ``records/`` (a campaign's, a smoke test's), a cell's folder with its
    ``record.json``, or a folder of cells' folders. A record is taken only when it parses; a build's ``record.json`` gets the name that its content
    gives, any other file must have it. ``DataError`` and ``StorageError``; what was copied before an error stays.
    """
    new, known = [], 0
    for source in sources:
        for path in _records_of(source):
            name, text = _checked(path)
            if (target / name).exists():
                known += 1
                continue
            write_whole(target / name, text)
            new.append(name)
    return new, known


def _records_of(source: Path) -> list[Path]:
    """The files that a source stands for. ``DataError`` when it is a folder without any."""
    if not source.is_dir():
        return [source]
    inside = source / "records"
    if inside.is_dir() or (source / "plan.json").is_file():  # a campaign that has just begun has no records yet
        return sorted(inside.glob("*.json"))
    one = source / _BUILT
    found = [one] if one.is_file() else sorted(source.glob(f"*/{_BUILT}")) or sorted(source.glob("*.json"))
    if not found:
        raise DataError(
            f"{source}: no records there",
            hint="name a record, a folder of records, a campaign's folder or what `envsmith build -o` wrote",
        )
    return found


def _checked(path: Path) -> tuple[str, str]:
    """Name and text of a record that may be taken."""
    try:
        content = path.read_bytes()
        stored = parse_record(path.name, content)
        text = content.decode()
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no record: {error}") from None
    name = record_name(stored.cell, stored.engine, text)
    if (path.name not in {name, _BUILT}) or not _NAME.fullmatch(name):
        raise DataError(
            f"{path}: its name does not belong to its content",
            hint="it was changed after it was written; run the cell again",
        )
    return name, text
