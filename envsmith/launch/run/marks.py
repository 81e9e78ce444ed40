"""The marks that the hook writes into a file of each rank, as values: its start, its errors, and how it came to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from envsmith.base.json_types import JsonFields, number_in, objects_in, seconds_in, text_in, texts_in
from envsmith.base.schema import parse_object
from envsmith.launch.ranks.errors import read_error
from envsmith.launch.ranks.evidence import ProcessGroup, RankError, user_place
from envsmith.launch.ranks.recorder import frames_of, stated_groups


@dataclass(frozen=True)
class StartMark:
    """Who a rank is, and what may differ between ranks. ``rank`` is ``None`` where it wrote none."""

    rank: int | None = None
    pid: int = 0
    host: str = ""
    attempt: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


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
    """The marks of one rank. ``errors`` are those that nobody caught, and those that were handled as it asked for its end.

    ``way_out`` is where it asked for its end last, ``end`` that it came to it.
    """

    start: StartMark = field(default_factory=StartMark)
    errors: tuple[RankError, ...] = ()
    way_out: ExitMark | None = None
    end: EndMark | None = None
    groups: tuple[ProcessGroup, ...] = ()


def read_marks(text: str) -> Marks:
    """Parse the marks of a rank. A line that is cut off is left out."""
    rows: dict[str, list[JsonFields]] = {}
    for line in text.splitlines():
        if row := parse_object(line):
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
        attempt=number_in(row, "attempt"),
        variables=texts_in(row, "variables"),
        versions=texts_in(row, "versions"),
    )


def _error(row: JsonFields) -> RankError:
    """Return an error with the root of its chain: the first one, of which the others were raised."""
    error = read_error(text_in(row, "error"), frames_of(row.get("stack")))
    roots = objects_in(row, "causes")
    root = read_error(text_in(roots[-1], "error"), frames_of(roots[-1].get("stack"))) if roots else None
    if root and root.worker and root.error == error.error:
        error, root = root, None  # a pool raises what its worker did, from the worker's traceback
    return replace(
        error, at=seconds_in(row, "at"), thread=text_in(row, "thread"), root=root, handled=bool(row.get("handled"))
    )


def _way_out(row: JsonFields) -> ExitMark:
    place, at_once = user_place(frames_of(row.get("stack"))), bool(row.get("at_once"))
    return ExitMark(status=text_in(row, "status"), place=place, at=seconds_in(row, "at"), at_once=at_once)
