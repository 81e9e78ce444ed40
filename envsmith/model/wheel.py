"""A ready wheel: a compiled extension that somebody built, at an address outside the package index."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

from envsmith.model.cell import Cell, Platform
from envsmith.model.lock import Artifact
from envsmith.model.rule import Evidence
from envsmith.model.version import minor_of, version_key

_MANYLINUX = re.compile(r"manylinux_2_(\d+)_")
_OLD_NAMES = {"manylinux1_": 5, "manylinux2010_": 12, "manylinux2014_": 17}


class Policy(str, Enum):
    """Whose ready wheels a lock may take. Each policy admits what the one before it admits."""

    NONE = "none"
    OFFICIAL = "official"
    LISTED = "listed"


DEFAULT_POLICY = Policy.OFFICIAL


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a wheel must fit: one Python, one torch build, one platform.

    ``cxx11_abi`` is the C++ ABI of that torch build, ``None`` where nobody measured it. ``glibc`` is the host's, and
    ``gpus`` are ``sm_NN``.
    """

    python: str
    torch: str
    cuda: str
    platform: Platform
    cxx11_abi: bool | None = None
    glibc: str | None = None
    gpus: tuple[str, ...] = ()

    @classmethod
    def of(cls, cell: Cell, *, cxx11_abi: bool | None) -> Target:
        """Return the target that a cell is."""
        parts = cell.components
        gpus = tuple(word.strip() for word in parts.get("gpu", "").split(",") if word.strip() not in {"", "none"})
        return cls(
            python=minor_of(parts["python"]),
            torch=parts["torch"],
            cuda=parts.get("cuda", "cpu"),
            platform=cell.platform,
            cxx11_abi=cxx11_abi,
            glibc=parts.get("glibc"),
            gpus=gpus,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyWheel:
    """One wheel of the catalogue.

    ``version`` is the one in its METADATA, ``release`` the public part of it. ``torch`` is a minor (``2.8``), ``cuda``
    a major or a minor (``12``, ``12.8``); ``None`` means that the publisher does not say. ``requires`` are its
    run-time requirements, ``None`` where nobody read them. ``gpu`` is what it holds machine code for, when measured.
    """

    distribution: str
    version: str
    address: str
    sha256: str
    publisher: str
    official: bool
    evidence: tuple[Evidence, ...]
    torch: str | None = None
    cuda: str | None = None
    cxx11_abi: bool | None = None
    glibc: str | None = None
    gpu: tuple[str, ...] = ()
    requires: tuple[str, ...] | None = None

    @property
    def filename(self) -> str:
        """The file's name, which has its Python and platform tags."""
        return unquote(self.address.rpartition("/")[2])

    @property
    def name(self) -> str:
        """The word that a resolver knows it by."""
        return self.distribution

    @property
    def release(self) -> str:
        """The release that it is a build of."""
        return self.version.partition("+")[0]

    @property
    def artifact(self) -> Artifact:
        """As it stands in a lock."""
        return Artifact(filename=self.filename, sha256=self.sha256, url=self.address)

    def admitted(self, policy: Policy) -> bool:
        """Return whether a lock under this policy may take it: it is trusted, and its requirements are known."""
        trusted = policy is Policy.LISTED or (policy is Policy.OFFICIAL and self.official)
        return trusted and self.requires is not None

    def reasons_against(self, target: Target) -> tuple[str, ...]:
        """Return why it does not fit. Empty for a wheel that fits."""
        checks = (
            _python(self.filename, target.python),
            _platform(self.filename, target.platform),
            _torch(self.torch, target.torch),
            _cuda(self.cuda, target.cuda),
            _abi(self, target),
            _glibc(self.filename, self.glibc, target.glibc),
            _gpus(self.gpu, target.gpus),
        )
        return tuple(reason for reason in checks if reason)


def _python(filename: str, python: str) -> str:
    minor = int(python.partition(".")[2] or 0)
    words = sorted({tag.interpreter + ("" if tag.abi != "abi3" else "+") for tag in _tags(filename)})
    for tag in _tags(filename):
        if tag.interpreter in {"py3", f"cp3{minor}"} and not tag.abi.endswith("t"):
            return ""
        minimum = re.fullmatch(r"cp3(\d+)", tag.interpreter)
        if tag.abi == "abi3" and minimum and int(minimum[1]) <= minor:
            return ""
    return f"built for Python {', '.join(words)}, not for {python}"


def _tags(filename: str) -> list[Tag]:
    return sorted(parse_wheel_filename(filename)[3], key=str)


def _platform(filename: str, platform: Platform) -> str:
    names = sorted({tag.platform for tag in _tags(filename)})
    if any(name == "any" or name.endswith(f"_{platform.machine}") for name in names):
        return ""
    return f"built for {', '.join(names)}, not for {platform.value}"


def _torch(torch: str | None, build: str) -> str:
    if torch is None:
        return "its publisher does not say for which torch it was built"
    return "" if torch in {"any", minor_of(build)} else f"built for torch {torch}, not for {minor_of(build)}"


def _cuda(cuda: str | None, runtime: str) -> str:
    """Compare majors. Within one major a build for a later minor may use what an earlier runtime lacks."""
    if cuda is None:
        return "its publisher does not say for which CUDA it was built"
    if cuda == "any":
        return ""
    built, present = cuda.split("."), runtime.split(".")
    if built[0] != present[0]:
        return f"built for CUDA {cuda}, not for {runtime}"
    if len(built) > 1 and len(present) > 1 and int(built[1]) > int(present[1]):
        return f"built for CUDA {cuda}, which is later than {runtime}"
    return ""


def _abi(wheel: ReadyWheel, target: Target) -> str:
    if None in {wheel.cxx11_abi, target.cxx11_abi} or wheel.cxx11_abi == target.cxx11_abi:
        return ""
    built, present = (f"the {'new' if abi else 'old'} C++ ABI" for abi in (wheel.cxx11_abi, target.cxx11_abi))
    return f"built with {built}, and torch {target.torch} has {present}"


def glibc_of(filename: str) -> str | None:
    """Return the oldest glibc that a wheel's tags promise to run on. ``None`` for a tag that promises nothing."""
    minors = [int(m[1]) for tag in _tags(filename) if (m := _MANYLINUX.match(tag.platform))]
    minors += [minor for tag in _tags(filename) for word, minor in _OLD_NAMES.items() if tag.platform.startswith(word)]
    return f"2.{min(minors)}" if minors else None


def _glibc(filename: str, measured: str | None, present: str | None) -> str:
    needed = measured or glibc_of(filename)
    if needed is None or present is None:
        return ""
    have, need = version_key(present), version_key(needed)
    return f"needs glibc {needed}, not {present}" if have and need and have < need else ""


def _gpus(gpu: tuple[str, ...], cards: tuple[str, ...]) -> str:
    """Return the GPUs without machine code. Code of a minor runs on later minors of its major."""
    lacking = [name for name in cards if gpu and not any(_runs(code, name) for code in gpu)]
    return f"has code for {', '.join(gpu)}, not for {', '.join(lacking)}" if lacking else ""


def _runs(code: str, name: str) -> bool:
    have, want = code.removeprefix("sm_"), name.removeprefix("sm_")
    return have[:-1] == want[:-1] and have[-1:] <= want[-1:]
