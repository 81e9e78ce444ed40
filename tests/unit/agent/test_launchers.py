"""Who started this process as a rank."""

from __future__ import annotations

import pytest

from envsmith.agent.launchers import discover, ranks_here


@pytest.mark.parametrize(
    ("env", "due"),
    [
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "29500"},
            ("torchrun", 3, 8, "h", 29501),
        ),
        (
            {
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "2",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_NODELIST": "node[03-05,9],x",
                "SLURM_JOB_ID": "17",
            },
            ("slurm", 1, 2, "node03", 20017),
        ),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, ("openmpi", 0, 2, "127.0.0.1", 29411)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ("pmi", 1, 2, "127.0.0.1", 29411)),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
            ("torchrun", 0, 2, "127.0.0.1", 29411),
        ),
    ],
)
def test_rank_is_discovered_in_the_documented_order(env, due) -> None:
    found = discover(env, {})
    assert (found.launcher, found.rank, found.world, found.master, found.port) == due


def test_flags_win_over_every_launcher_and_nothing_means_no_rank() -> None:
    assert (
        discover({"RANK": "3", "WORLD_SIZE": "8"}, {"rank": 0, "world_size": 2, "master_port": 7}).launcher == "flags"
    )
    assert discover({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, {}) is None
    assert discover({}, {}) is None


@pytest.mark.parametrize(
    ("env", "world", "due"),
    [
        ({"LOCAL_WORLD_SIZE": "8", "SLURM_NTASKS_PER_NODE": "4"}, 16, 8),
        ({"SLURM_NTASKS_PER_NODE": "4"}, 8, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}, 7, 2),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 4, 2),
        ({}, 4, 4),
    ],
)
def test_launcher_says_how_many_ranks_a_node_has(env, world, due) -> None:
    assert ranks_here(env, world) == due
