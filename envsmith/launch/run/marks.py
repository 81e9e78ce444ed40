"""The marks that the hook writes into a file of each rank, as values: its start, its errors, and how it came to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.base.json_types import JsonFields, number_in, objects_in, seconds_in, text_in, texts_in
from envsmith.base.schema import parse_json
from envsmith.launch.ranks.evidence import ProcessGroup, user_place
from envsmith.launch.ranks.recorder import frames_of, stated_groups


@dataclass(frozen=True)
class StartMark:
    """Who a rank is, and what may differ between ranks. ``rank`` is ``None`` where it wrote none."""

    rank: int | None = None
    pid: int = 0
    host: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ErrorMark:
    """An error that nobody caught, and where the user's program raised it."""

    error: str = ""
    place: str = ""
    at: float = 0.0
    thread: str = ""


@dataclass(frozen=True)
class ExitMark:
    """A call of ``sys.exit``, or of ``os._exit``, which is ``at_once``. ``status`` is its argument as Python writes it."""

    status: str = ""
    place: str = ""
    at: float = 0.0
    at_once: bool = False


@dataclass(frozen=True)
class EndMark:
    """The end of the interpreter by itself. ``has_failed`` tells that an error led to it."""

    at: float = 0.0
    has_failed: bool = False


@dataclass(frozen=True)
class Marks:
    """The marks of one rank. ``way_out`` is where it asked for its end last, ``end`` that it came to it."""

    start: StartMark = field(default_factory=StartMark)
    errors: tuple[ErrorMark, ...] = ()
    way_out: ExitMark | None = None
    end: EndMark | None = None
    groups: tuple[ProcessGroup, ...] = ()


def read_marks(text: str) -> Marks:
    """Parse the marks of a rank. A line that is cut off is left out."""
    rows: dict[str, list[JsonFields]] = {}
    for line in text.splitlines():
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.setdefault(str(row.get("mark")), []).append(row)
    way_out, end = (rows[kind][-1] if kind in rows else None for kind in ("exit", "end"))
    return Marks(
        start=_start(rows["start"][0]) if "start" in rows else StartMark(),
        errors=tuple(map(_error, rows.get("error", ()))),
        way_out=_way_out(way_out) if way_out else None,
        end=EndMark(at=seconds_in(end, "at"), has_failed=bool(end.get("failed"))) if end else None,
        groups=stated_groups(objects_in(rows["groups"][-1], "groups")) if "groups" in rows else (),
    )


def _start(row: JsonFields) -> StartMark:
    rank = row.get("rank")
    return StartMark(
        rank=rank if isinstance(rank, int) else None,
        pid=number_in(row, "pid"),
        host=text_in(row, "host"),
        variables=texts_in(row, "variables"),
        versions=texts_in(row, "versions"),
    )


def _error(row: JsonFields) -> ErrorMark:
    place = user_place(frames_of(row.get("stack")))
    return ErrorMark(error=text_in(row, "error"), place=place, at=seconds_in(row, "at"), thread=text_in(row, "thread"))


def _way_out(row: JsonFields) -> ExitMark:
    place, at_once = user_place(frames_of(row.get("stack"))), bool(row.get("at_once"))
    return ExitMark(status=text_in(row, "status"), place=place, at=seconds_in(row, "at"), at_once=at_once)
