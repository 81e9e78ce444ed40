"""The controls: torch's own data parallelism, plain (DDP) and fully sharded (FSDP2)."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from envsmith.smoke.agent.protocol import Skip
from envsmith.smoke.agent.steps.stage import Stage
from envsmith.smoke.agent.world import implementation_of


def _parameters_digest(stage: Stage, model: Any) -> str:
    """Return a digest of the bits of all parameters: replicas must agree."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(bytes(parameter.detach().to("cpu").contiguous().view(stage.torch.uint8).view(-1).tolist()))
    return digest.hexdigest()[:16]


def step_ddp(s: Stage) -> dict[str, Any]:
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
    return {"losses": losses, "reference": s.reference(), "facts": facts}


def fully_shard_of(s: Stage) -> Any:
    """Return the function of FSDP2. ``Skip`` where this torch lacks it."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise Skip(f"torch {s.torch.__version__} has no torch.distributed.fsdp.fully_shard") from None
    return fully_shard


def step_fsdp2(s: Stage) -> dict[str, Any]:
    """Train fully sharded: all_gather and reduce_scatter."""
    fully_shard = fully_shard_of(s)
    from torch.distributed.device_mesh import init_device_mesh

    s.enter("init_process_group")
    s.init_group()
    s.enter("fully_shard")
    model = s.model().to(s.device)
    mesh = init_device_mesh(s.device.type, (s.size,))
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = s.optimizer(model)
    losses = s.train(model, lambda loss: loss.backward(), s.stepper(optimizer))
    return {"losses": losses, "reference": s.reference(), "facts": {}}


STEPS = {"ddp": step_ddp, "fsdp2": step_fsdp2}
