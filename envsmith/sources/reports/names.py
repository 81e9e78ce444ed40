"""Distributions and spelled-out names -> components, with the tables of the graph loaded once."""

from __future__ import annotations

import re
from functools import lru_cache

from envsmith.model.component import ComponentTable, Role
from envsmith.sources.reports.facts import Draft
from envsmith.sources.reports.words import fold, local_cuda, version_in

__all__ = ["component_of", "gpu_table", "is_distribution", "note_container", "note_distribution", "note_present"]

# Distributions whose component is not of a role that a distribution may stand for otherwise.
_CORE = frozenset({"torch", "nccl", "cudnn", "triton"})


@lru_cache(maxsize=1)
def _table() -> ComponentTable:
    from envsmith.graph import components

    return components()


@lru_cache(maxsize=1)
def gpu_table() -> dict[str, str]:
    """``{"h100": "sm_90", …}``."""
    from envsmith.graph import gpu_names

    return gpu_names()


def component_of(name: str) -> str | None:
    """The component that people mean by ``name``, or ``None``."""
    found = _table().find(name)
    return found.name if found else None


def is_distribution(name: str) -> str | None:
    """The component a *distribution* of that name is; ``cuda-toolkit`` on the index is no nvcc, so hosts' components never match."""
    found = _table().find(name)
    if found is None:
        return None
    if found.name in _CORE or found.role in (Role.FRAMEWORK, Role.COMPANION):
        return found.name
    return None


def note_distribution(draft: Draft, name: str, version: str, source: str, strength: int = 3) -> None:
    """Record an installed distribution, its component, and what torch's local version says of CUDA."""
    parsed = version_in(version)
    if parsed is None:
        return
    folded = fold(name)
    draft.distribution(folded, parsed[0])
    component = is_distribution(folded)
    if component is None or (
        folded in {"transformer-engine-cu12", "transformer-engine-cu13"} and "transformer-engine" in draft.distributions
    ):
        return
    draft.component(component, parsed[0], f"{source}: {folded}", strength)
    cuda = local_cuda(parsed[0]) if component == "torch" else None
    if cuda:
        draft.component("cuda", cuda, f"{source}: {folded} {parsed[0]}", strength)


def note_container(draft: Draft, image: str, source: str) -> None:
    """Record the image that somebody works in; of NVIDIA's PyTorch images the release is a component."""
    draft.host["container"] = image[:200]
    if match := re.search(r"\bpytorch[:_-](2\d\.(?:0[1-9]|1[0-2]))(?:-py3|\b)", image):
        draft.component("ngc-pytorch", match[1], source, 3)


def note_present(draft: Draft, name: str) -> None:
    """Record that a component is in use, its version not told (``host["present"]``)."""
    component = component_of(name.split(".", maxsplit=1)[0])
    if component:
        present = [p for p in draft.host.get("present", "").split(",") if p]
        draft.host["present"] = ",".join(dict.fromkeys([*present, component]))
