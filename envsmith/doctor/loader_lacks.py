"""What the dynamic linker lacks, and what has it: a symbol of torch, a version of glibc or libstdc++."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from envsmith.doctor.diagnosis import Diagnosed, Weight
from envsmith.doctor.facts import Facts
from envsmith.doctor.parties import Symbol, symbol_in
from envsmith.doctor.signatures import Hit
from envsmith.knowledge.graph.load import components
from envsmith.knowledge.symbols.system_libraries import Host, LibraryNeed, SystemLibraries, system_libraries
from envsmith.knowledge.symbols.table import Builds, SymbolTable, TorchBuild
from envsmith.model.cell import Platform
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.model.version import minor_of, public

# The file that the loader could not load: `…/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol`.
_FILE = re.compile(r"(\S{1,300}?\.so[\d.]{0,12}): undefined symbol")
_FOLDER = re.compile(r"(?:site|dist)-packages[/\\](\w{1,60})[/\\]")
_STEM = re.compile(r"([^\s/\\]{1,200}?)\.(?:cpython-\d+\S{0,60}\.|abi3\.)?so[\d.]{0,12}$")
# Packages of which each release is made for one release of torch and says so.
_PAIRED = frozenset({"torchaudio", "torchvision", "vllm", "xformers"})
# /lib64/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /…/libtorch_python.so)
_NOT_FOUND = re.compile(
    r"(?:(?P<loaded>\S{0,300}lib(?:stdc\+\+|c|m|pthread)\.so[.\d]{0,8}): )?version [`'\"?]{0,3}"
    r"(?P<set>GLIBCXX|CXXABI|GLIBC)_(?P<version>\d{1,3}(?:\.\d{1,3}){1,2})[`'\"?]{0,3} not found"
    r"(?: \(required by (?P<by>[^)\n]{1,300})\))?"
)
_CONDA = re.compile(r"(?:mini|ana|mamba|micromamba|miniforge)\w*/|conda|/envs/[^/]+/", re.IGNORECASE)
_SYSTEM = re.compile(r"/(?:usr/)?lib(?:64)?/")
# What torch compiles itself on the machine that loads it.
_COMPILED = re.compile(r"torch_extensions|/build/|JIT")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    """What is added to a message about a symbol. ``is_certain`` when the stated torch was measured and lacks it.

    ``is_whole`` when it stands in the place of what the message says: the extension is not of another torch.
    """

    message: str
    fix: str
    needs: Mapping[str, str] = field(default_factory=dict)
    is_certain: bool = False
    is_whole: bool = False


def with_builds(
    diagnosed: Diagnosed, hit: Hit, facts: Facts, platform: Platform, table: SymbolTable | None
) -> Diagnosed:
    """Return a finding about a symbol of torch with the builds that export it. Any other finding is returned as it is."""
    symbol = symbol_in(hit.text)
    builds = table.builds_exporting(symbol.name) if table and symbol and symbol.component == "torch" else None
    if table is None or symbol is None or builds is None or diagnosed.finding.severity is Severity.NOTE:
        return diagnosed
    builds = builds.of(platform.value)
    file = _FILE.search(hit.text)
    package = package_of(file[1]) if file else None
    version = facts.version("torch")
    build = table.nearest(version, platform.value) if version else None
    is_own = bool(file and _OWN_LIBRARY.search(file[1]))
    answer = _MIXED if is_own else _answer(symbol, builds, version, build)
    finding = dataclasses.replace(
        diagnosed.finding,
        message=answer.message if answer.is_whole else f"{_opening(diagnosed, hit, file)} {answer.message}",
        fix=answer.fix,
        needs=answer.needs,
        components={**_versions(package, facts), **diagnosed.finding.components, "torch": version or "*"},
        evidence=(*_measured(build or (builds.present or builds.absent)[-1]), *diagnosed.finding.evidence),
    )
    lines = (
        ("pip uninstall -y torch", "pip install --no-cache-dir torch")
        if is_own
        else _lines(diagnosed, package, version)
    )
    diagnosed = dataclasses.replace(diagnosed, lines=lines)
    if not answer.is_certain:
        return dataclasses.replace(diagnosed, finding=finding)
    return dataclasses.replace(
        diagnosed, finding=finding, score=max(diagnosed.score, Weight.PROVED - 1), confidence="high"
    )


def _opening(diagnosed: Diagnosed, hit: Hit, file: re.Match[str] | None) -> str:
    """Return what a message says, of the extension that the loader names where it only says that it is one."""
    if hit.signature.id != "torch-abi-symbol" or file is None:
        return diagnosed.finding.message
    folder, stem = _FOLDER.search(file[1]), _STEM.search(file[1])
    name = package_of(file[1]) or (folder and folder[1]) or (stem and stem[1])
    own = f"{name} was built for another torch than the one installed."
    return diagnosed.finding.message.replace(hit.signature.message, own) if name else diagnosed.finding.message


def package_of(path: str) -> str | None:
    """Return the component that brings a compiled file, or ``None`` where its name does not say."""
    match = _STEM.search(path)
    stem = match[1].removeprefix("lib") if match else ""
    names = [component.name for component in components().by_name.values() if component.distributions]
    folder = _FOLDER.search(path)
    by_stem = (n for n in names if re.match(rf"{n.replace('-', '_')}(?:_|$)", stem))
    return next(by_stem, next((n for n in names if folder and n.replace("-", "_") == folder[1]), None))


def _versions(package: str | None, facts: Facts) -> dict[str, str]:
    return {package: facts.version(package) or "*"} if package else {}


def _lines(diagnosed: Diagnosed, package: str | None, version: str | None) -> tuple[str, ...]:
    """Return the lines to type, for the package at hand."""
    if package is None:
        return diagnosed.lines
    if package in _PAIRED:
        torch = f"torch=={public(version)}" if version else "torch"
        return (f"pip install --force-reinstall {torch} {package}",)
    return (f"pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps {package}",)


# The libraries of torch itself: `…/site-packages/torch/lib/libtorch_python.so`.
_OWN_LIBRARY = re.compile(r"[/\\]torch[/\\]lib[/\\]lib(?:torch|c10|caffe2)\w*\.so")
_MIXED = _Answer(
    is_whole=True,
    message="The file that asks is torch's own: libraries of two torches are mixed.",
    fix="Take folders of another torch (and of libtorch) out of LD_LIBRARY_PATH, remove a second torch (the system's, conda's),"
    " and install torch again: pip uninstall -y torch until pip says that it is not installed, then once more.",
)


def _answer(symbol: Symbol, builds: Builds, version: str | None, build: TorchBuild | None) -> _Answer:
    spec = builds.spec()
    rebuild = "compile the extension against the installed torch (pip install --no-build-isolation --no-cache-dir)"
    if not spec:
        return _Answer(
            message=f"No measured build of torch, {_range(builds.absent)}, exports {symbol.readable} in this form: the"
            " extension was compiled for an older torch, a nightly, a vendor's build, or with the other C++ ABI.",
            fix=f"Use a wheel that was made for the installed torch, or {rebuild}.",
        )
    if spec == "*":
        return _Answer(
            is_whole=True,
            message=f"Every measured torch exports {symbol.readable}, so what was loaded before this extension is no torch,"
            " another copy of it, or a build of it without CUDA.",
            fix="Import torch before the extension. If that is done, see which torch is loaded: python -c 'import torch;"
            " print(torch.__file__, torch.version.cuda)'. Take the folders of other copies out of LD_LIBRARY_PATH and"
            " PYTHONPATH, and install a build for CUDA where it says None.",
        )
    having = f"torch {spec}"
    if build is None or version is None:
        return _Answer(
            message=f"{having} exports it.",
            fix=f"Use {having}, use a wheel that was made for the installed torch, or {rebuild}.",
            needs=_needs(spec),
        )
    if build in builds.present:
        return _Answer(
            message=f"torch {build.version} as the package index has it exports it, so another torch is loaded.",
            fix="See which torch is loaded: python -c 'import torch; print(torch.__file__, torch.__version__)'. Take"
            " the folders of other copies out of LD_LIBRARY_PATH and PYTHONPATH, or reinstall torch.",
        )
    return _Answer(
        message=f"torch {build.version} does not export it, {having} does.",
        fix=f"Use a wheel that was made for torch {minor_of(public(build.version))} and its C++ ABI, use {having}, or"
        f" {rebuild}.",
        needs=_needs(spec),
        is_certain=public(version) == public(build.version),
    )


def _needs(spec: str) -> dict[str, str]:
    """Return the spec for ``needs``. One with a gap is none of PEP 440."""
    return {"torch": spec} if "||" not in spec else {}


def _range(builds: tuple[TorchBuild, ...]) -> str:
    return f"{public(builds[0].version)} to {public(builds[-1].version)}" if builds else "of this platform"


def _measured(build: TorchBuild) -> tuple[Evidence, ...]:
    source = f"the libraries of {build.file}"
    return (Evidence(kind=EvidenceKind.MEASURED, source=source, date=build.date, sha256=build.sha256),)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Refusal:
    """What the loader refused: the version, the library that ends earlier, and the file that asks for it."""

    need: LibraryNeed
    loaded: str
    by: str

    @property
    def is_conda(self) -> bool:
        """Return whether the environment or the library is conda's."""
        return bool(_CONDA.search(self.loaded) or _CONDA.search(self.by))


