"""The engines that build locks, and which of them is used."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass

from envsmith.builder.engines.base import Engine
from envsmith.errors import EngineError, UsageError

# The words of --engine and their classes, in the order in which they are tried when none is asked for.
ENGINES: dict[str, str] = {
    "docker": "envsmith.builder.engines.docker:DockerEngine",
    "podman": "envsmith.builder.engines.podman:PodmanEngine",
    "venv": "envsmith.builder.engines.venv:VenvEngine",
    "buildah": "envsmith.builder.engines.podman:BuildahEngine",
    "conda": "envsmith.builder.engines.conda:CondaEngine",
}
# These are used only when they are asked for.
ON_REQUEST = frozenset({"buildah", "conda"})


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineChoice:
    """The engine that is used, and one sentence why."""

    engine: Engine
    why: str


def load_engine(name: str, *, offline: bool = False, channels: tuple[str, ...] = ()) -> Engine:
    """Return the engine of a name. Raises ``UsageError`` for an unknown one."""
    if name not in ENGINES:
        raise UsageError(
            f"Cannot use the engine {name!r}: envsmith has no such engine.", hint=f"Choose one of {', '.join(ENGINES)}."
        )
    kind: type[Engine] = pkgutil.resolve_name(ENGINES[name])
    return kind.create(offline=offline, channels=channels)


def _instead_of(engine: Engine, *, offline: bool) -> str:
    """Return what to do where an engine that was asked for is not here: an image can be made by another one, or elsewhere."""
    if engine.images is None:
        return "Leave --engine out to use an engine of this host."
    others = [load_engine(word, offline=offline) for word in ENGINES if word != engine.name]
    here = [other.name for other in others if other.images is not None and not other.available()]
    if here:
        return f"Use --engine {here[0]}, which makes the same image and is here."
    return (
        f"Run envsmith lock with the same flags, and docker build with the folder that it writes where there is {engine.name}. "
        "For an environment here without an image, use --engine venv."
    )


def choose_engine(name: str | None = None, *, offline: bool = False, channels: tuple[str, ...] = ()) -> EngineChoice:
    """Return the engine asked for, or the first that can be used here.

    Raises ``EngineError`` that says what is missing.
    """
    if name is not None:
        engine = load_engine(name, offline=offline, channels=channels)
        if reason := engine.available():
            raise EngineError(f"Cannot use the engine {name}: {reason}.", hint=_instead_of(engine, offline=offline))
        return EngineChoice(engine=engine, why=f"{name} was asked for")
    reasons: list[str] = []
    for candidate in (word for word in ENGINES if word not in ON_REQUEST):
        engine = load_engine(candidate, offline=offline, channels=channels)
        reason = engine.available() or engine.unused()
        if reason is None:
            why = f"{candidate} is here" if not reasons else f"{candidate}, because {'; '.join(reasons)}"
            return EngineChoice(engine=engine, why=why)
        reasons.append(f"{candidate}: {reason}")
    raise EngineError(
        "Cannot choose an engine: none can be used here.",
        details=reasons,
        hint="Start a Docker engine, or install a CPython 3.10 to 3.13 with its venv module.",
    )
