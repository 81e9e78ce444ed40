"""NCCL's words, most of them lines of public reports, beside the address of the report.

Looked up and read on 2026-11-21: those of QUOTED, the lines of #1412 and #952, and other lines of the same logs in #1189, nccl-tests#166 and #1052.
Not found again that day: #687, nv_peer_memory#56 and #1053. Lines under TYPICAL are no quotations.
"""

from __future__ import annotations

import pytest

from envsmith.smoke.nccl_text import RESULTS, Transports, explained, transports

# https://github.com/NVIDIA/nccl/issues/1189
CUMEM_AND_IB = """\
H20-GPU-06:4015539:4015652 [0] NCCL INFO Channel 07/0 : 0[0] -> 2[0] [receive] via NET/IB/3/GDRDMA
H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 00/0 : 1[1] -> 3[1] [receive] via NET/IB/2/GDRDMA
H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 02/0 : 1[1] -> 3[1] [receive] via NET/IB/2/GDRDMA
H20-GPU-06:4015540:4015653 [1] NCCL INFO Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM
H20-GPU-05:1789225:1789736 [1] NCCL INFO Channel 01/0 : 1[1] -> 0[0] via P2P/CUMEM
"""
# https://github.com/NVIDIA/nccl-tests/issues/166
SHM_AND_SOCKET = """\
ubuntu:9621:9692 [7] NCCL INFO Channel 14/0 : 15[7] -> 0[0] [send] via NET/Socket/0
ubuntu:39964:40050 [6] NCCL INFO Channel 09 : 6[6] -> 7[7] via SHM/direct/direct
ubuntu:9621:9688 [3] NCCL INFO Channel 05 : 11[3] -> 12[4] via SHM/direct/direct
"""
# https://github.com/NVIDIA/nccl/issues/1412, /952, /687, https://github.com/Mellanox/nv_peer_memory/issues/56
OTHERS = [
    (
        "swat1-04:2017630:2017697 [7] NCCL INFO Channel 00/0 : 7[7] -> 6[6] via P2P/direct pointer/read",
        "P2P/direct pointer/read",
    ),
    ("<cluster_name>:919:1150 [0] NCCL INFO Channel 01/0 : 8[0] -> 15[7] via P2P/IPC/read", "P2P/IPC/read"),
    (
        "cosmos-hpc-100a45:985927:986028 [3] NCCL INFO Channel 00 : 3[4a000] -> 6[44000] [send] via NET/IB/0/GDRDMA",
        "NET/IB/GDRDMA",
    ),
    ("master_node:11717:11986 [2] NCCL INFO Ring 00 : 6 -> 2 [receive] via NET/IB/0", "NET/IB"),
]
# https://github.com/NVIDIA/nccl/issues/1053, /1052
NETWORK = "axa:3048391:3048566 [0] NCCL INFO Using network Socket\n"
NO_NVLS = (
    "node4:565139:565148 [0] NCCL INFO 2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer\n"
)


def test_ways_are_counted_in_pairs_of_ranks_without_the_number_of_the_adapter() -> None:
    assert transports([CUMEM_AND_IB]).to_json() == {"pairs": {"NET/IB/GDRDMA": 2, "P2P/CUMEM": 2}}
    assert transports([SHM_AND_SOCKET]).to_json() == {"pairs": {"NET/Socket": 1, "SHM/direct/direct": 2}}


@pytest.mark.parametrize(("line", "way"), OTHERS)
def test_every_spelling_of_a_channel_is_read(line, way) -> None:
    assert transports([line]).to_json() == {"pairs": {way: 1}}


def test_network_and_nvls_are_facts_of_their_own() -> None:
    assert transports([NETWORK + NO_NVLS]).to_json() == {"network": "Socket", "nvls_channels": 0}
    assert transports([NETWORK]).sentence == ""


def test_sentence_says_what_the_record_proves_and_nothing_without_a_line() -> None:
    ways = transports([CUMEM_AND_IB, SHM_AND_SOCKET])
    assert ways.sentence.startswith("NCCL's transport: NET/IB/GDRDMA (2 pairs of ranks), NET/Socket (1 pair of ranks)")
    assert ways.pairs
    assert transports(["NCCL INFO NET/IB : No device found."]) == Transports()


