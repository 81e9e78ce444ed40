"""The engine that installs a cell's Conda lock into a prefix beside its files: rattler links, uv adds the pip section.

It is used when it is asked for (``--engine conda``): a channel has fewer cells than the package index. What was at the
prefix stays until the new environment is whole.
"""

from __future__ import annotations

import importlib.util
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from envsmith.base.about import command_for
from envsmith.base.cache import cache_folder
from envsmith.base.progress import EventKind, Progress, ProgressEvent, announced, silent
from envsmith.builder.engines.base import Built, Engine
from envsmith.builder.engines.conda_content import content_digest, inspect_prefix, verify_cell, verify_files
from envsmith.errors import ContentError, DataError, EngineError, LockError, os_errors
from envsmith.lock.conda.install import realise, variables
from envsmith.lock.conda.lock_files import load_lock
from envsmith.lock.conda.solve import compare
from envsmith.lock.conda.specs import MOVABLE
from envsmith.lock.index.uv import find_uv
from envsmith.model.lock import Lock
from envsmith.model.rule import Severity
from envsmith.smoke.run import LocalTarget

if TYPE_CHECKING:
    from envsmith.lock.conda.model import CondaLock, PlatformLock
    from envsmith.smoke.run import SmokeTarget


FOLDER = "conda"
LOCK_FILE = "conda-lock.yml"


@dataclass(frozen=True, slots=True)
class CondaEngine(Engine):
    """Links Conda packages with py-rattler. ``channels`` are those of the lock with the user's credentials."""

    name = "conda"
    channels: tuple[str, ...] = ()
    offline: bool = False

    needs_conda_lock: ClassVar[bool] = True

    @classmethod
    def create(cls, *, offline: bool = False, channels: tuple[str, ...] = ()) -> CondaEngine:
        """Return an engine for the channels with their credentials, which a Conda lock does not hold."""
        return cls(channels=channels, offline=offline)

    def available(self) -> str | None:
        """Return why the engine cannot be used. Rattler itself is not imported."""
        if importlib.util.find_spec("rattler") is None:
            return f"py-rattler is not installed ({command_for('conda')})"
        try:
            find_uv()
        except EngineError as error:
            return error.reason
        return None

    def pythons(self, base: str | None = None) -> None:
        """Return ``None``: the channel brings the interpreter."""

    def build(self, lock: Lock, directory: Path, *, progress: Progress = silent) -> Built:
        """Install ``directory/conda-lock.yml`` into ``directory/conda``.

        Raises ``DataError`` when that file is missing or was edited, and ``ContentError`` when it is the lock of
        another cell.
        """
        conda_lock = read_lock(directory)
        part = _part(conda_lock, lock, directory)
        _prove(conda_lock, lock, progress)
        prefix = (directory / FOLDER).absolute()
        with announced(progress, "conda environment", f"{len(part.packages)} packages, {len(part.pip)} from pip"):
            python = realise(
                conda_lock,
                prefix,
                cache_dir=cache_folder() / "conda",
                platform=lock.cell.platform,
                channels=self.channels,
                build_pins=lock.build_pins,
                offline=self.offline,
                progress=progress,
            )
            installed = inspect_prefix(prefix, python)
            verify_cell(lock.cell, part, installed)
            verify_files(prefix)
            digest = content_digest(part, prefix)
        facts = {"python": installed["python"], "channels": " ".join(conda_lock.channels)}
        return Built(
            digest=digest, kind="conda", reference=str(prefix), python=str(python), cell=lock.cell.id, facts=facts
        )

    def inspect(self, built: Built) -> dict[str, str]:
        """Return what is installed.

        A Conda package, which may not be a distribution, is listed as ``conda.NAME`` too.
        """
        return inspect_prefix(Path(built.reference), Path(built.python))

    def verify(self, lock: Lock, built: Built) -> str:
        """Return at once: :meth:`build` compared the prefix with the Conda lock, which names other packages."""
        del lock, built
        return "what is installed is what the lock says"

    def target(self, built: Built) -> SmokeTarget:
        """Return the prefix's interpreter. Compilers and CUDA of the prefix are set as its activation would."""
        prefix = Path(built.reference)
        extra = {"TORCH_EXTENSIONS_DIR": str(prefix.parent / "torch-extensions-conda")}
        if built.cell is not None:
            part = read_lock(prefix.parent).on(built.cell.platform)
            extra |= variables(part, str(prefix))
        return LocalTarget(python=Path(built.python), extra=extra)


def read_lock(directory: Path) -> CondaLock:
    """Read the Conda lock of a cell's folder.

    Raises ``DataError`` when there is none, when it does not parse or was edited by hand, ``StorageError`` when it
    cannot be read.
    """
    path = directory / LOCK_FILE
    with os_errors(f"read {path}"):
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            hint = "Make it with envsmith lock --format conda, or leave --frozen out."
            raise DataError(f"Cannot read {path}: there is no Conda lock.", hint=hint) from None
        except UnicodeDecodeError:
            raise DataError(f"Cannot read {path}: it is not UTF-8.", hint="Delete it and lock again.") from None
    lock = load_lock(text, str(path))
    if lock.facts.get("packages") != lock.facts.get("entries"):
        raise DataError(
            f"Cannot use {path}: its packages were changed after it was locked.", hint="Delete it and lock again."
        )
    return lock


def _part(conda_lock: CondaLock, lock: Lock, directory: Path) -> PlatformLock:
    """Return the lock's part for the cell's platform, which must be this host's."""
    own = lock.cell.platform
    if own.machine != platform.machine():
        raise EngineError(
            f"Cannot install the lock: it is for {own.value}, and this host is {platform.machine()}.",
            hint="Build it on such a host.",
        )
    if conda_lock.cell_id and conda_lock.cell_id != str(lock.cell.id):
        raise ContentError(
            f"Cannot use {directory / LOCK_FILE}: it is the lock of {conda_lock.cell_id}, not of {lock.cell.id}.",
            hint="Delete it and lock again.",
        )
    try:
        return conda_lock.on(own)
    except KeyError:
        raise LockError(
            f"Cannot use {directory / LOCK_FILE}: it does not cover {own.value}.",
            hint="Lock again with --conda-platform.",
        ) from None


def _prove(conda_lock: CondaLock, lock: Lock, progress: Progress) -> None:
    """Refuse a Conda lock that is another cell than the pip lock.

    What was tolerated when it was locked is a warning.
    """
    wrong = []
    for finding in compare(lock.cell, lock.pins, conda_lock):
        if finding.severity is Severity.ERROR and not set(finding.components) <= set(MOVABLE):
            wrong.append(finding.message)
        elif finding.severity is Severity.ERROR:
            progress(ProgressEvent(kind=EventKind.WARNING, step="", text=finding.message))
    if wrong:
        raise ContentError(
            f"Cannot use the Conda lock: it is not the cell {lock.cell.id}.",
            details=wrong,
            hint="Delete conda-lock.yml and lock again.",
        )
