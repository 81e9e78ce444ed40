"""What a file of a project pins exactly: versions, as a lock has them."""

from __future__ import annotations

from pathlib import Path

from envsmith.doctor.facts import Draft
from envsmith.doctor.read.lines import note_distribution
from envsmith.doctor.read.packages import read_packages
from envsmith.doctor.read.pasted import clean
from envsmith.files import read_bounded
from envsmith.model.cell import Platform
from envsmith.project.declared import MAX_BYTES, PYTHONS
from envsmith.project.demand import Demands
from envsmith.project.folder import ENVIRONMENTS
from envsmith.project.pip_format import logical_lines
from envsmith.python.metadata import holds_somewhere


def note_pins(path: Path, demands: Demands, draft: Draft) -> None:
    """Note every distribution that a file of a project pins, on Linux.

    Packages of Conda are pinned in their own words, and files by the names of the wheels.
    """
    for demand in demands.demands:
        version = demand.exact
        holds = holds_somewhere(demand.requirement.marker, PYTHONS, Platform.LINUX_64)
        if version and holds and not demand.is_bound:
            note_distribution(draft, demand.name, version, demand.where, 3)
    text = clean(read_bounded(path, MAX_BYTES).decode("utf-8", "replace"))
    if path.name in ENVIRONMENTS:
        read_packages(text, draft, str(path))
    elif path.suffix in {".txt", ".in"}:
        files = (line for _, line in logical_lines(text) if ".whl" in line)
        read_packages("\n".join(files), draft, str(path))
