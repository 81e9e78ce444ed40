"""From a cell to what the Conda solver is asked, and what is left to pip.

Pure: the channel is a function from name to builds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from envsmith.errors import LockError, UsageError
from envsmith.frameworks import FRAMEWORKS
from envsmith.lock.conda.model import CondaPackage, CondaSpec
from envsmith.lock.conda.names import candidates, clean, component_version, cuda_of_build, fold, listing, same_version
from envsmith.model.cell import Cell, Platform
from envsmith.model.lock import Pin
from envsmith.model.version import WORDS, minor_of, public

Offer = Callable[[str], Sequence[CondaPackage]]

# What the machine is, not what is installed; `gcc` and `toolkit` come back as compilers.
HOST = frozenset({"driver", "gpu", "toolkit", "gcc", "clang", "glibc", "cmake", "openmpi"})
# What Conda's PyTorch binds more narrowly than the wheel does, and a user can choose another release of.
MOVABLE = ("nccl", "cudnn", "triton")
_CORE = frozenset({"python", "torch", "cuda", "nccl", "cudnn", "triton"})
# torch wheels of these years are manylinux_2_28; conda-lock assumes the same glibc and kernel when nothing is said.
_GLIBC, _KERNEL = "2.28", "5.10"


@dataclass(frozen=True, kw_only=True, slots=True)
class CondaPlan:
    """What is asked of the solver, and what is left to pip.

    ``specs`` must be installed, ``extra`` are pip's dependencies that the channel has as well. ``limits`` bind what is
    installed anyway (``soft`` ones may be given up). ``pip_roots`` come from pip, with ``pip_closure`` (roots first) as
    far as Conda lacks it.
    """

    specs: tuple[CondaSpec, ...]
    extra: tuple[CondaSpec, ...]
    limits: tuple[CondaSpec, ...]
    soft: tuple[CondaSpec, ...]
    pip_roots: tuple[str, ...]
    pip_closure: tuple[str, ...]
    notes: tuple[str, ...] = ()


def cuda_of(cell: Cell) -> str | None:
    """Return ``12.9``, or ``None`` for a cell without CUDA."""
    cuda = cell.components.get("cuda", "cpu")
    return None if cuda in WORDS else minor_of(cuda)


def without(cell: Cell, tolerate: Sequence[str]) -> Cell:
    """Return the cell without the components whose release may differ. ``UsageError`` for one that may not."""
    if wrong := sorted(set(tolerate) - set(MOVABLE)):
        raise UsageError(
            f"Cannot let {', '.join(wrong)} differ from the pip lock: only {', '.join(MOVABLE)} may.",
            hint=f"Use --conda-tolerate with {' or '.join(MOVABLE)}.",
        )
    components = {name: version for name, version in cell.components.items() if name not in tolerate}
    return replace(cell, components=components, chosen=tuple(n for n in cell.chosen if n in components))


def virtual_packages(cell: Cell, platform: Platform) -> dict[str, str]:
    """Return the virtual packages that describe the machine: the cell's facts, never this host's.

    ``__cuda`` is the cell's CUDA: whether a driver is new enough for it is a rule of the graph, which the cell
    satisfies.
    """
    packages = {
        "__unix": "0",
        "__linux": _KERNEL,
        "__archspec": f"1 {platform.machine}",
        "__glibc": cell.components.get("glibc", _GLIBC),
    }
    if cuda := cuda_of(cell):
        packages["__cuda"] = cuda
    return dict(sorted(packages.items()))


def core_problems(cell: Cell, offer: Offer, platform: Platform) -> list[str]:
    """Say what the channel lacks of the core of ``cell``, to which frameworks do not belong."""
    problems: list[str] = []
    _core(cell, offer, platform, problems, [])
    _compilers(cell, offer, problems)
    return problems


def make_plan(cell: Cell, pins: Sequence[Pin], offer: Offer, platform: Platform) -> CondaPlan:
    """Return what to ask for. ``LockError`` lists every component that the channel cannot give."""
    by_name = {fold(p.name): p for p in pins}
    problems: list[str] = []
    notes: list[str] = []
    specs = _core(cell, offer, platform, problems, notes)
    chosen, roots = _distributions(cell, by_name, offer, platform, problems)
    specs += chosen + _compilers(cell, offer, problems)
    if problems:
        raise LockError(
            f"Cannot lock {cell.id} for Conda: the channel has no build of it on {platform.value}.",
            details=problems,
            hint="Choose a cell whose parts the channel has (envsmith solve --torch … --cuda …), or give another "
            "--channel.",
        )
    covered = {n for spec in specs for n in (spec.name,)}
    closure = _closure(roots, by_name, covered)
    extra = [s for name in closure if name not in roots and (s := _python_spec(by_name[name], offer, covered))]
    limits = _triton(cell, offer)
    bound = {s.name for s in (*specs, *extra, *limits)}
    soft = [s for pin in by_name.values() if pin.name not in roots and (s := _python_spec(pin, offer, bound))]
    if roots:
        specs.append(CondaSpec("pip"))
    return CondaPlan(
        specs=tuple(specs),
        extra=tuple(extra),
        limits=tuple(limits),
        soft=tuple(sorted(soft, key=lambda s: s.name)),
        pip_roots=roots,
        pip_closure=closure,
        notes=tuple(notes),
    )


def _core(cell: Cell, offer: Offer, platform: Platform, problems: list[str], notes: list[str]) -> list[CondaSpec]:
    specs = [CondaSpec("python", f"{'.'.join(cell.components['python'].split('.')[:2])}.*")]
    builds = _torch_builds(cell, offer, platform, problems) if "torch" in cell.components else []
    cuda = cuda_of(cell)
    if "torch" in cell.components:
        specs.append(CondaSpec("pytorch", f"=={public(cell.components['torch'])}", _build_glob(builds, cuda or "cpu")))
    if cuda is None:
        return specs
    own = any(
        any(d.split(" ")[0] == "pytorch-cuda" for d in p.depends) for p in builds
    )  # the pytorch channel's way: NCCL and cuDNN are inside of its PyTorch
    specs.append(
        _exact("cuda", CondaSpec("pytorch-cuda" if own else "cuda-version", f"{cuda}.*"), cuda, offer, problems)
    )
    for name in ("nccl", "cudnn"):
        version = cell.components.get(name, "none")
        if version in WORDS:
            continue
        if offer(name) and not own:
            specs.append(_exact(name, CondaSpec(name, f"{version}.*"), version, offer, problems))
        else:
            notes.append(
                f"{name} {version}: the channel's PyTorch carries its {name} inside, no package tells the version"
            )
    return specs


def _exact(component: str, spec: CondaSpec, version: str, offer: Offer, problems: list[str]) -> CondaSpec:
    """Return the spec, with a problem noted when no build of the channel can satisfy it."""
    have = offer(spec.name)
    if not any(same_version(component, version, p.version) for p in have):
        versions = listing(component_version(component, p.version) for p in _newest(have))
        problems.append(
            f"{component} {version}: the channel has {f'{spec.name} {versions}' if versions else f'no {spec.name}'}"
        )
    return spec


def _torch_builds(cell: Cell, offer: Offer, platform: Platform, problems: list[str]) -> list[CondaPackage]:
    """Return the builds of PyTorch for the cell's version, CUDA and Python. A problem is noted when there are none."""
    version = public(cell.components["torch"])
    cuda = cuda_of(cell) or "cpu"
    python = minor_of(cell.components["python"])
    builds = offer("pytorch")
    here = [p for p in builds if p.version == version]
    same = [p for p in here if cuda_of_build(p.build) == cuda]
    fit = [p for p in same if python_of(p) in {"", python}]
    what = f"torch {version} for {'the CPU' if cuda == 'cpu' else f'CUDA {cuda}'}"
    if not builds:
        problems.append(f"{what}: the channel has no pytorch for {platform.value}")
    elif not here:
        problems.append(f"{what}: the channel has pytorch {listing(p.version for p in _newest(builds))}")
    elif not same:
        alternatives = listing(sorted({str(cuda_of_build(p.build)) for p in here}, key=_numbers))
        problems.append(f"{what}: the channel has pytorch {version} for CUDA {alternatives}")
    elif not fit:
        alternatives = listing(sorted({python_of(p) for p in same} - {""}, key=_numbers))
        problems.append(f"{what}: the channel has it for Python {alternatives or '?'}, not {python}")
    return fit


