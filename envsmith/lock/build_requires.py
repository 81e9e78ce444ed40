"""Read out of sdists what they are built with, so that the build can be pinned by hash as well."""

from __future__ import annotations

import ast
import contextlib
import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import url2pathname

from packaging.requirements import InvalidRequirement, Requirement

from envsmith.base.cache import read_cache, write_cache
from envsmith.base.files import read_toml
from envsmith.errors import ContentError, LockError, NetworkError, os_errors
from envsmith.lock.index.index import IndexFile
from envsmith.lock.index.metadata import read_members
from envsmith.model.lock import Pin
from envsmith.model.project_name import normal_name
from envsmith.net.address import parts_of
from envsmith.net.http import Reply

if TYPE_CHECKING:
    from envsmith.net.http import Fetcher, RangeReply


# PEP 517: what a project without a [build-system] table is built with. setuptools below 70.1 needs wheel beside it.
_DEFAULT = ("setuptools>=40.8.0", "wheel")
# The first setuptools without pkg_resources is 82.
_WITH_PKG_RESOURCES = "setuptools<82"
# The kind under which answers are kept; another number when the reading below changes.
_KIND = "build-requires-2"
_WANTED = ("pyproject.toml", "setup.py")


def requires_of(
    pyproject: bytes | None, setup: bytes | None, *, where: str, undeclared: tuple[str, ...] | None = None
) -> tuple[str, ...]:
    """Return the build requirements that an sdist states in ``pyproject.toml`` and in ``setup.py``.

    ``undeclared`` is what is known to be needed beside it: then the setup may import the cell's torch as well.
    ``LockError`` when they cannot be read. What a setup script computes only while it runs cannot be seen here.
    """
    stated = list(_build_system(pyproject, where)) if pyproject is not None else list(_DEFAULT)
    if setup is not None:
        stated += _setup_requires(setup)
    declared = {normal_name(_parse(text, where).name) for text in stated}
    if undeclared is not None:
        return tuple(dict.fromkeys([*stated, *undeclared]))
    if setup is not None and "torch" not in declared and _imports_torch(setup):
        raise LockError(
            f"Cannot pin {where}: its setup imports torch, which it does not declare.",
            hint="Leave it out of the lock and build it on top of the finished cell (pip install "
            "--no-build-isolation, with the CUDA toolkit): matrix/runtime.yaml does not say how it is "
            "compiled.",
        )
    return tuple(dict.fromkeys(stated))


def _imports_torch(setup: bytes) -> bool:
    """Return whether the script imports torch at its top level, outside of any ``try`` or condition."""
    try:
        body = ast.parse(setup).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(name.partition(".")[0] == "torch" for node in body for name in _imported(node))


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def _parse(text: str, where: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement:
        raise LockError(f"Cannot pin {where}: {text[:80]!r} in its build requirements is not a requirement.") from None


def _build_system(pyproject: bytes, where: str) -> tuple[str, ...]:
    try:
        table = read_toml(pyproject.decode("utf-8")).get("build-system", {})
    except ValueError:
        raise LockError(f"Cannot pin {where}: its pyproject.toml is not valid TOML.") from None
    requires = table.get("requires") if isinstance(table, dict) else None
    if requires is None:
        return _DEFAULT
    if not isinstance(requires, list) or not all(isinstance(r, str) for r in requires):
        raise LockError(f"Cannot pin {where}: its build-system.requires is not a list of texts.")
    return tuple(requires)


def _setup_requires(setup: bytes) -> list[str]:
    """Read literal ``setup_requires=[…]`` and the import of ``pkg_resources``."""
    try:
        tree = ast.parse(setup)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    lines = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.keyword)
            and node.arg == "setup_requires"
            and isinstance(node.value, (ast.List, ast.Tuple))
        ):
            lines += [e.value for e in node.value.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        if any(name.partition(".")[0] == "pkg_resources" for name in _imported(node)):
            lines.append(_WITH_PKG_RESOURCES)
    return lines


class _Local:
    """A :class:`envsmith.net.http.Fetcher` for an index in a folder of this host."""

    def get(
        self,
        url: str,
        *,
        max_bytes: int,
        accept: str | None = None,  # noqa: ARG002 - a file has one form
        sha256: str | None = None,
        keep: bool = True,  # noqa: ARG002 - it is kept where it is
        check: Callable[[Reply], object] | None = None,  # noqa: ARG002 - its hash is checked
    ) -> Reply:
        """Read the file and check it."""
        path = Path(url2pathname(parts_of(url).path))
        with os_errors(f"read {path}", NetworkError):
            body = path.read_bytes() if path.stat().st_size <= max_bytes else None
        if body is None or (sha256 and hashlib.sha256(body).hexdigest() != sha256):
            raise ContentError(
                f"Cannot use {path}: it is not the file that the index names (size or sha256 differ).",
                hint="Delete it and download it again.",
            )
        return Reply(body=body, url=url)

    def open_range(
        self, url: str, start: int, stop: int | None = None
    ) -> contextlib.AbstractContextManager[RangeReply]:
        """Refuse, because an sdist is read whole."""
        raise NetworkError(f"Cannot read {url}: a part ({start}, {stop}) of a local file is never needed.")


def build_requires(
    pins: Iterable[Pin], fetcher: Fetcher, undeclared: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[str, ...]:
    """Return the build requirements of every sdist among ``pins``, sorted.

    The sdists are downloaded and checked against their hashes. ``undeclared`` is what some distributions need beside
    what they say (``matrix/runtime.yaml``).
    """
    requirements: set[str] = set()
    for pin in pins:
        if pin.sdist:
            beside = (undeclared or {}).get(pin.name)
            requirements.update(_remembered(pin, fetcher) if beside is None else _read(pin, fetcher, beside))
    return tuple(sorted(requirements))


def _remembered(pin: Pin, fetcher: Fetcher) -> tuple[str, ...]:
    """Read an sdist once: what it says cannot change while its hash stays."""
    sha256 = pin.artifacts[0].sha256
    requirements = read_cache(_KIND, sha256)
    if requirements is None:
        requirements = list(_read(pin, fetcher))
        write_cache(_KIND, sha256, requirements)
    return tuple(requirements)


def _read(pin: Pin, fetcher: Fetcher, undeclared: tuple[str, ...] | None = None) -> tuple[str, ...]:
    artifact = pin.artifacts[0]
    if artifact.url is None:
        raise LockError(
            f"Cannot pin the build of {pin.name} {pin.version}: the address of {artifact.filename} is unknown."
        )
    file = IndexFile(filename=artifact.filename, url=artifact.url, version=pin.version, sha256=artifact.sha256)
    members = read_members(_Local() if artifact.url.startswith("file:") else fetcher, file, _WANTED)
    return requires_of(
        members.get("pyproject.toml"), members.get("setup.py"), where=artifact.filename, undeclared=undeclared
    )
