"""What NCCL says, in words for people: its results with cause and next step, and the transports that its log names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envsmith.base.json_types import JsonDict


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclResult:
    """One of ``ncclResult_t`` (nccl.h). NCCL and torch print ``phrases``.

    ``cause`` is the usual one when all is new.
    """

    name: str
    phrases: tuple[str, ...]
    cause: str
    next: str


# In the order of their codes, from 1 on.
RESULTS = (
    NcclResult(
        name="ncclUnhandledCudaError", phrases=("unhandled cuda error", "Cuda failure"),
        cause="a CUDA call failed inside NCCL, most often a driver older than this CUDA, or no kernel for this GPU",
        next="compare the driver with the CUDA of this torch (envsmith doctor), "
        "and torch.cuda.get_arch_list() with the GPU",
    ),
    NcclResult(
        name="ncclSystemError", phrases=("unhandled system error",),
        cause="the system refused NCCL a socket, memory, a file or a device",
        next="look at NCCL's WARN line (NCCL_DEBUG=WARN), /dev/shm, `ulimit -n` and `ulimit -l`, NCCL_SOCKET_IFNAME",
    ),
    NcclResult(
        name="ncclInternalError",
        phrases=("internal error - please report this issue to the NCCL developers", "internal error, NCCL version"),
        cause="NCCL met a topology or an answer of NVML that it did not expect",
        next="try NCCL_NVLS_ENABLE=0 and NCCL_CUMEM_HOST_ENABLE=0, and look at the WARN line above it",
    ),
    NcclResult(
        name="ncclInvalidArgument", phrases=("invalid argument",),
        cause="NCCL refuses the call: a dtype, a count or a pointer",
        next="ask whether this NCCL has the dtype (fp8 from 2.24 on)",
    ),
    NcclResult(
        name="ncclInvalidUsage", phrases=("invalid usage", "Duplicate GPU detected"),
        cause="two ranks on one GPU, or different NCCL versions in one group",
        next="give every rank its own device (torch.cuda.set_device(LOCAL_RANK), device_id=), "
        "and compare the versions of all nodes",
    ),
    NcclResult(
        name="ncclRemoteError", phrases=("remote process exited or there was a network error",),
        cause="another rank died, or the network broke",
        next="see who died first: that rank's log has the cause",
    ),
    NcclResult(
        name="ncclInProgress", phrases=("NCCL operation in progress",),
        cause="a communicator that does not block is still being made; this is not an error by itself",
        next="wait for it, or look for the rank that has not joined",
    ),
    NcclResult(
        name="ncclTimeout", phrases=(),
        cause="a barrier on the device did not end (NCCL 2.30 and newer)",
        next="treat it as a hang: find the rank that never entered",
    ),
)  # fmt: skip
# `ncclSystemError`, or the code after a word that makes it one: "NCCL error 2", "ncclResult_t 2", "returned 2".
_CODE = re.compile(r"\bnccl(?:Result(?:_t)?| error| failure)\W{0,3}(?:code\W{0,3})?([1-8])\b", re.IGNORECASE)


def explained(text: str) -> str:
    """Return the message with what a result of NCCL in it usually means, or the message alone when there is none."""
    result = _named(text)
    return f"{text} -- {result.cause}; next: {result.next}" if result else text


def _named(text: str) -> NcclResult | None:
    by_name = [(text.find(r.name), r) for r in RESULTS if r.name in text]
    if by_name:
        return min(by_name, key=lambda pair: pair[0])[1]
    if "nccl" not in text.lower():
        return None
    lowered = text.lower()
    for result in RESULTS:
        if any(phrase.lower() in lowered for phrase in result.phrases):
            return result
    match = _CODE.search(text)
    return RESULTS[int(match[1]) - 1] if match else None


# "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Ring 00 : 6 -> 2 [receive] via NET/IB/0/GDRDMA", brackets may hold a bus
# id.
_VIA = re.compile(
    r"(?:Channel|Ring)\b[^:]*: (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(?:send|receive)\])?"
    r" via ([A-Za-z0-9][^\n\r]*)"
)
_NETWORK = re.compile(r"NCCL INFO Using network ([\w.+-]+)")
_NVLS = re.compile(r"(\d+) nvls channels")


@dataclass(frozen=True, kw_only=True, slots=True)
class Transports:
    """What a log with ``NCCL_DEBUG=INFO`` proves: pairs of ranks by way, the networks, the most NVLS channels.

    A way is the transport without the number of the adapter: ``P2P/CUMEM``, ``SHM/direct/direct``, ``NET/Socket``,
    ``NET/IB/GDRDMA``.
    """

    pairs: Mapping[str, int] = field(default_factory=dict)
    network: str = ""
    nvls_channels: int | None = None

    @property
    def sentence(self) -> str:
        """Return a sentence for the notes of a record, empty when NCCL's log names no transport."""
        if not self.pairs:
            return ""
        ways = ", ".join(f"{way} ({n} pair{'' if n == 1 else 's'} of ranks)" for way, n in self.pairs.items())
        return f"NCCL's transport: {ways}" + (f"; {self.nvls_channels} NVLS channels" if self.nvls_channels else "")

    def to_json(self) -> JsonDict:
        """Return what the log said."""
        row: JsonDict = {"pairs": dict(self.pairs), "network": self.network}
        nvls: JsonDict = {} if self.nvls_channels is None else {"nvls_channels": self.nvls_channels}
        return {key: value for key, value in row.items() if value} | nvls


def transports(texts: Iterable[str]) -> Transports:
    """Return what the logs prove. A log that says nothing proves nothing."""
    text = "\n".join(texts)
    ways: dict[str, set[tuple[int, int]]] = {}
    for match in _VIA.finditer(text):
        ways.setdefault(_way(match[3]), set()).add((int(match[1]), int(match[2])))
    return Transports(
        pairs={way: len(pairs) for way, pairs in sorted(ways.items())},
        network=", ".join(sorted(set(_NETWORK.findall(text)))),
        nvls_channels=max(map(int, _NVLS.findall(text)), default=None),
    )


def _way(text: str) -> str:
    """Leave out which adapter it was: ``NET/IB/3(2)/GDRDMA/Shared`` is ``NET/IB/GDRDMA/Shared``."""
    phrase = re.split(r"\s+comm\b|\s{2,}", text.strip())[0]
    return "/".join(part for part in phrase.split("/") if not re.fullmatch(r"\d+(?:\(\d+\))?", part))
