"""A ready wheel, measured: whether its compiled files link with a build of torch, what glibc and which GPUs they want."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envsmith.http import Fetcher
from envsmith.model.wheel import ReadyWheel, Target
from envsmith.python.compiled import WHEEL_BUDGET, read_compiled
from envsmith.python.remote_wheel import RemoteWheel
from envsmith.symbols.fit import FAILS, LINKS, UNKNOWN, WheelNeeds, fits, needs_of
from envsmith.symbols.table import SymbolTable


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What was read in the files of a wheel.

    ``verdict`` is ``links``, ``fails`` or ``unknown``, against ``build``: a build of torch by version. ``missing`` is
    the first symbol or library that it lacks. ``gpu`` is what there is machine code for.
    """

    verdict: str
    build: str
    missing: str | None = None
    glibc: str | None = None
    gpu: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.verdict == LINKS:
            return f"links with torch {self.build}: measured"
        if self.verdict == FAILS:
            return f"does not link with torch {self.build}, which lacks {self.missing}: measured"
        return f"torch {self.build} was not measured" if not self.missing else f"unknown: {self.missing} is not torch's"

    def to_json(self) -> dict[str, Any]:
        """Return it for other programs."""
        return {
            "verdict": self.verdict,
            "torch": self.build,
            "missing": self.missing,
            "glibc": self.glibc,
            "gpu": list(self.gpu),
        }


def measure(wheel: ReadyWheel, target: Target, fetcher: Fetcher, table: SymbolTable) -> Link:
    """Read the compiled files of a wheel by ranges and hold them against the target's build of torch.

    Raises ``NetworkError`` or ``ContentError`` when they cannot be read.
    """
    with RemoteWheel(fetcher, wheel.address, budget=WHEEL_BUDGET) as file:
        needs = needs_of(wheel.filename, wheel.sha256, read_compiled(file))
    return judged(needs, target, table)


def judged(needs: WheelNeeds, target: Target, table: SymbolTable) -> Link:
    """Hold what a wheel needs against the target's build of torch."""
    glibc, gpu = needs.versions.get("GLIBC"), tuple(f"sm_{number}" for number in needs.sass)
    build = table.nearest(target.torch, target.platform.value)
    if build is None:
        return Link(verdict=UNKNOWN, build=target.torch, glibc=glibc, gpu=gpu)
    fit = fits(needs, table, [build])[0]
    missing = fit.first or next(iter(fit.unclear), None)
    return Link(verdict=fit.verdict, build=build.version, missing=missing, glibc=glibc, gpu=gpu)
