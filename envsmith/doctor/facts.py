"""What is known about an environment, from any source: this machine, a pasted report, a log.

Readers write into a :class:`Draft`. :class:`Facts` is what judging works on. A fact that nothing says is absent, never
a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envsmith.base.schema import UNWRITTEN, AsJson


@dataclass(frozen=True, kw_only=True, slots=True)
class StatedVersion:
    """One version as somebody said it.

    ``strength``: 4 read from the thing itself, 3 a tool's report, 2 a line of a log, 1 prose.

    ``exact`` is false when the text gives a bound, a list or words around the number (``>=1.24``, ``1.13 / 2.0
    tried``).
    """

    version: str
    source: str
    strength: int
    exact: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedLibrary:
    """One copy of a shared library.

    ``how`` says how the loader gets to it: preload, ld_library_path, rpath, system, wheel, conda.
    """

    name: str
    path: str
    version: str | None = None
    how: str = ""
    first: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchCommand:
    """One start command or configuration: the tool, its options, and the line it stands on.

    ``tool`` is one of the launchers, docker, hostfile, or a configuration that ``matrix/doctor/words.yaml`` names.
    ``source`` is the text it stands in, ``places`` the line (from 1) of it (under ``""``) and of its options, as far
    as they are known.
    """

    tool: str
    options: Mapping[str, str]
    text: str = ""
    source: str = field(default="", metadata=UNWRITTEN)
    places: Mapping[str, int] = field(default_factory=dict, metadata=UNWRITTEN)


# The kind of what was read of the machine itself.
THIS_MACHINE = "this machine"


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """One input and what was understood of it: ``kinds`` as recognised, ``facts`` how many facts each gave."""

    source: str
    kinds: tuple[str, ...]
    lines: int
    characters: int
    facts: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts(AsJson):
    """Everything that is known.

    ``variables`` are environment variables, ``limits`` bytes or counts (``memlock``, ``nofile``, ``shm``; -1 is
    unlimited), ``tools`` programs with their path (``None``: known to be absent), ``host`` further facts by name
    (``os``, ``container``, ``fabric_manager`` …).
    """

    components: Mapping[str, StatedVersion] = field(default_factory=dict)
    distributions: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    tools: Mapping[str, str | None] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    gpu_count: int | None = None
    libraries: tuple[SharedLibrary, ...] = ()
    launches: tuple[LaunchCommand, ...] = ()
    host: Mapping[str, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    read: tuple[Read, ...] = field(default=(), metadata=UNWRITTEN)

    def version(self, name: str) -> str | None:
        """Return the version of a component, or ``None``."""
        stated = self.components.get(name)
        return stated.version if stated else None

    def used(self, name: str) -> str | None:
        """Return the version of a component that is in use, or ``*`` where its version is not known."""
        return self.version(name) or ("*" if name in self.host.get("present", "").split(",") else None)

    @property
    def are_of_this_machine(self) -> bool:
        """Return whether they were read from the machine itself, and not from texts alone."""
        return any(THIS_MACHINE in read.kinds for read in self.read)

    @property
    def count(self) -> int:
        """Return how many facts there are: zero means nothing was understood."""
        mappings = (self.components, self.distributions, self.variables, self.limits, self.tools, self.host)
        return sum(map(len, (*mappings, self.gpus, self.libraries, self.launches)))


# More than any honest report names; a hostile one stops here.
_MOST = 4000


@dataclass(slots=True)
class Draft:
    """Facts while they are gathered.

    The stronger statement about a component wins, a contradiction of equals is kept as a note.
    """

    components: dict[str, StatedVersion] = field(default_factory=dict)
    distributions: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    tools: dict[str, str | None] = field(default_factory=dict)
    gpus: list[str] = field(default_factory=list)
    gpu_count: int | None = None
    libraries: list[SharedLibrary] = field(default_factory=list)
    launches: list[LaunchCommand] = field(default_factory=list)
    host: dict[str, str] = field(default_factory=dict)
    interfaces: list[str] = field(default_factory=list)
    disagreements: list[str] = field(default_factory=list)
    read: list[Read] = field(default_factory=list)

    def component(self, name: str, version: str, source: str, strength: int = 3, *, exact: bool = True) -> None:
        """State a version. It must already be one (see :func:`~envsmith.doctor.read.lines.version_in`)."""
        if len(self.components) >= _MOST:
            return
        stated = StatedVersion(version=version, source=source, strength=strength, exact=exact)
        old = self.components.get(name)
        if old is None:
            self.components[name] = stated
            return
        if old.version == version:
            return
        refines = _refines(version, old.version) or _refines(old.version, version)
        if not refines and min(old.strength, strength) >= 3 and len(self.disagreements) < 40:
            self.disagreements.append(f"{name}: {old.version} ({old.source}) and {version} ({source})")
        if (strength, exact) > (old.strength, old.exact) or (_refines(version, old.version) and strength >= 2):
            self.components[name] = stated

    def distribution(self, name: str, version: str) -> None:
        """Add an installed Python distribution, by its normalised name."""
        if len(self.distributions) < _MOST:
            self.distributions.setdefault(name, version)

    def variable(self, name: str, value: str) -> None:
        """Add an environment variable. The last value counts, as in a shell."""
        if len(self.variables) < 400:
            self.variables[name] = value[:2000]

    def gpu(self, name: str) -> None:
        """Add one GPU (called once per device)."""
        if len(self.gpus) < 1024:
            self.gpus.append(name)

    def launch(
        self,
        tool: str,
        options: Mapping[str, str],
        text: str,
        *,
        source: str = "",
        places: Mapping[str, int] | None = None,
    ) -> None:
        """Add a start command or configuration, and where it stands."""
        if len(self.launches) < 200:
            self.launches.append(
                LaunchCommand(
                    tool=tool, options=dict(options), text=text[:400], source=source, places=dict(places or {})
                )
            )

    def size(self) -> int:
        """Return how many facts there are so far."""
        return self.done().count

    def done(self) -> Facts:
        """Return the facts."""
        facts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value
            for name in Facts.__slots__
            if (value := getattr(self, name)) is not None
        }
        facts["interfaces"] = tuple(dict.fromkeys(self.interfaces))
        if self.gpu_count is None:
            facts["gpu_count"] = len(self.gpus) or None
        return Facts(**facts)


def _refines(longer: str, shorter: str) -> bool:
    """Return whether one version says more than the other and contradicts nothing, as ``2.4.1+cu121`` and ``2.4``."""
    return longer != shorter and (longer.startswith((f"{shorter}.", f"{shorter}+")))
