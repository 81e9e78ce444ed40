"""What the arrow is asked and what it made, and the clock that announces its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.conda.model import CondaRequest
from envsmith.engines.base import Built
from envsmith.model.cell import Cell, Request
from envsmith.model.lock import RUNTIME, Compile, Lock
from envsmith.model.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to build. ``output`` is the folder under which each cell gets its own; ``base`` a base image asked for by name.

    Without ``conda`` no Conda lock is tried. ``conda_only`` makes a Conda part that cannot be made an error instead of a note, chooses a cell that the channels have, and leaves
    pip's own files out. ``locked`` takes the lock that is there and fails when the request gives another now; ``frozen`` takes it unasked.
    ``compile`` is what the user says about what is compiled from source; its archives' versions are in ``request`` already.
    """

    request: Request
    request_text: str
    output: Path
    engine: str | None = None
    base: str | None = None
    tier: str = "quick"
    ranks: int = 4
    conda: CondaRequest | None = field(default_factory=CondaRequest)
    conda_only: bool = False
    locked: bool = False
    frozen: bool = False
    offline: bool = False
    smoke: bool = True
    flavour: str = RUNTIME
    oci: bool = False
    compile: Compile = field(default_factory=Compile)

    @property
    def conda_needed(self) -> bool:
        """Nothing can be done without the Conda lock: it was asked for, or is what the engine installs."""
        return self.conda_only or self.engine == "conda"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What ``build`` made: every path is below ``directory``; ``record`` is ``None`` when no smoke test was asked for."""

    cell: Cell
    lock: Lock
    directory: Path
    files: tuple[str, ...]
    built: Built | None = None
    record: Record | None = None
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
