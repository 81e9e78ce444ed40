"""The agent's events, parsed.

A broken cell may write anything: what does not look like an event is counted and left out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envsmith.agent.protocol import Phase

_MAX_RANKS = 4096
# A line of events is never longer than a few hundred kilobytes. A stream of nonsense must not fill the memory.
MAX_LINE = 8 << 20

Check = Callable[[Any], bool]


def _is(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


def _whole(low: int, high: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _dict_of(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _object(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    def check(value: Any) -> bool:
        return (
            isinstance(value, dict)
            and all(valid(value.get(key)) for key, valid in required.items())
            and all(valid(value[key]) for key, valid in (optional or {}).items() if key in value)
        )

    return check


_text, _mapping, _rank, _case = _is(str), _is(dict), _whole(0, _MAX_RANKS - 1), _whole(-10, 1 << 40)
_ranks, _texts, _counts = _list_of(_rank), _dict_of(_text), _dict_of(_is(int))
# NaN and infinity are legitimate losses; they are judged, not dropped.
_losses = _list_of(lambda value: isinstance(value, float) or _number(value))
_exit = _object({
    "rank": _rank,
    "code": lambda value: value is None or (isinstance(value, int) and abs(value) <= 1 << 40),
})  # fmt: skip
_where = _object(
    {"rank": _rank, "case": _case, "step": lambda value: value in [phase.word for phase in Phase]},
    {"age": _number, "signature": _text, "state": _text, "pid": _number},
)
_calls = _dict_of(lambda value: _counts(value) and {"count", "bytes"} <= set(value))
_by_rank = _dict_of(lambda value: isinstance(value, dict) and all(str(key).isdigit() for key in value))
_row = _object(
    {"row": _text, "run": _text},
    {
        "status": _text, "sig": _text, "ms": _number, "seconds": _number, "losses": _losses, "reference": _losses,
        "facts": _mapping, "mismatch": _dict_of(_ranks), "values": _by_rank, "warnings": _mapping,
        "measured": _mapping, "collectives": _calls, "recorded": _counts,
    },
)  # fmt: skip
_gpu = _object({"index": _rank}, {"health": _counts, "name": _text, "uuid": _text, "arch": _text})
_report = _object(
    {},
    {
        "gpus": _list_of(_gpu), "pairs": _dict_of(_list_of(_list_of(_rank))), "silent": _number,
        "xids": _list_of(lambda value: isinstance(value, list) and len(value) == 2 and _list_of(_is(int))(value)),
    },
)  # fmt: skip
_of_rank = _object({"rank": _rank})
_ROWS = {
    "case": _object({"rank": _rank, "case": _case, "status": _text}), "told": _where,
    "step": _of_rank, "manifest": _of_rank, "failed": _of_rank, "note": _of_rank,
}  # fmt: skip
_EVENTS: Mapping[str, Check] = {
    "row": lambda event: _row(event) and _ROWS.get(event["row"], _mapping)(event),
    "halt": _object(
        {"reason": _text},
        {
            "run": _text, "where": _list_of(_where), "exits": _list_of(_exit), "output": _texts, "limit": _number,
            "launcher": _object({}, {"words": _text}), "stacks": _dict_of(lambda value: isinstance(value, list) and bool(value)), "silent": _number,
            "owner": _object({}, {"pid": _number, "state": _text}), "unkillable": _ranks, "oom_kills": _number,
            "shm_bytes": _number, "shm_free_bytes": _number,
        },
    ),
    "step": _object({"step": _text}),
    "health": _object(
        {"before": _report, "after": _report, "seconds": _number},
        {"node": _text, "used": _ranks, "network": _object({}, {"active": _dict_of(_list_of(_text))}), "variables": _list_of(_text)},
    ),
    "end": _object({}, {"run": _text, "exits": _list_of(_exit), "output": _texts}),
}  # fmt: skip
_single = _object(
    {},
    {
        "ranks": _rank, "seconds": _dict_of(_number), "leftover": _is(list), "shm_bytes": _number, "backend": _text,
        "sentence": _text,
    },
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Events:
    """Sorted by kind. ``single`` holds the first event of every other kind (hello, host, loaded, placement, bye)."""

    rows: tuple[Mapping[str, Any], ...] = ()
    halts: tuple[Mapping[str, Any], ...] = ()
    steps: tuple[Mapping[str, Any], ...] = ()
    ends: tuple[Mapping[str, Any], ...] = ()
    healths: tuple[Mapping[str, Any], ...] = ()
    single: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dropped: int = 0

    @classmethod
    def parse(cls, events: Iterable[object]) -> Events:
        """Sort the events. This never raises."""
        lists: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in _EVENTS}
        single: dict[str, Mapping[str, Any]] = {}
        dropped = 0
        for event in events:
            kind = event.get("event") if isinstance(event, dict) else None
            if not isinstance(event, dict) or not isinstance(kind, str) or not _EVENTS.get(kind, _single)(event):
                dropped += 1
            elif kind in lists:
                lists[kind].append(event)
            else:
                single.setdefault(kind, event)
        fields: Any = {f"{kind}s": tuple(members) for kind, members in lists.items()}
        return cls(**fields, single=single, dropped=dropped)

    def of_run(self, run: str) -> list[Mapping[str, Any]]:
        """Return the rows of one run: ``collectives`` or a step's name."""
        return [row for row in self.rows if row.get("run") == run]

    @property
    def unsupervised(self) -> bool:
        """Return whether torchrun or Slurm started the ranks: there is no supervisor, and no ``bye``."""
        return "launcher" in self.single.get("hello", {})
