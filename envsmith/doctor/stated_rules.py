"""Rules over facts that somebody stated: what is known to be absent, unset or refused. ``doctor`` on a machine hardly ever knows these.

Each finding names the fact in ``components`` as it is spelt in :mod:`envsmith.doctor.stated`, beside the components that need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from envsmith import solve
from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, below, failure, make, some, there
from envsmith.doctor.facts import Facts
from envsmith.doctor.read.lines import component_of
from envsmith.model.rule import EvidenceKind, Severity
from envsmith.model.version import version_key

_COMM = "comm-or-launch-setup"
_SETUP = "environment-or-toolchain-setup"
_TUNING = "distributed-feature-api-communication-tuning"
_PAIRING = "version-and-dependency-management"
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHERS_OVER_SSH = frozenset({"pdsh", "deepspeed", "colossalai", "mpirun", "openmpi"})


def judge_stated(facts: Facts) -> list[Diagnosed]:
    """Everything that stated facts give."""
    found: list[Diagnosed] = []
    for rule in (
        _rank_variables,
        _ssh,
        _hostname,
        _interface_not_chosen,
        _max_connections,
        *BUILD_RULES,
        _accelerate_devices,
        _count_of_ranks,
    ):
        found += rule(facts)
    return found


def _unset(facts: Facts, *names: str) -> list[str]:
    known = facts.host.get("unset", "").split(",")
    return [name for name in names if name in known and not facts.variables.get(name)]


def _several_nodes(facts: Facts) -> bool:
    return int(facts.host.get("nodes", "1")) > 1


def _rank_variables(facts: Facts) -> Iterator[Diagnosed]:
    missing = _unset(facts, *_RANKS)
    if not missing or (facts.version("mpi4py") and there(facts, "deepspeed")):
        return
    deepspeed = there(facts, "deepspeed")
    what = (
        "deepspeed then asks MPI through mpi4py, and stops with No module named 'mpi4py' where that is not installed"
        if deepspeed
        else "torch.distributed.init_process_group with env:// stops: environment variable expected, but not set"
    )
    yield make(
        "rank-variables-unset",
        Severity.ERROR if deepspeed and facts.host.get("mpi4py") == "none" else Severity.WARNING,
        f"{', '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set: {what}.",
        "Start with torchrun, deepspeed or accelerate launch --use_deepspeed, which set all five; or pip install mpi4py and start with mpirun.",
        source="deepspeedai/DeepSpeed v0.5.0 to v0.19.5: init_distributed (deepspeed/utils/distributed.py, deepspeed/comm/comm.py), required_env",
        components={**dict.fromkeys(missing, "unset"), **some(facts, "deepspeed")},
        taxonomy=failure("launcher-env-not-set-mpi4py"),
        lines=("torchrun --nproc_per_node=1 train.py",),
    )


def _ssh(facts: Facts) -> Iterator[Diagnosed]:
    if facts.host.get("ssh") != "refused":
        return
    over = facts.host.get("launcher") in _LAUNCHERS_OVER_SSH or any(n.tool == "hostfile" for n in facts.launches)
    yield make(
        "ssh-refused",
        Severity.ERROR if over else Severity.WARNING,
        "A node is not reached by ssh without a password: the launchers of deepspeed (pdsh, openmpi), of colossalai run and of mpirun start the ranks of other nodes over ssh; deepspeed even tries the first host of its hostfile with PasswordAuthentication=no.",
        "Put a key into authorized_keys of every host, or start without ssh: torchrun on every node, deepspeed_multinode_launcher: standard in accelerate, srun under Slurm.",
        source="deepspeedai/DeepSpeed v0.8.0 to v0.19.5: deepspeed/launcher/runner.py; hpcaitech/ColossalAI v0.5.0: colossalai/cli/launcher/multinode_runner.py",
        components={"ssh": "refused", **some(facts, "deepspeed", "colossalai")},
        taxonomy=failure("pdsh-or-ssh-not-usable"),
        lines=("ssh -o PasswordAuthentication=no HOST hostname",),
    )


def _hostname(facts: Facts) -> Iterator[Diagnosed]:
    state = facts.host.get("hostname")
    if state not in {"unresolved", "loopback"}:
        return
    yield make(
        "hostname-unresolved",
        Severity.WARNING,
        "The node's own name "
        + ("resolves to no address" if state == "unresolved" else "resolves to the loopback address")
        + ": gloo listens on the address of the name, and launchers that hand names to other nodes fail; ranks of other nodes are refused.",
        "Add 'ADDRESS NAME' of every node to /etc/hosts of all nodes, or set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the network that the nodes share.",
        source="https://github.com/hpcaitech/ColossalAI/issues/2958",
        kind=EvidenceKind.REPORTED,
        components={"hostname": state},
        taxonomy=failure("hostname-resolution-or-nccl-version"),
        lines=("getent hosts $(hostname)",),
    )


def _interface_not_chosen(facts: Facts) -> Iterator[Diagnosed]:
    if not _several_nodes(facts):
        return
    for name, cause in (("NCCL_SOCKET_IFNAME", "nccl-wrong-interface"), ("GLOO_SOCKET_IFNAME", "gloo-wrong-interface")):
        if not _unset(facts, name):
            continue
        how = (
            "NCCL takes InfiniBand interfaces, then the first that is up and not docker or loopback"
            if name.startswith("NCCL")
            else "gloo takes the interface of the address that the node's own name resolves to, which is often loopback"
        )
        yield make(
            "interface-not-chosen",
            Severity.WARNING,
            f"Several nodes, and {name} is not set: {how}. Where that is not the network between the nodes, or is named otherwise on another node, ranks wait for each other.",
            f"export {name}=<interface that all nodes share> (several names by comma where nodes differ: eno1,eth0).",
            source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
            components={name: "unset"},
            taxonomy=Taxonomy(stage="comm-setup", group=_COMM, cause=cause, pattern=_TUNING),
            confidence="medium",
            lines=("ip -br addr", f"export {name}=eth0"),
        )


def _max_connections(facts: Facts) -> Iterator[Diagnosed]:
    if not _unset(facts, "CUDA_DEVICE_MAX_CONNECTIONS") or not there(facts, "megatron-core"):
        return
    yield make(
        "max-connections-unset",
        Severity.WARNING,
        "CUDA_DEVICE_MAX_CONNECTIONS is not set: Megatron asserts that it is 1 for tensor and context parallelism on GPUs before Blackwell.",
        "export CUDA_DEVICE_MAX_CONNECTIONS=1 before the start.",
        source="NVIDIA/Megatron-LM core_v0.16.1: megatron/training/arguments.py",
        components={"CUDA_DEVICE_MAX_CONNECTIONS": "unset", **some(facts, "megatron-core")},
        taxonomy=failure("cuda-device-max-connections"),
        lines=("export CUDA_DEVICE_MAX_CONNECTIONS=1",),
    )


def _accelerate_devices(facts: Facts) -> Iterator[Diagnosed]:
    accelerate, value = facts.version("accelerate"), facts.variables.get("CUDA_VISIBLE_DEVICES", "")
    if accelerate is None or not below(accelerate, "0.13.0") or not re.fullmatch(r"\d+(,\d+)*", value):
        return
    numbers = [int(n) for n in value.split(",") if len(n) < 5]
    if numbers == list(range(len(numbers))):
        return
    yield make(
        "visible-devices-and-accelerate",
        Severity.WARNING,
        f"CUDA_VISIBLE_DEVICES={value}: accelerate launch before 0.13.0 starts deepspeed with --num_gpus on one node too, and the deepspeed launcher then ignores the variable and takes GPUs 0 to n-1.",
        "Use accelerate 0.13.0 or later, which starts one node with torchrun; or choose with deepspeed_inclusion_filter: localhost:"
        + value
        + ".",
        source="huggingface/accelerate v0.12.0 and v0.13.0: src/accelerate/commands/launch.py",
        components={"accelerate": accelerate, "CUDA_VISIBLE_DEVICES": value},
        taxonomy=Taxonomy(stage="launch", group=_COMM, cause="cuda-visible-devices-vs-launcher", pattern=_PAIRING),
        lines=("pip install 'accelerate>=0.13'",),
    )


def _count_of_ranks(facts: Facts) -> Iterator[Diagnosed]:
    ranks, gpus = facts.host.get("ranks"), facts.gpu_count
    if ranks is None or gpus is None or int(ranks) <= gpus:
        return
    yield make(
        "more-ranks-than-gpus",
        Severity.ERROR,
        f"{ranks} ranks start on a node, and it has {gpus} GPU{'s' if gpus > 1 else ''}: two ranks share a GPU, or one finds none.",
        f"Start {gpus} rank{'s' if gpus > 1 else ''} a node (--nproc_per_node={gpus}).",
        source="NVIDIA/nccl v2.30.7-1: src/init.cc",
        components={"ranks": ranks, "gpu_count": str(gpus)},
        taxonomy=failure("more-ranks-than-gpus"),
        lines=(f"torchrun --nproc_per_node={gpus} ...",),
    )


# Rules over stated facts of building and of what was built: tools, libraries, caches, binaries for another torch, source trees.


def _extensions_cache(facts: Facts) -> Iterator[Diagnosed]:
    if facts.host.get("extensions_cache") != "stale":
        return
    yield make(
        "extensions-cache-stale",
        Severity.WARNING,
        "Compiled ops in the cache of torch extensions were built for another torch, framework or compiler; torch names the folder by Python and CUDA only (py310_cu121) and loads them without building again.",
        "rm -rf ~/.cache/torch_extensions, or a TORCH_EXTENSIONS_DIR of its own for every environment.",
        source="torch/utils/cpp_extension.py: _get_build_directory",
        components={"extensions_cache": "stale", **some(facts, "deepspeed", "colossalai")},
        taxonomy=failure("stale-torch-extensions-cache"),
        lines=("rm -rf ~/.cache/torch_extensions",),
    )


# The first GCC whose libstdc++ has a GLIBCXX version: GCC's manual, "ABI Policy and Guidelines", section GLIBCXX.
_GLIBCXX = (
    ("8", 25),
    ("9", 26),
    ("9.2", 27),
    ("9.3", 28),
    ("11", 29),
    ("12", 30),
    ("13", 31),
    ("13.2", 32),
    ("14", 33),
)


def _glibcxx(facts: Facts) -> Iterator[Diagnosed]:
    match = re.fullmatch(r"3\.4(?:\.(\d+))?", facts.host.get("glibcxx", ""))
    if match is None:
        return
    has = int(match[1] or 0)
    gcc = facts.version("gcc")
    wanted = [n for release, n in _GLIBCXX if gcc is None or not below(gcc, release)]
    # Without the compiler's release: GCC 11 is what Ubuntu 22.04 compiles with.
    needs = 29 if gcc is None else max(wanted, default=0)
    if has >= needs or not (gcc or there(facts, "deepspeed") or there(facts, "colossalai")):
        return
    yield make(
        "libstdcxx-too-old",
        Severity.WARNING,
        f"The libstdc++ that is loaded ends at GLIBCXX_3.4.{has}, and what {'GCC ' + gcc if gcc else 'GCC 11 or later'} compiles may ask for GLIBCXX_3.4.{needs}: ops are compiled and cannot be loaded.",
        "conda install -c conda-forge libstdcxx-ng (or a newer image), or compile with the GCC that the loaded libstdc++ belongs to; then remove ~/.cache/torch_extensions.",
        source="https://gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html",
        components={
            "glibcxx": f"3.4.{has}",
            **({"gcc": gcc} if gcc else {}),
            **some(facts, "deepspeed", "colossalai"),
        },
        taxonomy=failure("libstdcxx-too-old"),
        lines=("strings $CONDA_PREFIX/lib/libstdc++.so.6 | grep GLIBCXX_3.4",),
    )


def _curand(facts: Facts) -> Iterator[Diagnosed]:
    lost = {
        key: facts.host[key]
        for key, bad in (("library.libcurand", "none"), ("cuda_home.lib64", "no"))
        if facts.host.get(key) == bad
    }
    deepspeed = facts.version("deepspeed")
    if deepspeed and not below(deepspeed, "0.15.0"):
        lost.pop("cuda_home.lib64", None)  # from there on it takes CUDA_HOME/lib where there is no lib64
    if not lost or not there(facts, "deepspeed") or (deepspeed and below(deepspeed, "0.6.0")):
        return
    old = deepspeed is None or below(deepspeed, "0.15.0")
    yield make(
        "curand-not-on-link-path",
        Severity.WARNING,
        "deepspeed links cpu_adam with -lcurand, and the linker does not find it: "
        + (
            "before 0.15.0 it gives the linker no folder for it, and torch adds CUDA_HOME/lib64 to CUDA ops only; a CUDA of Conda has its libraries in lib."
            if old
            else "from 0.15.0 on it looks in CUDA_HOME/lib64, or in CUDA_HOME/lib where that is absent."
        ),
        "Install the toolkit's libcurand and point CUDA_HOME to it; or export LIBRARY_PATH=<folder of libcurand.so>; for a CUDA of Conda: ln -s lib $CONDA_PREFIX/lib64; or deepspeed 0.15.0 or later.",
        source="deepspeedai/DeepSpeed v0.6.0 to v0.19.5: op_builder/builder.py, TorchCPUOpBuilder.extra_ldflags",
        components={**lost, **some(facts, "deepspeed")},
        taxonomy=failure("libcurand-not-on-link-path"),
        lines=("export LIBRARY_PATH=$CUDA_HOME/lib64:$LIBRARY_PATH",),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tools:
    """Programs that the same users need for the same reason. ``until``: the release of a component that no longer needs them."""

    names: tuple[str, ...]
    users: tuple[str, ...]
    why: str
    fix: str
    source: str
    kind: EvidenceKind = EvidenceKind.DOCUMENTED
    cause: str = "missing-system-tool"
    until: tuple[str, str] = ("", "")


_TOOLS = (
    _Tools(
        names=("which",),
        users=("torch", "deepspeed", "colossalai"),
        why="torch.utils.cpp_extension before torch 2.5 runs it to find the compiler, unguarded",
        fix="Install the package which (dnf install which), or use torch 2.5 or later.",
        source="torch wheels 1.13.1, 2.0.1, 2.1.2, 2.2.2, 2.3.1, 2.4.1, 2.5.1: torch/utils/cpp_extension.py, check_compiler_ok_for_platform",
        kind=EvidenceKind.MEASURED,
        until=("torch", "2.5.0"),
    ),
    _Tools(
        names=("pybind11", "python3-config", "make"),
        users=("megatron-core",),
        why="a checkout of Megatron compiles its dataset helpers with make when training starts (wheels bring them compiled); rank 0 stops there, and the others wait for it until the collective times out",
        fix="pip install pybind11 and install the Python headers (python3-dev brings python3-config), or run make in megatron/core/datasets beforehand.",
        source="NVIDIA/Megatron-LM core_v0.4.0 to core_v0.19.0: megatron/core/datasets/Makefile, utils.py compile_helpers",
        cause="dataset-helpers-toolchain",
    ),
    _Tools(
        names=("pdsh",),
        users=("deepspeed",),
        why="the launcher of deepspeed starts other nodes with it unless --launcher says otherwise",
        fix="apt-get install -y pdsh, or deepspeed --launcher openmpi, or torchrun on every node.",
        source="deepspeedai/DeepSpeed v0.19.5: deepspeed/launcher/multinode_runner.py",
        cause="pdsh-or-ssh-not-usable",
    ),
)


def _tools(facts: Facts) -> Iterator[Diagnosed]:
    for tool in _TOOLS:
        users = some(facts, *tool.users)
        absent = [name for name in tool.names if name in facts.tools and facts.tools[name] is None]
        version = facts.version(tool.until[0])
        if not absent or not users or (version and not below(version, tool.until[1])):
            continue
        yield make(
            "tool-absent",
            Severity.WARNING,
            f"{' and '.join(absent)} {'are' if len(absent) > 1 else 'is'} not there: {tool.why}.",
            tool.fix,
            source=tool.source,
            kind=tool.kind,
            components={**{n if component_of(n) else f"tool.{n}": "none" for n in absent}, **users},
            taxonomy=Taxonomy(stage="build", group="toolchain-missing", cause=tool.cause, pattern=_SETUP),
        )


# Their setup.py imports torch, so pip can build them only where torch is installed and isolation is off.
_BUILT_WITH_TORCH = ("flash-attn", "apex", "transformer-engine", "mamba-ssm", "causal-conv1d", "grouped-gemm")


def _torch_absent(facts: Facts) -> Iterator[Diagnosed]:
    users = some(facts, "deepspeed", "colossalai", *_BUILT_WITH_TORCH)
    if facts.host.get("torch") != "none" or not users:
        return
    windows = "windows" in facts.host.get("os", "").lower()
    needs = windows or any(n in users for n in _BUILT_WITH_TORCH)
    yield make(
        "torch-absent",
        Severity.ERROR if needs else Severity.WARNING,
        f"torch is not installed, and {', '.join(users)} {'is' if len(users) == 1 else 'are'} to be: "
        + (
            "its setup asserts torch before it compiles ops, which it does on Windows and with DS_BUILD_OPS=1"
            if "deepspeed" in users
            else "their setup imports torch"
        )
        + ", and pip does not order installations by that.",
        "Install torch first, then the rest with --no-build-isolation.",
        source="deepspeedai/DeepSpeed v0.6.0 to v0.19.5: setup.py (BUILD_OP_PLATFORM, assert torch_available)",
        components={"torch": "none", **users},
        taxonomy=failure("torch-not-installed-at-build"),
        lines=("pip install torch", "pip install --no-build-isolation deepspeed"),
    )


_APEX_MODULES = frozenset({"fused_layer_norm_cuda", "amp_C", "apex_C", "fused_weight_gradient_mlp_cuda", "syncbn"})


def _modules(facts: Facts) -> Iterator[Diagnosed]:
    lost = [m for m in sorted(_APEX_MODULES) if facts.host.get(f"module.{m}") == "none"]
    if not lost:
        return
    yield make(
        "apex-python-only",
        Severity.WARNING,
        f"apex was installed without its compiled parts ({', '.join(lost)} {'are' if len(lost) > 1 else 'is'} not there): FusedLayerNorm, FusedAdam and gradient accumulation fusion of Megatron fail when they are used.",
        "Build apex with its extensions: pip install -v --no-build-isolation --config-settings '--build-option=--cpp_ext' --config-settings '--build-option=--cuda_ext' ./ in a checkout of NVIDIA/apex.",
        source="https://github.com/NVIDIA/apex/issues/499",
        kind=EvidenceKind.REPORTED,
        components={**dict.fromkeys((f"module.{m}" for m in lost), "none"), "apex": facts.version("apex") or "*"},
        taxonomy=failure("apex-without-cuda-ext"),
    )


def _built_for(facts: Facts) -> Iterator[Diagnosed]:
    torch = facts.version("torch")
    stated = {k.removeprefix("built_for."): v for k, v in facts.host.items() if k.startswith("built_for.")}
    for name, told in facts.components.items():
        if tag := re.search(r"\+.*torch(\d+\.\d+)", told.version):
            stated.setdefault(name, tag[1])
    for name, version in stated.items():
        if torch is None or _series(version) in {None, _series(torch)}:
            continue
        yield make(
            "built-for-other-torch",
            Severity.ERROR,
            f"{name} was compiled for torch {version}, and torch {torch} is there: a compiled extension goes with one minor release of torch; it fails on import with an undefined symbol or a missing library, and Transformer Engine hides that of flash-attn.",
            f"Install the file of {name} that was built for torch {_series(torch)}, or compile it here: pip install --no-build-isolation --no-binary {name} {name}.",
            source="https://github.com/NVIDIA/Megatron-LM/issues/696",
            kind=EvidenceKind.REPORTED,
            components={name: facts.version(name) or "*", "torch": torch},
            taxonomy=failure("extension-built-for-other-torch"),
        )


def _series(version: str) -> str | None:
    try:
        key = version_key(version)
    except ValueError:
        return None
    return None if key is None else f"{key.major}.{key.minor}"


def _checkout(facts: Facts) -> Iterator[Diagnosed]:
    for key, tree in facts.host.items():
        name = key.removeprefix("checkout.")
        installed = facts.version(name)
        if name == key or installed is None or installed == tree:
            continue
        yield make(
            "checkout-differs",
            Severity.WARNING,
            f"The source tree or examples of {name} are of {tree}, and {installed} is installed: examples import what their own release has, and names move between releases.",
            f"Check out the tag of the installed release (git checkout v{installed}), or install the tree itself: pip install .",
            source="https://github.com/hpcaitech/ColossalAI/issues/3629",
            kind=EvidenceKind.REPORTED,
            components={name: installed, key: tree},
            taxonomy=Taxonomy(
                stage="import",
                group="python-version-pair",
                cause=f"{name}-pip-vs-main-example",
                pattern=_PAIRING,
            ),
        )


def _arch_list(facts: Facts) -> Iterator[Diagnosed]:
    """Architectures to compile for, asked of the rule that knows which toolkit knows them."""
    toolkit = facts.version("toolkit")
    for number in re.findall(r"\b(\d{1,2}\.\d)", facts.variables.get("TORCH_CUDA_ARCH_LIST", "")):
        if toolkit is None:
            return
        gpu = "sm_" + number.replace(".", "")
        for finding in solve.check({"toolkit": toolkit, "gpu": gpu}).findings:
            if finding.rule == "toolkit-gpu-min":
                yield make(
                    "arch-list-toolkit",
                    Severity.ERROR,
                    f"TORCH_CUDA_ARCH_LIST asks for {number}, and nvcc {toolkit} does not know it: nvcc fatal: Unsupported gpu architecture 'compute_{number.replace('.', '')}'.",
                    f"Leave {number} out of TORCH_CUDA_ARCH_LIST, or {finding.fix or 'use a newer toolkit'}",
                    source=finding.evidence[0].source,
                    kind=finding.evidence[0].kind,
                    components={"toolkit": toolkit, "gpu": gpu},
                    taxonomy=failure("nvcc-too-old-for-arch"),
                )


def _triton_cache(facts: Facts) -> Iterator[Diagnosed]:
    manager, triton = facts.variables.get("TRITON_CACHE_MANAGER", ""), facts.version("triton")
    if "ParallelFileCacheManager" not in manager or triton is None or below(triton, "3.2"):
        return
    yield make(
        "triton-cache-manager",
        Severity.ERROR,
        f"TRITON_CACHE_MANAGER names Megatron's patched cache manager, which asserts triton 3.1 or older (megatron-core 0.10 and later); triton {triton} is there.",
        "unset TRITON_CACHE_MANAGER: triton has the change itself from 3.2 on.",
        source="NVIDIA/Megatron-LM core_v0.10.0 to core_v0.19.0: megatron/core/ssm/triton_cache_manager.py",
        components={"triton": triton, "TRITON_CACHE_MANAGER": manager[:80], **some(facts, "megatron-core")},
        taxonomy=failure("triton-version-mismatch"),
        lines=("unset TRITON_CACHE_MANAGER",),
    )


BUILD_RULES = (
    _extensions_cache,
    _glibcxx,
    _curand,
    _tools,
    _torch_absent,
    _modules,
    _built_for,
    _checkout,
    _arch_list,
    _triton_cache,
)
