"""What NCCL says, in words for people: its result codes with cause and next step, and the transports that its log names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["RESULTS", "NcclResult", "explained", "transport_sentence", "transports"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclResult:
    """One of ``ncclResult_t`` (nccl.h): ``phrases`` are how NCCL and torch print it, ``cause`` the usual one in a fresh environment."""

    code: int
    name: str
    phrases: tuple[str, ...]
    cause: str
    next: str


RESULTS = (
    NcclResult(
        code=1,
        name="ncclUnhandledCudaError",
        phrases=("unhandled cuda error", "Cuda failure"),
        cause="a CUDA call failed inside NCCL, most often a driver older than this CUDA, or no kernel for this GPU",
        next="compare the driver with the CUDA of this torch (envsmith doctor), and torch.cuda.get_arch_list() with the GPU",
    ),
    NcclResult(
        code=2,
        name="ncclSystemError",
        phrases=("unhandled system error",),
        cause="the system refused NCCL a socket, memory, a file or a device",
        next="look at NCCL's WARN line (NCCL_DEBUG=WARN), /dev/shm, `ulimit -n` and `ulimit -l`, NCCL_SOCKET_IFNAME",
    ),
    NcclResult(
        code=3,
        name="ncclInternalError",
        phrases=("internal error - please report this issue to the NCCL developers", "internal error, NCCL version"),
        cause="NCCL met a topology or an answer of NVML that it did not expect",
        next="try NCCL_NVLS_ENABLE=0 and NCCL_CUMEM_HOST_ENABLE=0, and look at the WARN line above it",
    ),
    NcclResult(
        code=4,
        name="ncclInvalidArgument",
        phrases=("invalid argument",),
        cause="NCCL refuses the call: a dtype, a count or a pointer",
        next="ask whether this NCCL has the dtype (fp8 from 2.24 on)",
    ),
    NcclResult(
        code=5,
        name="ncclInvalidUsage",
        phrases=("invalid usage", "Duplicate GPU detected"),
        cause="two ranks on one GPU, or different NCCL versions in one group",
        next="give every rank its own device (torch.cuda.set_device(LOCAL_RANK), device_id=), and compare the versions of all nodes",
    ),
    NcclResult(
        code=6,
        name="ncclRemoteError",
        phrases=("remote process exited or there was a network error",),
        cause="another rank died, or the network broke",
        next="see who died first: that rank's log has the cause",
    ),
    NcclResult(
        code=7,
        name="ncclInProgress",
        phrases=("NCCL operation in progress",),
        cause="a communicator that does not block is still being made; this is no error by itself",
        next="wait for it, or look for the rank that has not joined",
    ),
    NcclResult(
        code=8,
        name="ncclTimeout",
        phrases=(),
        cause="a barrier on the device did not end (NCCL 2.30 and newer)",
        next="treat it as a hang: find the rank that never entered",
    ),
)
# `ncclSystemError`, or the code after a word that makes it one: "NCCL error 2", "ncclResult_t 2", "returned 2".
_CODE = re.compile(r"\bnccl(?:Result(?:_t)?| error| failure)\W{0,3}(?:code\W{0,3})?([1-8])\b", re.IGNORECASE)


def explained(text: str) -> str:
    """The message, and what a result of NCCL in it usually means; the message alone when there is none."""
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
    found = _CODE.search(text)
    return RESULTS[int(found[1]) - 1] if found else None


# "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "Ring 00 : 6 -> 2 [receive] via NET/IB/0/GDRDMA", brackets may hold a bus id.
_VIA = re.compile(
    r"(?:Channel|Ring)\b[^:]*: (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])?(?: \[(?:send|receive)\])? via ([A-Za-z0-9][^\n\r]*)"
)
_NETWORK = re.compile(r"NCCL INFO Using network ([\w.+-]+)")
_NVLS = re.compile(r"(\d+) nvls channels")


def transports(text: str) -> dict[str, object]:
    """What a log with ``NCCL_DEBUG=INFO`` proves: ``{"pairs": {way: pairs of ranks}, "network": …, "nvls_channels": …}``; empty when it says nothing.

    A way is the transport without the number of the adapter: ``P2P/CUMEM``, ``SHM/direct/direct``, ``NET/Socket``, ``NET/IB/GDRDMA``.
    """
    ways: dict[str, set[tuple[int, int]]] = {}
    for found in _VIA.finditer(text):
        ways.setdefault(_way(found[3]), set()).add((int(found[1]), int(found[2])))
    answer: dict[str, object] = {}
    if ways:
        answer["pairs"] = {way: len(pairs) for way, pairs in sorted(ways.items())}
    networks = sorted(set(_NETWORK.findall(text)))
    if networks:
        answer["network"] = ", ".join(networks)
    nvls = [int(number) for number in _NVLS.findall(text)]
    if nvls:
        answer["nvls_channels"] = max(nvls)
    return answer


def _way(text: str) -> str:
    """``NET/IB/3(2)/GDRDMA/Shared`` is ``NET/IB/GDRDMA/Shared``: which adapter it was says nothing about the way."""
    kept = re.split(r"\s+comm\b|\s{2,}", text.strip())[0]
    return "/".join(part for part in kept.split("/") if not re.fullmatch(r"\d+(?:\(\d+\))?", part))


def transport_sentence(texts: Iterable[str]) -> tuple[str, Mapping[str, object]]:
    """One sentence for the notes of a record, and the facts; empty when NCCL's log names no transport."""
    facts = transports("\n".join(texts))
    pairs = facts.get("pairs")
    if not isinstance(pairs, dict):
        return "", facts
    ways = ", ".join(f"{way} ({count} pair{'' if count == 1 else 's'} of ranks)" for way, count in pairs.items())
    nvls = facts.get("nvls_channels")
    more = f"; {nvls} NVLS channels" if nvls else ""
    return f"NCCL's transport: {ways}{more}", facts
