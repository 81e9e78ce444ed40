"""Horovod: data parallelism by its ``DistributedOptimizer``, and each of its collectives in each type of tensor.

Horovod has collectives of its own, so torch's counter and flight recorder see none of them. Its timeline does.
"""

from __future__ import annotations

import functools
import operator
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from envsmith.agent.protocol import Facts, Skip, Wrong, one_line
from envsmith.agent.steps.launch import RankJob
from envsmith.agent.steps.stage import TRAIN_STEPS, Stage, Trained, stated_version

# What horovod/torch/mpi_ops_v2.cc registers for tensors of the CPU: reductions have no small integers.
_REDUCED = ("float32", "float64", "float16", "int32", "int64")
_MOVED = (*_REDUCED, "uint8", "int8", "int16")
_FLOATS = ("float32", "float64", "float16")
# Without MPI no build has Adasum for the CPU: horovod/common/operations.cc adds its operation for MPI and NCCL only.
_OF_MPI = "adasum"
_FACTS = ("gloo_built", "gloo_enabled", "mpi_built", "mpi_enabled", "nccl_built", "cuda_built")
# The word of a timeline for what was done. Some operations of gloo are called MPI_ in it, too.
_ACTIVITY = re.compile(r"(?:GLOO|MPI|NCCL)_(ALLREDUCE|ALLGATHER|ALLGATHERV|BCAST|BROADCAST|ALLTOALL|REDUCESCATTER)")
_NAMES = {
    "ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLGATHERV": "all_gather", "BCAST": "broadcast",
    "BROADCAST": "broadcast", "ALLTOALL": "all_to_all", "REDUCESCATTER": "reduce_scatter",
}  # fmt: skip


def launch(launch: RankJob) -> None:
    """Replace this process by ``horovodrun``, on this host alone."""
    _run(launch, "--gloo")


def launch_elastic(launch: RankJob) -> None:
    """Replace this process by ``horovodrun`` that goes on without a rank that died, as long as it has one.

    It gives up the whole host of a dead rank, so this host goes by two names.
    """
    _run(launch, "--gloo", "--min-np", "1", "-H", f"localhost:1,127.0.0.1:{launch.ranks - 1}")


def launch_mpi(launch: RankJob) -> None:
    """Replace this process by ``horovodrun`` over MPI. Where Horovod has none, its ranks can say so over gloo."""
    from horovod.common.util import mpi_built

    _run(launch, "--mpi" if mpi_built() else "--gloo")


def _run(launch: RankJob, *options: str) -> None:
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", str(launch.ranks), *options]
    launch.execute([*command, *launch.rank_command])


def step_optimizer(s: Stage) -> Trained:
    """Train with gradients that ``DistributedOptimizer`` averages, from parameters that rank 0 broadcasts."""
    hvd = _started(s)
    losses = _trained(s, hvd)
    return Trained(losses=losses, reference=s.reference(), facts=_ended(s, hvd))


def step_elastic(s: Stage) -> Trained:
    """Train from a state that is committed after each step. The others go on from there when a rank dies."""
    hvd = _started(s)
    s.enter("elastic state")
    # Horovod shares an optimizer's state by a step with gradients of nothing. Adam counts it, so it would differ.
    model, alone, sgd = s.model().to(s.device), s.model(), s.torch.optim.SGD
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters(), lr=1e-2), named_parameters=model.named_parameters())
    losses: list[float] = []
    resumed_at: list[int] = []
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, at=0)
    state.register_reset_callbacks([lambda: resumed_at.append(state.at)])

    def train(state: Any) -> None:
        del losses[state.at :]
        while state.at < TRAIN_STEPS:
            losses.append(s.train_once(state.at, model, lambda loss: loss.backward(), s.stepper(optimizer)))
            state.at += 1
            state.commit()

    s.enter("hvd.elastic.run")
    hvd.elastic.run(train)(state)
    reference = s.reference(alone, optimizer=sgd(alone.parameters(), lr=1e-2))
    return Trained(losses=losses, reference=reference, facts=_ended(s, hvd, resumed_at=resumed_at))


