"""From the agent's JSON lines to :mod:`envsmith.smoke.events`, once.

What does not look like an event is counted and left out.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from envsmith.base.schema import parse_value
from envsmith.model.record import Facts
from envsmith.smoke.events import (
    MAX_LINE,
    Bye,
    CaseRow,
    EndedRow,
    Events,
    FailedRow,
    FlightRow,
    GroupRow,
    HaltEvent,
    HealthEvent,
    Hello,
    HostEvent,
    LoadedEvent,
    ManifestRow,
    NodeRow,
    NoteRow,
    PlacementEvent,
    Rows,
    RunEnd,
    SkippedStep,
    StepBegin,
    StepRow,
)
from envsmith.smoke.health import LimitFinding

_START = '{"event":"'
# The value of each kind of event, and where it is kept: the lists of `Events`, or the field of its first one.
_EVENTS: Mapping[str, tuple[type, str]] = {
    "halt": (HaltEvent, "halts"), "end": (RunEnd, "ends"), "step": (SkippedStep, "skipped"),
    "health": (HealthEvent, "healths"), "hello": (Hello, ""), "host": (HostEvent, ""), "loaded": (LoadedEvent, ""),
    "placement": (PlacementEvent, ""), "bye": (Bye, ""),
}  # fmt: skip
# The same of the rows of ranks, which are all kept in lists.
_ROWS: Mapping[str, tuple[type, str]] = {
    "case": (CaseRow, "cases"), "step": (StepRow, "steps"), "manifest": (ManifestRow, "manifests"),
    "failed": (FailedRow, "failed"), "note": (NoteRow, "notes"), "told": (EndedRow, "ended"),
    "flight": (FlightRow, "flights"), "group": (GroupRow, "groups"), "node": (NodeRow, "nodes"),
}  # fmt: skip
# The field that holds the whole of an event.
_WHOLE: Mapping[type, str] = {HostEvent: "facts", LoadedEvent: "facts", HealthEvent: "facts", EndedRow: "place"}


def parse_events(events: Iterable[object]) -> Events:
    """Return what was heard. This never raises."""
    reader = EventReader()
    for event in events:
        reader.take(event)
    return reader.events


def events_of(lines: Iterable[str]) -> list[object]:
    """Return every event of some lines once, in the order in which it was first seen.

    What other programs wrote around an event, or between them, is passed over.
    """
    unique: dict[str, object] = {}
    decoder = json.JSONDecoder()
    for line in lines:
        at = line.find(_START)
        if at < 0 or len(line) > MAX_LINE:
            continue
        try:
            event, _ = decoder.raw_decode(line, at)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            unique.setdefault(json.dumps(event, sort_keys=True), event)
    return list(unique.values())


class EventReader:
    """Takes one event after the other, and sorts them by their kind."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = {}
        self._lists: dict[str, list[Any]] = {}
        self._single: dict[str, Any] = {}
        self._dropped = 0
        self.is_empty = True

    def take(self, event: object) -> object:
        """Return the value of an event, or ``None`` where it is none or its kind is not known."""
        self.is_empty = False
        try:
            return self._kept(event)
        except (ValueError, RecursionError):
            self._dropped += 1
            return None

    def _kept(self, event: object) -> object:
        row = event if isinstance(event, dict) else {}
        kind = row.get("event")
        name = row.get("row") if kind == "row" else kind
        if not isinstance(kind, str) or not isinstance(name, str):
            raise ValueError("not an event")  # noqa: TRY004 - like any other that is none
        if kind == "limits":
            return self._single.setdefault(kind, _findings(row.get("findings")))
        if kind == "begin":  # of use while it runs only
            return parse_value(StepBegin, row)
        table, lists = (_ROWS, self._rows) if kind == "row" else (_EVENTS, self._lists)
        shape, place = table.get(name, (None, ""))
        if shape is None:
            return None
        value = _value(shape, row)
        if place:
            lists.setdefault(place, []).append(value)
        else:
            self._single.setdefault(kind, value)
        return value

    @property
    def events(self) -> Events:
        """Return all that was taken."""
        lists: dict[str, Any] = {name: tuple(values) for name, values in self._lists.items()}
        rows = Rows(**{name: tuple(values) for name, values in self._rows.items()})
        return Events(rows=rows, dropped=self._dropped, **lists, **self._single)


def _value(shape: type, event: Facts) -> Any:
    fields = {key: value for key, value in event.items() if key != "event"}
    return parse_value(shape, {**fields, _WHOLE[shape]: fields} if shape in _WHOLE else fields)


def parse_loaded(facts: Facts) -> LoadedEvent:
    """Return what was imported from the facts that the agent, or a result, has of it."""
    return parse_value(LoadedEvent, {**facts, "facts": facts})


def _findings(rows: object) -> tuple[LimitFinding, ...]:
    """Read the agent's findings about the machine. What does not look like one is left out."""
    findings = []
    for row in rows if isinstance(rows, list) else ():
        with contextlib.suppress(ValueError):
            findings.append(parse_value(LimitFinding, row))
    return tuple(findings)
