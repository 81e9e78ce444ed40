"""What is really in a Conda prefix, held against its lock: releases, files, and the digest of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envsmith.base.cache import cache_folder
from envsmith.base.files import digest_of, read_bounded, sha256_of
from envsmith.base.json_types import JsonFields, object_in, objects_in
from envsmith.base.schema import parse_json
from envsmith.builder.engines.venv import inspect_python
from envsmith.errors import ContentError, DataError, os_errors
from envsmith.lock.conda.names import candidates, fold, same_version
from envsmith.model.cell import Cell
from envsmith.model.version import WORDS, public

if TYPE_CHECKING:
    from envsmith.lock.conda.model import PlatformLock

# Facts of the host, and what a compiler package stands for: no version of theirs is inside the prefix under that name.
_ELSEWHERE = frozenset({"driver", "gpu", "toolkit", "gcc", "clang", "glibc", "cmake", "openmpi"})


def inspect_prefix(prefix: Path, python: Path) -> dict[str, str]:
    """Return name and version of all that is installed, Conda packages with ``conda.`` before their names."""
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
    listed = objects_in(object_in(record, "paths_data"), "paths")
    return [e for e in listed if not str(e.get("_path")).endswith((".pyc", ".pyo"))]
