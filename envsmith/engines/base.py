"""The seam between a lock and whatever can turn it into something that runs.

An engine builds a lock, says what is really installed in the result, and hands out the target on which the smoke test
starts its ranks. ``docker`` makes an image, ``venv`` a virtual environment on this host, ``conda`` a Conda environment; each satisfies :class:`Engine`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from packaging.version import InvalidVersion
from packaging.version import Version as Pep440

from envsmith.engines.content import content_facts, file_differences
from envsmith.errors import BuildError, ContentError, EngineError
from envsmith.model.cell import CellId
from envsmith.model.lock import Lock
from envsmith.model.version import WORDS
from envsmith.progress import Progress, silent

if TYPE_CHECKING:
    from envsmith.smoke.run import Target


# Lines of a failed step that are shown: enough for a compiler's error and pip's summary, less than a screen.
TAIL = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What an engine made of a lock.

    ``digest`` is ``sha256:…``: the image id, or for a virtual environment the digest over its content; ``kind`` is ``image``, ``venv`` or ``conda``;
    ``reference`` is the image's tag or the folder; ``python`` the interpreter's path inside.
    """

    digest: str
    kind: str
    reference: str
    python: str
    cell: CellId | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@runtime_checkable
class Engine(Protocol):
    """Builds locks. Every method raises only members of :class:`envsmith.errors.EnvsmithError`."""

    @property
    def name(self) -> str:
        """``docker``, ``podman``, ``buildah``, ``venv`` or ``conda``: the word of ``--engine``."""
        ...

    def available(self) -> str | None:
        """``None`` when the engine can be used here and now, else one sentence that says why not. Never raises, quick (< 3 s)."""
        ...

    def pythons(self) -> tuple[str, ...] | None:
        """The Python minors (``3.11``) that this engine can provide here, best first; ``None`` when any can be had."""
        ...

    def build(self, lock: Lock, directory: Path, *, progress: Progress = silent) -> Built:
        """Realise ``lock``; ``directory`` is the cell's own folder, where the engine keeps its context or environment between runs.

        A second call with the same lock takes up what is done. Nothing half-written stays behind on a failure (``BuildError`` with the
        last lines of the step) or Ctrl-C (``InterruptedRunError``); ``ContentError`` when what was installed differs from the lock.
        """
        ...

    def target(self, built: Built) -> Target:
        """Where the smoke test starts its ranks."""
        ...

    def inspect(self, built: Built) -> dict[str, str]:
        """Installed distributions (normalised name to version) and ``python`` (full version), read from inside the result."""
        ...


def failed_step(step: str, lines: list[str], *, hint: str) -> BuildError:
    """The error of a step that failed: its last :data:`TAIL` lines and what to do."""
    return BuildError(f"{step} failed", details=lines[-TAIL:], hint=hint)


def verify_content(lock: Lock, installed: Mapping[str, str]) -> None:
    """``ContentError`` listing every distribution that is missing, extra or of another version than ``lock`` says.

    ``installed`` is what :meth:`Engine.inspect` returned; ``pip``, ``setuptools`` and ``wheel`` are compared only when locked, because an
    interpreter may seed them. ``torch.version`` and ``cuda.version`` (as torch itself reports them) are compared with the cell when present.
    """
    locked = {pin.name: pin.version for pin in lock.pins}
    problems = [
        f"{name}: locked {version}, installed {installed.get(name, 'not at all')}"
        for name, version in sorted(locked.items())
        if not _same(installed.get(name), version)
    ]
    seeded = {"pip", "setuptools", "wheel", "python"}
    problems += [
        f"{name}: installed {version}, not locked"
        for name, version in sorted(installed.items())
        if name not in locked and name not in seeded and "." not in name
    ]
    minor = lock.cell.components.get("python")
    found = installed.get("python", "")
    if minor and ".".join(found.split(".")[:2]) != ".".join(minor.split(".")[:2]):
        problems.append(f"python: the cell says {minor}, found {found or 'none'}")
    for key, component in (("torch.version", "torch"), ("cuda.version", "cuda")):
        problems += _told(lock, installed, key, component)
    problems += _labelled(lock, installed)
    problems += content_facts(lock, installed)
    problems += file_differences(lock, installed)
    if problems:
        raise ContentError(
            f"cell {lock.cell.id}: what is installed differs from its lock ({len(problems)} differences)",
            details=problems,
            hint="lock the cell again and rebuild; when it stays, an installed package carries another version than its file name says",
        )


def _same(found: str | None, wanted: str) -> bool:
    """Equal as PEP 440 versions: metadata may say ``2024.01`` where the file name says ``2024.1``."""
    if found is None or found == wanted:
        return found is not None
    try:
        return Pep440(found) == Pep440(wanted)
    except InvalidVersion:
        return False


# Components of a cell that are facts of the host or of the interpreter, not distributions in the environment.
_ELSEWHERE = frozenset({"python", "cuda", "driver", "gpu", "toolkit", "gcc", "glibc"})


def _labelled(lock: Lock, installed: Mapping[str, str]) -> list[str]:
    """Every component of the cell that is a distribution, under its own name or NVIDIA's (``nvidia-nccl-cu12``), has the cell's version.

    What a torch build carries inside itself (NCCL in older builds) is no distribution and cannot be compared here.
    """
    problems = []
    for name, wanted in lock.cell.components.items():
        if name in _ELSEWHERE or wanted in WORDS:
            continue
        vendors = re.compile(rf"nvidia-{re.escape(name)}(-cu\d+)?")
        found = {n: v for n, v in installed.items() if n == name or vendors.fullmatch(n)}
        if not found and (name == "torch" or name in lock.cell.frameworks):
            problems.append(f"{name}: the cell says {wanted}, it is not installed")
        public = wanted.partition("+")[0]
        problems += [
            f"{n}: the cell says {wanted}, installed {v}"
            for n, v in found.items()
            if not _same(v.partition("+")[0], public)
        ]
    return problems


def _told(lock: Lock, installed: Mapping[str, str], key: str, component: str) -> list[str]:
    """What torch says of itself against the cell; a wheel's local part (``+cpu``, ``+cu128``) is its build, compared through ``cuda``."""
    wanted, told = lock.cell.components.get(component), installed.get(key)
    if wanted is None or told is None:
        return []
    if component == "torch":
        wanted, told = wanted.split("+")[0], told.split("+")[0]
    return [] if wanted == told else [f"{component}: the cell says {wanted}, torch itself says {told}"]


@contextlib.contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Turn what the SDK and its transport raise into ``EngineError``."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except (DockerException, RequestException) as error:
        explanation = getattr(error, "explanation", None) or str(error)
        raise EngineError(
            f"{what}: {str(explanation)[:400]}", hint="is the engine still running? (docker info)"
        ) from error
