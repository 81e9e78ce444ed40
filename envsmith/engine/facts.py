"""What an environment is beside its distributions, against its lock: NCCL as loaded, architectures, C library, toolkit, OS packages. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from packaging.version import InvalidVersion, Version

from envsmith.model.lock import DEVEL, Lock

__all__ = ["content_facts", "file_differences", "os_difference"]

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)[a-z]?")


def content_facts(lock: Lock, found: Mapping[str, str]) -> list[str]:
    """One line for every fact that is not what the lock's cell says; a fact that nobody could read is no difference."""
    cell = lock.cell.components
    problems = []
    nccl, loaded = cell.get("nccl"), found.get("nccl.loaded")
    if nccl and nccl not in {"none", "cpu"} and loaded and _public(nccl) != _public(loaded):
        problems.append(f"nccl: the cell says {nccl}, the library says {loaded}")
    glibc, here = cell.get("glibc"), found.get("glibc.version")
    if glibc and here and _public(here) < _public(glibc):
        problems.append(f"glibc: the cell needs {glibc}, here is {here}")
    archs = found.get("torch.archs", "")
    if archs and (gpu := cell.get("gpu", "")).startswith("sm_") and not _runs_on(gpu, archs):
        problems.append(f"gpu: the cell says {gpu}, torch holds code for {archs}")
    toolkit = found.get("toolkit.version")
    if lock.flavour == DEVEL and toolkit and toolkit != ".".join(cell.get("cuda", "").split(".")[:2]):
        problems.append(f"toolkit: the cell says CUDA {cell.get('cuda')}, nvcc says {toolkit}")
    return problems


def _public(text: str) -> Version:
    try:
        return Version(text.partition("+")[0])
    except InvalidVersion:
        return Version("0")


def _runs_on(gpu: str, archs: str) -> bool:
    """Binary code runs on the same major from its own minor on; code for ``compute_NN`` is compiled by the driver for anything newer."""
    wanted = _ARCH.fullmatch(gpu)
    if wanted is None:
        return True
    major, minor = int(wanted[2]), int(wanted[3])
    for match in _ARCH.finditer(archs):
        has = (int(match[2]), int(match[3]))
        if has[0] == major and has[1] <= minor:
            return True
        if match[1] == "compute" and has <= (major, minor):
            return True
    return False


def file_differences(lock: Lock, found: Mapping[str, str]) -> list[str]:
    """Installed files that are not their wheels', and built wheels that are not the lock's; nothing where no file was read."""
    if "files.checked" not in found:
        return []
    problems = found.get("files.broken", "").splitlines()
    for wheel in lock.wheels:
        here = found.get(f"content.{wheel.name}", "")
        if wheel.content and here != wheel.content:
            problems.append(
                f"{wheel.name}: the files of {wheel.filename} have the digest {wheel.content[:16]}…, installed are {here[:16] or 'none'}…"
            )
    return problems


def os_difference(lock: Lock, found: Mapping[str, str]) -> list[str]:
    """Packages of the distribution that are not in an image as the lock has them; nothing where the image has no dpkg."""
    if "os.packages" not in found:
        return []
    here = dict(word.split("=", 1) for word in found["os.packages"].split() if "=" in word)
    return [
        f"{p.name}: locked {p.version}, installed {here.get(p.name.partition(':')[0], 'not at all')}"
        for p in lock.os_packages
        if here.get(p.name.partition(":")[0]) != p.version
    ]
