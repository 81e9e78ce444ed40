"""One problem of a run, in a sentence and as values: what the verdict is made of."""

from __future__ import annotations

from dataclasses import dataclass

from envsmith.agent.protocol import Exit
from envsmith.model.record import Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Charge:
    """What is said of a run, and of whom.

    ``case`` is the index of the case that stopped the run (``None``: before the first), ``ranks`` are the culprits.
    ``quote`` is what other programs say of it: torch, NCCL, the kernel. ``exits`` are the exit codes of processes that
    fell. ``is_silence`` tells that results of a rank are missing. The sentence is for people: nothing is read from it.
    """

    sentence: str
    verdict: Verdict
    code: Exit
    case: int | None = None
    ranks: tuple[int, ...] = ()
    quote: str = ""
    exits: tuple[int, ...] = ()
    is_silence: bool = False
