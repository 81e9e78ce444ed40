"""What ``conda activate`` would set for a cell, read out of its lock: an image and a smoke test start the interpreter directly.

Only what a build of an extension at first use needs (DeepSpeed and Colossal-AI compile then): the compilers' names carry the target
in the Conda world, and PyTorch asks ``CXX`` and ``CUDA_HOME`` for them. Scripts of packages are not run.
"""

from __future__ import annotations

from envsmith.lock.conda.model import PlatformLock

__all__ = ["variables"]


def variables(part: PlatformLock, prefix: str) -> dict[str, str]:
    """``CONDA_PREFIX``, and ``CC``, ``CXX``, ``CUDA_HOME``, ``NVCC_PREPEND_FLAGS`` where the lock has the packages that mean them."""
    names = {p.name for p in part.packages}
    target = f"{prefix}/bin/{part.platform.machine}-conda-linux-gnu"
    found = {"CONDA_PREFIX": prefix}
    if f"gcc_impl_{part.platform.value}" in names:
        found["CC"] = f"{target}-gcc"
    if f"gxx_impl_{part.platform.value}" in names:
        found["CXX"] = f"{target}-g++"
    if "cuda-nvcc" in names:
        found["CUDA_HOME"] = prefix
        if "CXX" in found:
            found["NVCC_PREPEND_FLAGS"] = f"-ccbin={found['CXX']}"
    return found
