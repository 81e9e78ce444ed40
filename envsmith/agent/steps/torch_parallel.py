"""The steps of torch's model parallelism: one model, of which every rank holds a part.

The parts are columns, rows and the sequence of layers (tensor parallelism, every rank sees the same batch), whole
layers (a pipeline of stages), or shards of a tensor that knows how it is spread (DTensor).
"""

from __future__ import annotations

import inspect
from typing import Any

from envsmith.agent.protocol import Skip, Wrong
from envsmith.agent.steps.stage import TRAIN_STEPS, Stage, Trained
from envsmith.agent.steps.torch import fully_shard_of, mesh_of, part_of

# The micro-batches of a pipeline: two of two rows.
_MICROBATCHES = 2


def step_tensor(s: Stage) -> Trained:
    """Train a pair of layers split by columns and rows.

    `data` is the number of groups with a batch of their own, which share their parameters as FSDP2 does.
    """
    parallel = "torch.distributed.tensor.parallel"
    columns, rows, parallelize = part_of(s, parallel, "ColwiseParallel", "RowwiseParallel", "parallelize_module")
    data = int(s.step.get("data", 1))
    if data > 1:
        fully_shard = fully_shard_of(s)
    mesh = mesh_of(s, data=data, tensor=s.size // data)
    s.enter("parallelize_module")
    model = parallelize(s.model().to(s.device), mesh["tensor"], {"0": columns(), "2": rows()})
    own = s.rank // (s.size // data)
    if data > 1:
        s.enter("fully_shard")
        model = fully_shard(model, mesh=mesh["data"])
    losses = s.train(model, lambda loss: loss.backward(), s.stepper(s.optimizer(model)), own)
    reference = s.reference(batches=[s.batch(number) for number in range(data)], own=own)
    return Trained(losses=losses, reference=reference, facts={"mesh": {"data": data, "tensor": s.size // data}})


def step_sequence(s: Stage) -> Trained:
    """Train with activations split along the sequence between tensor-parallel layers: all_gather and reduce_scatter."""
    names = ("ColwiseParallel", "RowwiseParallel", "SequenceParallel", "parallelize_module")
    columns, rows, sequence, parallelize = part_of(s, "torch.distributed.tensor.parallel", *names)
    (shard,) = part_of(s, "torch.distributed.tensor", "Shard")
    mesh = mesh_of(s, tensor=s.size)
    s.enter("parallelize_module")
    plan = {"0": sequence(), "1": columns(input_layouts=shard(1)), "3": rows(output_layouts=shard(1))}
    model = parallelize(_with_norm(s).to(s.device), mesh, plan)
    optimizer, losses = s.optimizer(model), []
    x, y = (t.to(s.device).unsqueeze(0).chunk(s.size, dim=1)[s.rank] for t in s.batch(0))
    for i in range(TRAIN_STEPS):
        s.enter(f"train step {i}")
        # The loss of all is the sum of the parts.
        loss = ((model(x) - y) ** 2).sum() / (y.numel() * s.size)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        with s.counter.unseen():
            s.torch.distributed.all_reduce(total)
        losses.append(float(total.item()))
    return Trained(losses=losses, reference=s.reference(_with_norm(s), [s.batch(0)], 0), facts={})


def _with_norm(s: Stage) -> Any:
    return s.torch.nn.Sequential(s.torch.nn.LayerNorm(16), *s.model())


def reason_to_skip(schedule: str, backend: str, torch: str) -> str:
    """Return why a schedule cannot be asked of a release of torch, or nothing."""
    # torch 2.4.1 and 2.5.1, 2026-11-23: the ranks wait for each other without end, and GPipe trains there.
    hangs = schedule == "Schedule1F1B" and backend == "gloo" and torch.startswith(("2.4.", "2.5."))
    return "the schedule 1F1B of torch 2.4 and 2.5 hangs on gloo" if hangs else ""


def step_pipeline(s: Stage) -> Trained:
    """Train two stages under the `schedule` that is named, two micro-batches a step."""
    stage_of, schedule_of = part_of(s, "torch.distributed.pipelining", "PipelineStage", s.step["schedule"])
    if reason := reason_to_skip(s.step["schedule"], s.job["backend"], s.torch.__version__):
        raise Skip(reason)
    s.enter("init_process_group")
    s.init_group()
    s.enter("PipelineStage")
    torch, model = s.torch, s.model()
    x, y = (t.to(s.device) for t in s.batch(0))
    part = (model[:2], model[2:])[s.rank].to(s.device)
    example = x[:_MICROBATCHES] if s.rank == 0 else torch.zeros(_MICROBATCHES, 32, device=s.device)
    stage = stage_of(part, s.rank, s.size, s.device, input_args=(example,))
    # The loss of all is the sum of the micro-batches' own, so gradients are not to be divided by their number.
    unscaled = {"scale_grads": False} if "scale_grads" in inspect.signature(schedule_of).parameters else {}
    schedule = schedule_of(stage, _MICROBATCHES, lambda z, t: ((z - t) ** 2).sum() / y.numel(), **unscaled)
    optimizer, losses = s.optimizer(part), []
    for i in range(TRAIN_STEPS):
        s.enter(f"train step {i}")
        parts: list[Any] = []
        if s.rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y, losses=parts)
        optimizer.step()
        optimizer.zero_grad()
        loss = sum(parts).detach().clone() if parts else torch.zeros((), device=s.device)
        with s.counter.unseen():
            torch.distributed.broadcast(loss, src=s.size - 1)
        losses.append(float(loss.item()))
    return Trained(losses=losses, reference=s.reference(batches=[s.batch(0)], own=0), facts={})


def step_dtensor(s: Stage) -> Trained:
    """Spread a weight, gather it and spread it otherwise, then train it: its products are partial sums."""
    names = ("distribute_tensor", "Shard", "Replicate")
    distribute, shard, replicate = part_of(s, "torch.distributed.tensor", *names)
    mesh = mesh_of(s, shard=s.size)
    s.enter("distribute_tensor")
    torch = s.torch
    start = torch.linspace(-1, 1, 16 * 4, device=s.device).reshape(16, 4)
    spread = distribute(start, mesh, [shard(0)])
    s.enter("redistribute")
    for placement, expected in (
        (replicate(), start),
        (shard(1), start.chunk(s.size, dim=1)[s.rank]),
        (shard(0), start.chunk(s.size, dim=0)[s.rank]),
    ):
        local = spread.redistribute(mesh, [placement]).to_local()
        if not torch.equal(local, expected):
            raise Wrong(f"redistribute to {placement} gives other values")
    weight = torch.nn.Parameter(distribute(start[:, :1].contiguous(), mesh, [shard(0)]))
    optimizer = torch.optim.AdamW([weight], lr=1e-2)
    x, y = (t.to(s.device) for t in s.batch(0))
    columns, target = distribute(x, mesh, [shard(1)]), distribute(y, mesh, [replicate()])
    losses = []
    for i in range(TRAIN_STEPS):
        s.enter(f"train step {i}")
        product = (columns @ weight).redistribute(mesh, [replicate()])
        loss = ((product - target) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.to_local().item()))
    model = torch.nn.Linear(16, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(start[:, :1].T)
    return Trained(losses=losses, reference=s.reference(model, [s.batch(0)], 0), facts={})


STEPS = {
    "torch-tensor": step_tensor,
    "torch-sequence": step_sequence,
    "torch-pipeline": step_pipeline,
    "torch-dtensor": step_dtensor,
}
