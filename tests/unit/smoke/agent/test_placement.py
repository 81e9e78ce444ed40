"""Where the ranks go."""

from __future__ import annotations

import pytest

from envsmith.smoke.agent.placement import place_direct, place_nccl


@pytest.mark.parametrize(
    ("gpus", "nccl", "ranks", "devices", "word"),
    [
        (4, "2.27.5", 4, [0, 1, 2, 3], "4 ranks on 4 GPUs"),
        (8, "2.30.7", 4, [0, 1, 2, 3], "4 ranks on 4 GPUs"),
        (1, "2.28.9", 4, [0, 0], "NCCL_HOSTID, sockets"),
        (1, "2.30.7", 4, [0, 0], "NCCL_MULTI_RANK_GPU_ENABLE"),
        (2, "2.28.9", 4, [0, 1, 0, 1], "NCCL_HOSTID, sockets"),
    ],
)
def test_ranks_share_a_gpu_in_the_way_that_this_nccl_knows_and_the_sentence_says_so(
    gpus, nccl, ranks, devices, word
) -> None:
    placement = place_nccl(ranks, gpus, nccl, {}, "/run")
    assert placement["devices"] == devices
    assert word in placement["sentence"]
    assert placement["ranks"] == len(devices) == len(placement["rank_env"])
    hosts = [env.get("NCCL_HOSTID") for env in placement["rank_env"]]
    if "HOSTID" in word:
        assert len(set(hosts)) == len(devices)
        assert placement["env"]["NCCL_SHM_DISABLE"] == "1"
    else:
        assert set(hosts) == {None}
    if "MULTI_RANK" in word:
        assert placement["env"] == {
            "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "1", "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
        }  # fmt: skip


@pytest.mark.parametrize(("wanted", "nccl"), [("hostid", "2.30.7"), ("multi-rank", "2.30.7"), ("hostid", "2.21.5")])
def test_plan_that_asks_for_it_puts_two_ranks_on_the_first_of_many_gpus(wanted, nccl) -> None:
    placement = place_nccl(4, 8, nccl, {"sharing": wanted}, "/run")
    assert (placement["devices"], placement["sharing"]) == ([0, 0], wanted)
    assert ("NCCL_HOSTID" in placement["rank_env"][1]) == (wanted == "hostid")
    assert "on 1 GPU (" in placement["sentence"]


def test_one_rank_has_a_gpu_of_its_own() -> None:
    placement = place_nccl(1, 1, "2.28.9", {}, "/run")
    assert (placement["sentence"], placement["env"], placement.get("sharing")) == ("1 rank on 1 GPU", {}, None)


def _place(rank: int, world: int = 4) -> dict[str, object]:
    return {"how": "torchrun", "rank": rank, "world": world, "local": rank % 2}


def test_ranks_of_a_launcher_that_share_a_gpu_are_hosts_of_their_own_on_every_node() -> None:
    env = {"LOCAL_WORLD_SIZE": "2"}
    placed = [place_direct(_place(rank), env, 1, "2.28.9", {}) for rank in range(4)]
    assert len({p["env"]["NCCL_HOSTID"] for p in placed}) == 4
    assert "NCCL_SOCKET_IFNAME" not in placed[0]["env"], "ranks of two nodes do not meet on the loopback interface"
    assert "NCCL_HOSTID, sockets" in placed[0]["sentence"]
    assert "proves nothing about NVLink" in placed[0]["sentence"]


def test_ranks_of_a_launcher_share_a_gpu_by_the_variable_of_new_nccl() -> None:
    placed = place_direct(_place(3), {"LOCAL_WORLD_SIZE": "3"}, 1, "2.30.7", {"engine": "legacy"})
    assert placed["env"]["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert placed["env"]["TORCH_DIST_USE_NCCL2"] == "0"
    assert "two ranks on a GPU, not more" in placed["sentence"]


def test_ranks_of_a_launcher_with_enough_gpus_are_left_alone() -> None:
    placed = place_direct(_place(3), {"LOCAL_WORLD_SIZE": "2"}, 2, "2.28.9", {})
    assert placed == {"devices": [1] * 4, "env": {}, "sentence": "4 ranks started by torchrun"}
    assert place_direct(_place(3), {}, 0, "0", {})["devices"] is None
    slurm = {"SLURM_NTASKS_PER_NODE": "2", "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "3"}
    assert place_direct(_place(1), slurm, 1, "2.28.9", {})["env"] == {}


@pytest.mark.parametrize(("engine", "value"), [("legacy", "0"), ("2", "1")])
def test_engine_of_torch_2_15_is_chosen_by_the_plan(engine, value) -> None:
    assert place_nccl(2, 2, "2.30.7", {"engine": engine}, "/run")["env"]["TORCH_DIST_USE_NCCL2"] == value
