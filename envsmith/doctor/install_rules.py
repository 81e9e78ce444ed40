"""Rules over what is installed beside its version: copies of libraries, tools, builds, installations that are not whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy
from envsmith.doctor.failures import failure
from envsmith.doctor.making import below, make
from envsmith.model.evidence import EvidenceKind
from envsmith.model.rule import Severity
from envsmith.sources.reports.facts import Facts

__all__ = ["judge_installation"]

_COMM = "comm-or-launch-setup"
_NVSWITCH = re.compile(r"\b(h100|h200|h800|h20|b200|b300|a100|a800)\b", re.IGNORECASE)


def judge_installation(facts: Facts) -> list[Diagnosed]:
    """Everything these rules give."""
    found: list[Diagnosed] = []
    for rule in (
        _nccl_copies,
        _ninja,
        _compiler,
        _nvcc,
        _fabric,
        _cpu_torch,
        _driver_level,
        _apex,
        _nvhpc,
        _installed,
        _old_torch,
        _no_torch,
    ):
        found += rule(facts)
    return found


def _nccl_copies(facts: Facts) -> Iterator[Diagnosed]:
    taxonomy = failure("wrong-nccl-loaded")
    for library in ("nccl", "cudnn"):
        wheels = {
            name: version
            for name, version in facts.distributions.items()
            if re.fullmatch(rf"nvidia-{library}-cu\d+", name)
        }
        if len(wheels) < 2:
            continue
        own = f"nvidia-{library}-cu{(facts.version('cuda') or '?').split('.')[0]}"
        others = [name for name in sorted(wheels) if name != own]
        older = own in wheels and any(below(wheels[name], wheels[own]) for name in others)
        told = ", ".join(f"{name} {version}" for name, version in sorted(wheels.items()))
        yield make(
            f"two-{library}-wheels",
            Severity.ERROR if older else Severity.WARNING,
            f"Two {library.upper()} wheels are installed ({told}): both write the same lib{library} file, and the one installed last wins, whatever torch needs.",
            f"pip uninstall -y {' '.join(others)} && pip install --force-reinstall --no-deps {own}=={wheels.get(own, '<the version torch declares>')}",
            source="https://github.com/pytorch/pytorch/issues/186591",
            kind=EvidenceKind.REPORTED,
            components={library: wheels.get(own) or next(iter(wheels.values()))},
            taxonomy=taxonomy,
            lines=(
                f"pip uninstall -y {' '.join(others)}",
                f"pip install --force-reinstall --no-deps {own}=={wheels.get(own, 'VERSION')}",
            ),
        )
    yield from _copies(facts, taxonomy)


# Read on 2026-11-21: `undefined symbol: ncclCommRegister` at `import torch`, another libnccl being found first; closed as a duplicate of #119072.
_SHADOW_SOURCE = {"libnccl": "https://github.com/pytorch/pytorch/issues/119932"}
_SHADOW_ANY = "ld.so(8): LD_PRELOAD and LD_LIBRARY_PATH are searched before the RUNPATH that a wheel's library carries"


def _copies(facts: Facts, taxonomy: Taxonomy) -> Iterator[Diagnosed]:
    for name in ("libnccl", "libcudnn", "libcudart"):
        copies = [library for library in facts.libraries if library.name == name]
        shadow = next((c for c in copies if c.first and c.how in {"preload", "ld_library_path"}), None)
        if shadow is None or len({c.path for c in copies}) < 2:
            continue
        own = next((c for c in copies if c.how in {"wheel", "rpath", "conda"}), None)
        same = own is not None and own.version is not None and own.version == shadow.version
        older = own is not None and own.version and shadow.version and below(shadow.version, own.version)
        variable = "LD_PRELOAD" if shadow.how == "preload" else "LD_LIBRARY_PATH"
        yield make(
            f"{name.removeprefix('lib')}-shadowed",
            Severity.NOTE if same else Severity.ERROR if older else Severity.WARNING,
            f"{len(copies)} copies of {name}; {variable} puts {shadow.path} ({shadow.version or 'version not known'}) before the one torch brings ({own.version or 'version not known' if own else 'not found'}).",
            f"unset {variable}, or take the folder out of it.",
            source=_SHADOW_SOURCE.get(name, _SHADOW_ANY),
            kind=EvidenceKind.REPORTED if name in _SHADOW_SOURCE else EvidenceKind.DOCUMENTED,
            components={name.removeprefix("lib"): shadow.version or "?"},
            taxonomy=taxonomy,
            lines=(f"unset {variable}",),
        )


def _compiling(facts: Facts) -> list[str]:
    """Frameworks that compile ops at run time."""
    present = facts.host.get("present", "").split(",")
    return [n for n in ("deepspeed", "colossalai") if n in facts.components or n in present]


def _ninja(facts: Facts) -> Iterator[Diagnosed]:
    frameworks = _compiling(facts)
    if "ninja" in facts.tools and facts.tools["ninja"] is None and (frameworks or "ninja" not in facts.components):
        stops = "deepspeed" in facts.components and facts.version("cuda") == "cpu"
        yield make(
            "ninja-absent",
            Severity.ERROR if stops else Severity.WARNING,
            "ninja is not there: extensions that are compiled at run time (DeepSpeed and Colossal-AI ops) stop with 'Ninja is required to load C++ extensions'"
            + (", and on the CPU deepspeed compiles one as soon as it starts." if stops else "."),
            "pip install ninja (on every node).",
            source="torch/utils/cpp_extension.py",
            components={**{n: facts.version(n) or "*" for n in frameworks}, "ninja": "none"},
            taxonomy=failure("ninja-not-usable"),
            lines=("pip install ninja",),
            score=None if stops else 48,
        )


def _compiler(facts: Facts) -> Iterator[Diagnosed]:
    frameworks = _compiling(facts)
    if "c++" in facts.tools and facts.tools["c++"] is None and frameworks:
        yield make(
            "compiler-absent",
            Severity.WARNING,
            "No C++ compiler is there: ops of the framework cannot be compiled at run time (on the CPU deepspeed compiles one when it starts).",
            "apt-get install -y build-essential (dnf install gcc-c++).",
            source="deepspeedai/DeepSpeed v0.19.5: deepspeed/comm/torch.py",
            components={**{n: facts.version(n) or "*" for n in frameworks}, "gcc": "none"},
            taxonomy=failure("missing-system-tool"),
            lines=("apt-get install -y build-essential",),
        )


def _nvcc(facts: Facts) -> Iterator[Diagnosed]:
    frameworks = _compiling(facts)
    if (
        "nvcc" in facts.tools
        and facts.tools["nvcc"] is None
        and frameworks
        and facts.version("cuda") != "cpu"
        and (facts.version("cuda") or facts.gpus)
    ):
        deepspeed = facts.version("deepspeed")
        told = "deepspeed" in frameworks and deepspeed is None
        stops = deepspeed is not None and facts.gpus and not below(deepspeed, "0.14.1") and below(deepspeed, "0.19.5")
        yield make(
            "nvcc-absent",
            Severity.ERROR if stops else Severity.WARNING if told else Severity.NOTE,
            "No nvcc is found: CUDA ops cannot be compiled here"
            + (
                "; deepspeed 0.14.1 to 0.19.4 with a GPU even stops when it is imported (MissingCUDAException)."
                if stops
                else " (prebuilt ones work)."
            ),
            "Install the toolkit of torch's CUDA (a *-devel image, cuda-toolkit-12-8) and set CUDA_HOME"
            + ("; or deepspeed>=0.19.5." if stops else "."),
            source="https://github.com/deepspeedai/DeepSpeed/pull/8216",
            components={"toolkit": "none", **({"deepspeed": deepspeed} if deepspeed else {})},
            taxonomy=failure("cuda-toolkit-missing"),
            lines=("apt-get install -y cuda-toolkit-12-8", "export CUDA_HOME=/usr/local/cuda"),
        )


def _fabric(facts: Facts) -> Iterator[Diagnosed]:
    state = facts.host.get("fabric_manager")
    if (
        state in {None, "running", "not needed"}
        or not facts.gpus
        or not _NVSWITCH.search(facts.gpus[0])
        or (facts.gpu_count or 0) < 8
    ):
        return
    yield make(
        "fabric-manager-absent",
        Severity.WARNING,
        "Eight data-center GPUs and no nvidia-fabricmanager running: on NVSwitch machines CUDA then fails with 'system not yet initialized' or NVLS hangs (inside a container it runs on the host and is not seen).",
        "systemctl enable --now nvidia-fabricmanager (the version of the driver).",
        source="https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/",
        taxonomy=failure("nvls-fabric-manager"),
        confidence="low",
        lines=("systemctl enable --now nvidia-fabricmanager",),
    )


def _cpu_torch(facts: Facts) -> Iterator[Diagnosed]:
    if facts.version("cuda") == "cpu" and facts.gpus:
        yield make(
            "cpu-torch-on-gpu",
            Severity.WARNING,
            f"torch {facts.version('torch') or ''} is built without CUDA, and there is a GPU ({facts.gpus[0][:40]}).",
            "uv pip install --reinstall torch --torch-backend=auto",
            source="torch/version.py",
            components={"torch": facts.version("torch") or "", "cuda": "cpu"},
            taxonomy=failure("cpu-only-torch"),
            lines=("uv pip install --reinstall torch --torch-backend=auto",),
        )


def _driver_level(facts: Facts) -> Iterator[Diagnosed]:
    """The driver told only its CUDA level: another major than torch's is too old, a lower minor works since CUDA 11."""
    level, cuda = facts.host.get("driver_cuda"), facts.version("cuda")
    if level is None or cuda in {None, "cpu"} or "driver" in facts.components or cuda is None:
        return
    if int(level.split(".")[0]) < int(cuda.split(".")[0]):
        yield make(
            "driver-cuda-level",
            Severity.ERROR,
            f"The driver supports CUDA {level}, and torch is built for CUDA {cuda}: the driver is too old.",
            f"Update the driver (CUDA 12: >= 525.60.13; CUDA 13: >= 580), or install torch for CUDA {level.split('.')[0]}.x (uv pip install torch --torch-backend=auto).",
            source="https://docs.nvidia.com/deploy/cuda-compatibility/",
            components={"driver": f"CUDA {level}", "cuda": cuda},
            taxonomy=failure("driver-too-old"),
            lines=("uv pip install torch --torch-backend=auto",),
        )


