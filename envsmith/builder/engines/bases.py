"""Which base image a cell stands on, and which packages of the distribution it needs: the image part of a lock.

The knowledge is ``matrix/bases.yaml``. :func:`known_image` completes a lock with it alone. :func:`asked_image` asks an
engine, which knows the bases that it has or can get, and a base, which knows best what its own mirror offers. Where no
registry answers, and where ``--base packages`` asks for it, the base is made of exactly pinned packages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Protocol

from envsmith.base.progress import EventKind, Progress, ProgressEvent, silent
from envsmith.base.schema import Text, strict
from envsmith.builder.image.dockerfile import package_digest
from envsmith.errors import EngineError
from envsmith.knowledge.graph.fields import Sources, kept_table, plain_text
from envsmith.knowledge.graph.runtime import load_runtime, needs_of
from envsmith.model import plain
from envsmith.model.lock import PACKAGES, BaseImage, Lock, OsPackage, Tool
from envsmith.model.rule import Evidence
from envsmith.model.version import minor_of
from envsmith.net.oci import registry

_FILE = "bases.yaml"
# The interpreter of a distribution's own Python.
_OWN_PYTHON = "/usr/bin/python3"


_Image = Annotated[str, plain_text(plain.image)]
_Digest = Annotated[str, plain_text(plain.digest)]
_Python = Annotated[str, plain_text(plain.version)]
_Distribution = Annotated[str, plain_text(plain.distribution)]
_Package = Annotated[str, plain_text(plain.os_package)]


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class KnownImage:
    """A registry's image by the digest of its multi-platform index.

    ``python`` is the minor it carries, ``full`` the release.
    """

    image: _Image
    digest: _Digest
    python: _Python
    full: _Python
    interpreter: Annotated[str, plain_text(plain.path)]
    distribution: _Distribution
    evidence: Sources

    @property
    def pinned(self) -> str:
        """Return the image by name and digest."""
        return f"{self.image}@{self.digest}"

    def base(self) -> BaseImage:
        """Return the value that stands in a lock."""
        return _registry_base(self.image, self.digest, self.interpreter, self.distribution, _sentence(self.evidence))


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """A distribution whose own Python (a minor) a base may carry.

    ``headers`` are the packages that hold its ``Python.h``.
    """

    name: _Distribution
    python: _Python
    headers: tuple[_Package, ...]
    evidence: Sources


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class RootPackages:
    """What a need (``c++``, ``cc``, ``headers``) installs on a minimal root, and all that comes with it by version.

    The need ``base`` is a root with the distribution's own Python: every package of it.
    """

    distribution: _Distribution
    platform: Text
    need: Text
    install: tuple[_Package, ...]
    closure: Mapping[_Package, Annotated[str, plain_text(plain.os_version)]]
    evidence: Sources


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class _KnownTool:
    """An image that a build takes one program from."""

    name: Annotated[str, plain_text(plain.file_name)]
    image: _Image
    digest: _Digest
    evidence: Sources


def _sentence(evidence: tuple[Evidence, ...]) -> str:
    return f"{evidence[0].kind.value} {evidence[0].date}: {evidence[0].source}"


def _registry_base(name: str, digest: str, python: str, distribution: str, evidence: str) -> BaseImage:
    return BaseImage(
        name=name, digest=digest, origin="registry", python=python, distribution=distribution, evidence=evidence
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OsAnswer:
    """``source`` is ``snapshot 20260805T000000Z`` (the dated archive that the base names) or ``mirror 2026-11-21``."""

    packages: tuple[OsPackage, ...] = ()
    source: str = ""


class UnknownImageError(ValueError):
    """``matrix/bases.yaml`` knows too little for a cell; the message says what."""


@strict
@dataclass(frozen=True, kw_only=True, slots=True)
class Bases:
    """``matrix/bases.yaml`` as values."""

    images: tuple[KnownImage, ...]
    distributions: tuple[Distribution, ...]
    packages: tuple[RootPackages, ...]
    tools: tuple[_KnownTool, ...] = ()
    evidence: Mapping[str, Evidence] = field(default_factory=dict)

    def tool(self, name: str) -> Tool | None:
        """Return the tool of a name, or ``None``."""
        for tool in self.tools:
            if tool.name == name:
                return Tool(name=name, image=tool.image, digest=tool.digest, evidence=_sentence(tool.evidence))
        return None

    def image(self, python: str) -> KnownImage | None:
        """Return the image for a Python minor, or ``None``."""
        return next((i for i in self.images if i.python == python), None)

    def known(self, python: str) -> BaseImage:
        """Return the base for a Python minor. Raises ``UnknownImageError`` when there is none."""
        image = self.image(python)
        if image is None:
            raise UnknownImageError(f"no base image with Python {python} is known (matrix/{_FILE})")
        return image.base()

    @property
    def pythons_from_packages(self) -> tuple[str, ...]:
        """Return the Python minors of bases that are made of packages."""
        return tuple(d.python for d in self.distributions)

    def from_packages(self, python: str, platform: str) -> BaseImage:
        """Return the base of exactly pinned packages with a Python minor.

        Raises ``UnknownImageError`` where no distribution has it, or its packages were not measured.
        """
        distribution = next((d.name for d in self.distributions if d.python == python), None)
        if distribution is None:
            minors = ", ".join(self.pythons_from_packages)
            raise UnknownImageError(f"no base with Python {python} can be made of packages (only {minors})")
        packages = self._measured("base", distribution, platform)
        pins = tuple(OsPackage(name=name, version=version) for name, version in sorted(packages.closure.items()))
        return BaseImage(
            name=PACKAGES,
            digest=package_digest(pins),
            origin=PACKAGES,
            python=_OWN_PYTHON,
            distribution=distribution,
            packages=pins,
            evidence=_sentence(packages.evidence),
        )

    def official(self, base: str, python: str) -> BaseImage:
        """Return an official Python image by its name, its tag resolved by the registry.

        Raises ``UnknownImageError`` for another image: nothing is known about it without looking into it.
        """
        parts = registry.parse_reference(base)
        distribution = next((d for d in {p.distribution for p in self.packages} if d in parts.tag.split("-")), None)
        official = parts.repository == "library/python" and re.match(rf"{re.escape(python)}(\.\d+)?(-|$)", parts.tag)
        if not official or distribution is None:
            example = self.images[0].image
            raise UnknownImageError(
                f"--base {base} needs an engine that can look into it (known without one: {example} and its like)"
            )
        digest = parts.digest or registry.resolve_digest(base)
        evidence = "asked for by digest" if parts.digest else "digest of the tag in its registry"
        return _registry_base(base.partition("@")[0], digest, "/usr/local/bin/python3", distribution, evidence)

    def install(self, needs: tuple[str, ...], base: BaseImage) -> tuple[str, ...]:
        """Return the package names for ``apt-get install`` on ``base``.

        A registry's Python brings its own headers, the distribution's own does not. Raises ``EngineError`` for an
        unknown need.
        """
        names: list[str] = []
        for need in needs:
            if need == "headers":
                own = next((d for d in self.distributions if d.name == base.distribution), None)
                names += own.headers if own and base.python == _OWN_PYTHON else ()
                continue
            rows = [p for p in self.packages if p.need == need]
            if not rows:
                raise EngineError(f"Cannot install {need} on {base.distribution}: envsmith does not know its packages.")
            names += next((p for p in rows if p.distribution == base.distribution), rows[0]).install
        return tuple(dict.fromkeys(names))

    def _measured(self, need: str, distribution: str, platform: str) -> RootPackages:
        row = (need, distribution, platform)
        packages = next((p for p in self.packages if (p.need, p.distribution, p.platform) == row), None)
        if packages is None:
            raise UnknownImageError(
                f"the packages for {need} on {distribution} {platform} are not known; "
                "build with an engine to ask the base itself"
            )
        return packages

    def closure(self, needs: tuple[str, ...], base: BaseImage, platform: str) -> OsAnswer:
        """Return the packages that were measured for each need, without those that the base is made of.

        Raises ``UnknownImageError`` for a need that was not.
        """
        versions: dict[str, str] = {}
        own = ("base",) if base.origin == PACKAGES else ()
        # A registry's Python brings its own headers.
        needed = [need for need in needs if need != "headers" or base.python == _OWN_PYTHON]
        rows = [self._measured(need, base.distribution, platform) for need in (*needed, *own)]
        for row in rows:
            versions |= row.closure
        for package in base.packages:
            versions.pop(package.name, None)
        packages = tuple(OsPackage(name=name, version=version) for name, version in sorted(versions.items()))
        # The day of the newest index that was read.
        return OsAnswer(packages=packages, source=f"mirror {max(row.evidence[0].date for row in rows)}" if rows else "")


class ImageProvider(Protocol):
    """What :func:`asked_image` asks of an engine that makes images."""

    def base_for(self, python: str, base: str | None, *, progress: Progress) -> BaseImage | None:
        """Return ``base`` (``NAME[:TAG][@DIGEST]``), or the known one for a Python minor, pulled or here, if any."""
        ...

    def has_base(self, base: BaseImage) -> bool:
        """Return whether a build can start from exactly this base."""
        ...

    def os_packages(self, base: BaseImage, install: tuple[str, ...], *, progress: Progress) -> OsAnswer:
        """Return all that installing ``install`` on ``base`` would add, by exact version, and the versions' source."""
        ...


