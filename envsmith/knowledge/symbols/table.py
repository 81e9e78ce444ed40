"""Which builds of torch export a symbol: the question of ``check --wheel``, ``wheel`` and ``doctor``.

The answers were measured in the wheels of the package index. A build of another index is not in the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from packaging.version import Version

from envsmith.base.files import read_bounded
from envsmith.errors import DataError
from envsmith.knowledge.symbols.owned import is_torch_symbol
from envsmith.knowledge.symbols.symbols_file import Stored
from envsmith.model.version import public

FILE = "torch.bin"
MAX_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchBuild:
    """One measured build of torch.

    ``libraries`` are the libraries that it brings, and those that it loads itself, such as ``libcudart.so.12``.
    ``file`` and ``sha256`` name the wheel that was read, ``date`` the ISO day on which it was.
    """

    version: str
    platform: str
    file: str
    sha256: str
    date: str
    libraries: frozenset[str]

    def __str__(self) -> str:
        return f"torch {self.version} ({self.platform})"


@dataclass(frozen=True, slots=True)
class Builds:
    """The measured builds that have something, and those that lack it, oldest first."""

    present: tuple[TorchBuild, ...]
    absent: tuple[TorchBuild, ...]

    def of(self, platform: str) -> Builds:
        """Return those of one platform."""
        return Builds(
            tuple(b for b in self.present if b.platform == platform),
            tuple(b for b in self.absent if b.platform == platform),
        )

    def spec(self) -> str:
        """Return the releases of ``present`` as a spec, such as ``>=2.6.0,<=2.8.0``. ``""`` when there is none.

        A release counts when each of its measured builds has it. Gaps part the spec with ``||``.
        """
        return spec_of((public(b.version) for b in self.present), (public(b.version) for b in self.absent))


def spec_of(present: Iterable[str], absent: Iterable[str]) -> str:
    """Return the spec of the releases in ``present`` and not in ``absent``, with open ends where nothing speaks."""
    bad = set(absent)
    releases = sorted(bad | set(present), key=Version)
    runs: list[list[str]] = []
    previous = False
    for release in releases:
        if release not in bad:
            runs[-1].append(release) if previous else runs.append([release])
        previous = release not in bad
    return " || ".join(_run_text(run, first=releases[0], last=releases[-1]) for run in runs)


def _run_text(run: list[str], *, first: str, last: str) -> str:
    start, stop = run[0], run[-1]
    if start == stop != last and start != first:
        return f"=={start}"
    clauses = [*([f">={start}"] if start != first else []), *([f"<={stop}"] if stop != last else [])]
    return ",".join(clauses) or "*"


class SymbolTable:
    """The table of a folder (``matrix/symbols``). Nothing is read before the first question."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    @classmethod
    def installed(cls, folder: Path) -> SymbolTable | None:
        """Return the table of a folder, or ``None`` for knowledge of one's own that has no table."""
        return cls(folder) if (folder / FILE).is_file() else None

    @cached_property
    def _stored(self) -> Stored:
        """Read the file. ``DataError`` when it is missing or broken."""
        try:
            return Stored(read_bounded(self._path, MAX_BYTES))
        except ValueError as error:
            raise DataError(
                f"Cannot read {self._path}: {error}.", hint="Restore the file from version control or reinstall."
            ) from None

    @cached_property
    def builds(self) -> tuple[TorchBuild, ...]:
        """Return every measured build, oldest first."""
        shared: list[list[str]] = self._stored.header["libraries"]
        rows = self._stored.header["builds"]
        return tuple(TorchBuild(**{**row, "libraries": frozenset(shared[row["libraries"]])}) for row in rows)

    def builds_exporting(self, symbol: str) -> Builds | None:
        """Return which builds export a symbol, or ``None`` for one that is not torch's."""
        if not is_torch_symbol(symbol):
            return None
        mask = self._stored.mask(symbol)
        numbered = list(enumerate(self.builds))
        return Builds(
            tuple(b for n, b in numbered if mask >> n & 1), tuple(b for n, b in numbered if not mask >> n & 1)
        )

    def missing(self, symbols: Iterable[str]) -> dict[TorchBuild, list[str]]:
        """Return for each build which of ``symbols`` it lacks, sorted. Symbols that are not torch's are passed over."""
        lacking: dict[TorchBuild, list[str]] = {build: [] for build in self.builds}
        every = (1 << len(self.builds)) - 1
        for symbol in sorted(filter(is_torch_symbol, symbols)):
            gap = every & ~self._stored.mask(symbol)
            while gap:
                lowest = gap & -gap
                lacking[self.builds[lowest.bit_length() - 1]].append(symbol)
                gap ^= lowest
        return lacking

    def find(self, version: str, platform: str) -> TorchBuild | None:
        """Return the build of a version: exactly, or the default build for one without a local part."""
        rows = [b for b in self.builds if b.platform == platform]
        exact = next((b for b in rows if b.version == version), None)
        return exact or (next((b for b in rows if public(b.version) == version), None))

    def nearest(self, version: str, platform: str) -> TorchBuild | None:
        """Return the measured build of the same release, whatever its CUDA."""
        return self.find(version, platform) or self.find(public(version), platform)
