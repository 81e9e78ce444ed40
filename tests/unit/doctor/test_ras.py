"""Reports of NCCL's RAS. The samples are those of NVIDIA's documentation: NCCL user guide, troubleshooting/ras.rst."""

from __future__ import annotations

import json

from envsmith.doctor.rank_failures import blame_texts, read_ras

STOPPED = """\
Communicators... (2.05s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         4       7-8        32        32   RUNNING  INCOMPLETE

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 21
"""
BEHIND = """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 2 -- GPU 2 managed by process 483074 on node 172.16.64.210
"""
HEALTHY = """\
Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         8         4         1         4        32   RUNNING      OK
"""
MISSING = {
    "nccl_version": "2.29.1",
    "communicators": [
        {
            "hash": "0xae94423cfbb2ef4a",
            "size": 2,
            "ranks": [{"rank": 0, "host": "172.16.64.245", "pid": 1524344, "collective_counts": {"AllReduce": 0}}],
            "missing_ranks": [{"rank": 1, "host": "172.16.64.245", "pid": 1524345, "status": {"unresponsive": True}}],
        }
    ],
}


def test_a_rank_that_does_not_answer_is_named():
    source, answer = blame_texts([("ras.txt", STOPPED)])

    assert source == "ras.txt"
    assert answer.ranks == (21,)
    assert answer.kind == "rank-late"


def test_the_same_in_json():
    _, answer = blame_texts([("ras.json", json.dumps(MISSING, indent=2))])

    assert answer.ranks == (1,)
    assert "process 1524345 on 172.16.64.245" in answer.evidence[0]


def test_ranks_that_are_behind_are_named_with_less_confidence():
    _, answer = blame_texts([("ras.txt", BEHIND)])

    assert (answer.ranks, answer.confidence) == ((0, 2), "medium")
    assert answer.fix.startswith("Ask ncclras again")


def test_a_healthy_job_gives_nothing():
    assert read_ras(HEALTHY).events == ()
    assert blame_texts([("ras.txt", HEALTHY)]) is None
