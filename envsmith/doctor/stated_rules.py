"""Rules over facts that somebody stated: what is known to be absent, unset or refused. ``doctor`` on a machine hardly ever knows these.

Each finding names the fact in ``components`` as it is spelt in :mod:`envsmith.doctor.stated`, beside the components that need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy
from envsmith.doctor.failures import failure
from envsmith.doctor.making import below, make, some, there
from envsmith.doctor.stated_builds import BUILD_RULES
from envsmith.model.evidence import EvidenceKind
from envsmith.model.rule import Severity
from envsmith.sources.reports.facts import Facts

__all__ = ["judge_stated"]

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
