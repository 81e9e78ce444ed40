"""What a build is asked for and what it made, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.builder.engines.base import Built
from envsmith.lock.conda.model import CondaRequest
from envsmith.model.cell import RUNTIME, Cell, Request
from envsmith.model.lock import Compile, Lock
from envsmith.model.record import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to build.

    ``output`` is the folder under which each cell gets its own. ``base`` is a base image asked for by name. Without
    ``conda`` no Conda lock is tried. ``conda_needed`` makes a Conda part that cannot be made an error instead of a
    note, and chooses a cell that the channels have. ``conda_only`` leaves pip's own files out as well. ``locked`` takes
    the existing lock and fails when the request gives another now. ``frozen`` takes it without a comparison. ``lock``
    is a lock.json, or the folder of one, which is built whatever the request is. ``packing`` is how the layers of an
    OCI layout are packed. ``compile`` is what the user says about what is compiled from source; the versions of its
    archives are in ``request`` already. ``earlier`` is a lock whose packages stay where they can, all but those that are
    ``moving``. ``renewed`` takes no lock of an earlier run.
    """

    request: Request
    request_text: str
    output: Path
    engine: str | None = None
    base: str | None = None
    tier: str = "quick"
    ranks: int = 4
    conda: CondaRequest | None = field(default_factory=CondaRequest)
    conda_needed: bool = False
    conda_only: bool = False
    locked: bool = False
    frozen: bool = False
    lock: Path | None = None
    offline: bool = False
    smoke: bool = True
    flavour: str = RUNTIME
    oci: bool = False
    packing: str = "none"
    compile: Compile = field(default_factory=Compile)
    earlier: Lock | None = None
    moving: tuple[str, ...] = ()
    renewed: bool = False

    @property
    def needs_conda_lock(self) -> bool:
        """Return whether nothing can be done without the Conda lock: it was asked for, or is what the engine installs."""
        return self.conda_needed or self.conda_only


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildOutcome:
    """What ``build`` made.

    Every path is below ``directory``. ``record`` is ``None`` when no smoke test was asked for.
    """

    cell: Cell
    lock: Lock
    directory: Path
    files: tuple[str, ...]
    built: Built | None = None
    record: Record | None = None
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