# What torch and NCCL said in reports. Line ends are kept: torch prints the result's name in a line of its own.
QUOTED = [
    # https://github.com/NVIDIA/nccl/issues/1410
    (
        (
            "[rank7]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
            "[rank7]: ncclUnhandledCudaError: Call to CUDA function failed.\n[rank7]: Last error:\n[rank7]: Cuda failure 1 'invalid argument'"
        ),
        "ncclUnhandledCudaError",
    ),
    # https://github.com/pytorch/pytorch/issues/149984
    (
        (
            "NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.25.1\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:"
        ),
        "ncclSystemError",
    ),
    # https://github.com/NVIDIA/nccl/issues/834: an older wording
    ("ncclSystemError: System call (socket, malloc, munmap, etc) failed", "ncclSystemError"),
    # https://github.com/Tencent-Hunyuan/HunyuanVideo/issues/114
    (
        "[rank0]: RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "ncclSystemError",
    ),
    # https://github.com/NVIDIA/nccl/issues/1247
    (
        (
            "torch.distributed.DistBackendError: NCCL error in: /root/pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, internal error - please report this issue to the NCCL developers, NCCL version 2.18.6\n"
            "ncclInternalError: Internal check failed.\nLast error:\nAttribute busid of node nic not found"
        ),
        "ncclInternalError",
    ),
    # https://github.com/NVIDIA/nccl/issues/1672: a result of CUDA in NCCL's line, no invalid argument of NCCL's
    ("transport/nvls.cc:598 NCCL WARN Cuda failure 1 'invalid argument'", "ncclUnhandledCudaError"),
    # https://github.com/NVIDIA/nccl/issues/520: before the words "please report this issue"
    (
        "RuntimeError: NCCL error in: ../torch/lib/c10d/ProcessGroupNCCL.cpp:825, internal error, NCCL version 20.9.9",
        "ncclInternalError",
    ),
    # https://github.com/NVIDIA/nccl-tests/issues/166
    (
        "Test NCCL failure common.cu:958 'internal error - please report this issue to the NCCL developers / '",
        "ncclInternalError",
    ),
    # https://github.com/NVIDIA/nccl/issues/1558
    (
        (
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2777, invalid argument (run with NCCL_DEBUG=WARN for details), NCCL version 2.21.5\n"
            "ncclInvalidArgument: Invalid value for an argument.\nLast error:\nBroadcast : sendbuff (nil) is not a valid pointer"
        ),
        "ncclInvalidArgument",
    ),
    # https://github.com/NVIDIA/nccl/issues/276
    ("  what():  NCCL Error 4: invalid argument", "ncclInvalidArgument"),
    # https://github.com/verl-project/verl/issues/161
    (
        (
            "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.20.5\n"
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 10"
        ),
        "ncclInvalidUsage",
    ),
    # https://github.com/horovod/horovod/issues/3929
    (
        "smc-gpu-03:29880:30398 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 1000",
        "ncclInvalidUsage",
    ),
    # https://github.com/NVIDIA/nccl/issues/2076
    (
        (
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a network error, NCCL version 2.21.5\n"
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
        ),
        "ncclRemoteError",
    ),
    # https://github.com/tatsu-lab/stanford_alpaca/issues/207
    (
        "NCCL error: remote process exited or there was a network error, NCCL version 2.14.3 ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "ncclRemoteError",
    ),
]
# Wordings that other programs print around a result's number: made up here, not quoted. No report of result 8 was found.
TYPICAL = [("RuntimeError: NCCL error 2", "ncclSystemError"), ("ncclResult_t 8", "ncclTimeout")]


@pytest.mark.parametrize(("text", "name"), [*QUOTED, *TYPICAL])
def test_result_of_nccl_is_told_with_its_cause_and_what_to_do_next(text, name) -> None:
    result = next(r for r in RESULTS if r.name == name)
    assert explained(text) == f"{text} -- {result.cause}; next: {result.next}"


@pytest.mark.parametrize(
    "text", ["ValueError: invalid argument", "connection closed by peer", "NCCL version 2.27.5", ""]
)
def test_words_that_are_no_result_of_nccl_are_left_alone(text) -> None:
    assert explained(text) == text


def test_results_are_those_of_nccl_h_in_order() -> None:
    for code, result in enumerate(RESULTS, start=1):
        assert explained(f"NCCL error {code}").endswith(result.next)
    assert [(r.name, code) for code, r in enumerate(RESULTS, start=1) if r.name in ("ncclRemoteError", "ncclTimeout")] == [
        ("ncclRemoteError", 6), ("ncclTimeout", 8),
    ]  # fmt: skip
