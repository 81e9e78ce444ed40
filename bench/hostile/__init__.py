"""Hostile inputs, hosts and moments, one module for each kind. ``bench/robust.py`` runs them and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Count what a kind of attack tried and what it broke."""

    tried: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def fail(self, what: str, example: str) -> None:
        """Count one failure of the kind ``what``. The first ten are kept as examples."""
        self.failures[what] += 1
        if len(self.examples) < 10:
            self.examples.append(f"{what}: {example[:300]}")