def _apex(facts: Facts) -> Iterator[Diagnosed]:
    version = facts.distributions.get("apex")
    if version and version.startswith("0.9"):
        yield make(
            "apex-not-nvidia",
            Severity.WARNING,
            f"The apex {version} that is installed is another program of that name from the package index, not NVIDIA's.",
            "pip uninstall -y apex; build NVIDIA apex from its repository.",
            source="https://github.com/NVIDIA/apex",
            components={"apex": version},
            taxonomy=failure("apex-missing"),
            lines=("pip uninstall -y apex",),
        )


def _nvhpc(facts: Facts) -> Iterator[Diagnosed]:
    places = [facts.variables.get(n, "") for n in ("CUDA_HOME", "CPATH", "LD_LIBRARY_PATH")]
    vendor = facts.host.get("toolkit_vendor") == "nvhpc"
    if vendor or any(re.search(r"nvhpc|hpc_sdk", place) for place in places[:2]):
        yield make(
            "nvhpc-on-path",
            Severity.WARNING,
            "CUDA_HOME or CPATH points into the NVIDIA HPC SDK: its headers refuse other compilers than nvc++.",
            "Use a plain CUDA toolkit: module unload nvhpc; export CUDA_HOME=/usr/local/cuda.",
            source="https://github.com/NVIDIA/Megatron-LM/issues/319",
            kind=EvidenceKind.REPORTED,
            components={"toolkit_vendor": "nvhpc"},
            taxonomy=failure("wrong-headers-nvhpc"),
            lines=("export CUDA_HOME=/usr/local/cuda", "unset CPATH"),
        )


