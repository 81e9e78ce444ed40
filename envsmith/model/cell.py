"""The request that goes into the solver, the machine that it is for, and the cell that comes out."""

from __future__ import annotations

import hashlib
import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from enum import Enum

from envsmith.base.json_types import JsonDict
from envsmith.errors import UsageError
from envsmith.frameworks import FRAMEWORKS, frameworks_of
from envsmith.model.project_name import normal_name
from envsmith.model.version import Spec, parse_version, version_key

# What the image of a cell is for: to train, or to compile operators in as well.
RUNTIME, TRAIN, DEVEL = "runtime", "train", "devel"
FLAVOURS = (RUNTIME, TRAIN, DEVEL)


class Platform(str, Enum):
    """A platform by its Conda name. ``machine`` is what ``uname -m`` prints there."""

    LINUX_64 = "linux-64"
    LINUX_AARCH64 = "linux-aarch64"

    @property
    def machine(self) -> str:
        """Return ``x86_64`` or ``aarch64``."""
        return "x86_64" if self is Platform.LINUX_64 else "aarch64"

    @property
    def docker(self) -> str:
        """Return the OCI name: ``linux/amd64`` or ``linux/arm64``."""
        return "linux/amd64" if self is Platform.LINUX_64 else "linux/arm64"

    @classmethod
    def parse(cls, text: str) -> Platform:
        """Accept Conda, OCI and ``uname`` spellings. ``ValueError`` names the two that exist."""
        for member in cls:
            if text.strip().lower() in {
                member.value,
                member.machine,
                member.docker,
                member.docker.split("/")[1],
                "linux-" + member.machine,
            }:
                return member
        raise ValueError(f"unknown platform {text!r}: choose linux-64 or linux-aarch64")

    @classmethod
    def host(cls) -> Platform:
        """Return the platform of this machine. Anything that is not 64-bit Arm is treated as linux-64."""
        return cls.LINUX_AARCH64 if platform.machine() in {"aarch64", "arm64"} else cls.LINUX_64