def _build_glob(builds: Sequence[CondaPackage], cuda: str) -> str:
    """Return a glob for this CUDA: ``cuda129*`` on conda-forge, ``*cuda12.4*`` on the pytorch channel."""
    dotted = any(f"cuda{cuda}" in p.build for p in builds)
    if cuda == "cpu":
        return "cpu*" if all(p.build.startswith("cpu") for p in builds) else "*cpu*"
    return f"*cuda{cuda}*" if dotted else f"cuda{cuda.replace('.', '')}*"


def python_of(package: CondaPackage) -> str:
    """Return ``3.12`` from what a build depends on, or nothing when it fits several."""
    for dependency in package.depends:
        name, _, spec = dependency.partition(" ")
        if name == "python_abi":
            return minor_of(spec.split(" ")[0])
        if name == "python" and spec.startswith(">=3.") and ",<" in spec:
            low, high = spec.removeprefix(">=").split(",<")[:2]
            low_minor, high_minor = low.split(".")[1], high.split(".")[1]
            if low_minor.isdigit() and high_minor.isdigit() and int(high_minor) == int(low_minor) + 1:
                return f"3.{low_minor}"
    return ""


def _distributions(
    cell: Cell, by_name: Mapping[str, Pin], offer: Offer, platform: Platform, problems: list[str]
) -> tuple[list[CondaSpec], tuple[str, ...]]:
    """Choose for frameworks and companions: from the channel where it has the very release, else from the pip lock."""
    specs: list[CondaSpec] = []
    roots: list[str] = []
    for component, version in cell.components.items():
        if component in HOST or component in _CORE or version in WORDS:
            continue
        offered = {name: offer(name) for name in candidates(component)}
        name = next((n for n, have in offered.items() if _fits(have, component, version)), None)
        if name:
            specs.append(CondaSpec(name, f"=={version}"))
        elif fold(component) in by_name:
            roots.append(fold(component))
        else:
            have = listing(p.version for builds in offered.values() for p in _newest(builds))
            instead = f"the channel has {have}" if have else f"the channel does not have it for {platform.value}"
            problems.append(f"{component} {version}: {instead}, and the pip lock does not pin it")
    return specs, tuple(roots)


