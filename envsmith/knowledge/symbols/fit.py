"""What a compiled wheel asks of torch, and whether a build of torch has it.

The rule is the dynamic linker's: every strong symbol without a version must be exported by a library of the process,
and every library must be found. Python and torch load extensions at once with all their symbols, so one symbol that is
missing is an import that fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.version import Version

from envsmith.knowledge.symbols.elf import Binary
from envsmith.knowledge.symbols.owned import is_torch_symbol
from envsmith.knowledge.symbols.table import SymbolTable, TorchBuild

LINKS, FAILS, UNKNOWN = "links", "fails", "unknown"
_TORCH_LIBRARY = re.compile(r"lib(torch|c10|caffe2|shm)\w*\.so")
# Libraries that torch loads too, from the CUDA wheels beside it. The number at the end is that of their interface.
_CUDA_LIBRARY = re.compile(r"(lib(?:cu|nv|nccl)\w+\.so)\.(\d+(?:\.\d+)*)")
# The driver's own, which no wheel brings.
_DRIVER = frozenset({"libcuda.so.1", "libnvidia-ml.so.1"})
_SYSTEM = re.compile(
    r"(ld-linux[\w-]*|lib(c|m|dl|rt|pthread|util|gcc_s|stdc\+\+|z|gomp|atomic|python\d\.\d+t?|resolv|quadmath))\.so(\.\d+)*"
)


@dataclass(frozen=True, slots=True)
class CompiledMember:
    """One compiled file of a wheel: the symbols of torch that it needs, and the libraries that the wheel has not."""

    name: str
    symbols: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelNeeds:
    """What the compiled files of a wheel ask of where they are loaded.

    ``versions`` is the newest version that any of them asks of ``GLIBC``, ``GLIBCXX``, ``CXXABI`` and ``GCC``.
    ``sass`` and ``ptx`` are the compute capabilities of its GPU code. ``members`` that ask nothing of torch are kept.
    """

    file: str
    sha256: str | None
    machine: str
    members: tuple[CompiledMember, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    sass: tuple[int, ...] = ()
    ptx: tuple[int, ...] = ()

    @property
    def symbols(self) -> frozenset[str]:
        """Return the symbols of torch that any member needs."""
        return frozenset(symbol for member in self.members for symbol in member.symbols)

    @property
    def uses_torch(self) -> bool:
        """Return whether any member is linked with torch or needs a symbol of it."""
        return any(m.symbols or any(_TORCH_LIBRARY.match(lib) for lib in m.libraries) for m in self.members)

    @property
    def uses_driver(self) -> bool:
        """Return whether it cannot be loaded on a machine without an NVIDIA driver."""
        return any(_DRIVER.intersection(m.libraries) for m in self.members)


@dataclass(frozen=True, slots=True)
class Missing:
    """What one member of a wheel needs and a build lacks: symbols, or libraries."""

    member: str
    symbols: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether the compiled files of a wheel load with a build of torch.

    ``verdict`` is ``links``, ``fails`` or ``unknown``. ``unknown`` names in ``unclear`` the libraries that neither the
    wheel nor torch brings.
    """

    build: TorchBuild
    verdict: str
    missing: tuple[Missing, ...] = ()
    unclear: tuple[str, ...] = ()

    @property
    def first(self) -> str | None:
        """Return the first symbol or library that is missing."""
        return next((name for m in self.missing for name in (*m.symbols, *m.libraries)), None)


def needs_of(file: str, sha256: str | None, binaries: Iterable[tuple[str, Binary]]) -> WheelNeeds:
    """Return what the compiled files of a wheel need. What one of them exports another may use."""
    compiled = list(binaries)
    own_symbols = frozenset().union(*(b.exports for _, b in compiled))
    own_libraries = {b.soname for _, b in compiled} | {name.rpartition("/")[2] for name, _ in compiled}
    versions: dict[str, str] = {}
    for _, binary in compiled:
        for library, version in binary.versions.items():
            versions[library] = max(versions.get(library, version), version, key=Version)
    return WheelNeeds(
        file=file,
        sha256=sha256,
        machine=next((b.machine for _, b in compiled), "none"),
        members=tuple(
            CompiledMember(
                name,
                tuple(sorted(s for s in binary.needs - own_symbols if is_torch_symbol(s))),
                tuple(lib for lib in binary.libraries if lib not in own_libraries and not _SYSTEM.fullmatch(lib)),
            )
            for name, binary in compiled
        ),
        versions=versions,
        sass=tuple(sorted(frozenset().union(*(b.sass for _, b in compiled)))),
        ptx=tuple(sorted(frozenset().union(*(b.ptx for _, b in compiled)))),
    )


def fits(needs: WheelNeeds, table: SymbolTable, builds: Iterable[TorchBuild] | None = None) -> list[Fit]:
    """Judge a wheel against builds of its machine, oldest first: by default against all that were measured."""
    lacking = table.missing(needs.symbols)
    machine = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}.get(needs.machine)
    chosen = [b for b in lacking if b.platform == machine] if builds is None else list(builds)
    return [_fit(needs, build, frozenset(lacking[build])) for build in chosen]


def _fit(needs: WheelNeeds, build: TorchBuild, lacking: frozenset[str]) -> Fit:
    missing, unclear = [], set()
    for member in needs.members:
        absent, doubtful = _absent_libraries(member, build)
        unclear |= doubtful
        if symbols := tuple(s for s in member.symbols if s in lacking):
            missing.append(Missing(member.name, symbols, absent))
        elif absent:
            missing.append(Missing(member.name, (), absent))
    verdict = FAILS if missing else UNKNOWN if unclear else LINKS
    return Fit(build, verdict, tuple(missing), tuple(sorted(unclear)))


def _absent_libraries(member: CompiledMember, build: TorchBuild) -> tuple[tuple[str, ...], set[str]]:
    """Return the libraries that the build surely lacks, and those of which nothing is certain."""
    own = {m[1] for library in build.libraries if (m := _CUDA_LIBRARY.fullmatch(library))}
    absent, unclear = [], set()
    for library in member.libraries:
        if library in build.libraries or library in _DRIVER:
            continue
        cuda = _CUDA_LIBRARY.fullmatch(library)
        if _TORCH_LIBRARY.match(library) or (cuda and cuda[1] in own):
            absent.append(library)
        else:
            unclear.add(library)
    return tuple(absent), unclear
