"""From the agent's JSON lines to :mod:`envsmith.smoke.events`, once.

A broken cell may write anything: what does not look like an event is counted and left out. A key that is not known is
passed over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from envsmith.agent.protocol import Phase
from envsmith.model.record import Facts, Unmet
from envsmith.smoke.events import (
    Bye,
    CaseRow,
    CudaAnswer,
    EndedRow,
    Events,
    FailedRow,
    FlightRow,
    GpuHealth,
    GroupRow,
    HaltEvent,
    HaltReason,
    HealthEvent,
    HealthReport,
    Hello,
    HostEvent,
    LimitFinding,
    LoadedEvent,
    ManifestRow,
    NodeRow,
    NoteRow,
    PlacementEvent,
    ProcessEnd,
    RankPlace,
    RdmaCards,
    Rows,
    RowStatus,
    RunEnd,
    RunSummary,
    SkippedStep,
    StepBegin,
    StepRow,
)

_Value = TypeVar("_Value")
_MAX_RANKS = 4096
_PHASES = {phase.word: phase for phase in Phase}
_NOTHING = object()


class NotAnEventError(ValueError):
    """Something has not the form that it must have."""


def parse_events(events: Iterable[object]) -> Events:
    """Return what was heard. This never raises."""
    reader = EventReader()
    for event in events:
        reader.take(event)
    return reader.events


class EventReader:
    """Takes one event after the other, and sorts them by their kind."""

    def __init__(self) -> None:
        self._lists: dict[type, list[Any]] = {kind: [] for kind in (*_ROW_FIELDS, *_EVENT_FIELDS)}
        self._single: dict[str, Any] = {}
        self._dropped = 0
        self.is_empty = True

    def take(self, event: object) -> object:
        """Return the value of an event, or ``None`` where it is none or its kind is not known."""
        self.is_empty = False
        try:
            fields = JsonObject(event)
            kind = fields.text("event")
            parse = _ROWS.get(fields.text("row")) if kind == "row" else _EVENTS.get(kind)
            run = fields.text("run") if kind == "row" else ""
            value = parse(fields, run) if parse else None
        except (ValueError, RecursionError):
            self._dropped += 1
            return None
        if value is not None and type(value) in self._lists:
            self._lists[type(value)].append(value)
        elif value is not None and not isinstance(value, StepBegin):  # of use while it runs only
            self._single.setdefault(kind, value)
        return value

    @property
    def events(self) -> Events:
        """Return all that was taken."""
        rows = Rows(**{name: tuple(self._lists[kind]) for kind, name in _ROW_FIELDS.items()})
        lists: dict[str, Any] = {name: tuple(self._lists[kind]) for kind, name in _EVENT_FIELDS.items()}
        return Events(rows=rows, dropped=self._dropped, **lists, **self._single)


class JsonObject:
    """A JSON object that is read field by field. A field that has the wrong type raises :class:`NotAnEventError`.

    A field that must be there has no ``default``.
    """

    def __init__(self, value: object) -> None:
        if not isinstance(value, dict):
            raise NotAnEventError
        self.members: Facts = value

    def read(self, key: str, read: Callable[[object], _Value], default: object = _NOTHING) -> _Value:
        """Return what ``read`` makes of a field."""
        if key in self.members:
            return read(self.members[key])
        if default is _NOTHING:
            raise NotAnEventError
        return default  # type: ignore[return-value] # of the type that `read` returns

    def text(self, key: str, default: object = _NOTHING) -> str:
        """Return a text."""
        return self.read(key, _text, default)

    def words(self, key: str) -> str:
        """Return words for people: a text, or whatever stands there as a text."""
        value = self.members.get(key)
        return "" if value is None else value if isinstance(value, str) else str(value)

    def flag(self, key: str) -> bool:
        """Return whether a field is set."""
        return self.members.get(key) is True

    def rank(self, key: str = "rank") -> int:
        """Return the number of a rank."""
        return self.read(key, _rank)

    def ranks(self, key: str) -> tuple[int, ...]:
        """Return a list of ranks."""
        return self.list(key, _rank)

    def whole(self, key: str) -> int:
        """Return a number without its fraction, 0 where there is none."""
        return int(self.read(key, _number, 0))

    def number(self, key: str) -> float:
        """Return a number, 0 where there is none."""
        return float(self.read(key, _number, 0.0))

    def list(self, key: str, read: Callable[[object], _Value]) -> tuple[_Value, ...]:
        """Return the members of a list, none where there is no list."""
        return self.read(key, _list_of(read), ())

    def mapping(self, key: str, read: Callable[[object], _Value]) -> Mapping[str, _Value]:
        """Return an object's values by key."""
        return self.read(key, _mapping_of(read), {})

    def by_rank(self, key: str, read: Callable[[object], _Value]) -> Mapping[int, _Value]:
        """Return an object's values by rank."""
        return self.read(key, _by_rank(read), {})


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise NotAnEventError
    return value


