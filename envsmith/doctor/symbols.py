"""Symbols that the loader does not find: whose they are, and how they read."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["OWNED", "Symbol", "symbol_in"]

_MISSING = re.compile(r"undefined symbol: ([A-Za-z_]\w{2,400})(?:, version (\S{1,60}))?")
# First name of a C++ symbol, or beginning of a C one -> (component, failure class of a symbol of it that is not found).
_TORCH = ("torch", "extension-built-for-other-torch")
_CUDA = ("cuda", "wrong-cuda-library-loaded")
_NAMESPACES = {
    "c10": _TORCH,
    "c10d": _TORCH,
    "at": _TORCH,
    "torch": _TORCH,
    "caffe2": _TORCH,
    "std": ("gcc", "libstdcxx-too-old"),
}
_PREFIXES = (
    ("THP", _TORCH),
    ("aoti_torch", _TORCH),
    ("nccl", ("nccl", "wrong-nccl-loaded")),
    *((prefix, _CUDA) for prefix in ("cuda", "cublas", "cudnn", "cusparse", "cusolver", "cufft", "curand", "nvrtc")),
    *((prefix, _CUDA) for prefix in ("nvJitLink", "__nvJitLink", "__cuda")),
)
# Libraries of CUDA -> the wheel that brings them, without its suffix of the major.
_WHEELS = {
    "cublas": "nvidia-cublas",
    "cudnn": "nvidia-cudnn",
    "cusparse": "nvidia-cusparse",
    "cusolver": "nvidia-cusolver",
    "nvJitLink": "nvidia-nvjitlink",
    "cudart": "nvidia-cuda-runtime",
    "nvrtc": "nvidia-cuda-nvrtc",
    "nccl": "nvidia-nccl",
}


# The failure classes of a symbol that is not found; a message about one is about its owner only.
OWNED = frozenset(cause for _, cause in [*_NAMESPACES.values(), *(who for _, who in _PREFIXES)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Symbol:
    """``readable`` is the demangled name, ``component`` whose it is, ``cause`` the failure class; ``library`` where the loader wanted it from."""

    name: str
    readable: str
    component: str
    cause: str
    library: str = ""

    @property
    def wheel(self) -> str | None:
        """The distribution that brings the library: ``nvidia-cublas`` for CUDA 13, ``nvidia-cublas-cu12`` before."""
        text = self.library or self.name
        base = next((wheel for key, wheel in _WHEELS.items() if key.lower() in text.lower()), None)
        if base is None:
            return None
        major = re.search(r"\.so\.(1[0-9])\b", self.library)
        if base == "nvidia-cudnn" or (major and major[1] == "12"):
            return f"{base}-cu12"
        return base


def symbol_in(line: str) -> Symbol | None:
    """The symbol that ``line`` says is undefined, with its owner; ``None`` without one, or for a symbol that nobody here is known to have."""
    match = _MISSING.search(line)
    if match is None:
        return None
    name, library = match[1], (match[2] or "").strip("'\"`).,")
    parts = _nested(name)
    owner = _NAMESPACES.get(parts[0]) if parts else None
    if owner is None and not parts:
        owner = next((who for prefix, who in _PREFIXES if name.startswith(prefix)), None)
    if owner is None:
        return None
    return Symbol(name=name, readable="::".join(parts) or name, component=owner[0], cause=owner[1], library=library)


def _nested(symbol: str) -> list[str]:
    """The names of an Itanium-mangled symbol, outermost first: ``["c10", "cuda", "SetDevice"]`` of ``_ZN3c104cuda9SetDeviceEa``."""
    head = re.match(r"_Z(?:T[ISV]|GV)?(N)?(?:[rVK]{0,3}[RO]?)", symbol)
    if head is None:
        return []
    at, names = head.end(), []
    if symbol.startswith("St", at):
        names, at = ["std"], at + 2
    while match := re.compile(r"[1-9]\d{0,2}").match(symbol, at):
        size = int(match[0])
        names.append(symbol[match.end() : match.end() + size])
        at = match.end() + size
        if head[1] is None:
            break
    return names
