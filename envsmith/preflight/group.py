"""How ranks find each other before (or beside) a process group: the launcher's store, one exchange, one collective."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from envsmith.errors import SmokeError
from envsmith.smoke.agent.launchers import discover
from envsmith.smoke.agent.protocol import one_line

_CALLS = itertools.count()
_OWN: dict[tuple[str, int], Any] = {}  # stores that we host: they must outlive every rank's last question


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where this process is in its job. ``store`` is prefixed for one call of the preflight; ``None`` when there is only one process."""

    rank: int
    world: int
    local: int
    how: str
    store: Any = field(default=None, repr=False)
    initialised: bool = False


def find_place(timeout: float) -> Place:
    """Rank, world and store: of the default group when there is one, else of torchrun, Slurm or MPI; alone otherwise.

    Raises :class:`SmokeError` when the store of the job cannot be reached.
    """
    import torch.distributed as dist

    number = next(_CALLS)
    local = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) or 0)
    if dist.is_available() and dist.is_initialized():
        base, source = dist.distributed_c10d._get_default_store(), "the process group"  # noqa: SLF001 - torch has no public name for it
        rank, world = dist.get_rank(), dist.get_world_size()
    else:
        launch = discover(os.environ, {}) if dist.is_available() else None
        if launch is None or launch["world"] < 2:
            return Place(rank=0, world=1, local=local, how="alone")
        rank, world, source = launch["rank"], launch["world"], str(launch["how"])
        local = launch["local"]
        base = _launcher_store(launch, timeout)
    if world < 2:
        return Place(rank=rank, world=world, local=local, how=source)
    run = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store = dist.PrefixStore(f"envsmith-preflight/{run}/{number}", base)
    return Place(rank=rank, world=world, local=local, how=source, store=store, initialised=dist.is_initialized())


def _launcher_store(launch: Mapping[str, Any], timeout: float) -> Any:
    """The agent of torchrun has a store already; under any other launcher rank 0 opens one beside the script's own port."""
    import torch.distributed as dist

    limit = timedelta(seconds=timeout)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and os.environ.get("MASTER_PORT"):
        host, port, owner = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), False
    else:
        host, port = str(launch["master"]), int(launch["port"])
        # The script's own init_process_group will listen on MASTER_PORT.
        port += 1 if str(port) == os.environ.get("MASTER_PORT") else 0
        owner = launch["rank"] == 0
    if (host, port) in _OWN:
        return _OWN[host, port]
    try:
        store = dist.TCPStore(host, port, launch["world"], owner, limit, wait_for_workers=False)
    except Exception as error:
        who = "cannot open" if owner else "cannot reach"
        raise SmokeError(
            f"rank {launch['rank']} {who} the store at {host}:{port}: {one_line(error)}",
            hint="is that address right on every node, and the port open between them? ENVSMITH_MASTER_PORT names another",
        ) from error
    _OWN[host, port] = store
    return store


def second_connection(place: Place, timeout: float) -> Any:
    """The same store through a connection of its own: one connection serves one thread at a time, and a training script may wait in it."""
    import torch.distributed as dist

    prefix, store = [], place.store
    while isinstance(store, dist.PrefixStore):
        inner = getattr(store, "underlying_store", None)
        if inner is None:
            return place.store
        prefix.append(store)
        store = inner
    if not isinstance(store, dist.TCPStore):
        return place.store
    limit = timedelta(seconds=timeout)
    return dist.TCPStore(store.host, store.port, place.world, False, limit, wait_for_workers=False)  # noqa: FBT003


def agree(
    place: Place, key: str, mine: Mapping[str, Any], timeout: float
) -> tuple[dict[int, dict[str, Any]], list[int]]:
    """Everybody's value by rank, and the ranks that did not come within ``timeout`` seconds."""
    store = place.store
    store.set(f"{key}/{place.rank}", json.dumps(mine))
    until, answers, missing = time.monotonic() + timeout, {}, []
    for rank in range(place.world):
        remaining = max(0.05, until - time.monotonic())
        try:
            store.wait([f"{key}/{rank}"], timedelta(seconds=remaining))
            answers[rank] = json.loads(store.get(f"{key}/{rank}"))
        except Exception:  # noqa: BLE001 - torch has raised several classes for a key that does not come
            missing.append(rank)
    return answers, missing


def try_collective(place: Place, backend: str, device: int | None, timeout: float) -> dict[str, Any]:
    """One all_reduce whose value every rank knows; ``{"ok": True}`` or what happened. Never longer than about twice ``timeout``."""
    import torch
    import torch.distributed as dist

    if place.initialised:
        cuda = dist.get_backend() == "nccl"
        return _reduce(torch, dist, place, device if cuda else None, timeout)
    started = time.monotonic()
    kwargs: dict[str, Any] = {}
    if device is not None and backend == "nccl":
        torch.cuda.set_device(device)
        kwargs["device_id"] = torch.device("cuda", device)
    try:
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("group", place.store),
            rank=place.rank,
            world_size=place.world,
            timeout=timedelta(seconds=timeout),
            **kwargs,
        )
    except Exception as error:  # noqa: BLE001 - whatever the backend says is the finding
        return {"ok": False, "stage": "making a group", "detail": one_line(error)}
    try:
        answer = _reduce(torch, dist, place, device if backend == "nccl" else None, timeout)
    finally:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    return {**answer, "seconds": round(time.monotonic() - started, 3)}


def _reduce(torch: Any, dist: Any, place: Place, device: int | None, timeout: float) -> dict[str, Any]:
    where = torch.device("cuda", device) if device is not None else torch.device("cpu")
    index = torch.arange(257, dtype=torch.int64)
    tensor = (index * (place.rank + 1)).to(where)
    place.store.set(f"entered/{place.rank}", "1")
    try:
        work = dist.all_reduce(tensor, async_op=True)
        until = time.monotonic() + timeout
        while not work.is_completed():
            if time.monotonic() > until:
                return {"ok": False, "stage": "all_reduce", "detail": f"no end after {timeout:.0f} s", "hang": True}
            time.sleep(0.0005)
        work.wait()
        got = tensor.cpu()
    except Exception as error:  # noqa: BLE001 - whatever the backend says is the finding
        return {"ok": False, "stage": "all_reduce", "detail": one_line(error)}
    due = index * (place.world * (place.world + 1) // 2)
    if bool((got == due).all()):
        return {"ok": True}
    wrong = int((got != due).nonzero()[0])
    return {"ok": False, "stage": "all_reduce", "detail": f"read {int(got[wrong])} where {int(due[wrong])} was due"}