def _installed(facts: Facts) -> Iterator[Diagnosed]:
    """Installations that are not whole: folders without metadata, libraries that are gone."""
    taxonomy = failure("broken-installation")
    lost, torsos = facts.host.get("lost_files"), facts.host.get("broken_distributions")
    if lost:
        yield make(
            "files-lost",
            Severity.ERROR,
            f"Libraries that were installed are gone: {lost}: another package removed or overwrote them.",
            "Reinstall the packages they belong to: pip install --force-reinstall --no-deps NAME==VERSION.",
            source="RECORD of the distributions",
            kind=EvidenceKind.MEASURED,
            taxonomy=taxonomy,
            lines=("pip check", "pip install --force-reinstall --no-deps NAME==VERSION"),
        )
    if torsos:
        yield make(
            "distribution-without-metadata",
            Severity.WARNING,
            f"Folders of distributions without metadata (an installation that was interrupted): {torsos}.",
            "Remove the folder and install the package again.",
            source="the folder itself",
            kind=EvidenceKind.MEASURED,
            taxonomy=taxonomy,
        )


def _old_torch(facts: Facts) -> Iterator[Diagnosed]:
    torch = facts.version("torch")
    if torch and below(torch, "1.10"):
        yield make(
            "torch-very-old",
            Severity.WARNING,
            f"torch {torch} is older than what these frameworks are made for: Colossal-AI needs 1.10 or later from its 0.1 on, current DeepSpeed and Megatron-core need 2.0 and later.",
            "Use torch 1.10 or 1.11 for frameworks of that time, else a current release: envsmith solve --framework NAME.",
            source="hpcaitech/ColossalAI at its tags: colossalai/__init__.py, requirements/requirements.txt",
            components={"torch": torch},
            taxonomy=failure("torch-too-old"),
            confidence="medium",
            lines=("envsmith solve --framework colossalai",),
        )


def _no_torch(facts: Facts) -> Iterator[Diagnosed]:
    """An environment of this machine that was looked at and has no torch: perhaps it is another one that is meant."""
    where = facts.host.get("environment")
    if where is None or "torch" in facts.components or "torch" in facts.distributions:
        return
    yield make(
        "no-torch-here",
        Severity.NOTE,
        f"There is no torch in the environment that was looked at ({where}): nothing of it could be judged.",
        "Name the environment that is meant: envsmith doctor --python PATH/TO/ENV; or install into this one: envsmith solve --framework NAME.",
        source="the environment itself",
        kind=EvidenceKind.MEASURED,
        components={"torch": "none"},
        taxonomy=failure("package-missing"),
        score=30,
    )
