"""Two ranks of a first step on the CPU: the loss falls, and each rank ends with the same weights."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(model, loss_of, steps: int = 3) -> None:
    """Train ``model`` by ``loss_of(wrapped)`` and print the losses and a digest of the weights."""
    dist.init_process_group("gloo")
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    for _ in range(steps):
        torch.manual_seed(dist.get_rank())
        loss = loss_of(wrapped)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    digest = sum(p.double().abs().sum() for p in model.parameters()).reshape(1)
    every = [torch.zeros_like(digest) for _ in range(dist.get_world_size())]
    dist.all_gather(every, digest)
    if dist.get_rank() == 0:
        same = all(torch.equal(digest, other) for other in every)
        print(f"STEP losses {' '.join(f'{x:.4f}' for x in losses)}, equal weights {same}", flush=True)
    dist.destroy_process_group()
