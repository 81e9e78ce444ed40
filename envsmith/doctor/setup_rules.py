"""Rules over facts that are not versions: limits, variables, libraries, tools, GPUs of a machine or of a report.

Each rule is a function from facts to findings; none looks at the world. Rules over versions stand in ``matrix/rules``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy
from envsmith.doctor.environment import is_read, variables
from envsmith.doctor.failures import failure
from envsmith.doctor.install_rules import judge_installation
from envsmith.doctor.making import below, make
from envsmith.model.evidence import EvidenceKind
from envsmith.model.rule import Severity
from envsmith.sources.reports.facts import Facts

__all__ = ["judge_setup"]

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
