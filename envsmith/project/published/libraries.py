"""The libraries of CUDA that a published release loads, held against those that the stated versions bring."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from envsmith.knowledge.graph.location import find_matrix
from envsmith.knowledge.symbols.table import SymbolTable, spec_of
from envsmith.lock.index.cuda_libraries import LoadedLibrary
from envsmith.model.cell import Platform
from envsmith.model.finding import Finding
from envsmith.model.rule import Severity
from envsmith.model.version import public
from envsmith.project.published.code import PublishedRelease

_PACKAGE = re.compile(r"nvidia-(?:cublas|cuda-runtime)-cu(\d+)")
_LIBRARY = re.compile(r"lib(cudnn|cudart|cublas)\.so\.(\d+)")
_TITLES = {"cuda": "CUDA", "cudnn": "cuDNN"}


class Brought(NamedTuple):
    """What a stated release brings of ``cuda`` or ``cudnn``. Not ``certain`` where another build of it brings another."""

    kind: str
    component: str
    version: str
    major: int
    certain: bool = True


def brought_libraries(versions: Mapping[str, str], platform: Platform) -> list[Brought]:
    """Return what the stated versions bring of CUDA and of cuDNN."""
    brought = []
    for name, version in versions.items():
        major = int(digits[0]) if (digits := re.match(r"\d+", version)) else 0
        if major and name in {"toolkit", "cuda", "cudnn"}:
            brought.append(Brought("cudnn" if name == "cudnn" else "cuda", name, version, major))
        elif match := _PACKAGE.fullmatch(name):
            brought.append(Brought("cuda", name, version, int(match[1])))
        elif major and name == "torch":
            brought += _of_torch(version, platform.value)
    return brought


def _of_torch(version: str, platform: str) -> Iterator[Brought]:
    """Yield what a build of torch brings. The default build stands for the others of a release, but for their CUDA."""
    _, _, local = version.partition("+")
    build = _table().nearest(version, platform)
    if build is None or (local and not local.startswith("cu")):
        return
    for kind, major in sorted(set(_kinds(build.libraries))):
        if kind == "cudnn" or not local:
            yield Brought(kind, "torch", version, major, certain=kind == "cudnn")
    if local:
        yield Brought("cuda", "torch", version, int(local[2:-1]))


def _table() -> SymbolTable:
    return SymbolTable(find_matrix() / "symbols")


def _kinds(libraries: frozenset[str]) -> Iterator[tuple[str, int]]:
    for match in filter(None, map(_LIBRARY.fullmatch, libraries)):
        yield "cudnn" if match[1] == "cudnn" else "cuda", int(match[2])


def unmet(
    release: PublishedRelease, loaded: Mapping[str, LoadedLibrary], brought: Sequence[Brought], platform: Platform
) -> Iterator[Finding]:
    """Yield a warning for what a release loads of CUDA or of cuDNN in other majors than the stated versions bring."""
    for kind, library in loaded.items():
        of_kind = [each for each in brought if each.kind == kind]
        bringer = next((each for each in of_kind if each.certain), None)
        if bringer is None or library.majors.intersection(each.major for each in of_kind):
            continue
        needs = _needs(bringer, library.majors, platform.value)
        title = f"{_TITLES[kind]} {bringer.major}"
        yield Finding(
            rule="release-libraries",
            severity=Severity.WARNING,
            components={release.name: release.version, bringer.component: bringer.version},
            needs=needs,
            message=f"{release.name} {release.version} fails where it uses the GPU: {library.member} loads {library.name}; "
            f"{bringer.component} {bringer.version} brings {title}",
            evidence=(release.evidence,),
            fix=f"Install {''.join(f'{name}{spec}, or ' for name, spec in needs.items())}a release of {release.name} "
            f"that was built for {title}.",
            stage="init",
        )


def _needs(bringer: Brought, majors: frozenset[int], platform: str) -> dict[str, str]:
    """Return the releases of what brings another library that bring one which is loaded, where that is known."""
    if bringer.component != "torch":
        return {bringer.component: f"=={max(majors)}.*"}
    if bringer.kind == "cuda":
        return {}
    builds = [
        (b, {m for kind, m in _kinds(b.libraries) if kind == "cudnn"})
        for b in _table().builds
        if b.platform == platform
    ]
    have = [public(build.version) for build, of in builds if of & majors]
    spec = spec_of(have, (public(build.version) for build, of in builds if not of & majors)) if have else ""
    return {"torch": spec} if spec else {}
