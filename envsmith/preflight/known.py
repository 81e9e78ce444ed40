"""What the preflight knows of the matrix, and how releases compare."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Known", "known", "version_key"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What ``known.json`` says: variables as ``name: [reads, since, until, renamed]``, and the least driver per CUDA major."""

    variables: Mapping[str, Sequence[str | None]]
    drivers: Mapping[str, str]


@cache
def known() -> Known:
    """The shipped extract of the matrix: read in a millisecond, without YAML."""
    data = json.loads(Path(__file__).with_name("known.json").read_text(encoding="utf-8"))
    return Known(variables=data["variables"], drivers=data["drivers"])


def version_key(text: object) -> tuple[int, ...]:
    """``2.9.1+cu128`` is (2, 9, 1): enough to compare releases of torch, NCCL and drivers."""
    numbers = [int(part) for part in re.findall(r"\d+", str(text or "").partition("+")[0])[:4]]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