def known_image(lock: Lock, base: str | None = None, *, progress: Progress = silent) -> Lock:
    """Return ``lock`` with the base and packages that ``matrix/bases.yaml`` knows. No engine is asked.

    A lock that has an image part keeps it unless another ``base`` is asked for. Where too little is known the lock gets
    no image part, and ``image_note`` says why. Raises ``UsageError`` for a malformed ``base``.
    """
    if base is not None:
        plain.image(base)
    elif lock.base is not None:
        return lock
    bases, python, platform = load_bases(), _minor(lock), lock.cell.platform.value
    try:
        if base == PACKAGES or (base is None and bases.image(python) is None):
            image = bases.from_packages(python, platform)
        else:
            image = bases.official(base, python) if base is not None else bases.known(python)
        answer = bases.closure(_needs(lock), image, platform)
    except UnknownImageError as reason:
        return replace(lock, base=None, os_packages=(), os_source="", image_note=str(reason))
    text = f"base {image.name} by its known digest; no engine was asked"
    progress(ProgressEvent(kind=EventKind.NOTE, step="image", text=text))
    return _with_base(lock, image, answer)


def _with_base(lock: Lock, base: BaseImage, answer: OsAnswer) -> Lock:
    return replace(lock, base=base, os_packages=answer.packages, os_source=answer.source, image_note="")


