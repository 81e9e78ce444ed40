"""The versions in a Conda file, and which components of a cell they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.lock.conda.names import component_version, cuda_of_build, fold

__all__ = ["CondaFile", "components_of"]

# Conda names that are components under another name. `pytorch` also tells the CUDA it was built with.
_COMPONENTS = {
    "pytorch": "torch",
    "libtorch": "torch",
    "torchtriton": "triton",
    "cuda-nvcc": "toolkit",
    "cudatoolkit": "cuda",
    "pytorch-cuda": "cuda",
    "cuda-version": "cuda",
    "gcc": "gcc",
    "gxx": "gcc",
    "gcc_linux-64": "gcc",
    "gcc_linux-aarch64": "gcc",
    "gxx_linux-64": "gcc",
    "gxx_linux-aarch64": "gcc",
    "transformer-engine-torch": "transformer-engine",
    "mpi4py": "mpi4py",
    "openmpi": "openmpi",
}
# Of several packages that tell one component the first in this order is believed.
_RANK = (
    "pytorch",
    "libtorch",
    "pytorch-cuda",
    "cuda-version",
    "cudatoolkit",
    "gcc_linux-64",
    "gcc",
    "gxx_linux-64",
    "gxx",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CondaFile:
    """The versions in a file.

    ``conda`` and ``pip`` map names to versions; ``builds`` Conda names to build strings; ``wanted`` names to specs that fix no
    version (``environment.yml``). ``platforms`` are those the file speaks of; the versions are of the one that was asked for.
    """

    kind: str
    conda: Mapping[str, str] = field(default_factory=dict)
    pip: Mapping[str, str] = field(default_factory=dict)
    builds: Mapping[str, str] = field(default_factory=dict)
    wanted: Mapping[str, str] = field(default_factory=dict)
    platforms: tuple[str, ...] = ()

    @property
    def components(self) -> dict[str, str]:
        """The versions by component of the cell, other distributions under their own names."""
        return components_of(self.conda, self.pip, self.builds)


def components_of(conda: Mapping[str, str], pip: Mapping[str, str], builds: Mapping[str, str]) -> dict[str, str]:
    """Component or distribution to version. What pip installed shadows Conda's package of the same name, as on ``sys.path``."""
    found: dict[str, str] = {}
    ordered = sorted(conda, key=lambda n: (_RANK.index(n) if n in _RANK else len(_RANK), n))
    build_cuda = next((cuda_of_build(builds.get(n, "")) for n in ("pytorch", "libtorch") if n in conda), None)
    if build_cuda:
        found["cuda"] = build_cuda
    for name in ordered:
        component = _COMPONENTS.get(name, fold(name))
        found.setdefault(component, component_version(component, conda[name]))
    for name, version in pip.items():
        folded = fold(name)
        if match := re.fullmatch(r"nvidia-(nccl|cudnn)-cu\d+", folded):
            found[match[1]] = version
        elif folded == "torch":
            found["torch"] = version
            if "+cu" in version or "+cpu" in version:
                found["cuda"] = _local_cuda(version)
        else:
            found[folded] = version
    return found


def _local_cuda(version: str) -> str:
    local = version.split("+", maxsplit=1)[1]
    digits = local.removeprefix("cu").split(".")[0]
    return (
        "cpu" if local.startswith("cpu") or len(digits) < 3 or not digits.isdigit() else f"{digits[:-1]}.{digits[-1]}"
    )
