"""The engine that installs a cell's Conda lock into a prefix beside its files: rattler links, uv adds the pip section.

It is used when it is asked for (``--engine conda``): a channel has fewer cells than the package index. What was at the
prefix stays until the new environment is whole.
"""

from __future__ import annotations

import importlib.util
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from envsmith.base.about import command_for
from envsmith.base.cache import cache_folder
from envsmith.base.files import digest_of, read_bounded, sha256_of
from envsmith.base.json_types import JsonFields
from envsmith.base.progress import EventKind, Progress, ProgressEvent, silent
from envsmith.base.schema import parse_json
from envsmith.builder.engines.base import Built, Engine
from envsmith.builder.engines.venv import inspect_python
from envsmith.errors import ContentError, DataError, EngineError, LockError, os_errors
from envsmith.lock.conda.install import realise, variables
from envsmith.lock.conda.lock_files import load_lock
from envsmith.lock.conda.names import candidates, fold, same_version
from envsmith.lock.conda.solve import MOVABLE, compare
from envsmith.lock.index.uv import find_uv
from envsmith.model.cell import Cell
from envsmith.model.lock import Lock
from envsmith.model.rule import Severity
from envsmith.model.version import WORDS, public
from envsmith.smoke.run import LocalTarget

if TYPE_CHECKING:
    from envsmith.lock.conda.model import CondaLock, PlatformLock
    from envsmith.smoke.run import SmokeTarget


FOLDER = "conda"
LOCK_FILE = "conda-lock.yml"
# Facts of the host, and what a compiler package stands for: no version of theirs is inside the prefix under that name.
_ELSEWHERE = frozenset({"driver", "gpu", "toolkit", "gcc", "clang", "glibc", "cmake", "openmpi"})


@dataclass(frozen=True, slots=True)
class CondaEngine(Engine):
    """Links Conda packages with py-rattler. ``channels`` are those of the lock with the user's credentials."""

    channels: tuple[str, ...] = ()
    offline: bool = False

    needs_conda_lock: ClassVar[bool] = True

    @classmethod
    def create(cls, *, offline: bool = False, channels: tuple[str, ...] = ()) -> CondaEngine:
        """Return an engine for the channels with their credentials, which a Conda lock does not hold."""
        return cls(channels=channels, offline=offline)

    @property
    def name(self) -> str:
        """Return ``conda``."""
        return "conda"

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
        started = time.monotonic()
        step = "conda environment"
        progress(
            ProgressEvent(
                kind=EventKind.START, step=step, text=f"{len(part.packages)} packages, {len(part.pip)} from pip"
            )
        )
        prefix = (directory / FOLDER).absolute()
        try:
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
            installed = _inspect(prefix, python)
            verify_cell(lock.cell, part, installed)
            verify_files(prefix)
            digest = content_digest(part, prefix)
        except BaseException:
            progress(ProgressEvent(kind=EventKind.FAILED, step=step, seconds=time.monotonic() - started))
            raise
        progress(ProgressEvent(kind=EventKind.DONE, step=step, seconds=time.monotonic() - started))
        facts = {"python": installed["python"], "channels": " ".join(conda_lock.channels)}
        return Built(
            digest=digest, kind="conda", reference=str(prefix), python=str(python), cell=lock.cell.id, facts=facts
        )

    def inspect(self, built: Built) -> dict[str, str]:
        """Return what is installed.

        A Conda package, which may not be a distribution, is listed as ``conda.NAME`` too.
        """
        return _inspect(Path(built.reference), Path(built.python))

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


def _inspect(prefix: Path, python: Path) -> dict[str, str]:
    packages = {f"conda.{record['name']}": str(record.get("version")) for record in _records(prefix)}
    return inspect_python(python) | packages


def _records(prefix: Path) -> list[JsonFields]:
    """Return what ``conda-meta`` lists."""
    records: list[JsonFields] = []
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            data = parse_json(read_bounded(path, 64 << 20))
        except (DataError, ValueError):
            raise ContentError(
                f"Cannot read {path}: it is not JSON.", hint="Remove the folder and build again."
            ) from None
        if not isinstance(data, dict) or not isinstance(data.get("name"), str):
            raise ContentError(
                f"Cannot read {path}: it is not the record of a package.", hint="Remove the folder and build again."
            )
        records.append(data)
    return records


