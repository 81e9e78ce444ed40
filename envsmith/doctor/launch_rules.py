"""Start commands and configurations checked for the mistakes of set-up: ranks against GPUs, ports, sizes, options that exclude each other."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from envsmith.doctor.diagnosis import Diagnosed, Taxonomy, make
from envsmith.doctor.facts import Facts, Launch
from envsmith.model.rule import Severity
from envsmith.model.version import Spec

_COMM = "comm-or-launch-setup"
_TUNING = "distributed-feature-api-communication-tuning"
_RULES_OF = "deepspeedai/DeepSpeed v0.19.5: deepspeed/runtime/config.py"
_MEGATRON = "NVIDIA/Megatron-LM core_v0.16.1: megatron/training/arguments.py"


def _taxonomy(cause: str, pattern: str = _TUNING, stage: str = "launch") -> Taxonomy:
    return Taxonomy(stage=stage, group=_COMM, cause=cause, pattern=pattern)


def judge_launches(facts: Facts) -> list[Diagnosed]:
    """Everything the commands and configurations give, each finding once."""
    found: list[Diagnosed] = []
    for launch in facts.launches:
        found += [_placed(d, launch) for d in _of_launch(launch, facts)]
    found += _agree(facts)
    unique = {(d.finding.rule, d.finding.message): d for d in found}
    return list(unique.values())


def _of_launch(launch: Launch, facts: Facts) -> Iterator[Diagnosed]:
    if launch.tool in {"torchrun", "deepspeed", "accelerate", "colossalai", "srun", "mpirun"}:
        yield from _ranks(launch, facts)
        yield from _megatron(launch, facts)
    if launch.tool == "torchrun":
        yield from _rendezvous(launch)
    elif launch.tool == "deepspeed":
        yield from _deepspeed(launch)
    elif launch.tool == "deepspeed-config":
        yield from _config(launch, facts)
    elif launch.tool == "hostfile":
        yield from _hostfile(launch, facts)
    elif launch.tool == "colossalai-plugin":
        yield from _plugin(launch, facts)


def _placed(found: Diagnosed, launch: Launch) -> Diagnosed:
    """The finding with file and line: those of the first option that its message names, else of the command or configuration."""
    if not launch.source or found.where:
        return found
    named = [n for n in launch.places if n and re.search(rf"(?<![\w.]){re.escape(n)}(?![\w.])", found.finding.message)]
    last = [
        n
        for n in launch.places
        if "." in n and "_" in n.rpartition(".")[2] and n.rpartition(".")[2] in found.finding.message
    ]
    groups = [
        n
        for n in launch.places
        if "." in n and re.search(rf"\b{re.escape(n.partition('.')[0])}\b", found.finding.message)
    ]
    line = launch.places.get(next(iter([*named, *last, *groups]), ""), launch.places.get(""))
    return dataclasses.replace(found, where=f"{launch.source}:{line}" if line else launch.source)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 7 else None


def _ranks_of(launch: Launch) -> int | None:
    for name in ("nproc-per-node", "num-gpus", "num-processes", "nprocs-per-node", "ntasks-per-node"):
        if (number := _number(launch.options.get(name))) is not None:
            return number
    return None


def _nodes_of(launch: Launch) -> int:
    for name in ("nnodes", "num-nodes", "num-machines", "nodes"):
        if (number := _number(launch.options.get(name, "").split(":")[-1])) is not None:
            return number
    return 1


def _ranks(launch: Launch, facts: Facts) -> Iterator[Diagnosed]:
    ranks, gpus = _ranks_of(launch), facts.gpu_count
    if launch.tool == "accelerate" and ranks is not None:
        ranks = ranks // max(1, _nodes_of(launch))
    visible = launch.options.get("CUDA_VISIBLE_DEVICES", facts.variables.get("CUDA_VISIBLE_DEVICES"))
    if visible and all(part.strip().isdigit() for part in visible.split(",")):
        gpus = min(gpus or 1 << 20, len(visible.split(",")))
    if ranks is not None and gpus is not None and ranks > gpus:
        yield make(
            "more-ranks-than-gpus",
            Severity.ERROR,
            f"{launch.tool} starts {ranks} ranks a node, and {gpus} GPU{'s are' if gpus > 1 else ' is'} visible: two ranks share a GPU, or one finds none.",
            f"Start {gpus} rank{'s' if gpus > 1 else ''} a node (--nproc_per_node={gpus}).",
            source="NVIDIA/nccl v2.30.7-1: src/init.cc",
            taxonomy=_taxonomy("more-ranks-than-gpus", "environment-or-toolchain-setup"),
            lines=(f"torchrun --nproc_per_node={gpus} ...",),
        )


def _megatron(launch: Launch, facts: Facts) -> Iterator[Diagnosed]:
    options = launch.options
    sizes = {
        n: _number(options.get(n)) or 1
        for n in ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
    }
    if not any(name in options for name in sizes):
        return
    ranks = _ranks_of(launch)
    product = (
        sizes["tensor-model-parallel-size"] * sizes["pipeline-model-parallel-size"] * sizes["context-parallel-size"]
    )
    world = None if ranks is None else ranks * _nodes_of(launch)
    if world is not None and world % product:
        yield make(
            "world-size-not-divisible",
            Severity.ERROR,
            f"World size {world} is not a multiple of tensor x pipeline x context parallel size {product}.",
            f"Choose sizes whose product divides {world}, or start {product * (world // product + 1)} ranks.",
            source=_MEGATRON,
            components={"megatron-core": facts.version("megatron-core") or "*"},
            taxonomy=_taxonomy("world-size-mismatch"),
        )
    if {"fp16", "bf16"} <= set(options):
        yield _both("--fp16 and --bf16 are given together", _MEGATRON)
    yield from _connections(launch, facts, sizes)


def _connections(launch: Launch, facts: Facts, sizes: Mapping[str, int]) -> Iterator[Diagnosed]:
    """CUDA_DEVICE_MAX_CONNECTIONS, which parallelism and FSDP want otherwise."""
    options = launch.options
    needs = (
        sizes["tensor-model-parallel-size"] > 1 or sizes["context-parallel-size"] > 1 or "sequence-parallel" in options
    )
    connections = options.get("CUDA_DEVICE_MAX_CONNECTIONS", facts.variables.get("CUDA_DEVICE_MAX_CONNECTIONS"))
    fsdp = any("fsdp" in name for name in options)
    if needs and not fsdp and connections != "1" and not _blackwell(facts):
        yield make(
            "max-connections-unset",
            Severity.WARNING if connections is None else Severity.ERROR,
            f"Tensor, context or sequence parallelism of Megatron wants CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell; it is {connections or 'not set in what was given'}.",
            "export CUDA_DEVICE_MAX_CONNECTIONS=1 before the start.",
            source=_MEGATRON,
            taxonomy=_taxonomy("cuda-device-max-connections", stage="setup"),
            lines=("export CUDA_DEVICE_MAX_CONNECTIONS=1",),
        )
    if fsdp and connections == "1":
        yield make(
            "max-connections-fsdp",
            Severity.ERROR,
            "FSDP of Megatron needs CUDA_DEVICE_MAX_CONNECTIONS larger than 1; it is 1.",
            "unset CUDA_DEVICE_MAX_CONNECTIONS",
            source=_MEGATRON,
            taxonomy=_taxonomy("cuda-device-max-connections", stage="setup"),
            lines=("unset CUDA_DEVICE_MAX_CONNECTIONS",),
        )


def _blackwell(facts: Facts) -> bool:
    gpu = facts.version("gpu")
    try:
        return gpu is not None and Spec.parse(">=sm_100").contains(gpu)
    except ValueError:
        return False


def _both(what: str, source: str) -> Diagnosed:
    return make(
        "mixed-precision-options",
        Severity.ERROR,
        f"{what}: only one half precision can be on.",
        "Keep one (bf16 from Ampere on, fp16 before), the same in every configuration.",
        source=source,
        taxonomy=_taxonomy("mixed-options", "model-or-script-fix", "setup"),
    )


def _rendezvous(launch: Launch) -> Iterator[Diagnosed]:
    options = launch.options
    address = {"master-addr", "rdzv-endpoint", "standalone"} & set(options)
    if _nodes_of(launch) > 1 and not address:
        yield make(
            "rendezvous-address-missing",
            Severity.ERROR,
            "torchrun with several nodes and neither --master_addr nor --rdzv_endpoint: every node waits for itself at 127.0.0.1.",
            "Give the address of the first node: --rdzv_backend=c10d --rdzv_endpoint=HOST:29500 (the same on all nodes).",
            source="torch/distributed/run.py",
            taxonomy=_taxonomy("rendezvous-address"),
            lines=("torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=HOST:29500 train.py",),
        )
    where = options.get("master-addr", options.get("rdzv-endpoint", "")).split(":")[0]
    if _nodes_of(launch) > 1 and where in {"localhost", "127.0.0.1", "::1", "0.0.0.0"}:  # noqa: S104 - compared, not bound
        yield make(
            "rendezvous-address-local",
            Severity.ERROR,
            f"torchrun with several nodes and the address {where}: the other nodes cannot reach it.",
            "Give an address of the first node that all nodes reach.",
            source="torch/distributed/run.py",
            taxonomy=_taxonomy("rendezvous-address"),
        )
    if "standalone" in options and _nodes_of(launch) > 1:
        yield make(
            "rendezvous-standalone-nodes",
            Severity.ERROR,
            "torchrun --standalone is for one node, and several are asked for.",
            "Leave --standalone out and give --rdzv_endpoint.",
            source="torch/distributed/run.py",
            taxonomy=_taxonomy("rendezvous-address"),
        )


def _deepspeed(launch: Launch) -> Iterator[Diagnosed]:
    chosen = {"include", "exclude"} & set(launch.options)
    if chosen and {"num-gpus", "num-nodes"} & set(launch.options):
        yield make(
            "deepspeed-include-and-count",
            Severity.ERROR,
            f"deepspeed --{min(chosen)} together with --num_gpus or --num_nodes: the launcher refuses both.",
            "Leave --num_gpus and --num_nodes out.",
            source="deepspeedai/DeepSpeed v0.19.5: deepspeed/launcher/runner.py",
            taxonomy=_taxonomy("mixed-options", "model-or-script-fix"),
        )
    if {"include", "exclude"} <= set(launch.options):
        yield make(
            "deepspeed-include-and-exclude",
            Severity.ERROR,
            "deepspeed --include and --exclude exclude each other.",
            "Keep one of them.",
            source="deepspeedai/DeepSpeed v0.19.5: deepspeed/launcher/runner.py",
            taxonomy=_taxonomy("mixed-options", "model-or-script-fix"),
        )


def _true(value: str | None) -> bool:
    return value is not None and value.lower() in {"true", "1", "yes"}


def _config(launch: Launch, facts: Facts) -> Iterator[Diagnosed]:
    options = launch.options
    bf16 = _true(options.get("bf16.enabled")) or _true(options.get("bfloat16.enabled"))
    if _true(options.get("fp16.enabled")) and bf16:
        yield _both("fp16 and bf16 are both enabled in the DeepSpeed configuration", _RULES_OF)
    gpu = facts.version("gpu")
    if bf16 and gpu and gpu.startswith("sm_") and Spec.parse("<sm_80").contains(gpu):
        yield make(
            "bf16-on-old-gpu",
            Severity.ERROR,
            f"The DeepSpeed configuration enables bf16, and the GPU ({gpu}) is before Ampere: it has no bf16.",
            'Use fp16: "fp16": {"enabled": true}, "bf16": {"enabled": false}.',
            source="deepspeedai/DeepSpeed v0.19.5: deepspeed/runtime/engine.py",
            components={"gpu": gpu},
            taxonomy=Taxonomy(stage="setup", group="gpu-arch", cause="bf16-on-pre-ampere", pattern=_TUNING),
        )
    yield from _batch(options, facts)
    if _number(options.get("zero_optimization.stage")) == 3 and _true(options.get("zero_optimization.cpu_offload")):
        yield make(
            "zero-offload-old-name",
            Severity.WARNING,
            "zero_optimization.cpu_offload is the old name; ZeRO-3 reads offload_optimizer and offload_param.",
            '"offload_optimizer": {"device": "cpu"}',
            source="deepspeedai/DeepSpeed v0.19.5: deepspeed/runtime/zero/config.py",
            taxonomy=_taxonomy("config-old-name", "model-or-script-fix", "setup"),
        )


def _batch(options: Mapping[str, str], facts: Facts) -> Iterator[Diagnosed]:
    train, micro = _number(options.get("train_batch_size")), _number(options.get("train_micro_batch_size_per_gpu"))
    steps = _number(options.get("gradient_accumulation_steps")) or 1
    world = _world(facts)
    if train is None or micro is None or not micro:
        return
    wrong = train != micro * steps * world if world else train % (micro * steps) != 0
    if wrong:
        yield make(
            "ds-batch-config",
            Severity.ERROR,
            f"train_batch_size {train} is not micro batch {micro} x accumulation {steps} x world size{f' {world}' if world else ''}: DeepSpeed refuses it.",
            f"Set train_batch_size to {micro * steps * world if world else 'a multiple of ' + str(micro * steps)}, or leave it out.",
            source=_RULES_OF,
            taxonomy=_taxonomy("ds-batch-config", "model-or-script-fix", "setup"),
        )


def _world(facts: Facts) -> int | None:
    for launch in facts.launches:
        if (ranks := _ranks_of(launch)) is not None:
            return ranks if launch.tool == "accelerate" else ranks * _nodes_of(launch)
        if launch.tool == "hostfile":
            slots = [_number(s) for s in launch.options.get("slots", "").split(",")]
            if all(s is not None for s in slots):
                return sum(s for s in slots if s is not None)
    return _number(facts.variables.get("WORLD_SIZE"))


def _hostfile(launch: Launch, facts: Facts) -> Iterator[Diagnosed]:
    hosts = launch.options.get("hosts", "").split(",")
    slots = [_number(s) for s in launch.options.get("slots", "").split(",")]
    twice = sorted({h for h in hosts if hosts.count(h) > 1})
    source = "deepspeedai/DeepSpeed v0.19.5: deepspeed/launcher/runner.py"
    if twice:
        yield make(
            "hostfile-host-twice",
            Severity.ERROR,
            f"The hostfile names {', '.join(twice[:4])} more than once: the launcher refuses it.",
            "One line per host: HOSTNAME slots=<GPUs>.",
            source=source,
            taxonomy=_taxonomy("hostfile-malformed", "environment-or-toolchain-setup"),
        )
    if bad := launch.options.get("bad"):
        yield make(
            "hostfile-bad-line",
            Severity.ERROR,
            f"The hostfile has the line {bad[:80]!r}: DeepSpeed's launcher refuses what is not HOSTNAME slots=NUMBER.",
            "One line per host: HOSTNAME slots=<GPUs>.",
            source=source,
            taxonomy=_taxonomy("hostfile-malformed", "environment-or-toolchain-setup"),
        )
    if len(hosts) > 1 and {"localhost", "127.0.0.1"} & set(hosts):
        yield make(
            "hostfile-localhost",
            Severity.ERROR,
            "The hostfile names localhost beside other hosts: MASTER_ADDR becomes an address that the others cannot reach.",
            "Write the real name of every host.",
            source=source,
            taxonomy=_taxonomy("hostname-resolution-or-nccl-version", "environment-or-toolchain-setup"),
        )
    most = max((s for s in slots if s is not None), default=0)
    if facts.gpu_count is not None and most > facts.gpu_count:
        yield make(
            "hostfile-slots",
            Severity.WARNING,
            f"The hostfile gives {most} slots to a host, and {facts.gpu_count} GPUs were seen here.",
            f"slots={facts.gpu_count} for hosts like this one.",
            source=source,
            taxonomy=_taxonomy("more-ranks-than-gpus", "environment-or-toolchain-setup"),
        )


def _plugin(launch: Launch, facts: Facts) -> Iterator[Diagnosed]:
    options = launch.options
    plugin = options.get("plugin", "")
    source = "hpcaitech/ColossalAI v0.5.0: colossalai/booster/plugin"
    if facts.version("cuda") == "cpu" and plugin in {"Gemini", "LowLevelZero", "HybridParallel"}:
        yield make(
            "colossalai-plugin-cpu",
            Severity.ERROR,
            f"{plugin}Plugin of Colossal-AI needs a GPU, and this torch is built without CUDA.",
            "Use TorchDDPPlugin on the CPU, or a CUDA build of torch.",
            source=source,
            taxonomy=_taxonomy("cpu-only", "model-or-script-fix", "setup"),
        )
    stage = _number(options.get("stage", options.get("zero_stage")))
    if plugin == "LowLevelZero" and stage is not None and stage not in {1, 2}:
        yield make(
            "colossalai-zero-stage",
            Severity.ERROR,
            f"LowLevelZeroPlugin does stages 1 and 2, not {stage}.",
            "Use GeminiPlugin for stage 3.",
            source=source,
            taxonomy=_taxonomy("mixed-options", "model-or-script-fix", "setup"),
        )
    world, tp, pp = _world(facts), _number(options.get("tp_size")) or 1, _number(options.get("pp_size")) or 1
    if plugin == "HybridParallel" and world and world % (tp * pp):
        yield make(
            "world-size-not-divisible",
            Severity.ERROR,
            f"World size {world} is not a multiple of tp_size x pp_size {tp * pp}.",
            f"Choose sizes whose product divides {world}.",
            source=source,
            taxonomy=_taxonomy("world-size-mismatch"),
        )


def _agree(facts: Facts) -> Iterator[Diagnosed]:
    """Several nodes' commands must name one port and one address."""
    commands = [launch for launch in facts.launches if launch.tool == "torchrun" and _nodes_of(launch) > 1]
    for name in ("master-port", "master-addr", "rdzv-endpoint", "nnodes"):
        values = {
            launch.options[name] for launch in commands if name in launch.options and "$" not in launch.options[name]
        }
        if len(values) > 1:
            yield make(
                "launch-commands-differ",
                Severity.ERROR,
                f"The start commands of the nodes differ in --{name.replace('-', '_')}: {', '.join(sorted(values)[:4])}.",
                "Give the same value on every node.",
                source="torch/distributed/run.py",
                taxonomy=_taxonomy("rendezvous-address"),
            )
    ranks = [
        launch.options["node-rank"]
        for launch in commands
        if "node-rank" in launch.options and "$" not in launch.options["node-rank"]
    ]
    if len(ranks) != len(set(ranks)):
        yield make(
            "launch-node-rank-twice",
            Severity.ERROR,
            f"Two start commands have the same --node_rank ({', '.join(sorted(ranks)[:6])}).",
            "Number the nodes 0, 1, 2, …",
            source="torch/distributed/run.py",
            taxonomy=_taxonomy("rendezvous-address"),
        )
