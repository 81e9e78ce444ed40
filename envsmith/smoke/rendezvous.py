"""The smoke test started by torchrun: the same command on every node, and the same verdict.

The ranks exchange their events through torch's store, so that every node comes to the same verdict.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envsmith.errors import SmokeError, UsageError
from envsmith.smoke.bundle import bundle
from envsmith.smoke.nodes import extended_plan, is_host_name, with_nodes
from envsmith.smoke.plan import Plan
from envsmith.smoke.run import torchrun_argv
from envsmith.smoke.verdict import SmokeResult, judge

# torchrun's own default: how long the first command waits for the last one.
_JOIN = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendezvous:
    """``HOST:PORT``, the same on every node, and how many nodes with how many ranks meet there; ``join``: seconds until all must have come."""

    endpoint: str
    nodes: int
    ranks_per_node: int
    join: float = _JOIN

    def parts(self) -> tuple[str, int]:
        """Host and port. Raises :class:`UsageError`."""
        host, _, port = self.endpoint.rpartition(":")
        if not is_host_name(host) or not (port.isdecimal() and port.isascii()) or not 0 < int(port[:6]) < 65536:
            raise UsageError(f"--rdzv {self.endpoint[:80]!r}: HOST:PORT is due, the same on every node")
        return host, int(port)


def run_rendezvous(plan: Plan, where: Rendezvous, *, python: str) -> SmokeResult:
    """The part of this node in a run that the same command starts on every node; the verdict is that of all. Raises :class:`SmokeError`."""
    host, port = where.parts()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="envsmith-nodes-") as directory:
        here = Path(directory)
        (here / "agent.py").write_bytes(bundle())
        row = extended_plan(plan, ("",) * where.nodes, where.ranks_per_node, "torchrun", gather=True)
        (here / "plan.json").write_bytes(row)
        argv = torchrun_argv(
            python=python,
            agent=str(here / "agent.py"),
            plan=str(here / "plan.json"),
            events=str(here / "events.%r"),
            ranks=where.ranks_per_node,
            nodes=where.nodes,
            rendezvous=where.endpoint,
        )
        mine = _address_towards(host, port)
        conf = [f"join_timeout={max(1, int(where.join))}", *_owner(host, mine)]
        argv[3:3] = [*(["--local-addr", mine] if mine else []), "--rdzv-conf", ",".join(conf)]
        words, status = _torchrun(argv, plan.outer_deadline + where.join)
        events = _read_events(here)
    if not events:
        lines = [line for line in words.splitlines() if line.strip()]
        raise SmokeError(
            f"torchrun started no rank on this node (status {status})",
            hint=f"is {where.endpoint} reachable from here, and does the command run on all {where.nodes} nodes?",
            details=lines[-5:],
        )
    result = with_nodes(judge(plan, events, agent_exit=status), events)
    return replace(result, seconds={**result.seconds, "wall": round(time.monotonic() - started, 3)})


def _owner(host: str, mine: str | None) -> list[str]:
    """The node that has the endpoint's address opens its store; torchrun itself goes by the machine's name, which may mean loopback."""
    with contextlib.suppress(OSError, ValueError):
        if mine and not ipaddress.ip_address(mine.partition("%")[0]).is_loopback:
            return ["is_host=1"] if mine in {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)} else []
    return []


def _torchrun(argv: Sequence[str], limit: float) -> tuple[str, int | None]:
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise SmokeError(f"{argv[0]} cannot be started: {error.strerror or error}") from error
    try:
        words, _ = process.communicate(timeout=limit)
        return words.decode(errors="replace"), process.returncode
    except BaseException as error:
        process.terminate()  # torchrun ends its ranks
        try:
            process.wait(timeout=20.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return "torchrun had to be ended at the outer deadline", None
        raise


def _read_events(directory: Path) -> list[object]:
    """All ranks' lines; what came both from the rank's own file and through the store is taken once."""
    unique: dict[str, object] = {}
    for path in sorted(directory.glob("events.*")):
        for line in path.read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                unique.setdefault(json.dumps(event, sort_keys=True), event)
    return list(unique.values())


def _address_towards(host: str, port: int) -> str | None:
    """The address of this node on the way to the rendezvous: the machine's own name may resolve to loopback."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None
