"""What an engine is: the seam between a lock and whatever turns it into something that runs.

An engine builds a lock, says what is really installed in the result, and hands out the target on which the smoke test
starts its ranks. :data:`envsmith.builder.engines.ENGINES` lists them all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from envsmith.base.progress import Progress, silent
from envsmith.builder.engines.bases import known_image
from envsmith.builder.engines.content import content_facts, file_differences
from envsmith.errors import ContentError
from envsmith.frameworks import FRAMEWORKS
from envsmith.model.cell import Cell, CellId
from envsmith.model.lock import Lock
from envsmith.model.version import WORDS, is_same_version, minor_of, public

if TYPE_CHECKING:
    from envsmith.net.oci.image import OciImage
    from envsmith.smoke.run import SmokeTarget


# Lines of a failed step that are shown: enough for a compiler's error and pip's summary, less than a screen.
TAIL = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What an engine made of a lock.

    ``digest`` is ``sha256:…``: of an image's configuration, or over the content of a virtual environment. ``kind`` is
    ``image``, ``venv`` or ``conda``. ``reference`` is the image's tag or the folder, ``python`` the interpreter's path
    inside. ``image`` is the engine's own id of an image. ``usage`` is what its user may want, each with the command for it.
    """

    digest: str
    kind: str
    reference: str
    python: str
    cell: CellId | None = None
    image: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    usage: tuple[tuple[str, str], ...] = ()


class Engine(Protocol):
    """Builds locks. Every method raises only members of :class:`envsmith.errors.EnvsmithError`.

    An engine subclasses this and overrides what it does differently: the methods with a body are what an engine without
    images of its own does.
    """

    # What is installed is the Conda lock: nothing can be built without one.
    needs_conda_lock: ClassVar[bool] = False
    # Two builds at a time share the steps that they have in common.
    shares_steps: bool = False

    @classmethod
    def create(cls, *, offline: bool = False, channels: tuple[str, ...] = ()) -> Engine:
        """Return an engine that knows what the user said: no network, and Conda channels with their credentials."""
        del offline, channels
        return cls()

    @property
    def name(self) -> str:
        """Return the word of ``--engine``."""
        ...

    @property
    def images(self) -> ImageEngine | None:
        """Return the engine as one that makes images, or ``None``."""
        return None

    def available(self) -> str | None:
        """Return ``None`` when the engine can be used here and now, else one sentence that says why not.

        Never raises, quick (< 3 s).
        """
        ...

    def unused(self) -> str | None:
        """Return one sentence when the engine is installed but not set up here, so that it is used on request only."""
        return None

    def pythons(self, base: str | None = None) -> tuple[str, ...] | None:
        """Return the Python minors (``3.11``) that this engine can provide here, best first, or ``None`` for any.

        With ``base`` (``--base``) an engine that makes images returns that image's own.
        """
        ...

    def refuse(self, cell: Cell) -> None:
        """Raise ``EngineError`` for a cell that cannot be built here, before it is locked."""
        del cell

    def pin_image(self, lock: Lock, base: str | None = None, *, progress: Progress = silent) -> Lock:
        """Return ``lock`` with its image part: the base image (``base`` if given) and the distribution's packages."""
        return known_image(lock, base, progress=progress)

    def pin_wheels(self, lock: Lock, *, progress: Progress = silent) -> Lock:
        """Return ``lock`` with the wheels of its source distributions, where this engine builds them beforehand."""
        del progress
        return lock

    def build(self, lock: Lock, directory: Path, *, progress: Progress = silent) -> Built:
        """Build ``lock``.

        ``directory`` is the cell's own folder, where the engine keeps its context or environment between runs. A second
        call with the same lock resumes. Nothing half-written stays behind on a failure (``BuildError`` with the last
        lines of the step) or Ctrl-C (``InterruptedRunError``). Raises ``ContentError`` when what was installed differs
        from the lock.
        """
        ...

    def verify(self, lock: Lock, built: Built) -> str:
        """Compare what is installed with ``lock`` and return one sentence.

        Raises ``ContentError`` with every difference.
        """
        verify_content(lock, self.inspect(built))
        return f"{len(lock.pins)} distributions are what the lock says"

    def inspect(self, built: Built) -> dict[str, str]:
        """Return installed distributions (normalised name → version) and ``python`` (full version)."""
        ...

    def target(self, built: Built) -> SmokeTarget:
        """Return where the smoke test starts its ranks."""
        ...


