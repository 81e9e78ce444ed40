"""Which package of this host's distribution brings a program or a header that building from source needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# What is missing, in words for people.
NAMES: Mapping[str, str] = {
    "c++": "C++ compiler (c++)",
    "cc": "C compiler (cc)",
    "make": "make",
    "headers": "Python.h",
    "cmake": "cmake",
    "ninja": "ninja",
    "mpi": "MPI (mpicc)",
    "cargo": "Rust compiler (cargo)",
    "fortran": "Fortran compiler (gfortran)",
}
# What the builder of every image has.
IN_IMAGES = frozenset({"c++", "cc", "make", "headers"})
_PLACES = (Path("/etc/os-release"), Path("/usr/lib/os-release"))


@dataclass(frozen=True, slots=True)
class _Family:
    """One family of distributions: how it installs, and what brings each of :data:`NAMES`."""

    install: str
    packages: Mapping[str, str]


_FAMILIES = {
    "debian": _Family(
        "apt-get install",
        {
            "c++": "g++",
            "cc": "gcc libc6-dev",
            "make": "make",
            "headers": "python{python}-dev",
            "cmake": "cmake",
            "ninja": "ninja-build",
            "mpi": "libopenmpi-dev",
            "cargo": "cargo",
            "fortran": "gfortran",
        },
    ),
    "fedora": _Family(
        "dnf install",
        {
            "c++": "gcc-c++",
            "cc": "gcc",
            "make": "make",
            "headers": "python{python}-devel",
            "cmake": "cmake",
            "ninja": "ninja-build",
            "mpi": "openmpi-devel",
            "cargo": "cargo",
            "fortran": "gcc-gfortran",
        },
    ),
}
# Distributions that do not name their family in ID_LIKE.
_MEMBERS = {"rhel": "fedora", "centos": "fedora", "rocky": "fedora", "almalinux": "fedora", "ubuntu": "debian"}


def install_command(missing: Iterable[str], *, python: str = "3", places: Iterable[Path] = _PLACES) -> str:
    """Return the command that installs what is ``missing`` (keys of :data:`NAMES`) on this host.

    ``python`` is the minor version whose header it is. An empty text where the distribution is none that is known.
    """
    family = _FAMILIES.get(_family(places))
    if family is None:
        return ""
    packages = dict.fromkeys(family.packages[name].format(python=python) for name in missing)
    return " ".join([family.install, *packages])


def install_commands(missing: str) -> str:
    """Return how to install it on a machine whose distribution is not known: ``apt-get install g++ or dnf …``."""
    families = _FAMILIES.values()
    return " or ".join(f"{family.install} {family.packages[missing].format(python=3)}" for family in families)


def _family(places: Iterable[Path]) -> str:
    """Return the family that this host's ``os-release`` names, or an empty text."""
    for place in places:
        try:
            text = place.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        rows = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        words = " ".join(rows.get(key, "").strip("\"'") for key in ("ID", "ID_LIKE")).split()
        return next((family for word in words if (family := _MEMBERS.get(word, word)) in _FAMILIES), "")
    return ""
