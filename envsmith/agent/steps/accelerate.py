"""Accelerate: data parallelism plain, fully sharded and through DeepSpeed, and a small Llama made from a config."""

from __future__ import annotations

import inspect
import socket
import sys
from typing import Any

from envsmith.agent.protocol import Facts, Skip
from envsmith.agent.steps.deepspeed import leave_out_cpu_op
from envsmith.agent.steps.launch import RankJob
from envsmith.agent.steps.stage import TRAIN_STEPS, Preload, Stage, Trained, stated_version
from envsmith.agent.steps.tiny import Llama

PRELOAD = Preload(("accelerate",), {})


def launch(launch: RankJob) -> None:
    """Replace this process by ``accelerate launch``, on this host alone."""
    reserved = socket.socket()
    # Bound and left open, not listening: no other process is given this port, and the store of the ranks may listen.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    reserved.set_inheritable(True)
    # With --cpu it starts one rank where there is no MPI. What --multi_gpu starts is one rank for each process.
    place = ["--num_machines", "1", "--num_processes", str(launch.ranks)]
    place += ["--main_process_port", str(reserved.getsockname()[1])]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", *place]
    command += ["--mixed_precision", "no", "--no_python", *launch.rank_command]
    # The user's own default configuration, which is below HF_HOME, would choose the kind of launch.
    launch.execute(command, {"HF_HOME": launch.directory})


def step_ddp(s: Stage) -> Trained:
    """Train with what ``Accelerator.prepare`` makes of a model by default."""
    if s.step.get("launcher"):
        s.need_own_gpu("accelerate launch")
    return _trained(s, _accelerator(s))


def step_fsdp2(s: Stage) -> Trained:
    """Train fully sharded through torch's ``fully_shard``."""
    from accelerate.utils import FullyShardedDataParallelPlugin as Plugin

    if "fsdp_version" not in inspect.signature(Plugin).parameters:
        raise Skip(f"accelerate {_version()} has no FSDP2: 1.6 is the first that has it")
    return _trained(s, _accelerator(s, fsdp_plugin=Plugin(fsdp_version=2, auto_wrap_policy="no_wrap")))


def step_deepspeed(s: Stage) -> Trained:
    """Train with ZeRO stage 2 through Accelerate's plugin."""
    try:
        import deepspeed
    except ModuleNotFoundError:
        raise Skip("this environment has no deepspeed") from None
    from accelerate.utils import DeepSpeedPlugin, InitProcessGroupKwargs

    plugin = DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=1)
    # DeepSpeed 0.19.3 and later clip gradients to 1.0 unless the configuration says otherwise: other losses.
    plugin.deepspeed_config.update(
        train_micro_batch_size_per_gpu=4, zero_allow_untested_optimizer=True, gradient_clipping=0.0
    )
    # With `cpu` Accelerate leaves DeepSpeed out. Without, it counts one process unless the backend has a name.
    group = InitProcessGroupKwargs(backend=s.job["backend"])
    left_out = leave_out_cpu_op(s)
    accelerator = _accelerator(s, cpu=False, deepspeed_plugin=plugin, kwargs_handlers=[group])
    return _trained(s, accelerator, deepspeed=stated_version(deepspeed), **left_out)


def step_llama(s: Stage) -> Trained:
    """Train a two-layer Llama of transformers on every rank's own tokens. Nothing is downloaded."""
    try:
        import transformers
    except ModuleNotFoundError:
        raise Skip("this environment has no transformers") from None
    torch, accelerator = s.torch, _accelerator(s)
    s.enter("LlamaForCausalLM")
    batches = [Llama.batch(s, rank) for rank in range(s.size)]
    reference = _llama_reference(s, batches)
    model = Llama.model(s)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    losses = []
    for i in range(TRAIN_STEPS):
        s.enter(f"train step {i}")
        loss = Llama.loss(model, batches[s.rank])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.item()))
    return Trained(
        losses=losses, reference=reference, facts=_facts(accelerator, transformers=stated_version(transformers))
    )


def _version() -> str:
    import accelerate

    return stated_version(accelerate)


def _accelerator(s: Stage, *, cpu: bool | None = None, **plugins: Any) -> Any:
    """Return an Accelerator whose group stands."""
    s.enter_import("accelerate")
    from accelerate import Accelerator

    s.enter("Accelerator")
    return Accelerator(cpu=not s.cuda if cpu is None else cpu, **plugins)


def _trained(s: Stage, accelerator: Any, **facts: object) -> Trained:
    s.enter("Accelerator.prepare")
    model = s.model()
    model, optimizer = accelerator.prepare(model, s.optimizer(model))
    losses = s.train(model, accelerator.backward, s.stepper(optimizer))
    return Trained(losses=losses, reference=s.reference(), facts=_facts(accelerator, **facts))


def _facts(accelerator: Any, **facts: object) -> Facts:
    state = {"kind": accelerator.distributed_type.value, "processes": accelerator.num_processes}
    return {"version": _version(), **state, **facts}


def _llama_reference(s: Stage, batches: list[Any]) -> list[float]:
    """Return this rank's losses under plain data parallelism, computed here alone."""
    model = Llama.model(s)
    optimizer, losses = s.torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for i in range(TRAIN_STEPS):
        s.enter(f"reference step {i}")
        each = [Llama.loss(model, batch) for batch in batches]
        losses.append(float(each[s.rank].item()))
        optimizer.zero_grad()
        (sum(each) / s.size).backward()
        optimizer.step()
    return losses


LAUNCHERS = {"accelerate": launch}
STEPS = {
    "accelerate-ddp": step_ddp,
    "accelerate-fsdp2": step_fsdp2,
    "accelerate-deepspeed": step_deepspeed,
    "accelerate-llama": step_llama,
}