def verify_cell(cell: Cell, part: PlatformLock, installed: Mapping[str, str]) -> None:
    """Raise ``ContentError`` listing every component of ``cell`` that is another release inside the prefix.

    That the lock is the cell was checked before. Here the content is asked: the interpreter, torch's own
    ``version.py``, the metadata of distributions, and ``conda-meta`` for libraries.
    """
    problems = []
    for component, version in cell.components.items():
        if component in _ELSEWHERE or version in WORDS:
            continue
        if problem := _difference(component, version, part, installed):
            problems.append(f"{component}: the cell says {version}, {problem}")
    if problems:
        raise ContentError(
            f"Cannot accept {cell.id}: what is installed differs from its Conda lock ({len(problems)} differences).",
            details=problems,
            hint="Lock the cell again and rebuild. If the error stays, a package of the channel holds another "
            "release than its name says.",
        )


def _difference(component: str, version: str, part: PlatformLock, installed: Mapping[str, str]) -> str | None:
    """Return what is wrong with one component, or ``None``."""
    if component == "python":
        actual = installed.get("python", "")
        return None if actual.split(".")[:2] == version.split(".")[:2] else f"the interpreter is {actual or 'none'}"
    if component == "torch":
        actual = installed.get("torch.version", "none")
        return None if _public(actual) == _public(version) else f"torch itself says {actual}"
    if component == "cuda":
        actual = installed.get("cuda.version", "none")
        return None if actual.split(".")[:2] == version.split(".")[:2] else f"torch itself says {actual}"
    packages = {c: p for c in candidates(component) if (p := part.package(c))}
    for name, package in packages.items():
        actual = installed.get(f"conda.{name}", "none")
        if actual != package.version:
            return f"{name} {actual} is installed"
    if packages:
        return None
    distribution = installed.get(fold(component))
    if distribution is None:
        return "it is not installed" if component in {p.name for p in part.pip} else None
    return None if same_version(component, version, distribution) else f"{distribution} is installed"


def _public(version: str) -> str:
    """Return ``2.8.0`` of ``2.8.0+cu129``, and of ``2.8.0.post301`` (how PyTorch writes a Conda build number)."""
    return public(version).partition(".post")[0]


def content_digest(part: PlatformLock, prefix: Path) -> str:
    """Return ``sha256:…`` over every file of the Conda packages, as packed wherever they lie, and every wheel."""
    lines = [f"pip {p.name} {p.version} {p.sha256}" for p in part.pip]
    for record in _records(prefix):
        lines += _file_lines(record)
    return digest_of("\n".join(sorted(lines)).encode())


def verify_files(prefix: Path) -> None:
    """Raise ``ContentError`` listing the files that are not what their Conda packages say.

    rattler links them from its cache without reading them, so an edit in one environment appears in the next.
    """
    changed = [
        f"{record['name']}: {entry.get('_path')}"
        for record in _records(prefix)
        for entry in _packed(record)
        if (digest := entry.get("sha256_in_prefix") or entry.get("sha256"))
        and (path := prefix / str(entry.get("_path"))).is_file()
        and not path.is_symlink()
        and _sha256(path) != digest
    ]
    if changed:
        raise ContentError(
            f"Cannot prove {prefix}: {len(changed)} files are not what their Conda packages say.",
            details=changed[:20],
            hint=f"Remove {cache_folder() / 'conda' / 'conda-packages'}, then run the same command again.",
        )


def _sha256(path: Path) -> str:
    with os_errors(f"read {path}", ContentError), path.open("rb") as file:
        return sha256_of(file).hex()


def _file_lines(record: JsonFields) -> Sequence[str]:
    """Return one line for every file but byte-code, which is compiled on the spot."""
    head = f"conda {record['name']} {record.get('version')} {record.get('build')}"
    return [head, *(f"{e.get('_path')},{e.get('sha256')}" for e in _packed(record))]


def _packed(record: JsonFields) -> list[JsonFields]:
    data = record.get("paths_data")
    entries = data.get("paths") if isinstance(data, Mapping) else None
    listed = entries if isinstance(entries, list) else []
    return [e for e in listed if isinstance(e, Mapping) and not str(e.get("_path")).endswith((".pyc", ".pyo"))]