class WheelPolicy(str, Enum):
    """Whose ready wheels a lock may take. Each policy admits what the one before it admits."""

    NONE = "none"
    OFFICIAL = "official"
    LISTED = "listed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Where a cell will run: ``driver`` is that of NVIDIA. ``gpus`` are names as the driver gives them, ``architectures`` are ``sm_NN``.

    ``pythons`` are the minor releases that environments can be made with. What is not known or not there is empty.
    """

    driver: str | None = None
    gpus: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    glibc: str | None = None
    pythons: tuple[str, ...] = ()
    platform: Platform = Platform.LINUX_64

    @property
    def has_gpus(self) -> bool:
        """Return whether anything is known that decides between builds of torch."""
        return bool(self.driver or self.architectures)

    def __str__(self) -> str:
        """Return ``driver 535.183.01, 4 x NVIDIA A100-SXM4-80GB (sm_80)``."""
        named = [f"{number} x {name}" for name, number in Counter(self.gpus).items()]
        architectures = ", ".join(self.architectures)
        gpus = f"{', '.join(named)} ({architectures})" if named and architectures else architectures
        return ", ".join(part for part in (f"driver {self.driver}" if self.driver else "no driver", gpus) if part)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is wanted. Names are component names, already parsed.

    ``frameworks`` and ``constraints`` map a component to a spec (``Spec.parse("*")`` when only presence is asked for).
    Every component named here is in the cell. ``driver`` is the version that the host has. ``gpus`` are ``sm_NN``, all
    of which the cell must run on. ``exclude_newer`` (ISO day) hides releases published after it. ``narrowed`` are
    constraints that the program itself adds (``python`` to the interpreters of this host), each with the reason that a
    refusal or ``why`` tells. An answer can be locked, unless ``lockable`` is false, with the ready ``wheels`` that its
    lock may take. ``date`` (ISO day) prefers what was newest on that day, and forbids nothing. ``packages`` are
    requirements that the lock meets as well, ``bounds`` such that install nothing, each with where it stands.
    ``origins`` say where a distribution is asked for. ``machine`` is where the cell will run: what the request does not
    say of driver and GPUs is taken from it, as long as there is such a cell.

    For convenience ``frameworks`` may be a list of names, and a spec may be given as text. ``ValueError`` when it is
    malformed, ``UsageError`` for a driver or GPU that is not a version and a date that is not a day.
    """

    frameworks: Mapping[str, Spec] = field(default_factory=dict)
    constraints: Mapping[str, Spec] = field(default_factory=dict)
    driver: str | None = None
    gpus: tuple[str, ...] = ()
    platform: Platform = Platform.LINUX_64
    exclude_newer: str | None = None
    date: str | None = None
    packages: tuple[str, ...] = ()
    bounds: tuple[tuple[str, str], ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    narrowed: Mapping[str, tuple[Spec, str]] = field(default_factory=dict)
    lockable: bool = True
    wheels: WheelPolicy = WheelPolicy.OFFICIAL
    machine: Machine | None = None

    def __post_init__(self) -> None:
        for name in ("frameworks", "constraints"):
            object.__setattr__(self, name, _specs(getattr(self, name)))
        driver = None if self.driver is None else _version(self.driver, "--driver")
        object.__setattr__(self, "driver", driver)
        object.__setattr__(self, "gpus", tuple(dict.fromkeys(_version(gpu, "--gpu") for gpu in self.gpus)))
        for day, flag in ((self.exclude_newer, "--exclude-newer"), (self.date, "--date")):
            if day:
                _check_day(day, flag)

    @property
    def here(self) -> Request:
        """Return the request with what the machine says, and without it where it is for another kind of machine."""
        machine = self.machine
        builds = [str(spec) for name, spec in self.constraints.items() if name in ("cuda", "torch")]
        if machine is None or machine.platform is not self.platform or any("cpu" in build for build in builds):
            return replace(self, machine=None)
        gpus = self.gpus or machine.architectures
        return replace(self, driver=self.driver or machine.driver, gpus=gpus, machine=None)

    def on_pythons(self, minors: Iterable[str], reason: str) -> Request:
        """Return the request with these Pythons alone, of those that it admits."""
        return self.narrow("python", Spec.parse(" || ".join(f"=={minor}.*" for minor in minors)), reason)

    def narrow(self, component: str, spec: Spec, reason: str) -> Request:
        """Return the request with these releases of a component alone, of those that it admits."""
        if earlier := self.narrowed.get(component):
            spec, reason = earlier[0].meet(spec), f"{reason}, and {earlier[1]} asks for {earlier[0]}"
        return replace(self, narrowed={**self.narrowed, component: (spec, reason)})


def _specs(specs: Mapping[str, Spec | str] | Iterable[str]) -> dict[str, Spec]:
    pairs = specs.items() if isinstance(specs, Mapping) else ((name, "*") for name in specs)
    return {name: Spec.parse(spec) if isinstance(spec, str) else spec for name, spec in pairs}


def _version(text: str, flag: str) -> str:
    try:
        return parse_version(text)
    except ValueError as error:
        raise UsageError(
            f"Cannot read {flag}: {error}.", hint="Give a version such as 535.54.03, or sm_90 for a GPU."
        ) from error


def _check_day(text: str, flag: str) -> None:
    """Refuse what is not an ISO day by ``UsageError``."""
    try:
        day = date.fromisoformat(text).isoformat()
    except ValueError:
        day = ""
    if day != text:
        raise UsageError(f"Cannot read {flag} {text!r}: it is not a day.", hint="Write it as 2026-11-20.")


# Components whose release is spelt without dots in an id, as wheel tags do: cu128, py312, sm90.
_DOTLESS = frozenset({"cuda", "python"})
# As components.yaml spells them (`short`); frameworks state theirs, every other component has its own name. A test
# keeps the two equal.
_SHORT = {
    "cuda": "cu",
    "python": "py",
    "transformer-engine": "te",
    "flash-attn": "fa",
    "huggingface-hub": "hub",
    "mpi4py": "mpipy",
    "nvidia-modelopt": "modelopt",
    "nvidia-resiliency-ext": "nvrx",
    "nvidia-ml-py": "nvml",
    "mamba-ssm": "mamba",
    "causal-conv1d": "conv",
    "grouped-gemm": "gg",
    "galore-torch": "galore",
    "ngc-pytorch": "ngc",
    "ngc-nemo": "ngcnemo",
    "pybind11": "pybind",
    "nemo-toolkit": "nemo",
    "flashinfer-python": "flashinfer",
    "ms-swift": "swift",
    "torchtitan": "titan",
    "liger-kernel": "liger",
    "bitsandbytes": "bnb",
    "safetensors": "st",
    "cupy-cuda12x": "cupytwelve",
    "h5py": "hdf",
    "cupy-cuda13x": "cupythirteen",
    "nv-grouped-gemm": "nvgg",
}
_TOKEN = re.compile(r"([a-z_]+)(\d[0-9a-z.+_!]*)")
_FURTHER = re.compile(r"with\.([0-9a-f]{8})")


def short_names() -> dict[str, str]:
    """Return how cell ids spell the components that they do not spell by their own name."""
    frameworks = FRAMEWORKS.values()
    parts = {name: short for framework in frameworks for name, short in framework.parts.items()}
    return {framework.name: framework.short for framework in frameworks} | parts | _SHORT


@dataclass(frozen=True, slots=True)
class CellId:
    """The name of a cell: what is chosen. What a wheel bundles and what the host is follow from it or stay outside.

    ``str`` gives ``ds0.19.8-torch2.13.0-cu130-py312`` (``-aarch64`` at the end on that platform), a valid image tag.
    ``parse`` is its inverse. ``further`` is a digest of the requirements that are met as well, where there are some
    (``-with.3fa9c1d2``).
    """

    components: tuple[tuple[str, str], ...]
    platform: Platform = Platform.LINUX_64
    further: str = ""

    @classmethod
    def parse(cls, text: str) -> CellId:
        """Parse the id of a cell. ``ValueError`` says which token is not understood."""
        tokens = text.strip().split("-")
        platform = Platform.LINUX_64
        if tokens[-1] == "aarch64":
            platform = Platform.LINUX_AARCH64
            tokens.pop()
        further = _FURTHER.fullmatch(tokens[-1])
        if further:
            tokens.pop()
        names = {short: name for name, short in short_names().items()}
        parsed: dict[str, str] = {}
        for token in tokens:
            if token == "cpu":  # noqa: S105 - a word of an id
                parsed["cuda"] = "cpu"
                continue
            match = _TOKEN.fullmatch(token)
            if not match:
                raise ValueError(
                    f"{text!r} is not a cell id: {token!r} is not NAMEVERSION "
                    "(example: ds0.19.8-torch2.13.0-cu130-py312)"
                )
            name = names.get(match[1], match[1].replace("_", "-"))
            parsed[name] = _undot(match[2]) if name in _DOTLESS else match[2].replace("_", "+")
            version_key(parsed[name])
        if "torch" in parsed and "cuda" in parsed:
            cuda = parsed["cuda"]
            parsed["torch"] = f"{parsed['torch']}+{'cpu' if cuda == 'cpu' else 'cu' + cuda.replace('.', '')}"
        return cls(tuple(parsed.items()), platform, further[1] if further else "")

    def __str__(self) -> str:
        tokens = []
        names = short_names()
        for name, version in self.components:
            text = version.split("+", maxsplit=1)[0] if name == "torch" else version.replace("+", "_")
            short = names.get(name, name.replace("-", "_"))
            if name == "cuda" and version == "cpu":
                tokens.append("cpu")
            else:
                tokens.append(short + (text.replace(".", "") if name in _DOTLESS else text))
        if self.further:
            tokens.append(f"with.{self.further}")
        if self.platform is Platform.LINUX_AARCH64:
            tokens.append("aarch64")
        return "-".join(tokens)


def _undot(digits: str) -> str:
    """Return ``312`` as ``3.12``, ``130`` as ``13.0``: one digit of Python major, two of CUDA major, the rest minor."""
    head = 1 if digits.startswith("3") else 2
    return f"{digits[:head]}.{digits[head:]}" if digits[head:] else digits


def distribution_of(line: str) -> str:
    """Return the normalised name that a requirement begins with."""
    return normal_name(re.split(r"[^\w.-]", line.strip(), maxsplit=1)[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One release per component that satisfies every rule.

    ``components`` is ordered: frameworks, torch, cuda, python, then what was asked for, then what follows (nccl, cudnn,
    triton), then the host (driver, gpu). ``chosen`` are the names that stand in the id. ``index`` says where the torch
    build is found (``default`` or ``pytorch``). ``further`` are requirements of packages that are installed beside the
    components. The package resolver chooses their releases.
    """

    components: Mapping[str, str]
    chosen: tuple[str, ...]
    platform: Platform = Platform.LINUX_64
    index: str = "default"
    further: tuple[str, ...] = ()

    @property
    def id(self) -> CellId:
        """Return the name under which locks, images and records are filed."""
        digest = hashlib.sha256("\n".join(self.further).encode()).hexdigest()[:8] if self.further else ""
        return CellId(tuple((name, self.components[name]) for name in self.chosen), self.platform, digest)

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Names of the frameworks that the cell is for, in order."""
        return frameworks_of(self.components)

    @property
    def torch_backend(self) -> str:
        """Return uv's word for the index of the torch build (``cu126``, ``cpu``), empty for the default index."""
        if self.index != "pytorch":
            return ""
        return self.components.get("torch", "").partition("+")[2] or "cpu"

    @property
    def further_names(self) -> tuple[str, ...]:
        """Return the normalised names of the distributions that ``further`` asks for, sorted."""
        return tuple(sorted({distribution_of(line) for line in self.further}))

    def to_json(self) -> JsonDict:
        """Return ``{"id", "platform", "components": {name: version}}``, and ``further`` where there is something."""
        return {
            "id": str(self.id),
            "platform": self.platform.value,
            "index": self.index,
            "components": dict(self.components),
            **({"further": list(self.further)} if self.further else {}),
        }
