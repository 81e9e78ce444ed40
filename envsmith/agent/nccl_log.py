"""What NCCL's log proves: the network, the way between each pair of ranks, its warnings. Bounded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

# The lines that name a transport or a network. Spellings and cases differ: "0 nvls channels" and "NVLS comm", "NET/IB :
# Using", "Assigned NET plugin IB to comm" (NCCL v2.14.3-1 to v2.30.7-1, src/init.cc, src/net.cc, src/plugin/net.cc,
# src/transport/*.cc).
_TELLING = re.compile(
    r"using network|\bnet/(?:ib|socket|plugin)|net plugin|nvls|gpu direct rdma|coll channels|mnnvl|init complete|"
    r"duplicate gpu|ncclcomm\w* .*abort",
    re.IGNORECASE,
)
# Host, process, thread and time differ where the fact does not; the number of the device stays.
_PREFIX = re.compile(r"^.*?\[(\d+)\] (?=.*NCCL (?:INFO|WARN))")
_CHANNEL = re.compile(r"\b(Channel|Ring) \d+(?:/\d+)? :")
# The most different lines that stay of each kind. A rank of a node has a line for each peer, direction and way.
_KINDS = (("warnings", 40), ("network", 60), ("ways", 400))
_WIDTH, _SIZE = 400, 64 << 20


def evidence(lines: Iterable[str]) -> str:
    """Return the telling lines, each once, in their order. What is beyond a bound is counted in the last line."""
    rows: dict[str, None] = {}
    room, excess = dict(_KINDS), dict.fromkeys(dict(_KINDS), 0)
    for text in lines:
        kind = _kind(text)
        line = _CHANNEL.sub(r"\1 :", _PREFIX.sub(r"[\1] ", text.rstrip()))[:_WIDTH] if kind else ""
        if not line or line in rows:
            continue
        if room[kind]:
            rows[line] = None
            room[kind] -= 1
        else:
            excess[kind] += 1
    left_out = ", ".join(f"{count} of {kind}" for kind, count in excess.items() if count)
    return "\n".join([*rows, *([f"lines left out: {left_out}"] if left_out else [])])


def _kind(line: str) -> str:
    if "NCCL WARN" in line:
        return "warnings"
    if " via " in line:
        return "ways"
    return "network" if _TELLING.search(line) else ""


def evidence_of(path: str) -> str:
    """Return the evidence of a log, or nothing when it cannot be read."""
    try:
        with open(path, "rb") as file:
            pieces = iter(lambda: file.readline(4096) if file.tell() < _SIZE else b"", b"")
            return evidence(piece.decode(errors="replace") for piece in pieces)
    except OSError:
        return ""


def log_in_memory() -> str:
    """Return the path of a new file that vanishes with this process, or nothing where the kernel has none."""
    if not hasattr(os, "memfd_create"):
        return ""
    return f"/proc/{os.getpid()}/fd/{os.memfd_create('nccl.log')}"