def _whole(low: int, high: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise NotAnEventError
        return value

    return read


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise NotAnEventError
    return value


def _loss(value: object) -> float:
    """Read a loss. NaN and infinity are legitimate: they are judged, not dropped."""
    return value if isinstance(value, float) else float(_number(value))


def _list_of(read: Callable[[object], _Value]) -> Callable[[object], tuple[_Value, ...]]:
    def read_all(value: object) -> tuple[_Value, ...]:
        if not isinstance(value, list):
            raise NotAnEventError
        return tuple(map(read, value))

    return read_all


def _mapping_of(read: Callable[[object], _Value]) -> Callable[[object], Mapping[str, _Value]]:
    return lambda value: {str(key): read(item) for key, item in JsonObject(value).members.items()}


def _by_rank(read: Callable[[object], _Value]) -> Callable[[object], Mapping[int, _Value]]:
    def read_all(value: object) -> Mapping[int, _Value]:
        members = JsonObject(value).members
        if not all(str(key).isdecimal() for key in members):
            raise NotAnEventError
        return {int(key): read(item) for key, item in members.items()}

    return read_all


def _some(read: Callable[[object], _Value]) -> Callable[[object], _Value | None]:
    return lambda value: None if value is None else read(value)


_rank, _case, _any_whole = _whole(0, _MAX_RANKS - 1), _whole(-10, 1 << 40), _whole(-(1 << 62), 1 << 62)
_code = _some(_whole(-(1 << 40), 1 << 40))
_ranks, _counts = _list_of(_rank), _mapping_of(_any_whole)


def _phase(value: object) -> Phase:
    if value not in list(_PHASES):
        raise NotAnEventError
    return _PHASES[_text(value)]


def _status(value: object) -> RowStatus:
    try:
        return RowStatus(value)
    except ValueError:
        raise NotAnEventError from None


def _unmet(value: object) -> Unmet | None:
    return next((unmet for unmet in Unmet if unmet.value == value), None)


def _facts(value: object) -> Facts:
    return JsonObject(value).members


def _calls(value: object) -> Mapping[str, int]:
    counts = _counts(value)
    if not {"count", "bytes"} <= set(counts):
        raise NotAnEventError
    return counts


def _times(value: object) -> tuple[float, ...]:
    """Read the measured times, without those that are no times."""
    times = JsonObject(value).members.get("us")
    numbers = [float(t) for t in (times if isinstance(times, list) else ()) if isinstance(t, (int, float))]
    return tuple(number for number in numbers if abs(number) <= sys.float_info.max)


def _named(event: JsonObject) -> Facts:
    """Return the fields of an event without the name of its kind."""
    return {key: value for key, value in event.members.items() if key != "event"}


# Rows.


def _case_row(row: JsonObject, run: str) -> CaseRow:
    return CaseRow(
        run=run, rank=row.rank(), case=row.read("case", _case), status=row.read("status", _status),
        detail=row.words("detail"), seconds=row.number("ms") / 1000, call=row.text("sig", ""),
        micros=row.read("measured", _times, ()), unmet=row.read("unmet", _unmet, None),
    )  # fmt: skip


def _step_row(row: JsonObject, run: str) -> StepRow:
    return StepRow(
        run=run, rank=row.rank(), status=row.read("status", _status, RowStatus.OK), detail=row.words("detail"),
        stage=row.words("stage"), in_import=row.flag("in_import"), trace=row.words("trace"),
        seconds=row.number("seconds"), losses=row.list("losses", _loss), reference=row.list("reference", _loss),
        facts=row.read("facts", _facts, {}), collectives=row.read("collectives", _mapping_of(_calls), None),
        recorded=row.read("recorded", _counts, {}),
    )  # fmt: skip


def _manifest_row(row: JsonObject, run: str) -> ManifestRow:
    return ManifestRow(
        run=run, rank=row.rank(), mismatch=row.mapping("mismatch", _ranks),
        values=row.mapping("values", _by_rank(str)), warnings=row.mapping("warnings", _ranks),
    )  # fmt: skip


def _failed_row(row: JsonObject, run: str) -> FailedRow:
    return FailedRow(run=run, rank=row.rank(), stage=row.words("stage") or "start", detail=row.words("detail"))


def _place(value: object) -> RankPlace:
    where = JsonObject(value)
    return RankPlace(
        rank=where.rank(), case=where.read("case", _case), phase=where.read("step", _phase), age=where.number("age"),
        signature=where.text("signature", ""), state=where.text("state", ""), pid=where.whole("pid"),
    )  # fmt: skip


_ROWS: Mapping[str, Callable[[JsonObject, str], object]] = {
    "case": _case_row,
    "step": _step_row,
    "manifest": _manifest_row,
    "failed": _failed_row,
    "note": lambda row, run: NoteRow(run=run, rank=row.rank(), detail=row.words("detail")),
    "told": lambda row, run: EndedRow(run=run, place=_place(row.members), signal=row.words("signal")),
    "flight": lambda row, run: FlightRow(run=run, rank=row.rank(), count=row.read("count", _whole(0, 1 << 40), None)),
    "group": lambda row, run: GroupRow(run=run, implementation=row.words("implementation") or None),
    "node": lambda row, run: NodeRow(run=run, rank=row.rank(), node=row.words("node")),
}
_ROW_FIELDS: Mapping[type, str] = {
    CaseRow: "cases", StepRow: "steps", ManifestRow: "manifests", FailedRow: "failed", NoteRow: "notes",
    EndedRow: "ended", FlightRow: "flights", GroupRow: "groups", NodeRow: "nodes",
}  # fmt: skip


# Events.


def _exit(value: object) -> ProcessEnd:
    end = JsonObject(value)
    return ProcessEnd(rank=end.rank(), code=end.read("code", _code, None), at=end.number("at"))


def _stack(value: object) -> tuple[str, ...]:
    frames = _list_of(str)(value)
    if not frames:
        raise NotAnEventError
    return frames


def _reason(value: object) -> HaltReason:
    text = _text(value)
    return next((reason for reason in HaltReason if reason.value == text), HaltReason.OTHER)


def _halt(event: JsonObject, _run: str) -> HaltEvent:
    owner = event.read("owner", JsonObject, JsonObject({}))
    launcher = event.read("launcher", JsonObject, JsonObject({}))
    return HaltEvent(
        run=event.text("run", ""), reason=event.read("reason", _reason), detail=event.words("detail"),
        quote=event.words("quote"), code=event.read("code", _code, None), status=event.read("status", _code, None),
        lacks_gpu=event.flag("lacks_gpu"), where=event.list("where", _place), exits=event.list("exits", _exit),
        output=event.by_rank("output", _text), stacks=event.by_rank("stacks", _stack), limit=event.number("limit"),
        silent=event.number("silent"), owner_pid=owner.whole("pid"), owner_state=owner.text("state", ""),
        launcher=launcher.text("words", ""), unkillable=event.list("unkillable", _rank),
        oom_kills=event.whole("oom_kills"), shm_bytes=event.whole("shm_bytes"),
        shm_free_bytes=event.whole("shm_free_bytes"),
    )  # fmt: skip


def _run_end(event: JsonObject, _run: str) -> RunEnd:
    return RunEnd(run=event.text("run", ""), exits=event.list("exits", _exit), output=event.by_rank("output", _text))


def _skipped_step(event: JsonObject, _run: str) -> SkippedStep:
    unmet = event.read("unmet", _unmet, None)
    return SkippedStep(step=event.text("step"), detail=event.words("detail"), unmet=unmet)


def _step_begin(event: JsonObject, _run: str) -> StepBegin:
    return StepBegin(run=event.text("run"))


def _gpu(value: object) -> GpuHealth:
    gpu = JsonObject(value)
    return GpuHealth(
        index=gpu.rank("index"), name=gpu.text("name", ""), uuid=gpu.text("uuid", ""), arch=gpu.text("arch", ""),
        is_lost=gpu.flag("lost"), counters=gpu.read("health", _counts, {}),
    )  # fmt: skip


def _two(read: Callable[[object], int]) -> Callable[[object], tuple[int, int]]:
    def read_two(value: object) -> tuple[int, int]:
        numbers = _list_of(read)(value)
        if len(numbers) != 2:
            raise NotAnEventError
        return numbers[0], numbers[1]

    return read_two


def parse_report(value: object) -> HealthReport:
    """Return a report of :meth:`envsmith.agent.health.Nvml.report`. Raises :class:`NotAnEventError`."""
    report = JsonObject(value)
    return HealthReport(
        driver=report.words("driver"), cuda_level=report.read("cuda_level", _some(_any_whole), None),
        gpus=report.list("gpus", _gpu), pairs=report.mapping("pairs", _list_of(_two(_rank))),
        xids=report.list("xids", _two(_any_whole)), silent=report.number("silent"),
    )  # fmt: skip


def parse_cards(value: object) -> RdmaCards:
    """Return what :func:`envsmith.agent.health.infiniband` says. Raises :class:`NotAnEventError`."""
    cards = JsonObject(value)
    active = cards.mapping("active", _list_of(_text))
    return RdmaCards(active=active, has_devices=cards.flag("devices"), has_peer_memory=cards.flag("peer_memory"))


def _health(event: JsonObject, _run: str) -> HealthEvent:
    return HealthEvent(
        before=event.read("before", parse_report), after=event.read("after", parse_report),
        seconds=float(event.read("seconds", _number)), node=event.text("node", "node"),
        used=event.read("used", _ranks, None), cards=event.read("network", parse_cards, RdmaCards()),
        variables=event.list("variables", _text), facts=_named(event),
    )  # fmt: skip


def _finding(value: object) -> LimitFinding | None:
    try:
        row = JsonObject(value)
        return LimitFinding(
            limit=row.text("limit"), severity=row.text("severity"), message=row.text("message"), fix=row.text("fix")
        )
    except NotAnEventError:
        return None


def _limits(event: JsonObject, _run: str) -> tuple[LimitFinding, ...]:
    """Read the agent's findings about the machine. What does not look like one is left out."""
    rows = event.members.get("findings")
    return tuple(filter(None, map(_finding, rows if isinstance(rows, list) else ())))


def _hello(event: JsonObject, _run: str) -> Hello:
    row = event.members.get("plan")
    plan = None
    if isinstance(row, dict) and all(isinstance(row.get(key), int) for key in ("ranks", "nodes")):
        members = JsonObject(row)
        plan = RunSummary(
            ranks=row["ranks"], nodes=row["nodes"], tier=members.words("tier"), digest=members.words("digest"),
            backend=members.words("backend") or "auto", engine=members.words("engine") or None,
        )  # fmt: skip
    return Hello(is_launched="launcher" in event.members, plan=plan)


def _host(event: JsonObject, _run: str) -> HostEvent:
    event.read("shm_bytes", _number, 0)
    processors = event.members.get("cpus")
    return HostEvent(processors=processors if isinstance(processors, int) else None, facts=_named(event))


def _loaded(event: JsonObject, _run: str) -> LoadedEvent:
    return parse_loaded(_named(event))


def parse_loaded(facts: Facts) -> LoadedEvent:
    """Return what was imported from the facts that the agent, or a result, has of it."""
    row, installed = JsonObject(dict(facts)), facts.get("installed")
    return LoadedEvent(
        torch=row.words("torch"), python=row.words("python"), cuda=row.words("cuda"), nccl=row.words("nccl"),
        nccl_runtime=row.words("nccl_runtime"), facts=facts,
        installed={str(k): str(v) for k, v in installed.items()} if isinstance(installed, dict) else {},
    )  # fmt: skip


def _cuda(value: object) -> CudaAnswer:
    """Read what CUDA said. What does not look like an answer is none."""
    try:
        answer = JsonObject(value)
        return CudaAnswer(count=answer.whole("count"), free=answer.list("free", _any_whole))
    except NotAnEventError:
        return CudaAnswer()


def _placement(event: JsonObject, _run: str) -> PlacementEvent:
    variables = event.members.get("env")
    sentence = event.text("sentence", "")
    return PlacementEvent(
        backend=event.read("backend", _text, None), ranks=event.read("ranks", _rank, None), sentence=sentence,
        place=event.text("place", sentence), is_shared=event.flag("is_shared"),
        variables=tuple(map(str, variables)) if isinstance(variables, dict) else (),
        cuda=event.read("cuda", _cuda, CudaAnswer()),
    )  # fmt: skip


def _bye(event: JsonObject, _run: str) -> Bye:
    orphans = event.list("leftover", _any_whole)
    return Bye(seconds=event.read("seconds", _mapping_of(_seconds), {}), orphans=len(orphans))


def _seconds(value: object) -> float:
    return float(_number(value))


_EVENTS: Mapping[str, Callable[[JsonObject, str], object]] = {
    "halt": _halt, "end": _run_end, "step": _skipped_step, "health": _health, "limits": _limits, "hello": _hello,
    "host": _host, "loaded": _loaded, "placement": _placement, "bye": _bye, "begin": _step_begin,
}  # fmt: skip
_EVENT_FIELDS: Mapping[type, str] = {
    HaltEvent: "halts", RunEnd: "ends", SkippedStep: "skipped", HealthEvent: "healths",
}  # fmt: skip