def asked_image(
    lock: Lock,
    engine: ImageProvider,
    base: str | None = None,
    *,
    progress: Progress = silent,
    bases: Bases | None = None,
) -> Lock:
    """Return ``lock`` with a base that ``engine`` has or can get, and the packages that this base's mirror offers now.

    A lock that has an image part keeps it while its base can be had and no other is asked for. Raises ``UsageError``
    for a malformed ``base``, and ``EngineError`` when the engine can provide none.
    """
    if base is not None:
        plain.image(base)
    elif lock.base is not None and engine.has_base(lock.base):
        return lock
    bases, lock = bases or load_bases(), replace(lock, wheels=())
    chosen = engine.base_for(_minor(lock), base, progress=progress) if base != PACKAGES else None
    if chosen is None:
        try:
            chosen = bases.from_packages(_minor(lock), lock.cell.platform.value)
            return _with_base(lock, chosen, bases.closure(_needs(lock), chosen, lock.cell.platform.value))
        except UnknownImageError as reason:
            raise EngineError(
                f"Cannot find a base image with Python {_minor(lock)}: no known image can be pulled, and {reason}.",
                hint="Load an image with that Python into the engine and name it with --base, or use --engine venv.",
            ) from None
    install = bases.install(_needs(lock), chosen)
    answer = engine.os_packages(chosen, install, progress=progress) if install else OsAnswer()
    return _with_base(lock, chosen, answer)


def _minor(lock: Lock) -> str:
    return minor_of(lock.cell.components["python"])


def _needs(lock: Lock) -> tuple[str, ...]:
    """Return what the distribution has to provide. nvcc is not among it: the lock has it from the package index."""
    return tuple(need for need in needs_of(lock, load_runtime()) if need != "nvcc")


BASES_TABLE = kept_table("bases", _FILE, Bases)


def load_bases() -> Bases:
    """Return the installed ``bases.yaml``. Raises ``DataError`` with every problem and its key path."""
    return BASES_TABLE.load()
