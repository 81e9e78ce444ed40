from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from envsmith.engines.base import Engine
from envsmith.engines.conda import CondaEngine
from envsmith.engines.docker import DockerEngine
from envsmith.engines.podman import PodmanEngine
from envsmith.engines.venv import VenvEngine
from envsmith.errors import EngineError, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """The engine that is used, and one sentence why."""

    engine: Engine
    why: str


# The words of ``--engine``, in the order in which they are tried when none is given; the others only when they are asked for.
ENGINES = ("docker", "podman", "venv")
ON_REQUEST = ("buildah", "conda")


def _engine(name: str) -> Engine:
    if name == "docker":
        return DockerEngine()
    if name in {"podman", "buildah"}:
        return PodmanEngine(tool=name)
    if name == "conda":
        return CondaEngine()

    return VenvEngine()


def choose_engine(name: str | None = None) -> Choice:
    """The engine asked for, or the first that can be used here; ``EngineError`` says what is missing, ``UsageError`` an unknown name."""
    if name is not None and name not in {*ENGINES, *ON_REQUEST}:
        raise UsageError(f"unknown engine {name!r}", hint=f"choose one of {', '.join((*ENGINES, *ON_REQUEST))}")
    if name is not None:
        engine = _engine(name)
        if reason := engine.available():
            raise EngineError(f"engine {name} cannot be used: {reason}", hint="leave --engine out to use what is here")
        return Choice(engine=engine, why=f"{name} was asked for")
    reasons: list[str] = []
    for candidate in ENGINES:
        engine = _engine(candidate)
        reason = engine.available() or _unused(engine)
        if reason is None:
            why = f"{candidate} is here" if not reasons else f"{candidate}, because {'; '.join(reasons)}"
            return Choice(engine=engine, why=why)
        reasons.append(f"{candidate}: {reason}")
    raise EngineError(
        "no engine can be used here",
        details=reasons,
        hint="start a Docker engine, or install a CPython 3.10 to 3.13 with its venv module",
    )


def _unused(engine: Engine) -> str | None:
    """Why an engine that could be used is not taken unasked: podman is often installed as a part of something else, and never set up."""
    ask: Callable[[], str | None] | None = getattr(engine, "unused", None)
    return ask() if ask else None