def with_systems(diagnosed: Diagnosed, hit: Hit, facts: Facts) -> Diagnosed:
    """Return a finding about a version of glibc or libstdc++ with what has it. Any other is returned as it is."""
    match = _NOT_FOUND.search(hit.text)
    if match is None:
        return diagnosed
    need = LibraryNeed(match["set"], match["version"])
    refusal = _Refusal(need=need, loaded=match["loaded"] or "", by=match["by"] or "")
    table = system_libraries()
    finding = dataclasses.replace(
        diagnosed.finding,
        message=" ".join([diagnosed.finding.message, *_version_sentences(refusal, facts, table)]),
        fix=_version_fix(refusal, facts, table),
        needs=_needs_of_system(need, table),
        evidence=(*diagnosed.finding.evidence, *table.sources_of(need)),
    )
    return dataclasses.replace(diagnosed, finding=finding, lines=_version_lines(refusal, table))


def _needs_of_system(need: LibraryNeed, table: SystemLibraries) -> dict[str, str]:
    """Return the glibc, or the GCC whose libstdc++ it is, that brings a version."""
    if need.library == "glibc":
        return {"glibc": f">={need.version}"}
    compiler = table.compiler_of(need)
    return {"libstdcxx": f">={compiler}"} if compiler else {}


def _version_sentences(refusal: _Refusal, facts: Facts, table: SystemLibraries) -> list[str]:
    need = refusal.need
    sentences = [f"{need} comes with GCC {compiler}."] if (compiler := table.compiler_of(need)) else []
    host = _host_of(facts, table)
    is_its_own = not refusal.loaded or bool(_SYSTEM.match(refusal.loaded)) or "glibcxx" in facts.host
    if is_its_own and not host.newest.defines(need):
        sentences.append(f"{_capital(host.has(need))}.")
    return sentences


