"""Which base image a cell stands on, and which packages of the distribution it needs: the image part of a lock.

The knowledge is ``matrix/bases.yaml``. :func:`pin_image` completes a lock with it, asking the engine where one is at hand:
an engine knows which bases it has or can get, and a base knows best what its own mirror offers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from envsmith import plain
from envsmith.engines.base import Engine
from envsmith.errors import EngineError
from envsmith.graph.fields import TableReader, load_table
from envsmith.model.lock import BaseImage, Lock, OsPackage, Tool
from envsmith.progress import Event, EventKind, Progress, silent
from envsmith.python.toolkit import load_runtime, needs_of


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownImage:
    """A registry's image by the digest of its multi-platform index; ``python`` is the minor it carries."""

    image: str
    digest: str
    python: str
    interpreter: str
    distribution: str
    evidence: str

    def base(self, *, origin: str = "registry") -> BaseImage:
        """The value that stands in a lock."""
        return BaseImage(
            name=self.image,
            digest=self.digest,
            origin=origin,
            python=self.interpreter,
            distribution=self.distribution,
            evidence=self.evidence,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bootstrap:
    """A base that can be made from a distribution's packages; ``headers`` are the packages that hold ``Python.h``."""

    distribution: str
    python: str
    interpreter: str
    include: tuple[str, ...]
    headers: tuple[str, ...]
    evidence: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageSet:
    """What a need (``c++``, ``cc``) installs on a distribution, and everything that comes with it by exact version."""

    distribution: str
    platform: str
    need: str
    install: tuple[str, ...]
    closure: tuple[OsPackage, ...]
    evidence: str
    date: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Bases:
    """``matrix/bases.yaml`` as values."""

    images: tuple[KnownImage, ...]
    bootstraps: tuple[Bootstrap, ...]
    packages: tuple[PackageSet, ...]
    tools: tuple[Tool, ...] = ()

    def tool(self, name: str) -> Tool | None:
        """The tool of a name, or ``None``."""
        return next((t for t in self.tools if t.name == name), None)

    def image(self, python: str) -> KnownImage | None:
        """The image for a Python minor, or ``None``."""
        return next((i for i in self.images if i.python == python), None)

    def bootstrap(self, *, python: str | None = None, distribution: str | None = None) -> Bootstrap | None:
        """The bootstrap for a Python minor or a distribution, or ``None``."""
        return next((b for b in self.bootstraps if python == b.python or distribution == b.distribution), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class OsAnswer:
    """``source`` is ``snapshot 20260805T000000Z`` (the dated archive that the base itself names) or ``mirror 2026-11-21``."""

    packages: tuple[OsPackage, ...] = ()
    source: str = ""


@runtime_checkable
class ImageProvider(Protocol):
    """What :func:`pin_image` asks of an engine that makes images; an engine without these is asked nothing."""

    def base_for(self, python: str, wanted: str | None, *, progress: Progress) -> BaseImage:
        """The base for a Python minor: ``wanted`` (``NAME[:TAG][@DIGEST]``) or what is known, pulled, found here or bootstrapped."""
        ...

    def has_base(self, base: BaseImage) -> bool:
        """Whether a build can start from exactly this base."""
        ...

    def os_packages(self, base: BaseImage, install: tuple[str, ...], *, progress: Progress) -> OsAnswer:
        """Everything that installing ``install`` on ``base`` would add, by exact version, and where the versions come from."""
        ...


def pin_image(
    lock: Lock,
    *,
    base: str | None = None,
    engine: Engine | ImageProvider | None = None,
    progress: Progress = silent,
    bases: Bases | None = None,
) -> Lock:
    """``lock`` with ``base`` and ``os_packages`` filled in.

    With an engine that makes images, the base is one that it has or can get and the packages are what that base's mirror offers now.
    A lock that already has an image part keeps it while its base can be had and no other is asked for.
    Without an engine, both are what ``matrix/bases.yaml`` knows; where it knows too little, the lock keeps no image part and
    ``image_note`` says why. ``UsageError`` for a malformed ``base``; ``EngineError`` when the engine can provide none.
    """
    bases = bases or load_bases()
    python = lock.cell.components["python"]
    python = ".".join(python.split(".")[:2])
    if base is not None:
        plain.image(base)
    if lock.base is not None and base is None and (not isinstance(engine, ImageProvider) or engine.has_base(lock.base)):
        return lock
    if isinstance(engine, ImageProvider):
        chosen = engine.base_for(python, base, progress=progress)
        install = _install(_needs(lock), chosen, bases, lock.cell.platform.value)
        told = engine.os_packages(chosen, install, progress=progress) if install else OsAnswer()
        return replace(lock, base=chosen, os_packages=told.packages, os_source=told.source, wheels=(), image_note="")
    asked = _asked(base, python, bases) if base is not None else bases.image(python)
    if isinstance(asked, str):
        return replace(lock, base=None, os_packages=(), os_source="", image_note=asked)
    known = asked
    if known is None:
        return replace(
            lock,
            base=None,
            os_packages=(),
            os_source="",
            image_note=f"no base image with Python {python} is known (matrix/bases.yaml)",
        )
    found = _known_packages(_needs(lock), known, bases, lock.cell.platform.value)
    if isinstance(found, str):
        return replace(lock, base=None, os_packages=(), os_source="", image_note=found)
    progress(
        Event(kind=EventKind.NOTE, step="image", text=f"base {known.image} by its known digest; no engine was asked")
    )
    return replace(lock, base=known.base(), os_packages=found.packages, os_source=found.source, image_note="")


def _asked(base: str, python: str, bases: Bases) -> KnownImage | str:
    """A base asked for by name, without an engine to look into it: one of the official Python images, its tag resolved by the registry.

    The sentence says why another image cannot be judged from here.
    """
    from envsmith.oci.lookup import parse_reference, resolve_digest

    parts = parse_reference(base)
    distribution = next((d for d in {p.distribution for p in bases.packages} if d in parts.tag.split("-")), None)
    official = parts.repository == "library/python" and re.match(rf"{re.escape(python)}(\.\d+)?(-|$)", parts.tag)
    if not official or distribution is None:
        return f"--base {base} needs an engine that can look into it (known without one: {bases.images[0].image} and its like)"
    return KnownImage(
        image=base.partition("@")[0],
        digest=parts.digest or resolve_digest(base),
        python=python,
        interpreter="/usr/local/bin/python3",
        distribution=distribution,
        evidence="asked for by digest" if parts.digest else "digest of the tag as its registry told it",
    )


def _needs(lock: Lock) -> tuple[str, ...]:
    """What the distribution has to provide; nvcc is none of it, the lock has it from the package index."""
    return tuple(need for need in needs_of(lock, load_runtime()) if need != "nvcc")


def _install(needs: tuple[str, ...], base: BaseImage, bases: Bases, platform: str) -> tuple[str, ...]:
    """Package names for ``apt-get install``. A registry's Python brings its own headers; the distribution's own does not."""
    names: list[str] = []
    for need in needs:
        if need == "headers":
            made = bases.bootstrap(distribution=base.distribution)
            if base.python == "/usr/bin/python3" and made is not None:
                names += made.headers
            continue
        known = next((p for p in bases.packages if p.need == need and p.distribution == base.distribution), None)
        known = known or next((p for p in bases.packages if p.need == need), None)
        if known is None:
            raise EngineError(f"nothing is known about what {need} installs on {base.distribution} ({platform})")
        names += known.install
    return tuple(dict.fromkeys(names))


def _known_packages(needs: tuple[str, ...], image: KnownImage, bases: Bases, platform: str) -> OsAnswer | str:
    """The closure that was measured for each need, or the sentence that says what is not known."""
    found: dict[str, OsPackage] = {}
    dates: set[str] = set()
    for need in needs:
        if need == "headers":
            continue  # python:… images carry Python.h themselves
        known = next(
            (p for p in bases.packages if (p.need, p.distribution, p.platform) == (need, image.distribution, platform)),
            None,
        )
        if known is None:
            return f"the packages for {need} on {image.distribution} {platform} are not known; build with an engine to ask the base itself"
        found |= {p.name: p for p in known.closure}
        dates.add(known.date)
    packages = tuple(found[name] for name in sorted(found))
    return OsAnswer(packages=packages, source=f"mirror {max(dates)}" if packages else "")


@lru_cache(maxsize=4)
def load_bases(folder: Path | None = None) -> Bases:
    """Parse ``bases.yaml``; ``DataError`` lists every problem with its key path."""
    return _Reader("bases.yaml", load_table("bases.yaml", folder)).bases()


class _Reader(TableReader):
    """The rows of ``bases.yaml``."""

    def bases(self) -> Bases:
        result = Bases(
            images=tuple(self.each("images", self._image)),
            bootstraps=tuple(self.each("bootstraps", self._bootstrap)),
            packages=tuple(self.each("packages", self._packages)),
            tools=tuple(self.each("tools", self._tool)) if "tools" in self.data else (),
        )
        self.check()
        return result

    def _image(self, row: Mapping[str, Any]) -> KnownImage:
        return KnownImage(
            image=plain.image(row["image"]),
            digest=plain.digest(row["digest"]),
            python=plain.version(row["python"]),
            interpreter=plain.path(row["interpreter"]),
            distribution=plain.distribution(row["distribution"]),
            evidence=self.evidence(row),
        )

    def _tool(self, row: Mapping[str, Any]) -> Tool:
        return Tool(
            name=plain.file_name(row["name"]),
            image=plain.image(row["image"]),
            digest=plain.digest(row["digest"]),
            evidence=self.evidence(row),
        )

    def _bootstrap(self, row: Mapping[str, Any]) -> Bootstrap:
        return Bootstrap(
            distribution=plain.distribution(row["distribution"]),
            python=plain.version(row["python"]),
            interpreter=plain.path(row["interpreter"]),
            include=tuple(plain.os_package(n) for n in row["include"]),
            headers=tuple(plain.os_package(n) for n in row["headers"]),
            evidence=self.evidence(row),
        )

    def _packages(self, row: Mapping[str, Any]) -> PackageSet:
        return PackageSet(
            distribution=plain.distribution(row["distribution"]),
            platform=str(row["platform"]),
            need=str(row["need"]),
            install=tuple(plain.os_package(n) for n in row["install"]),
            closure=tuple(
                OsPackage(name=plain.os_package(n), version=plain.os_version(v))
                for n, v in sorted(row["closure"].items())
            ),
            evidence=self.evidence(row),
            date=str(self.data["evidence"][row["evidence"]]["date"]),
        )
