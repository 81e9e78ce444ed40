"""What a user says about distributions that are compiled from source: archives that are on no index, and variables that are set meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.model.lock import Artifact

__all__ = ["Compile", "GivenArchive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenArchive:
    """A source archive (``.tar.gz``) of the user's that was fetched, held against its ``sha256`` (64 hex digits) and looked into.

    ``name`` is normalised; ``address`` is ``file:///…`` or ``https://…``; ``requires`` are the run-time requirements that it states without
    being run; ``cuda`` says that there is CUDA code in it. ``size`` is in bytes.
    """

    name: str
    version: str
    address: str
    sha256: str
    size: int
    requires: tuple[str, ...] = ()
    cuda: bool = False

    @property
    def filename(self) -> str:
        """The name that a source distribution has, whatever the file was called."""
        return f"{self.name.replace('-', '_')}-{self.version}.tar.gz"

    @property
    def artifact(self) -> Artifact:
        """As it stands in a lock."""
        return Artifact(filename=self.filename, sha256=self.sha256, size=self.size, url=self.address)

    @property
    def origin(self) -> str:
        """What a lock says of where it came from: the address, or ``file``, because a folder of one machine means nothing on another."""
        return self.address if self.address.startswith("https:") else "file"


@dataclass(frozen=True, kw_only=True, slots=True)
class Compile:
    """``archives`` stand for what the index has, or has not, under their names; ``variables`` are set while a distribution is compiled."""

    archives: tuple[GivenArchive, ...] = ()
    variables: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def archive(self, name: str) -> GivenArchive | None:
        """The archive that stands for a distribution."""
        return next((a for a in self.archives if a.name == name), None)
