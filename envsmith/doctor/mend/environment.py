"""An environment that exists, read from its files: what is installed in it, and what that requires."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envsmith.base.files import read_bounded, read_text
from envsmith.base.interpreter import python_in
from envsmith.base.text import clean
from envsmith.doctor.mend.owned import packages_folders, recorded
from envsmith.errors import EnvsmithError, UsageError
from envsmith.lock.index.metadata import MAX_MEMBER, parse_metadata, parse_requires_txt
from envsmith.model.project_name import normal_name
from envsmith.model.version import minor_of

CONFIG = "pyvenv.cfg"
# Where a distribution describes itself, in or at its folder of information. An egg of one file is that file.
_DESCRIBES = ("METADATA", "PKG-INFO", "EGG-INFO/PKG-INFO", "")
_VERSION = re.compile(r"^version(?:_info)?\s*=\s*(3\.\d+\.\d+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """One distribution. ``is_local`` says that it came from a folder, a repository or an address, not from an index."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    is_local: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """A virtual environment. ``python`` is its version. ``odd`` says what its packages' METADATA says unreadably."""

    root: Path
    python: str
    distributions: Mapping[str, Installed] = field(default_factory=dict)
    odd: tuple[str, ...] = ()

    @property
    def interpreter(self) -> Path:
        """Return the path of its interpreter."""
        return python_in(self.root)

    def edges(self, name: str) -> Iterator[Requirement]:
        """Yield the requirements of a distribution that hold on this Python, without those of extras."""
        yield from map(Requirement, self.distributions[name].requires)

    def has(self, requirement: Requirement) -> bool:
        """Return whether a requirement is met by what is installed."""
        installed = self.distributions.get(normal_name(requirement.name))
        return installed is not None and _admits(requirement, installed.version)


def _admits(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def read_environment(root: Path) -> Environment:
    """Return what is installed in a virtual environment. ``UsageError`` where the folder is not one."""
    root = root.resolve()
    config = root / CONFIG
    if not config.is_file():
        raise UsageError(
            f"Cannot change {root}: it is not a virtual environment.",
            hint="Type the commands of the repair that envsmith doctor prints, with the tool that manages this Python.",
        )
    version = _VERSION.search(read_text(config, 1 << 16, failure=UsageError, errors="replace"))
    if version is None or not packages_folders(root):
        raise UsageError(
            f"Cannot change {root}: its {CONFIG} does not name a Python, or it has no site-packages.",
            hint="Make the environment anew with python -m venv.",
        )
    reader = _Reader(version[1])
    distributions = {d.name: d for record in recorded(root) if (d := reader.read(root / record))}
    return Environment(root=root, python=version[1], distributions=distributions, odd=tuple(reader.odd))


class _Reader:
    """Reads what distributions say of themselves, and gathers what cannot be read."""

    def __init__(self, python: str) -> None:
        versions = {"python_full_version": python, "implementation_version": python}
        self._own = {"python_version": minor_of(python), **versions, "extra": ""}
        self.odd: list[str] = []

    def read(self, info: Path) -> Installed | None:
        """Return a distribution, or nothing where its folder is empty or names no package of a version."""
        path = next((info / name for name in _DESCRIBES if (info / name).is_file()), None)
        if path is None:
            return None
        try:
            metadata = parse_metadata(read_bounded(path, MAX_MEMBER), str(path))
            name = canonicalize_name(metadata.name, validate=True)
            version = str(Version(metadata.version))
        except (EnvsmithError, ValueError) as error:
            self.odd.append(f"{path}: {error.reason if isinstance(error, EnvsmithError) else error}")
            return None
        requires = metadata.requires
        with suppress(EnvsmithError):
            requires = requires or parse_requires_txt(read_bounded(path.with_name("requires.txt"), MAX_MEMBER))
        return Installed(
            name=name,
            version=version,
            requires=tuple(str(r) for text in requires if (r := self._active(text, f"{name} {version}"))),
            is_local=(info / "direct_url.json").exists(),
        )

    def _active(self, text: str, owner: str) -> Requirement | None:
        try:
            requirement = Requirement(text)
            holds = requirement.marker is None or requirement.marker.evaluate(self._own)
        except (ValueError, KeyError, RecursionError):  # an operator or a variable that markers do not have
            self.odd.append(f"{owner} requires {clean(text)[:200]!r}, which is no requirement")
            return None
        requirement.marker = None
        return requirement if holds else None
