"""A ready wheel: a compiled extension at an address outside the package index."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from envsmith.model.cell import Cell, Platform, WheelPolicy
from envsmith.model.rule import Evidence
from envsmith.model.version import minor_of, version_key
from envsmith.model.wheel_name import NULL, read_wheel_name

_MANYLINUX = re.compile(r"manylinux_2_(\d+)_")
_OLD_NAMES = {"manylinux1_": 5, "manylinux2010_": 12, "manylinux2014_": 17}


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelTarget:
    """What a wheel must fit: one Python, one torch build, one platform.

    ``cxx11_abi`` is the C++ ABI of that torch build, ``None`` where it was not measured. ``glibc`` is the host's, and
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
    def of(cls, cell: Cell, *, cxx11_abi: bool | None) -> WheelTarget:
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
    run-time requirements, ``None`` where they were not read. ``gpu`` is what it holds machine code for, when measured.
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
        """Return the file's name, which has its Python and platform tags."""
        return _file_of(self.address)

    @property
    def name(self) -> str:
        """Return the word that a resolver knows it by."""
        return self.distribution

    @property
    def release(self) -> str:
        """Return the release that it is a build of."""
        return self.version.partition("+")[0]

    def admitted(self, policy: WheelPolicy) -> bool:
        """Return whether a lock under this policy may take it: it is trusted, and its requirements are known."""
        trusted = policy is WheelPolicy.LISTED or (policy is WheelPolicy.OFFICIAL and self.official)
        return trusted and self.requires is not None

    def reasons_against(self, target: WheelTarget) -> tuple[str, ...]:
        """Return why it does not fit. Empty for a wheel that fits."""
        checks = (
            self.against_variant(),
            self.against_python(target.python),
            self.against_platform(target.platform),
            self.against_torch(target.torch, target.cxx11_abi),
            self.against_cuda(target.cuda),
            self.against_glibc(target.glibc),
            self.against_gpus(target.gpus),
        )
        return tuple(reason for reason in checks if reason)

    def against_variant(self) -> str:
        """Return that it is a variant, for hardware which only its index describes, or nothing."""
        label = read_wheel_name(self.filename).variant
        return f"is the variant {label}, for the hardware that its publisher says" if label not in {"", NULL} else ""

    def against_python(self, python: str) -> str:
        """Return why it does not run on a Python minor, or nothing."""
        minor = int(python.partition(".")[2] or 0)
        for tag in read_wheel_name(self.filename).tags:
            if tag.interpreter == f"cp3{minor}" and not tag.abi.endswith("t"):
                return ""
            oldest = re.fullmatch(r"(?:py|cp)3(\d*)", tag.interpreter)
            from_then_on = tag.abi == "abi3" or tag.interpreter.startswith("py")
            if from_then_on and oldest and int(oldest[1] or 0) <= minor:
                return ""
        words = sorted({tag.interpreter + "+" * (tag.abi == "abi3") for tag in read_wheel_name(self.filename).tags})
        return f"built for Python {', '.join(words)}, not for {python}"

    def against_platform(self, platform: Platform) -> str:
        """Return why it does not run on a platform, or nothing."""
        names = sorted({tag.platform for tag in read_wheel_name(self.filename).tags})
        if any(name == "any" or name.endswith(f"_{platform.machine}") for name in names):
            return ""
        return f"built for {', '.join(names)}, not for {platform.value}"

    def against_torch(self, build: str, cxx11_abi: bool | None) -> str:  # noqa: FBT001 - a fact with three values
        """Return why it does not link with a build of torch of that C++ ABI (``None``: not known), or nothing."""
        if self.torch is None:
            return "its publisher does not say for which torch it was built"
        if self.torch not in {"any", minor_of(build)}:
            return f"built for torch {self.torch}, not for {minor_of(build)}"
        if self.cxx11_abi in {None, cxx11_abi}:
            return ""
        own = "the new" if self.cxx11_abi else "the old"
        present = "an unknown" if cxx11_abi is None else "the new" if cxx11_abi else "the old"
        return f"built with {own} C++ ABI, and torch {build} has {present} one"

    def against_cuda(self, runtime: str) -> str:
        """Return why it does not fit the CUDA of a torch build, or nothing.

        Majors must be equal. A build for a later minor may use what an earlier runtime lacks.
        """
        if self.cuda is None:
            return "its publisher does not say for which CUDA it was built"
        if self.cuda == "any":
            return ""
        built, present = self.cuda.split("."), runtime.split(".")
        if built[0] != present[0]:
            return f"built for CUDA {self.cuda}, not for {runtime}"
        if len(built) > 1 and len(present) > 1 and int(built[1]) > int(present[1]):
            return f"built for CUDA {self.cuda}, which is later than {runtime}"
        return ""

    def against_glibc(self, present: str | None) -> str:
        """Return why it does not load on a host's glibc, or nothing."""
        needed = self.glibc or glibc_of(self.filename)
        if needed is None or present is None:
            return ""
        have, need = version_key(present), version_key(needed)
        return f"needs glibc {needed}, not {present}" if have and need and have < need else ""

    def against_gpus(self, cards: tuple[str, ...]) -> str:
        """Return for which GPUs it has no machine code. Code of a minor runs on later minors of its major."""
        lacking = [name for name in cards if self.gpu and not any(_runs(code, name) for code in self.gpu)]
        return f"has code for {', '.join(self.gpu)}, not for {', '.join(lacking)}" if lacking else ""


@lru_cache(maxsize=4096)
def _file_of(address: str) -> str:
    return unquote(address.rpartition("/")[2])


def glibc_of(filename: str) -> str | None:
    """Return the oldest glibc that a wheel's tags promise to run on. ``None`` for a tag that promises nothing."""
    minors = [int(m[1]) for tag in read_wheel_name(filename).tags if (m := _MANYLINUX.match(tag.platform))]
    minors += [
        minor
        for tag in read_wheel_name(filename).tags
        for word, minor in _OLD_NAMES.items()
        if tag.platform.startswith(word)
    ]
    return f"2.{min(minors)}" if minors else None


def _runs(code: str, name: str) -> bool:
    have, want = code.removeprefix("sm_"), name.removeprefix("sm_")
    return have[:-1] == want[:-1] and have[-1:] <= want[-1:]
