"""An environment that exists, read from its files: what is installed in it, and what that requires."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envsmith.base.files import read_text
from envsmith.base.interpreter import python_in
from envsmith.doctor.mend.owned import packages_folders
from envsmith.errors import UsageError
from envsmith.model.version import minor_of

CONFIG = "pyvenv.cfg"
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
    """A virtual environment. ``python`` is its version."""

    root: Path
    python: str
    distributions: Mapping[str, Installed] = field(default_factory=dict)

    @property
    def interpreter(self) -> Path:
        """Return the path of its interpreter."""
        return python_in(self.root)

    def edges(self, name: str) -> Iterator[Requirement]:
        """Yield the requirements of a distribution that hold on this Python, without those of extras."""
        own = {"python_version": minor_of(self.python), "python_full_version": self.python, "extra": ""}
        for text in self.distributions[name].requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            if requirement.marker is None or requirement.marker.evaluate(own):
                yield requirement

    def has(self, requirement: Requirement) -> bool:
        """Return whether a requirement is met by what is installed."""
        installed = self.distributions.get(canonicalize_name(requirement.name))
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
    folders = [root / folder for folder in packages_folders(root)]
    if version is None or not folders:
        raise UsageError(
            f"Cannot change {root}: its {CONFIG} does not name a Python, or it has no site-packages.",
            hint="Make the environment anew with python -m venv.",
        )
    distributions = {d.name: d for d in _distributions(folders)}
    return Environment(root=root, python=version[1], distributions=distributions)


def _distributions(folders: list[Path]) -> Iterator[Installed]:
    for distribution in metadata.distributions(path=[str(folder) for folder in folders]):
        name, version = distribution.metadata["Name"], distribution.metadata["Version"]
        if name and version:
            yield Installed(
                name=canonicalize_name(name),
                version=version,
                requires=tuple(distribution.requires or ()),
                is_local=distribution.read_text("direct_url.json") is not None,
            )