def _fits(builds: Sequence[CondaPackage], component: str, version: str) -> bool:
    return any(same_version(component, version, p.version) for p in builds)


def _compilers(cell: Cell, offer: Offer, problems: list[str]) -> list[CondaSpec]:
    """Return a C and a C++ compiler and nvcc, where a framework of the cell compiles extensions."""
    builders = sorted(name for name in cell.frameworks if FRAMEWORKS[name].compiles)
    if not builders:
        return []
    gcc = cell.components.get("gcc")
    specs = [CondaSpec(n, f"{gcc.split('.')[0]}.*") for n in ("gcc", "gxx")] if gcc else []
    specs = specs or [CondaSpec("c-compiler"), CondaSpec("cxx-compiler")]
    if cuda := cuda_of(cell):
        toolkit = minor_of(cell.components.get("toolkit", cuda))
        specs.append(_exact("toolkit", CondaSpec("cuda-nvcc", f"{toolkit}.*"), toolkit, offer, problems))
    frameworks = " and ".join(builders)
    problems += [
        f"{s.name}: {frameworks} compiles extensions, and the channel does not have it"
        for s in specs
        if not offer(s.name) and s.name != "cuda-nvcc"
    ]
    return specs


def _triton(cell: Cell, offer: Offer) -> list[CondaSpec]:
    """Bind Triton, which comes with PyTorch, to the cell's."""
    version = cell.components.get("triton", "none")
    if version in WORDS:
        return []
    return [CondaSpec(name, f"=={version}") for name in candidates("triton") if offer(name)]


def _closure(roots: Sequence[str], by_name: Mapping[str, Pin], covered: set[str]) -> tuple[str, ...]:
    """Return the roots and what they need of the pip lock, breadth first. What Conda brings for sure is not entered."""
    order = dict.fromkeys(roots)
    queue = list(roots)
    while queue:
        pin = by_name[queue.pop(0)]
        for required in map(fold, pin.requires):
            skipped = (
                required in order or required not in by_name or required.startswith("nvidia-") or required == "triton"
            )
            if not skipped and not covered & set(candidates(required)):
                order[required] = None
                queue.append(required)
    return tuple(order)


def _python_spec(pin: Pin, offer: Offer, covered: set[str]) -> CondaSpec | None:
    """Return the same release of a distribution as a Conda package, when there is one and it is a Python package.

    The package index and Conda sometimes use one name for two programs: a package that does not depend on Python is the
    other one.
    """
    name = fold(pin.name)
    if name in {"torch", "triton"} or name.startswith("nvidia-"):
        return None
    for candidate in candidates(name):
        if candidate in covered:
            return None
        if any(same_version(name, pin.version, p.version) and is_python(p) for p in offer(candidate)):
            return CondaSpec(candidate, f"=={pin.version.split('+', maxsplit=1)[0]}")
    return None


def is_python(package: CondaPackage) -> bool:
    """Return whether a package brings Python modules."""
    return package.noarch == "python" or any(d.split(" ")[0] in {"python", "python_abi"} for d in package.depends)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(p) if p.isdigit() else -1 for p in version.split("."))


def _newest(builds: Sequence[CondaPackage]) -> list[CondaPackage]:
    return sorted(builds, key=lambda p: _numbers(clean(p.version)), reverse=True)
