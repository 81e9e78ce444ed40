"""Parse what uv prints: ``pylock.toml`` for files and hashes, an annotated ``requirements.txt`` for who requires whom.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlunsplit

from envsmith.base.files import read_toml
from envsmith.base.json_types import JsonFields
from envsmith.errors import LockError
from envsmith.model.cell import distribution_of
from envsmith.model.lock import Artifact, Pin
from envsmith.model.project_name import normal_name
from envsmith.net.address import parts_of

if TYPE_CHECKING:
    from packaging.pylock import Package, PackageSdist, PackageWheel


_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:==| @ )(\S+)")
_VIA = re.compile(r"#\s+(?:via\s*)?(.*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """One distribution as uv resolved it, with the files that may be installed for it.

    ``address`` is where a ready wheel lies that uv was not asked about.
    """

    name: str
    version: str
    artifacts: tuple[Artifact, ...]
    sdist: bool
    address: str = ""


def parse_pylock(text: str, archives: Collection[str] = ()) -> tuple[Resolved, ...]:
    """Return the packages of a ``pylock.toml`` as :func:`packages_of` does. ``LockError`` for what is not TOML."""
    try:
        document = read_toml(text)
    except ValueError as error:
        raise LockError(f"Cannot read pylock.toml: {error}.") from None
    return packages_of(document, archives)


def packages_of(document: JsonFields, archives: Collection[str] = ()) -> tuple[Resolved, ...]:
    """Return the packages of a lock, sorted by name. ``LockError`` for what is not one, or is not complete.

    Where a wheel may be installed the sdist is left out, so that nothing is ever built that need not be. What comes
    from ``archives`` of the user is left out: it is known already.
    """
    from packaging.pylock import Pylock, PylockValidationError

    try:
        lock: Pylock = Pylock.from_dict(document)
    except (PylockValidationError, ValueError) as error:
        raise LockError(f"Cannot read pylock.toml: {error}.") from None
    return tuple(sorted((_package(p) for p in lock.packages if p.name not in archives), key=lambda r: r.name))


def _package(package: Package) -> Resolved:
    if package.version is None or package.vcs or package.directory or package.archive:
        raise LockError(
            f"Cannot pin {package.name}: it comes from a repository, folder or address and has no hash on a package "
            "index.",
            hint="Use a release that is on the package index.",
            names=[package.name],
        )
    version = str(package.version)
    files: list[PackageWheel | PackageSdist] = list(package.wheels or ()) or ([package.sdist] if package.sdist else [])
    if not files:
        raise LockError(
            f"Cannot pin {package.name} {version}: none of its files can be installed on this platform and Python.",
            hint="Choose another --python or another release.",
            names=[package.name],
        )
    artifacts = tuple(sorted((_artifact(f, package.name) for f in files), key=lambda a: a.filename))
    return Resolved(name=package.name, version=version, artifacts=artifacts, sdist=not package.wheels)


def _artifact(file: PackageWheel | PackageSdist, name: str) -> Artifact:
    filename = file.name or unquote(parts_of(file.url or file.path or "").path.rpartition("/")[2])
    sha256 = file.hashes.get("sha256", "").lower()
    if not filename or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise LockError(
            f"Cannot pin {name}: {filename or 'a file'} has no sha256 on the index.",
            hint="Use an index that gives sha256 hashes for every file. Without them the lock would be incomplete.",
        )
    return Artifact(filename=filename, sha256=sha256, size=file.size, url=_public(file.url))


def _public(url: str | None) -> str | None:
    """Return the address without user and password: a lock is a file that is passed on."""
    if url is None:
        return None
    parts = parts_of(url)
    if not parts.scheme:
        raise LockError(f"Cannot pin a file: {url[:100]!r} is not an address.")
    return urlunsplit(SplitResult(parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))


def parse_edges(text: str) -> dict[str, tuple[str, ...]]:
    """Map names to what they require, read from uv's ``# via`` comments."""
    requires: dict[str, set[str]] = {}
    current = ""
    for raw in text.splitlines():
        line = raw.strip()
        if match := _PIN.match(line):
            current = normal_name(match[1])
            requires.setdefault(current, set())
        elif current and (match := _VIA.match(line)):
            parent = match[1].partition("[")[0].split()
            # "-r FILE" is our own request.
            if parent and not parent[0].startswith("-"):
                requires.setdefault(normal_name(parent[0]), set()).add(current)
    return {name: tuple(sorted(needed)) for name, needed in requires.items()}


# What only torch decides about: itself, NVIDIA's and AMD's libraries (not the bindings of NVML), Triton.
_HEAVY = re.compile(r"torch|nvidia-(?!ml-py).+|cuda-.+|(?:pytorch-)?triton(?:-rocm)?")


def is_of_torch(name: str) -> bool:
    """Return whether a distribution is torch, or a library in whose release nobody but torch has a say."""
    return _HEAVY.fullmatch(name) is not None


def closure(roots: Iterable[str], requires: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """Return ``roots`` and everything they require."""
    names: set[str] = set()
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name not in names:
            names.add(name)
            todo += requires.get(name, ())
    return frozenset(names)


def to_pins(
    resolved: Iterable[Resolved], requires: Mapping[str, tuple[str, ...]], *, layer: str | None = None
) -> tuple[Pin, ...]:
    """Return pins with their layer: ``torch`` for torch and its heavy part, ``framework``, or ``layer`` for all.

    The light part (setuptools, numpy, sympy …) goes with the framework: a framework may want another release of it, and
    the layer of gigabytes would not be the same in two cells of one torch.
    """
    heavy = frozenset(name for name in closure(["torch"], requires) if is_of_torch(name))
    return tuple(
        Pin(
            name=r.name,
            version=r.version,
            layer=layer or ("torch" if r.name in heavy else "framework"),
            artifacts=r.artifacts,
            requires=requires.get(r.name, ()),
            sdist=r.sdist,
            address=r.address,
        )
        for r in resolved
    )


def only_allowed(pins: Iterable[Pin], lines: Iterable[str]) -> tuple[Pin, ...]:
    """Return the pins with the files whose hashes the requirements name, where they name some.

    ``LockError`` for a pin of which none is named.
    """
    allowed: dict[str, set[str]] = {}
    for line in lines:
        if hashes := re.findall(r" --hash=sha256:([0-9a-f]{64})", line):
            allowed.setdefault(distribution_of(line), set()).update(hashes)
    checked = []
    for pin in pins:
        files = tuple(a for a in pin.artifacts if pin.name not in allowed or a.sha256 in allowed[pin.name])
        if not files:
            raise LockError(
                f"Cannot pin {pin.name} {pin.version}: no file of it has a hash that its requirement names.",
                hint="Use the release that the hashes are of, or leave the hashes out.",
            )
        checked.append(replace(pin, artifacts=files))
    return tuple(checked)
