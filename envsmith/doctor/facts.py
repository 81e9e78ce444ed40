"""What is known about an environment, whoever told it: this machine, a pasted report, a log.

Readers write into a :class:`Draft`; :class:`Facts` is what judging works on. A fact that was not told is absent, never a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Stated:
    """One version as somebody said it. ``strength``: 4 read from the thing itself, 3 a tool's report, 2 a line of a log, 1 prose.

    ``exact`` is false when the text gives a bound, a list or words around the number (``>=1.24``, ``1.13 / 2.0 tried``).
    """

    version: str
    source: str
    strength: int
    exact: bool = True

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"version": self.version, "source": self.source, "strength": self.strength, "exact": self.exact}


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """One copy of a shared library. ``how`` says how the loader gets to it: preload, ld_library_path, rpath, system, wheel, conda."""

    name: str
    path: str
    version: str | None = None
    how: str = ""
    first: bool = False

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"name": self.name, "path": self.path, "version": self.version, "how": self.how, "first": self.first}


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One start command or configuration: the tool, its options, and the line it stands on.

    ``tool`` is torchrun, deepspeed, accelerate, colossalai, mpirun, srun, docker, deepspeed-config, hostfile or colossalai-plugin.
    ``source`` is the text it stands in and ``places`` the line (from 1) of it (under ``""``) and of its options, as far as they are known.
    """

    tool: str
    options: Mapping[str, str]
    text: str = ""
    source: str = ""
    places: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {"tool": self.tool, "options": dict(self.options), "text": self.text}


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """One input and what was understood of it: ``kinds`` as recognised, ``facts`` how many facts each gave."""

    source: str
    kinds: tuple[str, ...]
    lines: int
    characters: int
    facts: int = 0
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "source": self.source,
            "kinds": list(self.kinds),
            "lines": self.lines,
            "characters": self.characters,
            "facts": self.facts,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Everything that was told.

    ``variables`` are environment variables, ``limits`` bytes or counts (``memlock``, ``nofile``, ``shm``; -1 is unlimited), ``tools``
    programs with their path (``None``: known to be absent), ``host`` further facts by name (``os``, ``container``, ``fabric_manager`` …).
    """

    components: Mapping[str, Stated] = field(default_factory=dict)
    distributions: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    tools: Mapping[str, str | None] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    gpu_count: int | None = None
    libraries: tuple[Library, ...] = ()
    launches: tuple[Launch, ...] = ()
    host: Mapping[str, str] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    read: tuple[Read, ...] = ()

    def version(self, name: str) -> str | None:
        """The version of a component, or ``None``."""
        stated = self.components.get(name)
        return stated.version if stated else None

    @property
    def count(self) -> int:
        """How many facts there are: zero means nothing was understood."""
        groups: tuple[Iterable[Any], ...] = (
            self.components,
            self.distributions,
            self.variables,
            self.limits,
            self.tools,
            self.gpus,
            self.libraries,
            self.launches,
            self.host,
        )
        return sum(len(list(group)) for group in groups)

    def to_json(self) -> dict[str, object]:
        """Everything, as a snapshot keeps it."""
        return {
            "components": {name: stated.to_json() for name, stated in self.components.items()},
            "distributions": dict(self.distributions),
            "variables": dict(self.variables),
            "limits": dict(self.limits),
            "tools": dict(self.tools),
            "gpus": list(self.gpus),
            "gpu_count": self.gpu_count,
            "libraries": [library.to_json() for library in self.libraries],
            "launches": [launch.to_json() for launch in self.launches],
            "host": dict(self.host),
            "interfaces": list(self.interfaces),
            "disagreements": list(self.disagreements),
        }


# More than any honest report names; a hostile one stops here.
_MOST = 4000


class Draft:
    """Facts while they are gathered. The stronger statement about a component wins; a contradiction of equals is kept as a note."""

    def __init__(self) -> None:
        self.components: dict[str, Stated] = {}
        self.distributions: dict[str, str] = {}
        self.variables: dict[str, str] = {}
        self.limits: dict[str, int] = {}
        self.tools: dict[str, str | None] = {}
        self.gpus: list[str] = []
        self.gpu_count: int | None = None
        self.libraries: list[Library] = []
        self.launches: list[Launch] = []
        self.host: dict[str, str] = {}
        self.interfaces: list[str] = []
        self.disagreements: list[str] = []
        self.read: list[Read] = []

    def component(self, name: str, version: str, source: str, strength: int = 3, *, exact: bool = True) -> None:
        """State a version; ``version`` must already be one (see :func:`~envsmith.doctor.read.lines.version_in`)."""
        if len(self.components) >= _MOST:
            return
        stated = Stated(version=version, source=source, strength=strength, exact=exact)
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
        """An installed Python distribution, by its normalised name."""
        if len(self.distributions) < _MOST:
            self.distributions.setdefault(name, version)

    def variable(self, name: str, value: str) -> None:
        """An environment variable; the last value told counts, as in a shell."""
        if len(self.variables) < 400:
            self.variables[name] = value[:2000]

    def gpu(self, name: str) -> None:
        """One GPU (called once per device)."""
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
        """A start command or configuration, and where it stands."""
        if len(self.launches) < 200:
            self.launches.append(
                Launch(tool=tool, options=dict(options), text=text[:400], source=source, places=dict(places or {}))
            )

    def size(self) -> int:
        """How many facts there are so far."""
        return self.done().count

    def done(self) -> Facts:
        """The facts."""
        return Facts(
            components=dict(self.components),
            distributions=dict(self.distributions),
            variables=dict(self.variables),
            limits=dict(self.limits),
            tools=dict(self.tools),
            gpus=tuple(self.gpus),
            gpu_count=self.gpu_count if self.gpu_count is not None else (len(self.gpus) or None),
            libraries=tuple(self.libraries),
            launches=tuple(self.launches),
            host=dict(self.host),
            interfaces=tuple(dict.fromkeys(self.interfaces)),
            disagreements=tuple(self.disagreements),
            read=tuple(self.read),
        )


def _refines(longer: str, shorter: str) -> bool:
    """``2.4.1+cu121`` says more than ``2.4`` and contradicts nothing."""
    return longer != shorter and (longer.startswith((f"{shorter}.", f"{shorter}+")))
