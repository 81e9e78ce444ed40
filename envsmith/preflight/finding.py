"""What the preflight finds, and the words for the ranks that it is about."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["ERROR", "NOTE", "WARNING", "Facts", "Finding", "gib", "has", "name_of", "odd_ones"]

Facts = Mapping[str, Any]
ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong: ``severity`` is ``error``, ``warning`` or ``note``; ``ranks`` are those that it is about."""

    check: str
    severity: str
    message: str
    ranks: tuple[int, ...] = ()
    fix: str = ""

    def to_json(self) -> dict[str, object]:
        """One object."""
        return {
            "check": self.check,
            "severity": self.severity,
            "ranks": list(self.ranks),
            "message": self.message,
            "fix": self.fix,
        }


def name_of(facts: Sequence[Facts], ranks: Iterable[int]) -> str:
    """``rank 2``, ``ranks 4-7 (node b)``: the node is told where there are several."""
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spelt = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    words = ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(spelt)
    by_rank = {int(f["rank"]): f for f in facts}
    hosts = {str(f.get("host")) for f in facts}
    at = {str(by_rank[n].get("host")) for n in numbers if n in by_rank}
    gpu = by_rank.get(numbers[0], {}).get("gpu") if len(numbers) == 1 else None
    where = [f"node {', '.join(sorted(at))}"] if len(hosts) > 1 and 0 < len(at) <= 3 else []
    where += [f"GPU {gpu['index']}"] if isinstance(gpu, Mapping) else []
    return words + (f" ({', '.join(where)})" if where else "")


def odd_ones(facts: Sequence[Facts], value: Callable[[Facts], Any]) -> list[tuple[list[int], Any, Any]]:
    """Groups of ranks whose value is not the most common one: (ranks, theirs, common); in a tie the lowest rank's side is common."""
    seen = [(int(f["rank"]), value(f)) for f in facts]
    texts = [json.dumps(v, sort_keys=True) for _, v in seen]
    if len(set(texts)) < 2:
        return []
    common = max(dict.fromkeys(texts), key=texts.count)
    groups: dict[str, list[int]] = {}
    for (rank, _), text in zip(seen, texts, strict=True):
        if text != common:
            groups.setdefault(text, []).append(rank)
    return [(ranks, json.loads(text), json.loads(common)) for text, ranks in groups.items()]


def has(ranks: Sequence[int]) -> str:
    """The verb for one rank or for many."""
    return "has" if len(ranks) == 1 else "have"


def gib(value: object) -> str:
    """Bytes as a person reads them."""
    amount = int(str(value))
    return f"{amount / 2**30:.1f} GiB" if amount >= 1 << 30 else f"{amount >> 20} MiB"
