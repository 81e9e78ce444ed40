"""Rules over facts that are not versions: limits, variables, libraries, tools, GPUs of a machine or of a report.

Each rule is a function from facts to findings; none looks at the world. Rules over versions stand in ``matrix/rules``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, below, failure, make
from envsmith.doctor.facts import Facts
from envsmith.errors import DataError
from envsmith.files import read_cache, write_cache
from envsmith.graph.files import DataFiles, find_matrix
from envsmith.model.rule import Evidence, EvidenceKind, Severity
from envsmith.model.version import version_key

_MB = 1 << 20
_COMM = "comm-or-launch-setup"
# GeForce and workstation cards whose peer access over PCIe is absent or unreliable.
_NO_P2P = re.compile(
    r"rtx\s*-?(40\d0|4000|40xx|40 series|50 series|50xx|50\d0|4500|5000|6000)(?!\s*8000)|\b(4090|4080|5090|5080)\b|rtx\s*pro",
    re.IGNORECASE,
)
_PREFIXES = ("NCCL_", "TORCH_NCCL_")
# Variables that plug-ins and wrappers read; absent from NCCL's own source.
_OTHERS = (
    "NCCL_OFI",
    "NCCL_FASTRAK",
    "NCCL_GPUDIRECTTCPX",
    "NCCL_TUNER",
    "NCCL_NET",
    "NCCL_PROFILER",
    "NCCL_HOME",
    "NCCL_ROOT",
    "NCCL_VERSION",
    "NCCL_INCLUDE",
    "NCCL_LIB",
    "NCCL_DIR",
    "NCCL_CONF",
    "NCCL_TESTS",
    "NCCL_UNIQUE",
    "NCCL_TOPO_DUMP",
    "NCCL_DEBUG",
)


def judge_setup(facts: Facts) -> list[Diagnosed]:
    """Everything that the facts beside versions give."""
    found: list[Diagnosed] = judge_installation(facts)
    for rule in (
        _p2p,
        _memlock,
        _open_files,
        _shm,
        _cuda_home,
        _visible,
        _variables,
        _interfaces,
        _used_interface,
    ):
        found += rule(facts)
    return found


def _p2p(facts: Facts) -> Iterator[Diagnosed]:
    names = [name for name in facts.gpus if _NO_P2P.search(name)]
    if not names or facts.variables.get("NCCL_P2P_DISABLE", "").strip() in {"1", "true"}:
        return
    if "NV" in facts.host.get("gpu_links", ""):
        return
    several = (facts.gpu_count or 1) > 1 or "NCCL_P2P_DISABLE" in facts.host.get("unset", "").split(",")
    if not several and facts.host.get("gpu_number") == "known":
        return
    yield make(
        "gpu-no-p2p",
        Severity.WARNING if several else Severity.NOTE,
        f"{names[0].split('(')[0].strip()}{' (several)' if several else ''}: peer access over PCIe does not work or is not reliable on these cards, the driver does not always say so, and NCCL tries it: the first collective hangs or gives wrong values.",
        "Set NCCL_P2P_DISABLE=1 (and NCCL_IB_DISABLE=1 where there is no InfiniBand) before the start; accelerate launch >= 0.25 sets both.",
        source="https://github.com/huggingface/accelerate/pull/2195",
        kind=EvidenceKind.REPORTED,
        components={"gpu": facts.version("gpu") or names[0][:60], "NCCL_P2P_DISABLE": "unset"}
        | ({"nccl": nccl} if (nccl := facts.version("nccl")) else {}),
        taxonomy=failure("geforce-no-p2p"),
        confidence="medium" if several else "low",
        lines=("export NCCL_P2P_DISABLE=1", "export NCCL_IB_DISABLE=1"),
        score=47 if several else 20,
    )


def _memlock(facts: Facts) -> Iterator[Diagnosed]:
    limit = facts.limits.get("memlock")
    if limit is None or limit < 0 or limit > 64 * _MB or facts.host.get("infiniband") == "none":
        return
    # Who states the limit and nothing of the network has a reason to; ``doctor`` on a machine knows both.
    used = facts.host.get("infiniband") in {"used", "present", None}
    yield make(
        "memlock-low",
        Severity.WARNING if used else Severity.NOTE,
        f"The limit of locked memory is {limit // 1024} kB: InfiniBand registers buffers of many megabytes, NCCL then fails in ibv_reg_mr.",
        "ulimit -l unlimited (limits.conf, the service that starts the job, docker run --ulimit memlock=-1).",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
        components={"limit.memlock": str(limit)},
        taxonomy=failure("memlock-limit"),
        confidence="high" if used else "low",
        lines=("ulimit -l unlimited", "docker run --ulimit memlock=-1 ..."),
    )


def _open_files(facts: Facts) -> Iterator[Diagnosed]:
    limit = facts.limits.get("nofile")
    if limit is None or limit < 0 or limit >= 1024:
        return
    yield make(
        "open-files-low",
        Severity.WARNING,
        f"The limit of open files is {limit}: every rank needs a socket or two per peer and channel.",
        "ulimit -n 65536.",
        source="NVIDIA/nccl src/misc/socket.cc",
        components={"limit.nofile": str(limit)},
        taxonomy=failure("open-files-limit"),
        lines=("ulimit -n 65536",),
    )


def _shm(facts: Facts) -> Iterator[Diagnosed]:
    taxonomy = failure("container-shm-too-small")
    size = facts.limits.get("shm")
    docker = [launch for launch in facts.launches if launch.tool == "docker"]
    if size is not None and 0 <= size <= 256 * _MB:
        yield make(
            "shm-small",
            Severity.WARNING,
            f"/dev/shm has {size / _MB:.0f} MB: NCCL takes about 10 to 30 MB a rank from it, DataLoader workers take more; too little ends in 'No space left on device' or a bus error.",  # noqa: S108 - a message
            "docker run --shm-size=16g (or --ipc=host); in Kubernetes an emptyDir with medium: Memory at /dev/shm; on the host itself: mount -o remount,size=16g /dev/shm.",
            source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
            components={"limit.shm": str(size)},
            taxonomy=taxonomy,
            lines=(
                ("mount -o remount,size=16g /dev/shm",)
                if facts.host.get("in_container") == "no"
                else ("docker run --shm-size=16g ...",)
            ),
        )
    for launch in docker:
        if {"shm-size", "ipc"} & set(launch.options) or not ({"gpus", "runtime", "device"} & set(launch.options)):
            continue
        yield make(
            "docker-without-shm",
            Severity.WARNING,
            "docker run without --shm-size or --ipc=host: /dev/shm has 64 MB in the container.",
            "docker run --shm-size=16g (or --ipc=host) --ulimit memlock=-1.",
            source="https://docs.docker.com/reference/cli/docker/container/run/",
            taxonomy=taxonomy,
            confidence="medium",
            lines=("docker run --shm-size=16g --ulimit memlock=-1 ...",),
        )
        return


def _cuda_home(facts: Facts) -> Iterator[Diagnosed]:
    value = facts.variables.get("CUDA_HOME", facts.variables.get("CUDA_PATH", ""))
    if ":" in value:
        yield make(
            "cuda-home-list",
            Severity.ERROR,
            f"CUDA_HOME is {value!r}: it must be one folder, not a list of paths; nvcc is then looked for at '{value}/bin/nvcc'.",
            f"export CUDA_HOME={next((p for p in value.split(':') if p), '/usr/local/cuda')}",
            source="https://github.com/deepspeedai/DeepSpeed/issues/5511",
            kind=EvidenceKind.REPORTED,
            components={"CUDA_HOME": value[:80]},
            taxonomy=failure("cuda-home-malformed"),
            lines=(f"export CUDA_HOME={next((p for p in value.split(':') if p), '/usr/local/cuda')}",),
        )
    elif value and facts.host.get("cuda_home_exists") == "no":
        yield make(
            "cuda-home-absent",
            Severity.WARNING,
            f"CUDA_HOME is {value}, and nothing is there: extensions cannot be compiled.",
            "Point CUDA_HOME to the toolkit that is installed, or unset it.",
            source="torch/utils/cpp_extension.py",
            components={"CUDA_HOME": value[:80]},
            taxonomy=failure("cuda-toolkit-missing"),
            lines=("export CUDA_HOME=/usr/local/cuda",),
        )


def _visible(facts: Facts) -> Iterator[Diagnosed]:
    value = facts.variables.get("CUDA_VISIBLE_DEVICES")
    if value is None or not re.fullmatch(r"\d+(,\d+)*", value):
        return
    numbers = [int(n) for n in value.split(",") if len(n) < 5]
    launcher = any(launch.tool in {"deepspeed", "accelerate"} for launch in facts.launches)
    deepspeed = facts.version("deepspeed")
    known = [name for name in ("torch", "megatron-core", "colossalai") if name in facts.components]
    if numbers == list(range(len(numbers))) or (deepspeed is None and not launcher and known):
        return
    old = deepspeed is not None and below(deepspeed, "0.15.3")
    yield make(
        "visible-devices-and-deepspeed",
        Severity.WARNING if old or launcher else Severity.NOTE,
        f"CUDA_VISIBLE_DEVICES={value}: the deepspeed launcher up to 0.15.2 maps the devices to 0..n-1 of its own, and any release ignores the variable when --include, --exclude, --num_gpus or --num_nodes is given.",
        f"Choose the GPUs with the launcher: deepspeed --include localhost:{value} train.py",
        source="https://github.com/deepspeedai/DeepSpeed/issues/2976",
        kind=EvidenceKind.REPORTED,
        components={"deepspeed": deepspeed or "<=0.15.2", "CUDA_VISIBLE_DEVICES": value[:80]},
        taxonomy=failure("cuda-visible-devices-vs-launcher"),
        confidence="medium" if old or launcher else "low",
        lines=(f"deepspeed --include localhost:{value} train.py",),
        score=45 if old or launcher else 20,
    )


def _variables(facts: Facts) -> Iterator[Diagnosed]:
    known = variables()
    taxonomy = failure("variable-not-read")
    for name, value in facts.variables.items():
        variable = known.get(name)
        if variable is None:
            yield from _unknown_variable(name, taxonomy)
            continue
        version = facts.version(variable.reads)
        why = is_read(variable, version) if version else None
        if why is None:
            continue
        instead = f"; use {variable.renamed}" if variable.renamed else ""
        yield make(
            "variable-not-read",
            Severity.WARNING,
            f"{name}={value[:60]} has no effect: {why}{instead}.",
            f"unset {name}" + (f" and set {variable.renamed}" if variable.renamed else ""),
            source=variable.evidence.source,
            kind=variable.evidence.kind,
            components={variable.reads: version or "*"},
            taxonomy=taxonomy,
            lines=(f"unset {name}",),
        )


def _unknown_variable(name: str, taxonomy: Taxonomy) -> Iterator[Diagnosed]:
    if not name.startswith(_PREFIXES) or name.startswith(_OTHERS) or name.endswith(("_FILE", "_DIR", "_PATH")):
        return
    near = difflib.get_close_matches(name, list(variables()), n=1, cutoff=0.85)
    if not near:
        return
    yield make(
        "variable-misspelt",
        Severity.WARNING,
        f"{name} is read by no release that envsmith knows; {near[0]} is.",
        f"Write {near[0]}.",
        source=variables()[near[0]].evidence.source,
        taxonomy=taxonomy,
        confidence="medium",
        lines=(f"export {near[0]}=...",),
    )


def _interfaces(facts: Facts) -> Iterator[Diagnosed]:
    for name, cause in (("NCCL_SOCKET_IFNAME", "nccl-wrong-interface"), ("GLOO_SOCKET_IFNAME", "gloo-wrong-interface")):
        value = facts.variables.get(name, "")
        wanted = [w.lstrip("=") for w in value.split(",") if w and not w.startswith("^")]
        if not wanted:
            continue
        taxonomy = Taxonomy(
            stage="comm-setup", group=_COMM, cause=cause, pattern="distributed-feature-api-communication-tuning"
        )
        here = [i for i in facts.interfaces if facts.host.get("interfaces") == "all"]
        missing = here and not any(i.startswith(w) for i in here for w in wanted)
        if missing:
            yield make(
                "interface-absent",
                Severity.ERROR,
                f"{name}={value}, and this machine has {', '.join(here[:8])}: no interface fits.",
                f"export {name}={next((i for i in here if not i.startswith(('lo', 'docker', 'veth', 'br-'))), here[0])}",
                source="NVIDIA/nccl v2.30.7-1: src/misc/socket.cc",
                components={name: value[:80]},
                taxonomy=taxonomy,
                lines=(
                    f"export {name}={next((i for i in here if not i.startswith(('lo', 'docker', 'veth', 'br-'))), here[0])}",
                ),
            )
        elif all(w in {"lo", "docker0"} for w in wanted):
            yield make(
                "interface-loopback",
                Severity.WARNING,
                f"{name}={value}: other nodes cannot be reached over this interface (one node alone works).",
                f"export {name}=<interface that all nodes share>",
                source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
                components={name: value[:80]},
                taxonomy=taxonomy,
                confidence="medium",
                lines=("ip -br addr", f"export {name}=eth0"),
            )


def _used_interface(facts: Facts) -> Iterator[Diagnosed]:
    """What NCCL itself says it uses for its bootstrap."""
    name = facts.host.get("nccl_interface", "")
    if not name.startswith(("docker", "virbr", "br-", "veth", "lo")):
        return
    yield make(
        "nccl-uses-local-interface",
        Severity.WARNING if not name.startswith("lo") else Severity.NOTE,
        f"NCCL uses the interface {name}: other nodes cannot reach it (one node alone works).",
        "export NCCL_SOCKET_IFNAME=<interface that all nodes share> (or ^docker,lo), the same for GLOO_SOCKET_IFNAME.",
        source="NVIDIA/nccl v2.30.7-1: src/misc/socket.cc",
        taxonomy=failure("nccl-wrong-interface"),
        confidence="medium",
        lines=("ip -br addr", "export NCCL_SOCKET_IFNAME=^docker,lo"),
    )


# ``matrix/environment.yaml``: environment variables with the releases that read them; judged against what is installed.


_FILE = "environment.yaml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """``reads`` is the component that reads it, from ``since`` up to but not including ``until``."""

    name: str
    reads: str
    since: str | None = None
    until: str | None = None
    renamed: str | None = None
    note: str | None = None
    evidence: Evidence


def variables() -> Mapping[str, Variable]:
    """Every known variable by name; :class:`DataError` when the file is broken."""
    data = DataFiles(find_matrix(), (_FILE,))
    return _read_variables(data, data.stamp())


@lru_cache(maxsize=2)
def _read_variables(data: DataFiles, stamp: str) -> Mapping[str, Variable]:
    kept = read_cache("environment", stamp)
    if not isinstance(kept, dict):
        import yaml

        try:
            kept = yaml.load(data.read(_FILE).decode(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
        except yaml.YAMLError as error:
            raise DataError(f"{_FILE}: not YAML: {error}") from error
        for base in kept["evidence"].values():
            base["date"] = str(base["date"])
        write_cache("environment", stamp, kept)
    try:
        named = {
            key: Evidence(kind=EvidenceKind(e["kind"]), source=e["source"], date=e["date"])
            for key, e in kept["evidence"].items()
        }
        rows = [Variable(**{**row, "evidence": named[row["evidence"]]}) for row in kept["variables"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{_FILE}: a row is malformed: {error}", hint="the head of the file describes its fields"
        ) from error
    return {row.name: row for row in rows}


def is_read(variable: Variable, version: str) -> str | None:
    """Why ``version`` of the component does not read the variable, or ``None`` when it does (or nobody knows)."""
    try:
        key = version_key(version)
        if key is None:
            return None
        if variable.since and (since := version_key(variable.since)) and key < since:
            return f"read from {variable.reads} {variable.since} on, here is {version}"
        if variable.until and (until := version_key(variable.until)) and key >= until:
            return f"no longer read from {variable.reads} {variable.until} on, here is {version}"
    except ValueError:
        return None
    return None


# Rules over what is installed beside its version: copies of libraries, tools, builds, installations that are not whole.

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
