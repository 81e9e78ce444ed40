"""Who started this process as a rank (flags, torchrun, Slurm, horovodrun, Open MPI or PMI), and what it says."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Mapping
from typing import NamedTuple

from envsmith.agent.protocol import PlanJson, Row

# The variables of each launcher for rank, world and local rank, in the order in which they are asked.
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK"),
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "pmi": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
}


class LaunchPlace(NamedTuple):
    """Which rank this process is, who says so (``launcher``), and where the ranks meet."""

    launcher: str
    rank: int
    world: int
    local: int
    master: str = "127.0.0.1"
    port: int = 29411


def discover(env: Mapping[str, str], flags: Row) -> LaunchPlace | None:
    """Return the place that flags name, or else the first launcher that set its variables."""
    place = _place(env, flags)
    if place is None:
        return None
    master = flags.get("master_addr") or env.get("MASTER_ADDR") or first_host(env) or place.master
    port = flags.get("master_port") or env.get("ENVSMITH_MASTER_PORT")
    if not port and env.get("MASTER_PORT"):
        # torchrun's own store listens on MASTER_PORT.
        port = int(env["MASTER_PORT"]) + (1 if place.launcher == "torchrun" else 0)
    if not port and env.get("SLURM_JOB_ID", "").isdigit():
        port = 20000 + int(env["SLURM_JOB_ID"]) % 20000
    return place._replace(master=master, port=int(port) if port else place.port)


def _place(env: Mapping[str, str], flags: Row) -> LaunchPlace | None:
    if flags.get("rank") is not None and flags.get("world_size") is not None:
        return LaunchPlace("flags", flags["rank"], flags["world_size"], flags.get("local_rank") or 0)
    for launcher, (rank, world, local) in LAUNCHERS.items():
        # A batch script of Slurm is a task of its own: with one task there is no rank to be.
        if rank in env and world in env and (launcher != "slurm" or int(env[world]) > 1):
            return LaunchPlace(launcher, int(env[rank]), int(env[world]), int(env.get(local, 0)))
    return None


def first_host(env: Mapping[str, str]) -> str | None:
    """Return the first node of a Slurm list: `node[03-05,9],x` is node03."""
    text = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST") or ""
    node = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\])?", text)
    return (node[1] + (node[2] or "")) if node else None


def node_name(plan: PlanJson, rank: int) -> str:
    """Return what the user calls this node: the name in the plan, Slurm's, or the machine's own."""
    names = plan.get("node_of_rank") or []
    if rank < len(names):
        return str(names[rank])
    number = os.environ.get("GROUP_RANK")
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname() + (f" (node {number})" if number else "")


def interface_towards(host: str, port: int) -> dict[str, str]:
    """Return the interface towards the master. Gloo takes that of the host's own name, which is often loopback."""
    import fcntl

    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(address)  # sends nothing
            mine = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                try:
                    answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                except OSError:
                    continue
                if socket.inet_ntoa(answer[20:24]) == mine:
                    return {"GLOO_SOCKET_IFNAME": name}
    except (OSError, AttributeError, IndexError):
        pass
    return {}


def ranks_here(env: Mapping[str, str], world: int) -> int:
    """Return how many ranks this node has, as the launcher says, or all of them where it says nothing."""
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        if env.get(name, "").isdigit():
            return max(1, int(env[name]))
    # "2(x3),1": the tasks of each node of the step; the largest is what the GPUs must bear.
    counts = re.findall(
        r"(\d+)(?:\(x\d+\))?", env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or ""
    )
    return max((int(count) for count in counts), default=world)
