"""The agent's events, parsed: what does not look like one is counted and left out, whatever a broken cell writes on its standard output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_STEPS = frozenset({"prep", "entered", "issued", "synced", "verified", "done", "raised"})
_MAX_RANKS = 4096


def _rank(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_RANKS


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _numbers(value: object) -> bool:
    """NaN and infinity are legitimate losses; they are judged, not dropped."""
    return isinstance(value, list) and all(isinstance(item, (int, float)) for item in value)


def _case(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -10 <= value <= 1 << 40


def _optional(row: Mapping[str, Any], checks: Mapping[str, Callable[[object], bool]]) -> bool:
    return all(check(row[key]) for key, check in checks.items() if key in row)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _mapping(value: object) -> bool:
    return isinstance(value, dict)


def _ranks(value: object) -> bool:
    return isinstance(value, list) and all(_rank(item) for item in value)


def _exit(value: object) -> bool:
    return (
        isinstance(value, dict)
        and _rank(value.get("rank"))
        and (value.get("code") is None or _case(abs(value["code"]) if isinstance(value["code"], int) else None))
    )


def _where(value: object) -> bool:
    if not (
        isinstance(value, dict)
        and _rank(value.get("rank"))
        and _case(value.get("case"))
        and value.get("step") in _STEPS
    ):
        return False
    return _optional(value, {"age": _number, "signature": _text, "state": _text, "pid": _number})


def _list_of(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(check(item) for item in value)


def _texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _stacks(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, list) and item for item in value.values())


def _mismatch(value: object) -> bool:
    return isinstance(value, dict) and all(_ranks(item) for item in value.values())


def _values(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(item, dict) and all(str(key).isdigit() for key in item) for item in value.values()
    )


def _counts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, int) for item in value.values())


def _calls(value: object) -> bool:
    return isinstance(value, dict) and all(_counts(item) and {"count", "bytes"} <= set(item) for item in value.values())


def _row(event: Mapping[str, Any]) -> bool:
    kind = event.get("row")
    if not isinstance(kind, str) or not isinstance(event.get("run"), str):
        return False
    if kind in {"case", "step", "manifest", "failed", "note", "told"} and not _rank(event.get("rank")):
        return False
    if kind == "told" and not _where(event):
        return False
    if kind == "case" and not (_case(event.get("case")) and isinstance(event.get("status"), str)):
        return False
    checks = {
        "status": _text,
        "sig": _text,
        "ms": _number,
        "seconds": _number,
        "losses": _numbers,
        "reference": _numbers,
        "facts": _mapping,
        "mismatch": _mismatch,
        "values": _values,
        "warnings": _mapping,
        "measured": _mapping,
        "collectives": _calls,
        "recorded": _counts,
    }
    return _optional(event, checks)


def _halt(event: Mapping[str, Any]) -> bool:
    checks = {
        "run": _text,
        "where": _list_of(_where),
        "exits": _list_of(_exit),
        "stacks": _stacks,
        "output": _texts,
        "limit": _number,
        "silent": _number,
        "owner": lambda value: isinstance(value, dict) and _optional(value, {"pid": _number, "state": _text}),
        "unkillable": _ranks,
        "oom_kills": _number,
        "shm_bytes": _number,
        "shm_free_bytes": _number,
    }
    return isinstance(event.get("reason"), str) and _optional(event, checks)


def _single(event: Mapping[str, Any]) -> bool:
    checks = {
        "ranks": _rank,
        "seconds": lambda value: isinstance(value, dict) and all(_number(item) for item in value.values()),
        "leftover": lambda value: isinstance(value, list),
        "shm_bytes": _number,
        "backend": _text,
        "sentence": _text,
    }
    return _optional(event, checks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Events:
    """Sorted by kind. ``single`` holds the first event of every other kind (hello, host, loaded, placement, bye)."""

    rows: tuple[Mapping[str, Any], ...] = ()
    halts: tuple[Mapping[str, Any], ...] = ()
    steps: tuple[Mapping[str, Any], ...] = ()
    ends: tuple[Mapping[str, Any], ...] = ()
    single: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dropped: int = 0

    @classmethod
    def parse(cls, events: Iterable[object]) -> Events:
        """Never raises."""
        lists: dict[str, list[Mapping[str, Any]]] = {"row": [], "halt": [], "step": [], "end": []}
        single: dict[str, Mapping[str, Any]] = {}
        dropped = 0
        checks: dict[str, Callable[[Mapping[str, Any]], bool]] = {
            "row": _row,
            "halt": _halt,
            "step": lambda event: isinstance(event.get("step"), str),
            "end": lambda event: _optional(event, {"run": _text, "exits": _list_of(_exit), "output": _texts}),
        }
        for event in events:
            kind = event.get("event") if isinstance(event, dict) else None
            if not isinstance(event, dict) or not isinstance(kind, str) or not checks.get(kind, _single)(event):
                dropped += 1
            elif kind in lists:
                lists[kind].append(event)
            else:
                single.setdefault(kind, event)
        return cls(
            rows=tuple(lists["row"]),
            halts=tuple(lists["halt"]),
            steps=tuple(lists["step"]),
            ends=tuple(lists["end"]),
            single=single,
            dropped=dropped,
        )

    def of_run(self, run: str) -> list[Mapping[str, Any]]:
        """Rows of one run: ``collectives`` or a step's name."""
        return [row for row in self.rows if row.get("run") == run]

    @property
    def unsupervised(self) -> bool:
        """Started by torchrun or Slurm: no supervisor, and no ``bye``."""
        return "launcher" in self.single.get("hello", {})
