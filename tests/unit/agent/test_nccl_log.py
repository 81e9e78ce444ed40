"""What of NCCL's log stays: the telling lines of every release, each once, however long the log is.

The lines are of public reports, whose addresses stand beside them; those under FORMATS are filled-in format strings of NCCL's sources.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envsmith.agent.nccl_log import evidence, evidence_of, log_in_memory
from envsmith.smoke.nccl_text import transports

# https://github.com/NVIDIA/nccl/issues/892 (2.17 or 2.18), /1584 (2.24.3), nccl-tests/issues/228, aws-ofi-nccl/issues/715, nccl/issues/1538 (2.22.3),
# /1189, /302 (2.5.6), /1672
QUOTED = [
    "036260b61d3a:33347:33366 [6] NCCL INFO 16 coll channels, 0 nvls channels, 16 p2p channels, 16 p2p channels per peer",
    "algo-1:18062:18131 [5] NCCL INFO NVLS multicast support is not available on dev 5",
    "user:5181:5232 [2] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_2:1/IB [RO]; OOB ibs85f0:192.168.1.10<0>",
    "user:5181:5232 [2] NCCL INFO Using network IB",
    "job-3bb823c0-6d27-4312-8094-1c5910bf9b51-worker-0:5670:5810 [7] NCCL INFO Channel 02/0 : 7[7] -> 0[0] via P2P/CUMEM",
    "H20-GPU-06:4015539:4015652 [0] NCCL INFO Channel 07/0 : 0[0] -> 2[0] [receive] via NET/IB/3/GDRDMA",
    "[155] crow-ib-new-nccl-256-info-19:5330:5499 [3] NCCL INFO Ring 00 : 155[3d000] -> 157[b2000] via P2P/IPC",
    "node:1:2 [0] transport/nvls.cc:598 NCCL WARN Cuda failure 1 'invalid argument'",
]
# v2.14.3-1 src/init.cc:1095, v2.18.6-1 src/transport/nvls.cc:310, v2.21.5-1 src/graph/topo.cc:741 and src/init.cc:1297, v2.28.9-1 and v2.30.7-1
# src/plugin/net.cc
FORMATS = [
    "h:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1a000 - Init COMPLETE",
    "h:1:2 [0] NCCL INFO NVLS comm 0x1 headRank 0 nHeads 8 buffSize 4194304 memSize 2097152 nvlsPerRankSize 301989888 nvlsTotalSize 2415919104",
    "h:1:2 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
    "h:1:2 [0] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer",
    "h:1:2 [0] NCCL INFO Assigned NET plugin IB to comm",
]


@pytest.mark.parametrize("line", [*QUOTED, *FORMATS])
def test_telling_line_of_any_release_stays(line) -> None:
    assert len(evidence([line]).splitlines()) == 1


def test_facts_of_a_record_are_the_same_from_the_evidence_as_from_the_log() -> None:
    assert transports([evidence([*QUOTED, *FORMATS])]) == transports([*QUOTED, *FORMATS])
    assert transports([evidence(FORMATS)]).nvls_channels == 16


def test_host_process_and_channel_are_left_out_so_that_a_pair_of_ranks_has_one_line_for_each_way() -> None:
    lines = [f"secret-host:7:{8 + i} [0] NCCL INFO Channel {i:02d}/0 : 0[0] -> 1[1] via P2P/CUMEM" for i in range(64)]
    assert evidence(lines) == "[0] NCCL INFO Channel : 0[0] -> 1[1] via P2P/CUMEM"


def test_what_stands_at_the_end_of_a_long_log_is_not_cut_and_what_is_beyond_the_bounds_is_counted() -> None:
    peers = [f"h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> {peer}[0] [send] via NET/IB/{peer % 8}/GDRDMA" for peer in range(1, 500)]  # fmt: skip
    text = evidence([*peers, *FORMATS])
    assert "16 nvls channels" in text
    assert text.endswith("lines left out: 99 of ways")
    assert transports([text]).pairs == {"NET/IB/GDRDMA": 400}


def test_sockets_are_told_from_infiniband_on_two_nodes() -> None:
    # https://github.com/NVIDIA/nccl-tests/issues/166, https://github.com/NVIDIA/nccl/issues/1053, /1189
    sockets = ["ubuntu:9621:9692 [7] NCCL INFO Channel 14/0 : 15[7] -> 0[0] [send] via NET/Socket/0", "axa:3048391:3048566 [0] NCCL INFO Using network Socket"]  # fmt: skip
    assert transports([evidence(sockets)]).to_json() == {"pairs": {"NET/Socket": 1}, "network": "Socket"}
    assert transports([evidence(QUOTED)]).pairs["NET/IB/GDRDMA"] == 1


def test_noise_is_left_out_and_a_missing_log_is_empty(tmp_path) -> None:
    assert evidence(["h:1:2 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1", "hello"]) == ""
    assert evidence_of(str(tmp_path / "none")) == ""


def test_log_in_memory_is_opened_by_its_path_and_read_again() -> None:
    path = log_in_memory()
    if not path:
        pytest.skip("this kernel has no memfd_create")
    Path(path).write_text("\n".join(QUOTED))  # opens it as NCCL opens NCCL_DEBUG_FILE
    assert "Using network IB" in evidence_of(path)
    assert os.path.realpath(path).startswith("/memfd:")
    os.close(int(path.rpartition("/")[2]))