class ImageEngine(Protocol):
    """What an engine that makes images can do beside building."""

    def build(
        self,
        lock: Lock,
        directory: Path,
        *,
        layout: Path | None = None,
        packing: str = "none",
        progress: Progress = silent,
    ) -> Built:
        """Build as :meth:`Engine.build` does. The image is also written to ``layout``, its layers packed by ``packing``."""
        ...

    def build_again(self, lock: Lock, layout: Path, *, progress: Progress = silent) -> OciImage:
        """Run every step of ``lock`` again and write the image to ``layout``. Nothing of it stays in the engine."""
        ...

    def has_image(self, digest: str) -> bool:
        """Return whether an image is here by its identity, or by the engine's own id."""
        ...


def verify_content(lock: Lock, installed: Mapping[str, str]) -> None:
    """Raise ``ContentError`` listing every distribution that is missing, extra or of another version than locked.

    ``installed`` is what :meth:`Engine.inspect` returned. ``pip``, ``setuptools`` and ``wheel`` are compared only when
    locked, because an interpreter may seed them. ``torch.version`` and ``cuda.version`` (as torch itself reports them)
    are compared with the cell when present.
    """
    locked = {pin.name: pin.version for pin in lock.pins}
    problems = [
        f"{name}: locked {version}, installed {installed.get(name, 'not at all')}"
        for name, version in sorted(locked.items())
        if not is_same_version(installed.get(name), version)
    ]
    seeded = {"pip", "setuptools", "wheel", "python"}
    problems += [
        f"{name}: installed {version}, not locked"
        for name, version in sorted(installed.items())
        if name not in locked and name not in seeded and "." not in name
    ]
    minor = lock.cell.components.get("python")
    python = installed.get("python", "")
    if minor and minor_of(python) != minor_of(minor):
        problems.append(f"python: the cell says {minor}, found {python or 'none'}")
    for key, component in (("torch.version", "torch"), ("cuda.version", "cuda")):
        problems += _reported(lock, installed, key, component)
    problems += _component_differences(lock, installed)
    problems += content_facts(lock, installed)
    hint = (
        "Lock the cell again and rebuild. If the error stays, an installed package has another version "
        "than its file name says."
    )
    if changed := file_differences(lock, installed):
        problems += changed
        hint = "Empty uv's cache, where the changed file may lie too (uv cache clean), then build again."
    if problems:
        raise ContentError(
            f"Cannot accept {lock.cell.id}: what is installed differs from its lock ({len(problems)} differences).",
            details=problems,
            hint=hint,
        )


# Components of a cell that are facts of the host or of the interpreter, not distributions in the environment.
_ELSEWHERE = frozenset({"python", "cuda", "driver", "gpu", "toolkit", "gcc", "glibc"})


def _component_differences(lock: Lock, installed: Mapping[str, str]) -> list[str]:
    """Compare every component that is a distribution, under its own name or NVIDIA's (``nvidia-nccl-cu12``).

    What a torch build carries inside itself (NCCL in older builds) is not a distribution and cannot be compared here.
    """
    problems = []
    for name, version in lock.cell.components.items():
        if name in _ELSEWHERE or version in WORDS:
            continue
        vendors = re.compile(rf"nvidia-{re.escape(name)}(-cu\d+)?")
        names = FRAMEWORKS[name].distributions if name in FRAMEWORKS else (name,)
        distributions = {n: v for n, v in installed.items() if n in names or vendors.fullmatch(n)}
        if not distributions and (name == "torch" or name in lock.cell.frameworks):
            problems.append(f"{name}: the cell says {version}, it is not installed")
        release = public(version)
        problems += [
            f"{n}: the cell says {version}, installed {v}"
            for n, v in distributions.items()
            if not is_same_version(public(v), release)
        ]
    return problems


def _reported(lock: Lock, installed: Mapping[str, str], key: str, component: str) -> list[str]:
    """Compare what torch says of itself with the cell.

    A wheel's local part (``+cpu``) is its build, compared through ``cuda``.
    """
    expected, reported = lock.cell.components.get(component), installed.get(key)
    if expected is None or reported is None:
        return []
    if component == "torch":
        expected, reported = expected.split("+")[0], reported.split("+")[0]
    return [] if expected == reported else [f"{component}: the cell says {expected}, torch itself says {reported}"]