def _host_of(facts: Facts, table: SystemLibraries) -> Host:
    system, glibcxx = facts.host.get("os", ""), facts.host.get("glibcxx")
    return table.host(system, glibc=facts.version("glibc"), glibcxx=glibcxx)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _version_fix(refusal: _Refusal, facts: Facts, table: SystemLibraries) -> str:
    need = refusal.need
    systems = table.systems_with(need)
    newer = f"use a system or image that has {need}" + (f" ({', '.join(systems)})" if systems else "")
    package = package_of(refusal.by)
    rebuild = f"compile {package or 'the extension'} on this system with its own compiler"
    older = f"take an older wheel of {package}" if package else "take an older wheel of the package"
    if need.library == "glibc":
        return f"{_capital(newer)}, {older}, or {rebuild}. glibc is the system's: conda does not bring one."
    if _COMPILED.search(refusal.by):
        rebuild = "compile it again with the GCC whose libstdc++ is loaded, after removing ~/.cache/torch_extensions"
    floor = f">={table.compiler_of(need)}" if table.compiler_of(need) else ""
    conda = f"conda install -c conda-forge 'libstdcxx-ng{floor}', with $CONDA_PREFIX/lib first on LD_LIBRARY_PATH"
    named = table.named_in(facts.host.get("os", ""))
    system_has_it = bool(named and named[1].defines(need))
    if refusal.is_conda and system_has_it and not _SYSTEM.match(refusal.loaded):
        return f"Load the system's libstdc++ with LD_PRELOAD, or update that of the environment: {conda}; or {rebuild}."
    return f"Install a newer libstdc++ into the environment: {conda}. Or {newer}, {older}, or {rebuild}."


def _version_lines(refusal: _Refusal, table: SystemLibraries) -> tuple[str, ...]:
    """Return the lines to type. No command mends a glibc."""
    if refusal.need.library == "glibc":
        return ("ldd --version",)
    compiler = table.compiler_of(refusal.need)
    return (
        f"conda install -c conda-forge 'libstdcxx-ng{f'>={compiler}' if compiler else ''}'",
        "export LD_LIBRARY_PATH=$CONDA_PREFIX/lib:$LD_LIBRARY_PATH",
    )