def step_collectives(s: Stage) -> Trained:
    """Hold every collective in every type against its result, then train: a refusal may not harm what follows."""
    hvd = _started(s)
    refused = {}
    for name, dtypes, case in _CASES:
        for dtype in dtypes:
            s.enter(f"{name} {dtype}")
            error = _checked(s, hvd, f"{name} {dtype}", dtype, case)
            if error:
                refused[f"{name} {dtype}"] = error
    if unexpected := sorted(name for name in refused if not name.startswith(_OF_MPI) or hvd.mpi_enabled()):
        raise Wrong(f"{unexpected[0]} is refused: {refused[unexpected[0]]}")
    s.enter("barrier")
    hvd.barrier()
    s.enter("broadcast_object")
    if (text := hvd.broadcast_object({"of": s.rank}, root_rank=0)) != {"of": 0}:
        raise Wrong(f"broadcast_object gives {text}")
    losses = _trained(s, hvd)
    s.enter("join")
    hvd.join()
    return Trained(losses=losses, reference=s.reference(), facts=_ended(s, hvd, refused=refused))


def step_mpi(s: Stage) -> Trained:
    """Hold the same collectives against their results over MPI, Adasum among them."""
    s.enter_import("horovod.torch")
    import horovod.torch as hvd

    if not hvd.mpi_built():
        raise Skip("Horovod was compiled without MPI")
    return step_collectives(s)


def _started(s: Stage) -> Any:
    s.enter_import("horovod.torch")
    import horovod.torch as hvd

    if not hasattr(hvd, "init"):
        # horovod/torch/__init__.py prints the error and goes on without its functions.
        from horovod.common.util import check_extension

        check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", hvd.__file__, "mpi_lib_v2")
    s.enter("hvd.init")
    os.environ["HOROVOD_TIMELINE"] = _timeline(s)  # rank 0 writes it
    hvd.init()
    if (hvd.rank(), hvd.size()) != (s.rank, s.size):
        raise Wrong(f"horovod says rank {hvd.rank()} of {hvd.size()}, the launcher {s.rank} of {s.size}")
    return hvd


def _timeline(s: Stage) -> str:
    return os.path.join(s.job["directory"], "timeline.json")


