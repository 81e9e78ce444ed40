"""Versions, sizes and GPU names as people and tools write them."""

from __future__ import annotations

import re

from envsmith.model.version import version_key

__all__ = ["bytes_of", "cuda_of_level", "first_version", "fold", "gpu_architecture", "local_cuda", "version_in"]

_VERSION = re.compile(
    r"(?<![\w.])[vV]?(\d{1,5}(?:\.\d{1,9}){1,4}(?:\.?(?:a|b|rc|dev|post)\d{0,12})?(?:\+[A-Za-z0-9][\w.]{0,40})?)(?![\w])"
)
_BOUND = re.compile(r"[<>~!]=?|\bor\b|\btried\b|\d\s*/\s*\d|\bnightly\b|[*x]\b")
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(i?)[Bb]?\b")
_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def fold(name: str) -> str:
    """A distribution's normalised name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower().strip("-")


def version_in(text: str) -> tuple[str, bool] | None:
    """The first version of a text and whether the text says exactly that: ``(2.1.0+cu118, True)``, ``(1.24, False)`` of ``>=1.24``."""
    match = _VERSION.search(text[:400])
    if match is None:
        single = re.fullmatch(r"\s*[vV=]*(\d{1,5})\s*", text[:40])
        return (single[1], True) if single else None
    version = match[1].rstrip(".")
    try:
        version_key(version)
    except ValueError:
        return None
    return version, _BOUND.search(text[:400]) is None


def first_version(text: str) -> str | None:
    """The first version of a text, or ``None``."""
    found = version_in(text)
    return found[0] if found else None


def local_cuda(version: str) -> str | None:
    """What torch's local version says of CUDA: ``12.1`` of ``2.1.0+cu121``, ``cpu`` of ``+cpu``, ``None`` of neither."""
    local = version.partition("+")[2]
    if local.startswith("cpu"):
        return "cpu"
    match = re.match(r"cu(\d{2})(\d)(?!\d)", local)
    return f"{match[1]}.{match[2]}" if match else None


def cuda_of_level(level: str) -> str | None:
    """The driver's CUDA level as the runtime counts it: ``12.2`` of ``12020``."""
    number = int(level) if level.isdecimal() and len(level) <= 6 else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number >= 6000 else None


def bytes_of(text: str) -> int | None:
    """``64M``, ``31.32 GB``, ``65536k`` in bytes; -1 for ``unlimited``."""
    if "unlimited" in text.lower():
        return -1
    match = _SIZE.search(text.upper()[:80])
    return int(float(match[1]) * _UNIT[match[2]]) if match else None


_NOISE = re.compile(
    r"nvidia|geforce|tesla|graphics|laptop|gpu|generation|edition|workstation|server|max-q|\b\d+\s*gb\b|[-_]?\d+g[bi]b?\b|pcie|sxm\d?|hbm\w*|nvl\d*|\(.{0,80}?\)|\b\d+\s*x\b|\bx\s*\d+\b"
)


def gpu_architecture(name: str, names: dict[str, str]) -> str | None:
    """``sm_80`` of ``8x NVIDIA A100-SXM4-80GB (p4d)``; ``names`` is the table of the graph. ``None`` for a GPU it does not know."""
    direct = re.search(r"\bsm_?(\d{2,3})[af]?\b", name, re.IGNORECASE)
    if direct:
        return f"sm_{direct[1]}"
    table = {re.sub(r"[\s_-]+", "", spelling.lower()): sm for spelling, sm in names.items()}
    short = _NOISE.sub(" ", name[:200].lower())
    words = [w for w in re.split(r"[\s,/_:;-]+", short) if w]
    for size in (4, 3, 2, 1):
        for start in range(len(words) - size + 1):
            joined = "".join(words[start : start + size])
            for spelling in (joined, f"rtx{joined}", re.sub(r"^\d{1,2}x?(?=[a-z])", "", joined)):
                if spelling in table and (size > 1 or not spelling.isdigit() or len(spelling) == 4):
                    return table[spelling]
    series = re.search(r"\brtx\s*(20|30|40|50)(?:00|xx)?\b", name[:200], re.IGNORECASE)
    return {"20": "sm_75", "30": "sm_86", "40": "sm_89", "50": "sm_120"}[series[1]] if series else None
