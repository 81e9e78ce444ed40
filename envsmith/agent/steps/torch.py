"""torch itself: replicas (DDP), shards (FSDP2) and the distributed checkpoint."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from envsmith.agent.protocol import Skip
from envsmith.agent.steps.stage import TRAIN_STEPS, Preload, Stage, Trained
from envsmith.agent.world import implementation_of

_TENSOR = ("torch.distributed.tensor.parallel", "torch.distributed.fsdp", "torch.distributed.checkpoint")
PRELOAD = Preload(_TENSOR, {})


def part_of(s: Stage, module: str, *names: str) -> list[Any]:
    """Return what a module of torch has by these names. ``Skip`` where this torch lacks one."""
    try:
        part = __import__(module, fromlist=["x"])
        return [getattr(part, name) for name in names]
    except (ImportError, AttributeError):
        raise Skip(f"torch {s.torch.__version__} has no {module} with {', '.join(names)}") from None


def fully_shard_of(s: Stage) -> Any:
    """Return the function of FSDP2. ``Skip`` where this torch lacks it."""
    return part_of(s, "torch.distributed.fsdp", "fully_shard")[0]


def _parameters_digest(stage: Stage, model: Any) -> str:
    """Return a digest of the bits of all parameters: replicas must agree."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(bytes(parameter.detach().to("cpu").contiguous().view(stage.torch.uint8).view(-1).tolist()))
    return digest.hexdigest()[:16]


def step_ddp(s: Stage) -> Trained:
    """Train with torch's own data parallelism. `engine` chooses one of torch 2.15's two NCCL engines."""
    if s.step.get("engine"):
        os.environ["TORCH_DIST_USE_NCCL2"] = {"legacy": "0", "2": "1"}[s.step["engine"]]
    s.enter("init_process_group")
    s.init_group()
    s.enter("DistributedDataParallel")
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(s.model().to(s.device), device_ids=[s.device.index] if s.cuda else None)
    optimizer = s.optimizer(model)
    losses = s.train(model, lambda loss: loss.backward(), s.stepper(optimizer))
    facts = {
        "parameters": _parameters_digest(s, model),
        "implementation": implementation_of(s.torch.distributed, s.device),
    }
    return Trained(losses=losses, reference=s.reference(), facts=facts)


# -- shards: every rank holds a part of each parameter -----------------------------------------------------------------


def mesh_of(s: Stage, **sizes: int) -> Any:
    """Return a mesh of all ranks with the named dimensions, in a group that stands."""
    (init_device_mesh,) = part_of(s, "torch.distributed.device_mesh", "init_device_mesh")
    s.enter("init_process_group")
    s.init_group()
    s.enter("init_device_mesh")
    return init_device_mesh(s.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def _sharded(s: Stage, mesh: Any) -> Any:
    """Return the toy model, each layer sharded over the last dimension of the mesh, and replicated over a first."""
    fully_shard = fully_shard_of(s)
    s.enter("fully_shard")
    model = s.model().to(s.device)
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def step_fsdp2(s: Stage) -> Trained:
    """Train fully sharded: all_gather and reduce_scatter. `replicas` puts as many copies of the shards on the ranks."""
    fully_shard_of(s)
    replicas = int(s.step.get("replicas", 1))
    sizes = {"replica": replicas, "shard": s.size // replicas} if replicas > 1 else {"shard": s.size}
    model = _sharded(s, mesh_of(s, **sizes))
    losses = s.train(model, lambda loss: loss.backward(), s.stepper(s.optimizer(model)))
    return Trained(losses=losses, reference=s.reference(), facts={"mesh": sizes})


def step_checkpoint(s: Stage) -> Trained:
    """Train sharded, save, load into shards of another number, and train on: the losses are those of one training."""
    fully_shard_of(s)
    save, load = part_of(s, "torch.distributed.checkpoint", "save", "load")
    states, set_states = part_of(s, "torch.distributed.checkpoint.state_dict", "get_state_dict", "set_state_dict")
    model = _sharded(s, mesh_of(s, shard=s.size))
    optimizer = s.optimizer(model)
    losses = s.train(model, lambda loss: loss.backward(), s.stepper(optimizer))
    with _shared_folder(s) as folder:
        s.enter("checkpoint save")
        weights, moments = states(model, optimizer)
        save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
        (init_device_mesh,) = part_of(s, "torch.distributed.device_mesh", "init_device_mesh")
        fewer = init_device_mesh(s.device.type, (2, s.size // 2), mesh_dim_names=("replica", "shard"))
        reduced = _sharded(s, fewer)
        resumed = s.optimizer(reduced)
        s.enter("checkpoint load")
        weights, moments = states(reduced, resumed)
        load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
        set_states(reduced, resumed, model_state_dict=weights, optim_state_dict=moments)
    again = s.train(reduced, lambda loss: loss.backward(), s.stepper(resumed))
    reference = s.reference(steps=2 * TRAIN_STEPS)
    facts = {"saved from": f"{s.size} shards", "loaded into": f"{s.size // 2} shards on each of 2 replicas"}
    return Trained(losses=losses + again, reference=reference, facts=facts)


@contextmanager
def _shared_folder(s: Stage) -> Iterator[str]:
    """Yield a folder of the first rank's that every rank of this host sees, and remove it."""
    names = [tempfile.mkdtemp(prefix="envsmith-checkpoint-") if s.rank == 0 else ""]
    with s.counter.unseen():
        s.torch.distributed.broadcast_object_list(names, src=0)
    try:
        yield names[0]
        with s.counter.unseen():
            s.torch.distributed.barrier()
    finally:
        if s.rank == 0:
            shutil.rmtree(names[0], ignore_errors=True)


STEPS = {"ddp": step_ddp, "fsdp2": step_fsdp2, "torch-checkpoint": step_checkpoint}