def _trained(s: Stage, hvd: Any) -> list[float]:
    s.enter("broadcast_parameters")
    model = s.model().to(s.device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    s.enter("DistributedOptimizer")
    optimizer = hvd.DistributedOptimizer(s.optimizer(model), named_parameters=model.named_parameters())
    return s.train(model, lambda loss: loss.backward(), s.stepper(optimizer))


def _ended(s: Stage, hvd: Any, **facts: object) -> Facts:
    """Shut Horovod down, count what its timeline says it did, and return what it says of itself."""
    import horovod

    built = {name: bool(getattr(hvd, name)()) for name in _FACTS}
    s.enter("hvd.shutdown")
    hvd.shutdown()
    if s.rank == 0:
        with open(_timeline(s), encoding="utf-8") as file:
            for operation in _ACTIVITY.findall(file.read()):
                s.counter.add(_NAMES[operation])
    return {"version": stated_version(horovod), **built, **facts}


# -- each collective against its result -------------------------------------------------------------------------------
#
# Rank r holds (2r + 1) * [1, 2, 3, 4, 5, 6]. Sums and averages over any number of ranks are whole and small, so that
# every type holds them.

Case = Callable[[Any, Any, Sequence[Any]], "list[tuple[Any, Any]]"]


def _checked(s: Stage, hvd: Any, name: str, dtype: str, case: Case) -> str:
    """Run one case. Return the refusal in one line, or nothing. Raises ``Wrong`` for a wrong value."""
    torch = s.torch
    parts = [(2 * r + 1) * torch.arange(1, 7).to(getattr(torch, dtype)).to(s.device) for r in range(s.size)]
    try:
        pairs = case(hvd, parts[s.rank].clone(), parts)
    except (ValueError, NotImplementedError, RuntimeError) as error:
        return one_line(error, 160)
    for result, due in pairs:
        if result.shape != due.shape or not bool((result == due).all()):
            raise Wrong(f"{name}: {result.tolist()} instead of {due.tolist()}")
    return ""


def _all_reduce(operation: str, due: Callable[[Sequence[Any]], Any]) -> Case:
    def case(hvd: Any, mine: Any, parts: Sequence[Any]) -> list[tuple[Any, Any]]:
        return [(hvd.allreduce(mine, op=getattr(hvd, operation)), due(parts))]

    return case


def _sum(parts: Sequence[Any]) -> Any:
    return functools.reduce(operator.add, parts)


def _adasum(hvd: Any, mine: Any, parts: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Reduce equal tensors, which Adasum averages."""
    del mine
    return [(hvd.allreduce(parts[0].clone(), op=hvd.Adasum), parts[0])]


def _grouped_all_reduce(hvd: Any, mine: Any, parts: Sequence[Any]) -> list[tuple[Any, Any]]:
    first, second = hvd.grouped_allreduce([mine, mine[:2].clone()], op=hvd.Sum)
    return [(first, _sum(parts)), (second, _sum(parts)[:2])]


def _all_gather(hvd: Any, mine: Any, parts: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Gather from rank r its first r + 1 elements: Horovod's own kind of gather."""
    due = mine.new_tensor([x for r, part in enumerate(parts) for x in part[: r + 1].tolist()])
    return [(hvd.allgather(mine[: hvd.rank() + 1].clone()), due)]


def _grouped_all_gather(hvd: Any, mine: Any, parts: Sequence[Any]) -> list[tuple[Any, Any]]:
    first, second = hvd.grouped_allgather([mine, mine[:2].clone()])
    due = [mine.new_tensor([x for part in parts for x in part[:n].tolist()]) for n in (6, 2)]
    return [(first, due[0]), (second, due[1])]


def _broadcast(hvd: Any, mine: Any, parts: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [(hvd.broadcast(mine, root_rank=len(parts) - 1), parts[-1])]


def _all_to_all(hvd: Any, mine: Any, parts: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Send one element of every part to each rank."""
    due = mine.new_tensor([part[hvd.rank()].item() for part in parts])
    return [(hvd.alltoall(mine[: len(parts)].clone()), due)]


def _reduce_scatter(hvd: Any, mine: Any, parts: Sequence[Any]) -> list[tuple[Any, Any]]:
    due = _sum(parts)[hvd.rank() : hvd.rank() + 1]
    return [(hvd.reducescatter(mine[: len(parts)].clone(), op=hvd.Sum), due)]


def _grouped_reduce_scatter(hvd: Any, mine: Any, parts: Sequence[Any]) -> list[tuple[Any, Any]]:
    due = _sum(parts)[hvd.rank() : hvd.rank() + 1]
    results = hvd.grouped_reducescatter([mine[: len(parts)].clone() for _ in range(2)], op=hvd.Sum)
    return [(result, due) for result in results]


_CASES: tuple[tuple[str, Sequence[str], Case], ...] = (
    ("allreduce sum", _REDUCED, _all_reduce("Sum", _sum)),
    ("allreduce average", _REDUCED, _all_reduce("Average", lambda parts: _sum(parts) / len(parts))),
    ("allreduce min", _REDUCED, _all_reduce("Min", lambda parts: parts[0])),
    ("allreduce max", _REDUCED, _all_reduce("Max", lambda parts: parts[-1])),
    ("allreduce product", _REDUCED, _all_reduce("Product", lambda parts: functools.reduce(operator.mul, parts))),
    ("grouped_allreduce sum", _REDUCED, _grouped_all_reduce),
    ("allgather", _MOVED, _all_gather),
    ("grouped_allgather", _MOVED, _grouped_all_gather),
    ("broadcast", _MOVED, _broadcast),
    ("alltoall", _MOVED, _all_to_all),
    ("reducescatter sum", _REDUCED, _reduce_scatter),
    ("grouped_reducescatter sum", _REDUCED, _grouped_reduce_scatter),
    (_OF_MPI, _FLOATS, _adasum),
)

LAUNCHERS = {"horovod": launch, "horovod-elastic": launch_elastic, "horovod-mpi": launch_mpi}
STEPS = {
    "horovod-optimizer": step_optimizer,
    "horovod-collectives": step_collectives,
    "horovod-elastic": step_elastic,
    "horovod-mpi": step_mpi,
}
